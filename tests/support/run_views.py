"""A run as its parts see it at the end of an iteration, made by hand; and the features of a run by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner import Trainer


@dataclass(frozen=True)
class RunAt:
    """A run after `num_env_steps` env steps.

    Attributes:
        weights: module id -> parameters.
        shared_state: state of shared connectors.
        reported: name of a part -> outcomes.
    """

    num_env_steps: int
    weights: Mapping[str, Any] = field(default_factory=dict)
    shared_state: Mapping[str, Any] = field(default_factory=dict)
    reported: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def get_weights(self) -> Mapping[str, Any]:
        """Return the weights."""
        return self.weights

    def outcomes(self, name: str) -> Sequence[Any]:
        """Return the outcomes of a part."""
        return self.reported.get(name, ())


def feature_of(trainer: Trainer, name: str) -> Any:
    """Return the part of this name, such as the league."""
    return next(part for part in trainer.parts.features if part.name == name)
