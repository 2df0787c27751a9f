"""A connector of the learner pipeline with state: its own random stream, and a count of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.episodes.columns import ColumnBlock
from runner.pipelines import Requirements
from runner.pipelines.connector import Batch, Connector
from runner.streams import restore_stream, stream_state


class RewardNoise(Connector):
    """Adds noise to `rewards`; `first_draws` of its state are the first number of each call."""

    requires = Requirements(writes=("rewards",), belongs_in=("learner",))

    def __init__(self) -> None:
        self._stream = np.random.default_rng(0)
        self._first_draws: list[float] = []

    def use_stream(self, stream: np.random.Generator) -> None:
        self._stream = stream

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        noise = self._stream.normal(size=len(batch["rewards"])).astype(np.float32)
        self._first_draws.append(float(noise[0]))
        batch["rewards"] = batch["rewards"] + noise
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"stream": stream_state(self._stream), "first_draws": list(self._first_draws)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        restore_stream(self._stream, state["stream"])
        self._first_draws = list(state["first_draws"])
