"""The pool of pre-learners: what it asks of the cluster, and how it gets the newest module."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import first_line

_CPUS_FOR_READING = 1.0
# With sixteen, Ray Data's estimates leave nothing for pre-learners until all has stood still for 20 s.
_BLOCKS_AHEAD = 32
_STDERR = 2
_log = logging.getLogger(__name__)


@contextmanager
def limited_stream(block_bytes: int) -> Iterator[None]:
    """Let data sets that are made here run ahead of the learner by little.

    Their first batch is there early, and pre-learners that follow the module work with new weights. Ray Data's own
    limit is a quarter of the object store.

    Args:
        block_bytes: size of a block; some thirty are held at a time. A read task must not give more than a few, else
            the execution waits for minutes.
    """
    from ray.data import DataContext, ExecutionResources

    context = DataContext.get_current()
    options = context.execution_options
    before = context.target_max_block_size, options.resource_limits
    context.target_max_block_size = block_bytes
    options.resource_limits = ExecutionResources(object_store_memory=_BLOCKS_AHEAD * block_bytes)
    try:
        yield
    finally:
        context.target_max_block_size, options.resource_limits = before


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Raise here what fails in the pipeline's processes, with what went wrong and where.

    Raises:
        RunnerError: as it was raised there.
        RunFailure: anything else; the stack trace is in the run's log.
    """
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, RunnerError):
            raise cause from None
        _log.error("%s", error)
        what = f"reading recorded data failed: {type(cause).__name__}: {first_line(cause)}"
        raise RunFailure(Problem(what, "Ray Data's pipeline; the stack trace is in runner.log")) from error


@contextmanager
def native_messages_to_log() -> Iterator[None]:
    """Send what this process writes to stderr to the run's log within.

    Ray's C++ part warns on the terminal whenever a pool is started whose actors may be started again.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as written:
        kept = os.dup(_STDERR)
        os.dup2(written.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STDERR)
            os.close(kept)
            written.seek(0)
            for line in written.read().decode(errors="replace").splitlines():
                _log.warning("%s", line)


def pool_size(offline: OfflineConfig) -> tuple[int, int]:
    """Return least and greatest number of pre-learners; one, unless `map_batches_kwargs.concurrency` is set."""
    concurrency = offline.map_batches_kwargs.get("concurrency", 1)
    if isinstance(concurrency, list):
        return concurrency[0], concurrency[1]
    return concurrency, concurrency


def actor_options(offline: OfflineConfig) -> dict[str, Any]:
    """Return `map_batches_kwargs` with its `ray_remote_args` beside its other options."""
    options = dict(offline.map_batches_kwargs)
    options.update(options.pop("ray_remote_args", {}))
    return options


def pool_options(offline: OfflineConfig, num_pools: int = 1) -> dict[str, Any]:
    """Return options of `map_batches`; without `num_cpus` among them, as many pools share what one would have.

    In a trial of a sweep pre-learners are in its placement group, whatever their strategy: it has made the group.
    """
    from ray.data import ActorPoolStrategy
    from ray.util.placement_group import get_current_placement_group

    least, most = pool_size(offline)
    not_passed = ("concurrency",) if get_current_placement_group() is None else ("concurrency", "scheduling_strategy")
    others = {name: value for name, value in actor_options(offline).items() if name not in not_passed}
    return {
        "num_cpus": 1 if num_pools == 1 else int(1000 / num_pools) / 1000,
        **others,
        "compute": ActorPoolStrategy(min_size=least, max_size=most),
    }


@contextmanager
def remote_args_allowed() -> Iterator[None]:
    """Silence Ray's notice that options of actors without a parameter of their own end with Ray 2.64."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
        yield


def resources_asked_for(offline: OfflineConfig) -> list[dict[str, float]]:
    """Return what the pipeline cannot run without, by Ray's names: its least number of pre-learners, a CPU to read."""
    options, (least, _) = actor_options(offline), pool_size(offline)
    standard = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
    return [standard | options.get("resources", {})] * least + [{"CPU": _CPUS_FOR_READING, "GPU": 0.0}]


class ModuleBoard:
    """The newest module parameters, where pre-learners in other processes can see them.

    An instance is sent to the workers; only the process that made it posts. If the board's process dies, Ray starts it
    again, so that workers can keep what they hold. Until the next post it has no parameters, and workers keep theirs.

    Attributes:
        posted: (P,) the parameters that were posted last; None before, and in workers.
    """

    def __init__(self) -> None:
        import ray

        self._actor: Any = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()
        self._version = 0
        self.posted: npt.NDArray[np.float32] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "posted": None}

    def post(self, parameters: npt.NDArray[np.float32]) -> None:
        """Replace the parameters (P,)."""
        self._version += 1
        self.posted = parameters
        self._actor.post.remote(self._version, parameters)

    def __call__(self, version: int) -> tuple[int, npt.NDArray[np.float32]] | None:
        """Return the newest version and parameters; None if `version` is the newest."""
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
