"""The curriculum as a feature: its part, and environments that draw tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import gymnasium as gym

from runner.config.curriculum import evaluated_tasks, read_tasks, task_names
from runner.config.errors import ConfigError, Problem, show_value
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import problem_of
from runner.curriculum.curriculum import Curriculum
from runner.curriculum.tasked_env import Tasked, TaskedEnv, TaskedMultiAgentEnv
from runner.curriculum.tasked_episodes import TaskedEpisodes
from runner.env_runners.env_makers import make_environment, make_multi_agent_env
from runner.env_runners.teams import sharing_rewards
from runner.feature import Feature
from runner.module_building import BuiltModule, ModuleSpec, has_several_agents


class CurriculumFeature(Feature):
    """Draws the tasks of episodes."""

    title = "the curriculum"

    def check(self, specs: Mapping[str, ModuleSpec]) -> None:
        """Begin an episode of each task in temporary environments; of levels, only the first and the last.

        Raises:
            ConfigError: the environment of a task cannot be created, has other spaces, or cannot be reset with its
                options.
        """
        config, names = self.config, task_names(self.config.curriculum)
        if config.env.is_external:
            return
        if config.curriculum.num_levels is not None:
            names = [names[0], names[-1]]
        with closing(self.env_maker(has_several_agents(specs))()) as env:
            problems = [problem for name in names for problem in _problems_of_task(name, env, config)]
        if problems:
            raise ConfigError(problems)

    def make_part(self, built_modules: Mapping[str, BuiltModule]) -> Curriculum:
        """Make the part that follows the results of each task."""
        return Curriculum(self.config.curriculum)

    def env_maker(self, has_several_agents: bool) -> Callable[[], TaskedEnv | TaskedMultiAgentEnv]:
        """Return a function that makes an environment whose resets draw tasks."""
        return partial(_make_tasked, self.config, has_several_agents)

    def make_listener(self, env: Any) -> TaskedEpisodes:
        """Make the listener that reports the outcomes of tasks."""
        return TaskedEpisodes(env.environments)

    def client_tasks(self) -> dict[str, Any]:
        """Return name -> content of the tasks that external simulators draw."""
        return {name: asdict(task) for name, task in read_tasks(self.config.curriculum).items()}


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
        return [replace(problem, what=what, got=got, expected=f"options that reset of {config.env.name} accepts")]
    return []


def _make_tasked(config: ExperimentConfig, has_several_agents: bool) -> TaskedEnv | TaskedMultiAgentEnv:
    tasks, evaluated = read_tasks(config.curriculum), evaluated_tasks(config.curriculum)
    # Odds of evaluations; training receives other odds before its first episode.
    odds = {name: 1 / len(evaluated) for name in evaluated}
    kind: type[TaskedEnv] | type[TaskedMultiAgentEnv] = TaskedMultiAgentEnv if has_several_agents else TaskedEnv
    return kind(partial(_make_with, config, has_several_agents), tasks, odds, config.curriculum.measure)


def _make_with(config: ExperimentConfig, has_several_agents: bool, env_config: Mapping[str, Any]) -> Any:
    """Make the environment with these arguments, which replace arguments of the `env` block."""
    env = replace(config.env, env_config={**config.env.env_config, **env_config})
    if has_several_agents:
        return sharing_rewards(make_multi_agent_env(env), config.multi_agent.teams)
    made = make_environment(env, 1, "sync")
    if not isinstance(made, gym.Env):
        what = f"a curriculum needs environments that are reset one by one, but {env.name} makes {type(made).__name__}"
        raise ConfigError([Problem(what, "env", env.name, "a gymnasium.Env")])
    return made
