"""A wrapper that makes any environment crash and stall at random, to test how a run copes with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from runner.streams import random_stream

_RATES = ("crash_rate_step", "crash_rate_reset", "stall_rate_step", "stall_rate_reset")


def _is_range(seconds: Any) -> bool:
    are_two = isinstance(seconds, Sequence) and len(seconds) == 2
    return are_two and all(isinstance(bound, (int, float)) for bound in seconds) and 0.0 <= seconds[0] <= seconds[1]


class Crash(RuntimeError):
    """The error that `CrashAndStall` raises."""


class CrashAndStall(gym.Wrapper[Any, Any, Any, Any]):
    """Raises an error or sleeps in some steps and resets, which are drawn from the seed of the reset.

    Args:
        env: the environment.
        crash_rate_step, crash_rate_reset: probabilities that a step or a reset raises `Crash`.
        stall_rate_step, stall_rate_reset: probabilities that a step or a reset sleeps first.
        stall_seconds: shortest and longest sleep.

    Raises:
        ValueError: a rate is not a probability, or the seconds are not a range.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        crash_rate_step: float = 0.0,
        crash_rate_reset: float = 0.0,
        stall_rate_step: float = 0.0,
        stall_rate_reset: float = 0.0,
        stall_seconds: Sequence[float] = (2.0, 5.0),
    ) -> None:
        super().__init__(env)
        self._crash_rates = {"step": crash_rate_step, "reset": crash_rate_reset}
        self._stall_rates = {"step": stall_rate_step, "reset": stall_rate_reset}
        rates = (crash_rate_step, crash_rate_reset, stall_rate_step, stall_rate_reset)
        for name, rate in zip(_RATES, rates, strict=True):
            if not isinstance(rate, (int, float)) or not 0.0 <= rate <= 1.0:
                raise ValueError(f"{name} must be a number from 0 to 1, got {rate!r}")
        if not _is_range(stall_seconds):
            raise ValueError(f"stall_seconds must be [shortest, longest] in seconds, got {stall_seconds!r}")
        self._shortest_s, self._longest_s = stall_seconds
        self._random = random_stream(0, "CrashAndStall")  # until the first reset; equal in checkpoints of equal runs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, if this reset does not crash."""
        if seed is not None:  # a stream other than the environment's, which has the same seed
            self._random = random_stream(seed, "CrashAndStall")
        self._misbehave("reset")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, if it does not crash."""
        self._misbehave("step")
        return self.env.step(action)

    def _misbehave(self, method: str) -> None:
        stalls, crashes, share = self._random.uniform(size=3).tolist()
        if stalls < self._stall_rates[method]:
            time.sleep(self._shortest_s + share * (self._longest_s - self._shortest_s))
        if crashes < self._crash_rates[method]:
            raise Crash(f"CrashAndStall crashes this {method}")
