"""The block of the algorithm that a module has of its own."""

from __future__ import annotations

import re

OWN_BLOCK = re.compile(r"multi_agent\.modules\.[^.]+\.algorithm")


def own_block(module_id: str) -> str:
    """Return its dotted key."""
    return f"multi_agent.modules.{module_id}.algorithm"
