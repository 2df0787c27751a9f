"""Environments whose resets draw a task for each episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from runner.config.curriculum import ENV_CONFIG, EPISODE_RETURN, INFO, TaskConfig
from runner.config.errors import ConfigError, Problem, RunFailure, list_names, nearest_match, show_value
from runner.curriculum.restorable_env import RestorableEnv
from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from runner.streams import random_stream

# Key of infos with the name of the task.
TASK = "task"
# Makes an environment with these arguments, which replace arguments of the `env` block.
MakeEnv = Callable[[Mapping[str, Any]], Any]
_NOBODY = ""  # agent id of single-agent environments


class Tasked:
    """Base class of environments that draw tasks, with one or with several agents.

    Each reset draws a task with a random stream derived from its seed, so draws need no further state.

    Args:
        make_env: makes an environment, with its wrappers.
        tasks: name -> settings that the task changes.
        odds: task -> probability, until others are set.
        measure: the option of the `curriculum` block.

    Attributes:
        odds: task -> probability, for new episodes.
        task: name of the newest episode's task.
    """

    # Attributes of the first environment that this one also has. All tasks have equal spaces.
    _spaces: ClassVar[tuple[str, ...]]
    _others: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        make_env: MakeEnv,
        tasks: Mapping[str, TaskConfig],
        odds: Mapping[str, float],
        measure: str = EPISODE_RETURN,
    ) -> None:
        self._make_env = make_env
        self._tasks = dict(tasks)
        self.odds = dict(odds)
        self.task = next(iter(tasks))
        self._seed: int | None = None
        self._key = None if measure == EPISODE_RETURN else measure.removeprefix(INFO)
        self._numbers: dict[str, float] = {}
        self._known: list[str] = []  # keys of the newest info without the measured number
        self._shared = RestorableEnv(make_env({}))
        self._of_task: dict[str, RestorableEnv] = {}  # of tasks with an `env_config`
        for attribute in (*self._spaces, *self._others):
            setattr(self, attribute, getattr(self._shared.env, attribute))

    @property
    def env(self) -> Any:
        """The environment of the newest episode, with its wrappers."""
        return self._current.env

    @property
    def _current(self) -> RestorableEnv:
        return self._env_of(self.task)

    def _env_of(self, name: str) -> RestorableEnv:
        arguments = self._tasks[name].env_config
        if not arguments:
            return self._shared
        if name not in self._of_task:
            self._of_task[name] = RestorableEnv(self._made(name, arguments))
        return self._of_task[name]

    def _made(self, name: str, arguments: Mapping[str, Any]) -> Any:
        where = f"curriculum.tasks.{name}.{ENV_CONFIG}"
        try:
            made = self._make_env(arguments)
        except ConfigError as error:
            problems = [
                replace(one, what=f"task {name}: {one.what}", where=", ".join(filter(None, (where, one.where))))
                for one in error.problems
            ]
            raise ConfigError(problems) from error
        for attribute in self._spaces:
            expected, got = getattr(self, attribute), getattr(made, attribute, None)
            if expected != got:
                what = f"{attribute} of task {name} differs from the env block's; all tasks need equal spaces"
                raise ConfigError([Problem(what, where, str(got), str(expected))])
        return made

    def begin(self, seed: int | None, name: str) -> Any:
        """Begin an episode of a task, and return the result of resetting its environment.

        Raises:
            ConfigError: the environment of the task cannot be created, or has other spaces.
        """
        self.task, self._seed, self._numbers = name, seed, {}
        return self._current.reset(seed, self._tasks[name].options)

    def _begin_drawn(self, seed: int | None) -> Any:
        names, odds = list(self.odds), list(self.odds.values())
        rng = np.random.default_rng() if seed is None else random_stream(seed, TASK)
        return self.begin(seed, names[int(rng.choice(len(names), p=odds))])

    def measure(self, agent: str, info: Mapping[str, Any]) -> None:
        """Store the measured number of an agent's newest info.

        Raises:
            RunFailure: the value is not a number.
        """
        if self._key is None:
            return
        self._numbers.pop(agent, None)
        if self._key in info:
            number = info[self._key]
            if isinstance(number, np.ndarray) and number.ndim == 0:
                number = number.item()
            is_number = isinstance(number, (bool, int, float, np.bool_, np.integer, np.floating))
            if not is_number or not math.isfinite(number):
                what = f"{INFO}{self._key}, which curriculum.measure names, is not a number in the info of a step"
                raise RunFailure(
                    Problem(what, f"task {self.task}", show_value(number), "a finite number, or true or false")
                )
            self._numbers[agent] = float(number)
        else:
            self._known = list(map(str, info))

    def measured(self, agents: Collection[str] | None = None) -> float | None:
        """Return the value of the episode that has just ended, or None if its return is the value.

        Args:
            agents: agents that count, or None for all.

        Raises:
            RunFailure: the last step's info does not contain the measured number.
        """
        if self._key is None:
            return None
        numbers = [number for agent, number in self._numbers.items() if agents is None or agent in agents]
        if not numbers:
            what = f"the info of an episode's last step does not contain {self._key}, which curriculum.measure names"
            known = [f"{INFO}{key}" for key in self._known]
            expected = (
                f"{list_names([EPISODE_RETURN, *known])}; the key must be in each last info and have a number as value"
            )
            nearest = nearest_match(f"{INFO}{self._key}", known)
            where = f"curriculum.measure, task {self.task}"
            raise RunFailure(Problem(what, where, f"{INFO}{self._key}", expected, nearest))
        return sum(numbers) / len(numbers)

    def render(self) -> Any:
        """Return an image of the running episode."""
        return self.env.render()

    def close(self) -> None:
        """Close all environments."""
        for one in (self._shared, *self._of_task.values()):
            one.env.close()

    def get_state(self) -> dict[str, Any]:
        """Return the running episode, and the state that all environments keep across episodes."""
        current = self._current
        others = {name: one for name, one in self._of_task.items() if one is not current and one.has_begun}
        if self._shared is not current and self._shared.has_begun:
            others[_NOBODY] = self._shared
        return {
            "task": self.task,
            "seed": self._seed,
            "numbers": dict(self._numbers),
            "env": current.get_state(is_running=True) if current.has_begun else {},
            "others": {name: one.get_state(is_running=False) for name, one in others.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state` in newly made environments."""
        self.close()
        self._shared, self._of_task = RestorableEnv(self._make_env({})), {}
        options = {name: task.options for name, task in self._tasks.items()}
        options[_NOBODY] = next((task.options for task in self._tasks.values() if not task.env_config), {})
        for name, of_other in state["others"].items():
            other = self._env_of(name) if name else self._shared
            other.set_state(of_other, partial(other.reset, 0, options[name]))
        task, seed = str(state["task"]), None if state["seed"] is None else int(state["seed"])
        if state["env"]:
            self._env_of(task).set_state(state["env"], lambda: self.begin(seed, task))
        self.task, self._seed = task, seed
        self._numbers = {agent: float(number) for agent, number in state["numbers"].items()}


