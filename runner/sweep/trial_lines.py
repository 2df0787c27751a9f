"""The lines of `trials.jsonl`, as far as they can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STATUSES = ("waiting", "running", "interrupted", "finished", "stopped", "failed")


def find_fault(line: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a line, None if it is a trial. Its number names a folder."""
    number = line.get("number")
    if not _is_count(number):
        return f"its number is {number!r:.60}"
    if line.get("status", "waiting") not in _STATUSES:
        return f"its status is {line['status']!r:.60}"
    for name in ("combination", "changed"):
        values = line.get(name, {})
        if not isinstance(values, Mapping) or not all(
            isinstance(value, (str, int, float)) for value in values.values()
        ):
            return f"its {name} is {values!r:.60}"
    if not isinstance(line.get("result", {}), Mapping):
        return f"its result is {line['result']!r:.60}"
    if not _is_count(line.get("num_failures", 0)) or not isinstance(line.get("reason", ""), str):
        return "its failures are not counted"
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
