"""Lists of pipeline edits, which add up: first groups, then the experiment, then the command line.

A list that begins with `discard: earlier_edits` replaces all lists before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Key of the algorithm that a module has of its own.
MODULE_ALGORITHM = re.compile(r"multi_agent\.modules\.[^.]+\.algorithm")
PIPELINES = ("env_to_module", "module_to_env", "learner")
OF_MODULES = "connectors.modules"  # module id -> pipeline -> edits
DISCARD, EARLIER = "discard", "earlier_edits"
# Key of an edit with an anchor, and argument of a nested pipeline.
CONNECTOR_KEY, CONNECTORS_KEY = "connector", "connectors"
OLD_CONNECTOR_KEY, OLD_CONNECTORS_KEY = "piece", "pieces"  # aliases of them
# Pipeline -> field of the algorithm that edits it; `connectors` edit it afterwards.
OF_ALGORITHM = {"module_to_env": "module_to_env_pipeline", "learner": "learner_pipeline"}
# Module id -> fields of the algorithm; lists of edits in it replace each other in a composition.
OVERRIDES = "multi_agent.algorithm_config_overrides_per_module"
_LIST_OF_OVERRIDES = re.compile(rf"{re.escape(OVERRIDES)}\.[^.]+\.({'|'.join(OF_ALGORITHM.values())})(?=\.|$)")
_LIST = re.compile(
    rf"((algorithm|{MODULE_ALGORITHM.pattern})\.({'|'.join(OF_ALGORITHM.values())})|connectors\.(modules\.[^.]+\.)?({'|'.join(PIPELINES)}))(?=\.|$)"
)


def discards_earlier(edits: Sequence[Any]) -> bool:
    """Return whether this list replaces the lists before it."""
    return bool(edits) and edits[0] == {DISCARD: EARLIER}


def added_up(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Add the edits of a later list to an earlier list, unless it discards them."""
    return list(later[1:]) if discards_earlier(later) else [*earlier, *later]


def added_connectors(edit: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the blocks of the connectors that an edit adds; nested pipelines are followed by their connectors."""
    if isinstance(edit, Mapping):
        yield from _connectors_in([edit.get(key) for key in ("prepend", "append", CONNECTOR_KEY)])


def _connectors_in(blocks: Any) -> Iterator[Mapping[str, Any]]:
    for block in blocks if isinstance(blocks, list) else ():  # other checks report what is not a list
        if isinstance(block, Mapping) and isinstance(block.get("_target_"), str):
            yield block
            yield from _connectors_in(block.get(CONNECTORS_KEY))


def edit_list_of(key: str) -> str | None:
    """Return the key of the list that a dotted key is or lies in; None for other keys."""
    found = _LIST.match(key)
    return None if found is None else found[1]


def place_in_edits(keys: Sequence[str]) -> int | None:
    """Return the number of the first keys, those of the list of edits that keys lead to or into; None for others.

    Lists of edits in `OVERRIDES` count too.
    """
    key = ".".join(keys)
    found = _LIST.match(key) or _LIST_OF_OVERRIDES.match(key)
    return None if found is None else found[0].count(".") + 1


def module_algorithm_key(module_id: str) -> str:
    """Return the dotted key of the algorithm that a module has of its own."""
    return f"multi_agent.modules.{module_id}.algorithm"