class TaskedEnv(Tasked, gym.Env[Any, Any]):
    """An environment with one agent; infos of resets and of last steps have `task`. See `Tasked`.

    Args:
        make_env, tasks, odds, measure: see `Tasked`; `make_env` makes a `gymnasium.Env`.
    """

    _spaces = ("observation_space", "action_space")
    _others = ("metadata", "render_mode", "spec")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of a drawn task. Its options are used; `options` is ignored."""
        obs, info = self._begin_drawn(seed)
        return obs, {**info, TASK: self.task}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        obs, reward, terminated, truncated, info = self._current.step(action)
        if terminated or truncated:
            self.measure(_NOBODY, info)
            info = {**info, TASK: self.task}
        return obs, reward, terminated, truncated, info


class TaskedMultiAgentEnv(Tasked, MultiAgentEnv):
    """An environment with several agents; the infos of all of them have `task`. See `Tasked`.

    With `measure: info:KEY` an episode's value is the mean over the agents whose last info has the key. The last info
    of an agent that ends without an observation is passed to `measure` by `TaskedEpisodes`.

    Args:
        make_env, tasks, odds, measure: see `Tasked`; `make_env` makes a `MultiAgentEnv`.
    """

    _spaces = ("observation_spaces", "action_spaces")
    _others = ("possible_agents", "metadata")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Begin an episode of a drawn task. Its options are used; `options` is ignored."""
        obs, infos = self._begin_drawn(seed)
        return obs, self._with_task(obs, infos)

    def step(self, actions: AgentDict) -> StepDicts:
        """Take a step."""
        obs, rewards, terminateds, truncateds, infos = self._current.step(actions)
        for agent in obs:
            self.measure(agent, infos.get(agent) or {})
        return obs, rewards, terminateds, truncateds, self._with_task(obs, infos)

    def _with_task(self, obs: AgentDict, infos: AgentDict) -> AgentDict:
        """Add the task to the infos of observed agents and to the others, which may belong to the end of an agent."""
        others = {agent: info and {**info, TASK: self.task} for agent, info in infos.items() if agent not in obs}
        return others | {agent: {**(infos.get(agent) or {}), TASK: self.task} for agent in obs}
