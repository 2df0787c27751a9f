"""The pool of pre-learners: what it asks of the cluster, and how it gets the newest module."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.offline import OfflineConfig

_CPUS_FOR_READING = 1.0


def quiet_ray_data() -> None:
    """Let Ray Data write to its own log only; what users see is the run's display."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True  # batches do not depend on which worker is faster
    logging.getLogger("ray.data").setLevel(logging.WARNING)


@dataclass(frozen=True)
class Resources:
    """Logical resources of a cluster."""

    num_cpus: float
    num_gpus: float


def pool_options(offline: OfflineConfig) -> dict[str, Any]:
    """Options of `map_batches`: one pre-learner, if `map_batches_kwargs` does not say otherwise.

    A list `[least, most]` as `concurrency` is a range in which the pool grows.
    """
    options: dict[str, Any] = {"concurrency": 1, "num_cpus": 1} | offline.map_batches_kwargs
    if isinstance(options["concurrency"], list):
        options["concurrency"] = tuple(options["concurrency"])
    return options


def resources_asked_for(offline: OfflineConfig) -> Resources:
    """What the pipeline cannot run without: its least number of pre-learners, and a CPU to read."""
    options = pool_options(offline)
    concurrency = options["concurrency"]
    least = concurrency[0] if isinstance(concurrency, tuple) else concurrency
    return Resources(least * options["num_cpus"] + _CPUS_FOR_READING, least * options.get("num_gpus", 0))


class ModuleBoard:
    """The newest module parameters, where pre-learners in other processes can see them.

    An instance is sent to the workers; only the process that made it posts.
    """

    def __init__(self) -> None:
        import ray

        self._actor: Any = ray.remote(_Board).options(num_cpus=0).remote()
        self._version = 0

    def post(self, parameters: npt.NDArray[np.float32]) -> None:
        """Replace the parameters (P,)."""
        self._version += 1
        self._actor.post.remote(self._version, parameters)

    def __call__(self, version: int) -> tuple[int, npt.NDArray[np.float32]] | None:
        """The newest version and parameters; None if `version` is the newest."""
        import ray

        newest: tuple[int, npt.NDArray[np.float32]] | None = ray.get(self._actor.newer_than.remote(version))
        return newest


class _Board:
    """The actor of a board."""

    def __init__(self) -> None:
        self._newest: tuple[int, Any] | None = None

    def post(self, version: int, parameters: Any) -> None:
        self._newest = (version, parameters)

    def newer_than(self, version: int) -> tuple[int, Any] | None:
        return self._newest if self._newest is not None and self._newest[0] > version else None
