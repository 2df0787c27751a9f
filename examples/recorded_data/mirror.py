"""A custom connector: more varied data from what is known of the environment."""

from __future__ import annotations

from typing import Any

import torch

from runner.pipelines import Connector, Requirements


class MirrorCartPole(Connector):
    """Mirrors every other row: what is right to do here, is right the other way round on the other side."""

    requires = Requirements(reads=("obs", "actions"), writes=("obs", "actions"), belongs_in=("learner",))

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Negate observations and exchange the two actions, all rows at once."""
        for columns in batch.values():
            is_mirrored = torch.arange(len(columns["obs"]), device=columns["obs"].device) % 2 == 1
            columns["obs"] = torch.where(is_mirrored[:, None], -columns["obs"], columns["obs"])
            columns["actions"] = torch.where(is_mirrored, 1 - columns["actions"], columns["actions"])
        return batch
