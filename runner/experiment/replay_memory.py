"""The memory of replay buffers: reported when a run starts, and rejected if the machine does not have enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.errors import ConfigError, Problem
from runner.config.plans.buffers import modules_stored_in
from runner.config.schemas import ExperimentConfig
from runner.episodes.columns import Rollout
from runner.experiment.first_sample import first_sample, reduced
from runner.experiment.machine_memory import available_memory
from runner.experiment.replay_builder import build_replay_buffers
from runner.module_building import BuiltModule, build_modules
from runner.tracking.headline import bytes_text

# The remaining memory is for the learner, env runners in this process, and checkpoints.
SHARE_OF_BUFFERS = 0.8


@dataclass(frozen=True)
class BufferMemory:
    """Memory of a full replay buffer.

    Attributes:
        name: name of the buffer.
        capacity: number of env steps per module.
        row_bytes: bytes per env step, summed over all modules.
        num_modules: number of modules whose env steps the buffer stores.
    """

    name: str
    capacity: int
    row_bytes: float
    num_modules: int

    @property
    def num_bytes(self) -> float:
        """The memory of the full buffer in bytes."""
        return self.capacity * self.row_bytes

    def __str__(self) -> str:
        of_modules = "" if self.num_modules == 1 else f" in {self.num_modules} modules"
        size = f"{round(self.row_bytes):,} bytes each{of_modules}"
        return f"{self.capacity:,} env steps, {size}, {bytes_text(round(self.num_bytes))}"


def check_replay_memory(config: ExperimentConfig) -> None:
    """Reject buffers that do not fit into the memory of this machine, before the run dir is created.

    Raises:
        ConfigError: the buffers are too large, or a part of the run cannot be created.
        RunFailure: the environment failed in its first steps.
    """
    if config.algorithm.replay_buffers:
        measure_replay(config, build_modules(reduced(config)))


def measure_replay(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], rollout: Rollout | None = None
) -> list[BufferMemory]:
    """Compute the memory of each full buffer from the columns of the first env steps, without allocating it.

    Args:
        config: configuration of the run.
        built_modules: module id -> network and pipelines.
        rollout: some env steps, or None to sample a few if there are buffers.

    Raises:
        ConfigError: a buffer cannot be created, or together the buffers need more than `SHARE_OF_BUFFERS` of the free
            memory.
        RunFailure: the environment failed in its first steps.
    """
    buffers = build_replay_buffers(config, built_modules)
    if not buffers:
        return []
    rollout = first_sample(config, built_modules) if rollout is None else rollout
    auxiliary = config.multi_agent.auxiliary_modules
    rollout = rollout.of_modules(None, auxiliary)
    measured = []
    for name, buffer in buffers.items():
        stored = modules_stored_in(name, config, list(rollout.blocks))
        if any(module_id not in auxiliary for module_id in stored):  # sampled steps have the ids of acting modules
            stored = [module_id for module_id in stored if module_id not in auxiliary]
        row_bytes = sum(buffer.row_bytes(module_id, rollout.blocks[module_id]) for module_id in stored)
        measured.append(BufferMemory(name, buffer.capacity, row_bytes, len(stored)))
    check_fits(measured, available_memory())
    return measured


def check_fits(buffers: Sequence[BufferMemory], available: int) -> None:
    """Reject buffers that need more than `SHARE_OF_BUFFERS` of `available` bytes.

    Raises:
        ConfigError: one problem per buffer, with the largest capacity that fits if all shrink by the same factor.
    """
    total, room = sum(buffer.num_bytes for buffer in buffers), SHARE_OF_BUFFERS * available
    if total <= room:
        return
    alone = len(buffers) == 1
    takes = "the replay buffer needs" if alone else f"{len(buffers)} replay buffers together need"
    free = f"this machine has {bytes_text(available)} of free memory, of which replay may use {SHARE_OF_BUFFERS:.0%}"
    raise ConfigError(
        [
            Problem(
                f"{takes} {bytes_text(round(total))}: {free}",
                f"algorithm.replay_buffers.{buffer.name}.capacity",
                str(buffer),
                f"up to {int(buffer.capacity * room / total):,}{'' if alone else ' if all shrink by the same factor'}",
            )
            for buffer in buffers
        ]
    )
