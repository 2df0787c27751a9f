"""Construction of the curriculum of a run, and of the environments that draw its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym

from runner.config.curriculum import evaluated_tasks, read_tasks, task_names
from runner.config.errors import ConfigError, Problem, show_value
from runner.config.schemas import EnvConfig, ExperimentConfig
from runner.config.user_code import problem_of
from runner.curriculum.curriculum import Curriculum
from runner.curriculum.tasked_env import Tasked, TaskedEnv, TaskedMultiAgentEnv
from runner.env_runners.env_makers import make_environment, make_multi_agent_env
from runner.env_runners.teams import sharing_rewards
from runner.env_runners.vector_envs import SyncEnvironments
from runner.module_parts import ModuleSpec, has_several_agents


def build_curriculum(config: ExperimentConfig) -> Curriculum | None:
    """Make the curriculum, if there is one."""
    return Curriculum(config.curriculum) if task_names(config.curriculum) else None


def check_tasks(config: ExperimentConfig, plans: Mapping[str, ModuleSpec]) -> None:
    """Begin an episode of each task, in environments that are made for this alone; of levels, the first and the last.

    Raises:
        ConfigError: the environment of a task cannot be made, has other spaces, or cannot be reset with its options.
    """
    names = task_names(config.curriculum)
    if not names or config.env.is_external:
        return
    if config.curriculum.num_levels is not None:
        names = [names[0], names[-1]]
    make = make_tasked_multi_agent_env if has_several_agents(plans) else _make_tasked_env
    with closing(make(config)) as env:
        problems = [problem for name in names for problem in _problems_of_task(name, env, config)]
    if problems:
        raise ConfigError(problems)


def _problems_of_task(name: str, env: Tasked, config: ExperimentConfig) -> list[Problem]:
    try:
        env.begin(config.seed, name)
    except ConfigError as error:
        return list(error.problems)
    except Exception as error:  # the user's code may raise anything
        num_levels = config.curriculum.num_levels
        problem = problem_of(error, f"curriculum.tasks.{name}" if num_levels is None else "curriculum.num_levels")
        options = show_value(read_tasks(config.curriculum)[name].options)
        what = f"task {name}: reset(options={options}) fails: {problem.what}"
        got = options if num_levels is None else str(num_levels)
        return [replace(problem, what=what, got=got, allowed=f"what reset of {config.env.name} takes")]
    return []


def make_tasked_envs(config: ExperimentConfig, num_envs: int) -> SyncEnvironments:
    """Make N sub-environments with a single agent, each episode of a task.

    Raises:
        ConfigError: they cannot be made, or only step together.
    """
    limit = config.env.max_replayed_steps
    return SyncEnvironments(partial(_make_tasked_env, config), num_envs, config.seed, max_replayed_steps=limit)


def _make_tasked_env(config: ExperimentConfig) -> TaskedEnv:
    return TaskedEnv(*_arguments(config, _make_single))


def make_tasked_multi_agent_env(config: ExperimentConfig) -> TaskedMultiAgentEnv:
    """Make an environment with several agents, each episode of a task.

    Raises:
        ConfigError: it cannot be made.
    """
    teams = config.multi_agent.teams
    return TaskedMultiAgentEnv(*_arguments(config, lambda env: sharing_rewards(make_multi_agent_env(env), teams)))


def _arguments(config: ExperimentConfig, make: Any) -> tuple[Any, ...]:
    tasks, evaluated = read_tasks(config.curriculum), evaluated_tasks(config.curriculum)
    # What evaluations draw from; training is told otherwise before its first episode.
    odds = {name: 1 / len(evaluated) for name in evaluated}
    return partial(_make_with, config.env, make), tasks, odds, config.curriculum.measure


def _make_with(env: EnvConfig, make: Any, env_config: Mapping[str, Any]) -> Any:
    return make(replace(env, env_config={**env.env_config, **env_config}))


def _make_single(env: EnvConfig) -> gym.Env[Any, Any]:
    made = make_environment(env, 1, "sync")
    if not isinstance(made, gym.Env):
        what = f"a curriculum resets environments one by one, and {env.name} makes {type(made).__name__}"
        raise ConfigError([Problem(what, "env", env.name, "a gymnasium.Env")])
    return made
