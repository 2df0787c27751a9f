"""Sources of an algorithm's experience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from runner.env_runners.env_runner import Weights


class Experience(Protocol):
    """The interface of env runners and recorded data for a trainer.

    Attributes:
        shared_state: by module id, the merged state of pieces that runners share.
    """

    shared_state: dict[str, Any]

    def set_weights(self, weights: Weights) -> None:
        """Work with these parameters (module id -> vector) from now on."""

    def get_state(self) -> dict[str, Any]:
        """Everything that the next batch depends on; `shared` is `shared_state`."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` of an equal source."""

    def start_anew(self, state: Mapping[str, Any]) -> None:
        """Begin anew after a state of another source, repeating nothing of it."""

    def close(self) -> None:
        """Free all resources."""
