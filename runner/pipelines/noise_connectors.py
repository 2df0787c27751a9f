"""Connectors that draw random numbers while the module acts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.modules.rl_module import RLModule
from runner.pipelines.connector import NOISE, Batch, Connector
from runner.pipelines.connector_kinds import EnvToModuleConnector
from runner.pipelines.requirements import Requirements
from runner.rows.agent_rows import AgentRows
from runner.rows.running_episodes import RunningEpisodes
from runner.streams import restore_stream, stream_state

_NOISE_STEPS = 256


class DrawsNoise(Connector):
    """Base class of connectors that draw random numbers from their streams, for about 256 vector steps per draw."""

    _noise: Any
    _num_steps: int  # vector steps of `_noise`
    _position: int
    _resume_at: int

    def __init__(self) -> None:
        self.use_stream(np.random.default_rng(0))

    def _next_noise(
        self,
        num_rows: int,
        most_rows: int,
        draw: Callable[[tuple[int, int]], Any],
        repeats: int = 1,
        slots: npt.NDArray[np.int64] | None = None,
    ) -> Any:
        """Return noise (K, ...) for the K rows of a vector step.

        Args:
            num_rows: K, or one more than the largest slot.
            most_rows: the largest possible value of `num_rows`.
            draw: returns noise (draws, rows, ...) of this leading shape.
            repeats: vector steps that use the same draw.
            slots: the row of the noise (K,) for each row, or None to use the first K.
        """
        if self._position == self._num_steps or self._noise[0].shape[0] < num_rows:
            restore_stream(self._before, stream_state(self._stream))
            self._noise = draw((max(1, _NOISE_STEPS // repeats), max(num_rows, most_rows)))
            self._num_steps = len(self._noise) * repeats
            self._position, self._resume_at = self._resume_at, 0
        noise = self._noise[self._position // repeats]
        self._position += 1
        if slots is not None:
            return noise[slots]
        return noise if noise.shape[0] == num_rows else noise[:num_rows]  # not all rows act

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw noise from a copy of `stream`; `stream` itself keeps the state before the current noise."""
        self._before, self._stream = stream, copy.deepcopy(stream)
        self._noise, self._num_steps, self._position, self._resume_at = (), 0, 0, 0

    def get_state(self) -> dict[str, Any]:
        """Return the number of vector steps of the current noise that were used; the pipeline saves the stream it was
        drawn from."""
        if self._position == self._num_steps:  # the next noise begins at this state
            restore_stream(self._before, stream_state(self._stream))
            self._noise, self._num_steps, self._position = (), 0, 0
        return {"position": self._position or self._resume_at}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the noise is drawn again at the next call."""
        restore_stream(self._stream, stream_state(self._before))
        self._noise, self._num_steps, self._position, self._resume_at = (), 0, 0, int(state["position"])


class AddNoiseToBatch(DrawsNoise, EnvToModuleConnector):
    """Adds `noise` (K, D), which modules with noisy layers read, while exploring. Without it the module acts greedily.

    Each row gets separate noise in each vector step, or in each `noise_steps`-th one of the module.
    """

    requires = Requirements(writes=(NOISE,))

    def __call__(
        self,
        *,
        rl_module: RLModule,
        batch: Batch,
        episodes: RunningEpisodes,
        explore: bool | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the column."""
        if explore:
            repeats, draw = rl_module.noise_steps, partial(rl_module.draw_noise, self._stream)
            num_rows, slots = len(episodes), None
            if repeats > 1 and isinstance(episodes, AgentRows):  # whose order varies
                slots = episodes.slots
                num_rows = int(slots.max(initial=-1)) + 1
            batch[NOISE] = self._next_noise(num_rows, episodes.max_rows, draw, repeats, slots)
        return batch

    def to_graph(self) -> None:
        """Return None, because an exported policy acts without noise."""
        return None
