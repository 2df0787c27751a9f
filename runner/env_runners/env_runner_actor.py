"""The Ray actor of one env runner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from runner.cluster.actors import Actor
from runner.env_runners.sample import Sample

# Every n-th sample is measured: a measurement serialises the sample, which takes 60 us.
_SAMPLES_PER_SIZE = 16


class EnvRunnerActor(Actor):
    """Holds one env runner, and adds its idle time and its size to each sample.

    Args:
        make: makes the env runner.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        import torch

        torch.set_num_threads(1)
        super().__init__(make)
        self._waits_since_s = time.monotonic()
        self._num_samples = 0
        self._bytes_per_env_step = 0.0

    def _answer(self, method: str, *args: Any) -> Any:
        idle_s = time.monotonic() - self._waits_since_s
        answer = super()._answer(method, *args)
        if answer is not None:  # announcements come with the call that follows, and take no time
            self._waits_since_s = time.monotonic()
        return self._sent(answer, idle_s) if isinstance(answer, Sample) else answer

    def _sent(self, sample: Sample, idle_s: float) -> Sample:
        if self._num_samples % _SAMPLES_PER_SIZE == 0:
            self._bytes_per_env_step = serialised_bytes(sample) / max(1, sample.rollout.num_env_steps)
        self._num_samples += 1
        return sample.sent(idle_s, self._bytes_per_env_step)


def serialised_bytes(value: Any) -> int:
    """Return the number of bytes of a value in Ray's object store: its pickle, and its arrays."""
    from ray import cloudpickle

    arrays: list[Any] = []
    dumps: Any = cloudpickle.dumps
    pickled: bytes = dumps(value, protocol=5, buffer_callback=arrays.append)
    return len(pickled) + sum(int(array.raw().nbytes) for array in arrays)
