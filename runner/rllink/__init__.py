"""RLlink: training with external simulators. The client does not need any other part of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.rllink.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from runner.rllink.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
