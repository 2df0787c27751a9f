"""A custom connector that augments data by a symmetry of the environment."""

from __future__ import annotations

from typing import Any

import torch

from runner.pipelines import Connector, Requirements


class MirrorCartPole(Connector):
    """Mirrors every other row: in a mirrored state, the opposite action is right."""

    requires = Requirements(reads=("obs", "actions"), writes=("obs", "actions"), belongs_in=("learner",))

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Negate the observations and swap the two actions of every other row."""
        for columns in batch.values():
            is_mirrored = torch.arange(len(columns["obs"]), device=columns["obs"].device) % 2 == 1
            columns["obs"] = torch.where(is_mirrored[:, None], -columns["obs"], columns["obs"])
            columns["actions"] = torch.where(is_mirrored, 1 - columns["actions"], columns["actions"])
        return batch
