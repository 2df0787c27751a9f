"""Classes for tests that differ from a correct class in one thing."""

from __future__ import annotations

from typing import Any


def changed(base: type, **attributes: Any) -> Any:
    """Return a subclass of the same name with other attributes or methods."""
    return type(base.__name__, (base,), attributes)
