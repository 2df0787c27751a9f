"""The memory of replay buffers: told when a run starts, and refused where the machine has not so much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.errors import ConfigError, Problem
from runner.config.plans import modules_stored_in
from runner.config.schemas import ExperimentConfig
from runner.episodes.columns import Rollout
from runner.experiment.first_sample import first_sample, reduced
from runner.experiment.machine_memory import available_memory
from runner.experiment.replay_builder import build_replay_buffers
from runner.module_parts import ModuleParts, build_parts
from runner.tracking.headline import bytes_text

# The rest is for the learner, env runners in this process, and checkpoints.
SHARE_OF_BUFFERS = 0.8


@dataclass(frozen=True)
class BufferMemory:
    """What a buffer takes once it is full.

    Attributes:
        name: of the buffer.
        capacity: env steps of each module.
        row_bytes: bytes of an env step of all modules.
        num_modules: modules whose env steps it keeps.
    """

    name: str
    capacity: int
    row_bytes: float
    num_modules: int

    @property
    def num_bytes(self) -> float:
        """The memory of the full buffer."""
        return self.capacity * self.row_bytes

    def __str__(self) -> str:
        of_modules = "" if self.num_modules == 1 else f" in {self.num_modules} modules"
        size = f"{round(self.row_bytes):,} bytes each{of_modules}"
        return f"{self.capacity:,} env steps, {size}, {bytes_text(round(self.num_bytes))}"


def check_replay_memory(config: ExperimentConfig) -> None:
    """Refuse buffers that the machine has not the memory for, before a run has a folder.

    Raises:
        ConfigError: they are too large, or a part of the run cannot be made.
        RunFailure: the environment failed in its first steps.
    """
    if config.algorithm.replay_buffers:
        measure_replay(config, build_parts(reduced(config)))


def measure_replay(
    config: ExperimentConfig, parts: Mapping[str, ModuleParts], rollout: Rollout | None = None
) -> list[BufferMemory]:
    """Return the memory of each buffer, from the columns of the first env steps; nothing of it is taken yet.

    Args:
        config: the experiment.
        parts: of its modules.
        rollout: some env steps; None: a few are sampled, if there are buffers.

    Raises:
        ConfigError: together the buffers take more than `SHARE_OF_BUFFERS` of the memory that is free; one cannot be
            made.
        RunFailure: the environment failed in its first steps.
    """
    buffers = build_replay_buffers(config, parts)
    if not buffers:
        return []
    rollout = first_sample(config, parts) if rollout is None else rollout
    measured = []
    for name, buffer in buffers.items():
        stored = modules_stored_in(name, config, list(rollout.blocks))
        row_bytes = sum(buffer.row_bytes(module_id, rollout.blocks[module_id]) for module_id in stored)
        measured.append(BufferMemory(name, buffer.capacity, row_bytes, len(stored)))
    check_fits(measured, available_memory())
    return measured


def check_fits(buffers: Sequence[BufferMemory], available: int) -> None:
    """Refuse buffers that take more than `SHARE_OF_BUFFERS` of `available` bytes.

    Raises:
        ConfigError: a problem for each buffer, with the largest capacity that fits if all shrink alike.
    """
    total, room = sum(buffer.num_bytes for buffer in buffers), SHARE_OF_BUFFERS * available
    if total <= room:
        return
    alone = len(buffers) == 1
    takes = "the replay buffer takes" if alone else f"{len(buffers)} replay buffers together take"
    free = f"{bytes_text(available)} of memory are free on this machine, {SHARE_OF_BUFFERS:.0%} of them for replay"
    raise ConfigError(
        [
            Problem(
                f"{takes} {bytes_text(round(total))}: {free}",
                f"algorithm.replay_buffers.{buffer.name}.capacity",
                str(buffer),
                f"up to {int(buffer.capacity * room / total):,}{'' if alone else ', if all shrink alike'}",
            )
            for buffer in buffers
        ]
    )
