"""N independent sub-environments: they step in parallel, and a failed one is re-created individually."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.metrics import NUM_ENV_RESTARTS
from runner.config.schemas import EnvConfig
from runner.env_runners.env_answers import EnvFailure
from runner.env_runners.replayed_actions import MAX_REPLAYED_STEPS
from runner.env_runners.shared_rows import map_rows, open_memory
from runner.env_runners.sub_environment import (
    START_TIMEOUT_S,
    LocalSubEnvironment,
    ProcessSettings,
    ProcessSubEnvironment,
    SubEnvironment,
    close_all,
)
from runner.env_runners.vector_envs import Array, StepResult, SyncEnvironments
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import blank_item
from runner.rows.infos import Infos

MOST_FAILURES_IN_A_ROW = 10
_RESTART_KEY = "env_runners.restart_failed_sub_environments"
_STATES_OF_ONE = ("env", "wrappers", "actions", "too_long")
_log = logging.getLogger(__name__)

# (number of the sub-environment, its (1, ...) row of observations) -> the sub-environment.
MakeSubEnvironment = Callable[[int, Column], SubEnvironment]


class SeparateEnvironments:
    """N sub-environments, each with the same seeds, steps and state as in `SyncEnvironments`.

    Args:
        make_one: makes one of them.
        obs: arrays (N, ...) for their newest observations.
        spaces: spaces of observations and actions.
        restarts: whether to re-create a failed one, which aborts its episode and begins the next one. Otherwise the
            failure is raised.
        timeout_s: longest wait for the answers to a step or a reset, or None for no limit.
        held: closed together with them.
    """

    def __init__(
        self,
        make_one: MakeSubEnvironment,
        obs: Column,
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        restarts: bool,
        timeout_s: float | None = None,
        held: ExitStack | None = None,
    ) -> None:
        self._make_one = make_one
        self._obs = obs
        self.single_observation_space, self.single_action_space = spaces
        self._restarts = restarts
        self._timeout_s = timeout_s
        self._held = held or ExitStack()
        self.num_envs = nested.row_count(obs)
        self.recreated: list[int] = []
        self._num_restarts = 0
        self._failures_in_a_row = [0] * self.num_envs
        self._failed: dict[int, EnvFailure] = {}  # failures between two steps: the next step re-creates these
        self._seed_name: tuple[int | str, ...] = ("unused",)
        self._episode_numbers = np.zeros(self.num_envs, np.int64)
        self._rewards = np.zeros(self.num_envs, np.float64)
        self._terminateds = np.zeros(self.num_envs, np.bool_)
        self._truncateds = np.zeros(self.num_envs, np.bool_)
        self._envs: list[SubEnvironment] = []
        self._held.callback(close_all, self._envs)
        try:
            for n in range(self.num_envs):
                self._envs.append(self._make(n))
            for env in self._envs:
                env.finish(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        self.environments = [env.environment for env in self._envs]

    def _make(self, n: int) -> SubEnvironment:
        return self._make_one(n, nested.take(self._obs, slice(n, n + 1)))

    @property
    def counts(self) -> Mapping[str, int]:
        """See `SubEnvironments`."""
        return {NUM_ENV_RESTARTS: self._num_restarts} if self._restarts else {}

    def reset(self, seed_name: tuple[int | str, ...]) -> tuple[Array, Infos]:
        """Reset all; episode k of sub-environment n has the seed of `(seed, *seed_name, n, k)`."""
        self._seed_name = seed_name
        self._episode_numbers[:] = 0
        self._terminateds[:] = self._truncateds[:] = False
        for n, env in enumerate(self._envs):
            if n not in self._failed:
                env.begin("reset", seed_name)
        deadline_s = self._deadline_s()
        infos = [self._answer(n, deadline_s) for n in range(self.num_envs)]
        self.recreated = []  # nothing was running
        return nested.map_leaves(np.copy, self._obs), infos if any(infos) else {}

    def step(self, actions: Array) -> StepResult:
        """Step all together, or reset those whose episodes are over; see `recreated`."""
        self.recreated = []
        self._episode_numbers += self._terminateds | self._truncateds
        for n, env in enumerate(self._envs):
            if n not in self._failed:
                env.begin("step", nested.take(actions, slice(n, n + 1)))
        deadline_s = self._deadline_s()
        infos: list[Mapping[str, Any]] = []
        for n in range(self.num_envs):
            answer = self._answer(n, deadline_s)
            if n in self.recreated:
                answer = 0.0, False, False, answer, False
            else:
                self._failures_in_a_row[n] = 0
            self._rewards[n], self._terminateds[n], self._truncateds[n], info, is_not_restored = answer
            if is_not_restored:
                self.recreated.append(n)
                self._episode_numbers[n] += 1
            infos.append(info)
        return (
            nested.map_leaves(np.copy, self._obs),
            self._rewards.copy(),
            self._terminateds.copy(),
            self._truncateds.copy(),
            infos if any(infos) else {},
        )

    def _deadline_s(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _answer(self, n: int, deadline_s: float | None) -> Any:
        """Return the answer of sub-environment n; if it failed since the last step, the info of its next reset."""
        if n in self._failed:
            return self._recreate(n, self._failed.pop(n))
        try:
            return self._envs[n].finish(None if deadline_s is None else deadline_s - time.monotonic())
        except EnvFailure as failure:
            return self._recreate(n, failure)

    # -- failures --------------------------------------------------------------------------------------------------

    def _recreate(self, n: int, failure: EnvFailure) -> Mapping[str, Any]:
        """Re-create a sub-environment and begin its next episode; return the info of the reset.

        Raises:
            RunFailure: failures end the run, or there were too many in a row.
        """
        self.recreated.append(n)
        while True:
            self._envs[n].end()
            self._raise_unless_restarting(n, failure)
            self._num_restarts += 1
            self._episode_numbers[n] += 1
            try:
                self._envs[n] = self._make(n)
                self._envs[n].finish(START_TIMEOUT_S)
                self.environments[n] = self._envs[n].environment
                self._envs[n].begin("reset", self._seed_name, int(self._episode_numbers[n]))
                info: Mapping[str, Any] = self._envs[n].finish(self._timeout_s)
                return info
            except EnvFailure as again:
                failure = again
            except ConfigError as unmade:  # although it could be made before
                failure = EnvFailure(unmade.problems[0])

    def _raise_unless_restarting(self, n: int, failure: EnvFailure) -> None:
        problem = failure.problem
        if problem.where is None:
            problem = replace(problem, where=f"sub-environment {n}, episode {self._episode_numbers[n]}")
        if not self._restarts:
            raise EnvFailure(problem) from failure
        self._failures_in_a_row[n] += 1
        if self._failures_in_a_row[n] >= MOST_FAILURES_IN_A_ROW:
            what = f"sub-environment {n} failed {MOST_FAILURES_IN_A_ROW} times in a row without a step: {problem.what}"
            raise RunFailure(replace(problem, what=what)) from failure
        _log.warning("re-creating a sub-environment (%s): %s", _RESTART_KEY, problem.render_alone())

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state that `SyncEnvironments` would have, the count of restarts, and the failed ones.

        If failed ones are re-created, a failure here loses the episode, and the next step re-creates the
        sub-environment.
        """
        for n, env in enumerate(self._envs):
            if n not in self._failed:
                env.begin("get_state")
        states = [self._state_of(n) for n in range(self.num_envs)]
        lost = {"lost": sorted(self._failed)} if self._failed else {}
        return _joined(states) | {"num_restarts": self._num_restarts} | lost

    def _finish_between_steps(self, n: int, timeout_s: float | None) -> Any:
        """Return an answer; if it failed and is re-created by the next step, return None."""
        try:
            return self._envs[n].finish(timeout_s)
        except EnvFailure as failure:
            if not self._restarts:
                raise
            self._failed[n] = failure
            return None

    def _state_of(self, n: int) -> dict[str, Any]:
        state: dict[str, Any] | None = None
        if n not in self._failed:
            state = self._finish_between_steps(n, self._timeout_s)
        return state or {
            "seed_name": list(self._seed_name),
            "episode_numbers": [int(self._episode_numbers[n])],
            "num_steps": [0],
            "terminateds": self._terminateds[n : n + 1].copy(),
            "truncateds": self._truncateds[n : n + 1].copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore every sub-environment, also from a state of `SyncEnvironments`; see `get_state` for failures."""
        self._num_restarts = int(state.get("num_restarts", 0))
        self._seed_name = tuple(state["seed_name"])
        self._episode_numbers[:] = state["episode_numbers"]
        self._terminateds[:] = state["terminateds"]
        self._truncateds[:] = state["truncateds"]
        lost = Problem("the sub-environment had failed when the checkpoint was written")
        self._failed = {n: EnvFailure(lost) for n in map(int, state.get("lost", ()))}
        restored = [n for n in range(self.num_envs) if n not in self._failed]
        for n in restored:
            self._envs[n].begin("set_state", _part_of(state, n))
        num_calls = 1 + max(map(int, state["num_steps"]))  # a reset and a replay of all actions
        for n in restored:
            self._finish_between_steps(n, None if self._timeout_s is None else self._timeout_s * num_calls)

    def close(self) -> None:
        """Close every environment."""
        self._held.close()


def _joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one state made of states of single sub-environments."""
    joined = dict(states[0])
    for key in ("episode_numbers", "num_steps"):
        joined[key] = [number for state in states for number in state[key]]
    for key in ("terminateds", "truncateds"):
        joined[key] = np.concatenate([state[key] for state in states])
    for kind in _STATES_OF_ONE:
        joined.pop(f"{kind}_0", None)
        joined |= {f"{kind}_{n}": state[f"{kind}_0"] for n, state in enumerate(states) if f"{kind}_0" in state}
    return joined


def _part_of(state: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return the state of one sub-environment from the state of all."""
    part: dict[str, Any] = {"seed_name": state["seed_name"]}
    for key in ("episode_numbers", "num_steps", "terminateds", "truncateds"):
        part[key] = state[key][n : n + 1]
    for kind in _STATES_OF_ONE:
        if f"{kind}_{n}" in state:
            part[f"{kind}_0"] = state[f"{kind}_{n}"]
    return part


def local_environments(
    make_env: Callable[[], gym.Env[Any, Any]],
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    num_envs: int,
    seed: int,
    max_replayed_steps: int = MAX_REPLAYED_STEPS,
) -> SeparateEnvironments:
    """Make N sub-environments in this process; failed ones are re-created."""

    def make_one(n: int, obs: Column) -> LocalSubEnvironment:
        return LocalSubEnvironment(lambda: SyncEnvironments(make_env, 1, seed, n, max_replayed_steps), obs)

    return SeparateEnvironments(make_one, nested.zeros(blank_item(spaces[0]), (num_envs,)), spaces, restarts=True)


def process_environments(
    config: EnvConfig,
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    num_envs: int,
    seed: int,
    restarts: bool,
    timeout_s: float | None,
) -> SeparateEnvironments:
    """Make N sub-environments in separate processes, which write their observations to shared memory.

    Args:
        config: the `env` block.
        spaces: spaces of observations and actions.
        num_envs: N.
        seed: seed of the run.
        restarts, timeout_s: see `SeparateEnvironments`.
    """
    like = nested.zeros(blank_item(spaces[0]), (num_envs,))
    memory = open_memory(like)
    held = ExitStack()
    held.callback(os.close, memory)

    def make_one(n: int, obs: Column) -> ProcessSubEnvironment:
        return ProcessSubEnvironment(ProcessSettings(config, seed, n, num_envs), memory, timeout_s)

    return SeparateEnvironments(make_one, map_rows(memory, like), spaces, restarts, timeout_s, held)
