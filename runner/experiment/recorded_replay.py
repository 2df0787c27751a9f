"""Replay buffers that start with recorded steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import ConfigError, Problem
from runner.config.schemas import ExperimentConfig
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock, Rollout
from runner.experiment.first_sample import first_sample
from runner.experiment.learner_builder import columns_of_learner
from runner.experiment.recorded_data_builder import check_recorded_data
from runner.module_building import BuiltModule, acting_modules, has_several_agents
from runner.pipelines.connector import DEFAULT_MODULE_ID
from runner.pipelines.recorded_episodes import with_held_observations
from runner.replay import ReplayBuffer

if TYPE_CHECKING:
    from runner.offline.reading.recorded_source import RecordedSource


@dataclass(frozen=True)
class RecordedReplay:
    """Recorded steps for replay buffers, with the same columns as sampled steps.

    Attributes:
        buffers: names of the buffers that start with recorded steps.
        source: reads the steps.
        read: recorded columns.
        unread: column -> some sampled rows, for outputs of the acting module that learners do not read. They are NaN in
            recorded steps, which come from another policy.
    """

    buffers: tuple[str, ...]
    source: RecordedSource
    read: tuple[str, ...]
    unread: Mapping[str, Column]

    def fill(self, buffers: Mapping[str, ReplayBuffer], built: BuiltModule) -> None:
        """Write all steps to the buffers.

        Raises:
            ConfigError: a buffer is too small, or the data lacks a column that the learner reads.
            DataError: the data is damaged.
        """
        num_env_steps = 0
        for block in self.source.narrowed(self.read, with_infos=False).blocks():
            held = self._completed(with_held_observations(block, built.env_to_module, built.module))
            num_env_steps += held.num_rows
            for name in self.buffers:
                buffers[name].add(Rollout({DEFAULT_MODULE_ID: held}, held.num_rows))
        for name in self.buffers:
            _check_room(name, buffers[name], num_env_steps)

    def _completed(self, block: ColumnBlock) -> ColumnBlock:
        """Return the block with the columns of sampled steps."""
        lacking = [name for name in self.read if name not in block.columns]
        if lacking:
            what = f"recorded steps lack columns that the algorithm needs: {', '.join(lacking)}"
            raise ConfigError([Problem(what, self.source.where, ", ".join(block.columns), "data with these columns")])
        columns = {name: block.columns[name] for name in self.read}
        columns[REWARDS] = np.asarray(columns[REWARDS], np.float32)

        def unknown(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
            is_float = np.issubdtype(leaf.dtype, np.floating)
            return np.full((block.num_rows, *leaf.shape[1:]), np.nan if is_float else 0, leaf.dtype)

        unread = {name: nested.map_leaves(unknown, column) for name, column in self.unread.items()}
        return replace(block, columns=columns | unread)


def open_recorded_replay(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> RecordedReplay | None:
    """Open the recorded steps that buffers start with, or return None. Call this before learners are made.

    Raises:
        ConfigError: the data does not fit, or only Ray Data can read it.
    """
    names = config.algorithm.recorded_buffers
    if not names:
        return None
    acting = acting_modules(built_modules)
    where = ", ".join(f"algorithm.replay_buffers.{name}.recorded" for name in names)
    if has_several_agents({module_id: built.spec for module_id, built in acting.items()}):
        what = "replay buffers with several agents do not support recorded steps yet"
        raise ConfigError([Problem(what, where, str(config.offline.input_), "a single-agent environment")])
    source = check_recorded_data(config, acting).get(DEFAULT_MODULE_ID)
    if source is None or source.may_be_endless:
        reason = (
            "only Ray Data can read this data" if source is None else "a function that yields episodes may never end"
        )
        what = f"replay buffers can only start with data that this process reads, but {reason}"
        raise ConfigError([Problem(what, where, str(config.offline.input_), "files, without a function of Ray Data")])
    sampled = first_sample(config, acting).blocks[DEFAULT_MODULE_ID].columns
    read = [name for built in built_modules.values() for name in columns_of_learner(built.spec, built.module)]
    needed = {OBS, ACTIONS, REWARDS, *read}
    unread = {name: column for name, column in sampled.items() if name not in needed}
    return RecordedReplay(tuple(names), source, tuple(name for name in sampled if name in needed), unread)


def _check_room(name: str, buffer: ReplayBuffer, num_env_steps: int) -> None:
    if len(buffer) < num_env_steps:
        what = f"replay buffer {name} has capacity for only {len(buffer):,} of {num_env_steps:,} recorded env steps"
        where = f"algorithm.replay_buffers.{name}.capacity"
        expected = f"more than {num_env_steps:,}: one more row per episode, and capacity for sampled steps"
        raise ConfigError([Problem(what, where, str(buffer.capacity), expected)])
