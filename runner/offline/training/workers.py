"""The pool of pre-learners: its resources, and how it receives the newest module."""

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
# With sixteen, Ray Data's estimates leave no memory for pre-learners until the execution has stalled for 20 s.
_BLOCKS_AHEAD = 32
_STDERR = 2
_log = logging.getLogger(__name__)


@contextmanager
def limited_stream(block_bytes: int) -> Iterator[None]:
    """Limit how far data sets created in this context run ahead of the learner.

    The first batch arrives early, and pre-learners that follow the module use recent weights. Ray Data's default limit
    is a quarter of the object store.

    Args:
        block_bytes: size of a block; about thirty are held at a time. A read task must yield only a few blocks,
            otherwise the execution stalls for minutes.
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
    """Re-raise errors of the pipeline's processes, with their cause.

    Raises:
        RunnerError: as raised in the process.
        RunFailure: any other error; the stack trace is in the run's log.
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
    """Redirect this process's stderr to the run's log.

    Ray's C++ code prints a warning when a pool of restartable actors starts.
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
    """Return the minimum and maximum number of pre-learners (default 1), set by `map_batches_kwargs.concurrency`."""
    concurrency = offline.map_batches_kwargs.get("concurrency", 1)
    if isinstance(concurrency, list):
        return concurrency[0], concurrency[1]
    return concurrency, concurrency


def actor_options(offline: OfflineConfig) -> dict[str, Any]:
    """Return `map_batches_kwargs` with `ray_remote_args` merged into its other options."""
    options = dict(offline.map_batches_kwargs)
    options.update(options.pop("ray_remote_args", {}))
    return options


def pool_options(offline: OfflineConfig, num_pools: int = 1) -> dict[str, Any]:
    """Return the options of `map_batches`. Unless `num_cpus` is set, the pools share the CPUs of a single pool.

    In a trial of a sweep, pre-learners always run in its placement group, which has reserved their resources.
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
    """Silence Ray's notice that actor options without a separate parameter end with Ray 2.64."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
        yield


def resources_asked_for(offline: OfflineConfig) -> list[dict[str, float]]:
    """Return the resources that the pipeline needs: its minimum number of pre-learners, and a CPU for reading."""
    options, (least, _) = actor_options(offline), pool_size(offline)
    standard = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
    return [standard | options.get("resources", {})] * least + [{"CPU": _CPUS_FOR_READING, "GPU": 0.0}]


class ModuleBoard:
    """Shares the newest module parameters with pre-learners in other processes.

    The instance is sent to the workers; only the process that created it posts. If the board's process dies, Ray
    restarts it without parameters, and workers keep their current ones until the next post.

    Attributes:
        posted: (P,) parameters posted last; None before the first post and in workers.
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
        """Return the newest version and its parameters, or None if `version` is the newest."""
        import ray

        newest: tuple[int, npt.NDArray[np.float32]] | None = ray.get(self._actor.newer_than.remote(version))
        return newest


class _Board:
    """Actor of a board."""

    def __init__(self) -> None:
        self._newest: tuple[int, Any] | None = None

    def post(self, version: int, parameters: Any) -> None:
        self._newest = (version, parameters)

    def newer_than(self, version: int) -> tuple[int, Any] | None:
        return self._newest if self._newest is not None and self._newest[0] > version else None
