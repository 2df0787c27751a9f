"""The block of the algorithm that a module has of its own."""

from __future__ import annotations

import re

MODULE_ALGORITHM = re.compile(r"multi_agent\.modules\.[^.]+\.algorithm")


def module_algorithm_key(module_id: str) -> str:
    """Return its dotted key."""
    return f"multi_agent.modules.{module_id}.algorithm"
