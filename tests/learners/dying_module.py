"""A module whose learner dies or fails in the middle of an update."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import distributed

from runner.modules import ActorCriticModule


class DyingModule(ActorCriticModule):
    """Kills a remote learner's process in a forward pass, or raises there; `model_config` says which, when, how often.

    * `rank`: of the learner;
    * `at`: number of the forward pass since the process started, from 1;
    * `most`: deaths in all;
    * `folder`: has a file for each death so far;
    * `raises`: an error, instead of a death.
    """

    num_passes = 0

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if distributed.is_initialized() and distributed.get_rank() == self.config.model_config["rank"]:
            self._die_if_due(**self.config.model_config)
        return super().forward_train(batch)

    def _die_if_due(self, rank: int, at: int, most: int, folder: str, raises: bool) -> None:
        self.num_passes += 1
        deaths = Path(folder)
        num_deaths = len(list(deaths.iterdir()))
        if self.num_passes == at and num_deaths < most:
            if raises:
                raise ValueError("this module cannot go on")
            (deaths / str(num_deaths)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
