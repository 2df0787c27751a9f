"""Lists of pipeline edits, which are concatenated: first groups, then the experiment, then the command line.

A list that begins with `discard: earlier_edits` replaces all lists before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Key of the algorithm of a single module.
MODULE_ALGORITHM = re.compile(r"multi_agent\.modules\.[^.]+\.algorithm")
PIPELINES = ("env_to_module", "module_to_env", "learner")
OF_MODULES = "connectors.modules"  # module id -> pipeline -> edits
DISCARD, EARLIER = "discard", "earlier_edits"
# Key of an edit with an anchor, and argument of a nested pipeline.
CONNECTOR_KEY, CONNECTORS_KEY = "connector", "connectors"
OLD_CONNECTOR_KEY, OLD_CONNECTORS_KEY = "piece", "pieces"  # aliases
# Pipeline -> field of the algorithm with edits, which precede the edits in `connectors`.
OF_ALGORITHM = {"module_to_env": "module_to_env_pipeline", "learner": "learner_pipeline"}
# Module id -> fields of the algorithm; in a composition, later lists of edits in it replace earlier ones.
OVERRIDES = "multi_agent.algorithm_config_overrides_per_module"
_LIST_OF_OVERRIDES = re.compile(rf"{re.escape(OVERRIDES)}\.[^.]+\.({'|'.join(OF_ALGORITHM.values())})(?=\.|$)")
_LIST = re.compile(
    rf"((algorithm|{MODULE_ALGORITHM.pattern})\.({'|'.join(OF_ALGORITHM.values())})|connectors\.(modules\.[^.]+\.)?({'|'.join(PIPELINES)}))(?=\.|$)"
)


def discards_earlier(edits: Sequence[Any]) -> bool:
    """Return whether this list replaces the lists before it."""
    return bool(edits) and edits[0] == {DISCARD: EARLIER}


def added_up(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Append the edits of a later list to an earlier list, unless it discards them."""
    return list(later[1:]) if discards_earlier(later) else [*earlier, *later]


def added_connectors(edit: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the blocks of the connectors that an edit adds; nested pipelines are followed by their connectors."""
    if isinstance(edit, Mapping):
        yield from _connectors_in([edit.get(key) for key in ("prepend", "append", CONNECTOR_KEY)])


def _connectors_in(blocks: Any) -> Iterator[Mapping[str, Any]]:
    for block in blocks if isinstance(blocks, list) else ():  # other checks report values that are not lists
        if isinstance(block, Mapping) and isinstance(block.get("_target_"), str):
            yield block
            yield from _connectors_in(block.get(CONNECTORS_KEY))


def edit_list_of(key: str) -> str | None:
    """Return the key of the list of edits that equals or contains a dotted key, or None."""
    found = _LIST.match(key)
    return None if found is None else found[1]


def place_in_edits(keys: Sequence[str]) -> int | None:
    """Return the number of leading keys that form the key of a list of edits, or None.

    Lists of edits in `OVERRIDES` count.
    """
    key = ".".join(keys)
    found = _LIST.match(key) or _LIST_OF_OVERRIDES.match(key)
    return None if found is None else found[0].count(".") + 1


def module_algorithm_key(module_id: str) -> str:
    """Return the dotted key of the algorithm of a single module."""
    return f"multi_agent.modules.{module_id}.algorithm"
