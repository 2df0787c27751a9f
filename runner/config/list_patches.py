"""Lists of pipeline edits, which add up: first groups, then the experiment, then the command line.

A list that begins with `discard: earlier_edits` replaces all lists before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Key of the algorithm that a module has of its own.
MODULE_ALGORITHM = re.compile(r"multi_agent\.modules\.[^.]+\.algorithm")
PIPELINES = ("env_to_module", "module_to_env", "learner")
OF_MODULES = "connectors.modules"  # module id -> pipeline -> edits
DISCARD, EARLIER = "discard", "earlier_edits"
# Pipeline -> field of the algorithm that edits it; `connectors` edit it afterwards.
OF_ALGORITHM = {"module_to_env": "module_to_env_pipeline", "learner": "learner_pipeline"}
_LIST = re.compile(
    rf"((algorithm|{MODULE_ALGORITHM.pattern})\.({'|'.join(OF_ALGORITHM.values())})|connectors\.(modules\.[^.]+\.)?({'|'.join(PIPELINES)}))(?=\.|$)"
)


def discards_earlier(edits: Sequence[Any]) -> bool:
    """Return whether this list replaces the lists before it."""
    return bool(edits) and edits[0] == {DISCARD: EARLIER}


def added_up(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Add the edits of a later list to an earlier list, unless it discards them."""
    return list(later[1:]) if discards_earlier(later) else [*earlier, *later]


def edit_list_of(key: str) -> str | None:
    """Return the key of the list that a dotted key is or lies in; None for other keys."""
    found = _LIST.match(key)
    return None if found is None else found[1]


def module_algorithm_key(module_id: str) -> str:
    """Return the dotted key of the algorithm that a module has of its own."""
    return f"multi_agent.modules.{module_id}.algorithm"
