"""Pieces that draw random numbers while the module acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runner.modules.rl_module import RLModule
from runner.pipelines.piece import NOISE, Batch, ConnectorPiece
from runner.pipelines.piece_kinds import EnvToModulePiece
from runner.rows.running_episodes import RunningEpisodes
from runner.streams import restore_stream, stream_state

_NOISE_STEPS = 256


class DrawsNoise(ConnectorPiece):
    """Base of pieces that draw random numbers, each from its stream: the noise of 256 vector steps at once."""

    def __init__(self) -> None:
        self._stream = np.random.default_rng(0)
        self._noise: Any = ()
        self._position = 0
        self._resume_at = 0
        self._drawn_from: dict[str, Any] = {}

    def _next_noise(self, num_rows: int, most_rows: int, draw: Callable[[tuple[int, int]], Any]) -> Any:
        """Return noise (K, ...) for the K rows of a vector step.

        Args:
            num_rows: K.
            most_rows: the largest K there can be.
            draw: returns noise (vector steps, rows, ...) of this leading shape.
        """
        if self._position == len(self._noise) or self._noise[0].shape[0] < num_rows:
            self._drawn_from = stream_state(self._stream)
            self._noise = draw((_NOISE_STEPS, max(num_rows, most_rows)))
            self._position, self._resume_at = self._resume_at, 0
        noise = self._noise[self._position]
        self._position += 1
        return noise if noise.shape[0] == num_rows else noise[:num_rows]  # fewer rows act than could

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw noise from `stream`."""
        self._stream = stream
        self._noise, self._position, self._resume_at = (), 0, 0

    def get_state(self) -> dict[str, Any]:
        """Return the stream before the current noise was drawn, and how much of that noise is used."""
        if self._resume_at or self._position == len(self._noise):
            return {"stream": stream_state(self._stream), "position": self._resume_at}
        return {"stream": self._drawn_from, "position": self._position}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the noise is drawn again at the next call."""
        restore_stream(self._stream, state["stream"])
        self._noise, self._position, self._resume_at = (), 0, int(state["position"])


class AddNoiseToBatch(DrawsNoise, EnvToModulePiece):
    """Adds `noise` (K, D), which a module with noisy layers reads; only while exploring, so that it acts greedily else.

    Each row of each vector step has noise of its own.
    """

    writes = (NOISE,)

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
            draw = rl_module.draw_noise
            batch[NOISE] = self._next_noise(
                len(episodes), episodes.max_rows, lambda leading: draw(self._stream, leading)
            )
        return batch

    def to_graph(self) -> None:
        """Return None: an exported policy acts without noise."""
        return None
