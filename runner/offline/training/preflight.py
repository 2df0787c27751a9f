"""Check recorded data against the experiment before it starts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from runner.config.errors import ConfigError, Problem
from runner.config.schemas import ExperimentConfig
from runner.modules.rl_module import RLModule
from runner.offline.codecs.layout import Spaces, describe_space
from runner.offline.files.data_error import DataError, DataLocation
from runner.offline.files.ray_data import check_readable
from runner.offline.formats.selection import ModuleAgents, several_agents
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import is_read_by_ray, open_source
from runner.offline.training.prelearner import prelearner_class
from runner.pipelines.connector import Connector
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.pipelines.recorded_episodes import pass_through
from runner.pipelines.requirements import Requirements

if TYPE_CHECKING:
    from runner.module_building import BuiltModule


def statistics_of(source: RecordedSource, env_to_module: EnvToModulePipeline, module: RLModule) -> dict[str, Any]:
    """Return connector name -> state after one pass over all observations, including the final ones.

    Args:
        source: source of the data.
        env_to_module: pipeline with the initial states; it is not modified.
        module: module passed to the connectors.

    Raises:
        DataError: the data are damaged.
    """
    learning = copy.deepcopy(env_to_module)
    connectors = list(learning.single_connectors())
    while connectors and not connectors[-1].shares_state:
        del connectors[-1]
    for block in source.narrowed((), with_infos=False).blocks():
        pass_through(connectors, block, module)
    return learning.merge_states([learning.get_state()])


# Smaller data are read completely.
_MAX_READ_BYTES = 2**25


def check_recorded_data(
    config: ExperimentConfig, built: BuiltModule, of_module: ModuleAgents | None = None
) -> RecordedSource | None:
    """Reject recorded data that cannot be used for training, without starting Ray. Large data are checked partially.

    Args:
        config: the experiment. A user-defined `offline_data_class` reads the data itself and is not checked.
        built: module and pipelines of the experiment.
        of_module: agents whose episodes are read, in multi-agent experiments.

    Returns:
        The source, or None if Ray or the user's code reads the data.

    Raises:
        DataError, ConfigError: see `open_source` and `check_trajectories`.
    """
    offline = config.offline
    if of_module is not None:
        _check_read_here(config)
    if offline.offline_data_class is not None:
        return None
    if isinstance(offline.input_, Mapping) and prelearner_class(config).maps_rows_itself():
        what = "the function of offline.input_ yields episodes, but a pre-learner with _map_to_episodes needs rows"
        fix = "set offline.input_read_method to a function that returns rows, or do not override _map_to_episodes"
        raise ConfigError([Problem(what, "offline.prelearner_class", str(offline.prelearner_class), fix=fix)])
    if is_read_by_ray(offline) or prelearner_class(config).maps_rows_itself():
        check_readable(offline)
        return None
    spaces = Spaces(built.spec.observation_space, built.spec.action_space)
    source = open_source(offline, spaces, of_module=of_module)
    if of_module is None:
        _check_single_agent(source)
    check_trajectories(source, built.learner, built.module)
    check_action_units(config, source, built.spec.action_space)
    _check_rows(source, spaces)
    return source


def _check_read_here(config: ExperimentConfig) -> None:
    """Reject ways of reading that do not support multi-agent episodes."""
    offline = config.offline
    given = {
        "offline_data_class": offline.offline_data_class is not None,
        "input_": isinstance(offline.input_, Mapping),
        "input_read_method": is_read_by_ray(offline),
        "prelearner_class": prelearner_class(config).maps_rows_itself(),
    }
    problems = [
        Problem(
            "this option only reads single-agent episodes, but the experiment has several agents",
            f"offline.{name}",
            str(getattr(offline, name)),
            fix="use multi-agent files, which runner reads itself",
        )
        for name, is_given in given.items()
        if is_given
    ]
    if problems:
        raise ConfigError(problems)


def _check_single_agent(source: RecordedSource) -> None:
    """Reject multi-agent episodes in single-agent experiments."""
    agents = source.first_block().agents
    if agents is not None:
        raise several_agents(dict.fromkeys(agents.agent_ids), DataLocation(source.where))


def check_trajectories(source: RecordedSource, pipeline: Iterable[Connector], module: RLModule) -> None:
    """Reject rows that do not form trajectories if a connector or the module needs trajectories.

    Raises:
        DataError: names the connector or module and the missing columns.
    """
    if source.format.has_trajectories:
        return
    if module.is_stateful:
        raise _no_trajectories(source, f"the recurrent module {type(module).__name__}")
    for connector in pipeline:
        name, requires = type(connector).__name__, Requirements.of(connector)
        if requires.needs_trajectories or requires.num_lookback:
            raise _no_trajectories(source, name)
        if requires.needs_next_obs and not source.format.has_final_obs:
            what = f"{name} needs the observation after each step, which these rows do not contain"
            raise DataError([Problem(what, source.where, fix="add a column new_obs, or eps_id and t, or end flags")])


def check_action_units(config: ExperimentConfig, source: RecordedSource, space: gym.Space[Any]) -> None:
    """Reject actions in the environment's units, as in D4RL and Minari, if the module acts in [-1, 1].

    Raises:
        DataError: names the options to set.
    """
    if not source.format.has_env_actions or not config.env.normalize_actions or not isinstance(space, Box):
        return
    if space.is_bounded() and not (np.all(space.low == -1) and np.all(space.high == 1)):
        what = "these actions are in the environment's units, but the module acts in [-1, 1]"
        fix = "set env.normalize_actions=false, and env.clip_actions=true for a Gaussian policy"
        raise DataError([Problem(what, source.where, f"actions of {describe_space(space)}", fix=fix)])


def _no_trajectories(source: RecordedSource, reader: str) -> DataError:
    what = (
        f"{reader} needs trajectories, but these rows have neither eps_id, t nor end flags, so each is an episode of "
        "one step"
    )
    fix = (
        "add columns eps_id and t, or end flags in the order of the steps, under these names or mapped by "
        "offline.input_read_schema; or use an algorithm for single steps, for example bc without memory"
    )
    return DataError([Problem(what, source.where, fix=fix)])


def _check_rows(source: RecordedSource, spaces: Spaces) -> None:
    """Read small data completely. Opening has checked the first rows of larger data and of streams."""
    if not source.may_be_endless and source.num_bytes <= _MAX_READ_BYTES:
        source.check_all(spaces)
