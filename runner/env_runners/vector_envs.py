"""N sub-environments stepped together: gymnasium's batched implementation, or one by one.

Both reset a finished sub-environment in the next step (gymnasium's NEXT_STEP mode; that step's action is ignored), and
both can be restored in the middle of an episode.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.config.errors import ConfigError, Problem, RunFailure, RunnerError
from runner.config.user_code import USER_ERRORS
from runner.env_runners.env_answers import failure_of, flag_of, kinds_of, reward_of
from runner.env_runners.env_closing import close_environments
from runner.env_runners.env_states import (
    defines_state,
    has_own_state,
    lasting_wrappers,
    layers_of,
    plain_attributes,
    restore,
    state_of,
)
from runner.env_runners.leaf_checks import converts
from runner.env_runners.observation_checks import find_difference, outline
from runner.env_runners.replayed_actions import MAX_REPLAYED_STEPS, ReplayedActions
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import blank_item
from runner.rows.infos import Infos, copied_info
from runner.streams import integer_seed

Array = npt.NDArray[Any]
_log = logging.getLogger(__name__)
_FLOATS, _BOOLS = (float, np.float64), (bool, np.bool_)
StepResult = tuple[Array, Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], Infos]
Space = gym.Space[Any]


class SubEnvironments(Protocol):
    """Interface of N sub-environments for env runners.

    Attributes:
        num_envs: N.
        single_observation_space, single_action_space: spaces of each.
    """

    num_envs: int
    single_observation_space: Space
    single_action_space: Space

    @property
    def recreated(self) -> Sequence[int]:
        """Indices of the sub-environments that were re-created during the newest step.

        The step returned the first observations of their next episodes.
        """

    @property
    def counts(self) -> Mapping[str, int]:
        """Metric name -> count since the sub-environments were created."""

    @property
    def environments(self) -> Any:
        """The `gymnasium.vector.VectorEnv`, or the list of `gymnasium.Env`s that are stepped one by one."""

    def reset(self, seed_name: tuple[int | str, ...]) -> tuple[Array, Infos]:
        """Start new episodes everywhere, seeded from the stream `(seed, *seed_name)`; return observations (N, ...)."""

    def step(self, actions: Array) -> StepResult:
        """Take one vector step with actions (N, ...)."""

    def get_state(self) -> dict[str, Any]:
        """Return the running episodes and random generators as arrays and plain values."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""

    def close(self) -> None:
        """Free the resources of the environments."""


class BatchedEnvironments:
    """A `gymnasium.vector.VectorEnv` that resets finished sub-environments in the next step.

    Its state is the result of its `get_state`, if it also defines `set_state`. Otherwise it consists of the arrays,
    numbers, strings and random generators among its attributes, which is complete for gymnasium's implementations.
    """

    recreated: Sequence[int] = ()
    counts: Mapping[str, int] = {}

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], seed: int) -> None:
        reset_mode = env.metadata.get("autoreset_mode")
        if reset_mode != gym.vector.AutoresetMode.NEXT_STEP:
            problem = Problem(
                f"{type(env.unwrapped).__name__} does not reset finished sub-environments in the next step",
                where="env_runners.gym_env_vectorize_mode",
                got=f"autoreset_mode {reset_mode}",
                expected="AutoresetMode.NEXT_STEP; a gymnasium id also works with gym_env_vectorize_mode=sync",
            )
            raise ConfigError([problem])
        self._env = env
        self._seed = seed
        self._has_warned = False
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space

    @property
    def environments(self) -> gym.vector.VectorEnv[Any, Any, Any]:
        """See `SubEnvironments`."""
        return self._env

    def reset(self, seed_name: tuple[int | str, ...]) -> tuple[Array, Infos]:
        """Reset all with one seed; the environment draws for each sub-environment from it."""
        obs, infos = _reset(self._env, seed_of(self._seed, seed_name))
        return obs, copied_info(infos)

    def step(self, actions: Array) -> StepResult:
        """Take one vector step."""
        try:
            # the environment may change its arguments
            obs, rewards, terminateds, truncateds, infos = self._env.step(_copied(actions))
        except USER_ERRORS as error:
            raise failure_of(error, "step", got=f"actions {_short(actions)}") from error
        return obs, rewards, terminateds, truncateds, copied_info(infos) if infos else infos

    def get_state(self) -> dict[str, Any]:
        """Return the state or the attributes of the environment and of every wrapper."""
        bare: Any = self._env.unwrapped
        self._warn_of_unsaved(bare)
        state: dict[str, Any] = {
            str(depth): state_of(layer) for depth, layer in enumerate(layers_of(self._env)) if layer is not bare
        }
        return state | {"own": state_of(bare)}

    def _warn_of_unsaved(self, bare: Any) -> None:
        """Warn once about attributes that checkpoints do not contain, because they make a resume inexact."""
        if self._has_warned or has_own_state(bare):
            return
        self._has_warned = True
        saved = plain_attributes(bare)
        kinds = (list, dict, set, deque, bytearray, random.Random, np.random.RandomState)
        unsaved = [n for n, value in vars(bare).items() if n not in saved and isinstance(value, kinds) and value]
        if unsaved:
            what = "%s: checkpoints do not contain the attributes %s; define get_state and set_state"
            _log.warning(what, type(bare).__name__, ", ".join(unsaved))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes."""
        self._env.reset(seed=0)  # creates attributes that the environment creates at its first reset
        bare: Any = self._env.unwrapped
        for depth, layer in enumerate(layers_of(self._env)):
            restore(layer, state["own"] if layer is bare else state[str(depth)])

    def close(self) -> None:
        """Close the environment."""
        close_environments([self._env])


class SyncEnvironments:
    """N gymnasium environments stepped one by one.

    Each episode has a separate seed. A running episode is restored by the environment's `get_state` and `set_state`, if
    it defines them and its wrappers do not keep lists or deques. Otherwise it is restored by its seed and a replay of
    its actions, before which wrappers get the state that they had when it began. An episode with more than
    `max_replayed_steps` actions is not restored: a new one begins instead.

    Args:
        make_env: makes one environment.
        num_envs: N.
        seed: seed of the run.
        first: index of the first one, if other sub-environments are elsewhere.
        max_replayed_steps: the option of the `env` block.
    """

    recreated: Sequence[int] = ()
    counts: Mapping[str, int] = {}

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        num_envs: int,
        seed: int,
        first: int = 0,
        max_replayed_steps: int = MAX_REPLAYED_STEPS,
    ) -> None:
        self._envs = [make_env() for _ in range(num_envs)]
        self._seed = seed
        self._first = first
        self._seed_name: tuple[int | str, ...] = ("unused",)
        self.num_envs = num_envs
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space
        # A wrapper with other state than its plain attributes (a deque of frames) is restored by a replay.
        is_known = all(map(defines_state, layers_of(self._envs[0])[:-1]))
        self._has_own_state = is_known and has_own_state(self._envs[0].unwrapped)
        # For replays: the wrappers that keep state across episodes, and their state when the episode began.
        self._wrappers = [[] if self._has_own_state else lasting_wrappers(env) for env in self._envs]
        self._wrapper_states: list[list[Any]] = [[] for _ in range(num_envs)]
        self._obs = nested.zeros(blank_item(self.single_observation_space), (num_envs,))
        self._rewards = np.zeros(num_envs, np.float64)
        self._terminateds = np.zeros(num_envs, np.bool_)
        self._truncateds = np.zeros(num_envs, np.bool_)
        self._episode_numbers = [0] * num_envs
        self._actions = [ReplayedActions(max_replayed_steps) for _ in range(num_envs)]
        self._not_restored: Sequence[int] = ()  # the next step begins new episodes in these
        self._num_steps = [0] * num_envs

    @property
    def environments(self) -> list[gym.Env[Any, Any]]:
        """See `SubEnvironments`."""
        return self._envs

    def write_obs_to(self, rows: Column) -> None:
        """Write the newest observations to these arrays (N, ...), which another process may share."""
        self._obs = rows

    def reset(self, seed_name: tuple[int | str, ...], episode_number: int = 0) -> tuple[Array, Infos]:
        """Reset all; episode k of sub-environment n has the seed of `(seed, *seed_name, n, k)`.

        Args:
            seed_name: name of the random stream.
            episode_number: k of the new episodes.
        """
        self._seed_name = seed_name
        self._episode_numbers = [episode_number] * self.num_envs
        self._terminateds[:] = self._truncateds[:] = False
        self.recreated = self._not_restored = ()
        infos = [self._reset_one(n) for n in range(self.num_envs)]
        return _copied(self._obs), infos if any(infos) else {}

    def _reset_one(self, n: int) -> Mapping[str, Any]:
        self._actions[n].clear()
        self._num_steps[n] = 0
        self._wrapper_states[n] = [state_of(wrapper) for wrapper in self._wrappers[n]]
        seed = seed_of(self._seed, (*self._seed_name, self._first + n, self._episode_numbers[n]))
        obs, info = _reset(self._envs[n], seed, self._episode(n))
        self._store_obs(n, obs, "reset")
        return copied_info(dict(info))  # type: ignore[no-any-return]

    def _store_obs(self, n: int, obs: Any, method: str) -> None:
        try:
            if type(self._obs) is np.ndarray and type(obs) is np.ndarray:
                _store_row(self._obs, n, obs)
            else:
                nested.map_leaves(lambda rows, leaf: _store_row(rows, n, leaf), self._obs, obs)
        except (TypeError, ValueError, OverflowError) as error:
            space = self.single_observation_space
            what = f"the environment's {method} returned an observation that does not fit its space"
            where = self._place(n) if method == "step" else self._episode(n)
            got, expected = find_difference(obs, space) or (outline(obs), str(space))
            raise RunFailure(Problem(what, where, got, expected)) from error

    def step(self, actions: Array) -> StepResult:
        """Step each sub-environment, or reset it if its episode is over."""
        self.recreated, self._not_restored = self._not_restored, ()
        infos: list[Mapping[str, Any]] = []
        given = _copied(actions)  # environments may change their arguments
        kept = actions if self._has_own_state else _copied(actions)  # for a replay
        for n, env in enumerate(self._envs):
            if self._terminateds[n] or self._truncateds[n]:
                self._episode_numbers[n] += 1
                infos.append(self._reset_one(n))
                self._rewards[n], self._terminateds[n], self._truncateds[n] = 0.0, False, False
                continue
            try:
                obs, reward, terminated, truncated, info = env.step(nested.take(given, n))
            except RunnerError:  # of a curriculum
                raise
            except USER_ERRORS as error:
                got = f"action {_short(nested.take(actions, n))}"
                raise failure_of(error, "step", self._place(n), got) from error
            if type(reward) not in _FLOATS:
                reward = reward_of(reward, self._place(n))
            if type(terminated) not in _BOOLS or type(truncated) not in _BOOLS:
                terminated = flag_of(terminated, "terminated", self._place(n))
                truncated = flag_of(truncated, "truncated", self._place(n))
            self._rewards[n], self._terminateds[n], self._truncateds[n] = reward, terminated, truncated
            self._store_obs(n, obs, "step")
            self._num_steps[n] += 1
            if not self._has_own_state:
                self._actions[n].append(nested.take(kept, n))
            infos.append(copied_info(info) if info else info)
        return (
            _copied(self._obs),
            self._rewards.copy(),
            self._terminateds.copy(),
            self._truncateds.copy(),
            infos if any(infos) else {},
        )

    def _episode(self, n: int) -> str:
        return f"sub-environment {self._first + n}, episode {self._episode_numbers[n]}"

    def _place(self, n: int) -> str:
        return f"{self._episode(n)}, step {self._num_steps[n]}"

    def get_state(self) -> dict[str, Any]:
        """Return the episode numbers, and for each running episode its state or the actions so far."""
        state: dict[str, Any] = {
            "seed_name": list(self._seed_name),
            "episode_numbers": list(self._episode_numbers),
            "num_steps": list(self._num_steps),
            "terminateds": self._terminateds.copy(),
            "truncateds": self._truncateds.copy(),
        }
        state["truncateds"][list(self._not_restored)] = False
        for n, env in enumerate(self._envs):
            if self._has_own_state:
                wrappers = [state_of(layer) for layer in layers_of(env)[:-1]]
                bare: Any = env.unwrapped
                state[f"env_{n}"] = {"own": bare.get_state(), "wrappers": wrappers}
                continue
            if self._actions[n].is_forgotten:
                is_done = self._terminateds[n] or self._truncateds[n]
                if n in self._not_restored or not is_done:
                    state[f"too_long_{n}"] = True
                self._wrapper_states[n] = [state_of(wrapper) for wrapper in self._wrappers[n]]
            if self._wrapper_states[n]:
                state[f"wrappers_{n}"] = self._wrapper_states[n]
            if (actions := self._actions[n].stacked()) is not None:
                state[f"actions_{n}"] = actions
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore every sub-environment.

        Raises:
            RunFailure: a sub-environment had failed before the checkpoint; only `SeparateEnvironments` re-creates it.
        """
        if state.get("lost"):
            what = "a sub-environment had failed when the checkpoint was written, and must be re-created"
            key, got = "env_runners.restart_failed_sub_environments", f"sub-environments {state['lost']}"
            raise RunFailure(Problem(what, key, got, "true"))
        self._seed_name = tuple(state["seed_name"])
        self._episode_numbers = [int(number) for number in state["episode_numbers"]]
        for n, env in enumerate(self._envs):
            self._restore_wrappers(n, state)
            if f"too_long_{n}" in state:
                self._actions[n].forget()
                self._num_steps[n] = int(state["num_steps"][n])
                continue
            self._reset_one(n)
            if f"env_{n}" in state:
                bare: Any = env.unwrapped
                bare.set_state(state[f"env_{n}"]["own"])
                for layer, layer_state in zip(layers_of(env)[:-1], state[f"env_{n}"]["wrappers"], strict=True):
                    restore(layer, layer_state)
            if f"actions_{n}" in state:
                self._repeat(n, state[f"actions_{n}"])
            elif state["terminateds"][n] or state["truncateds"][n]:  # the episode that has ended cannot be repeated
                self._restore_wrappers(n, state)
            self._num_steps[n] = int(state["num_steps"][n])
        self._terminateds[:] = state["terminateds"]
        self._truncateds[:] = state["truncateds"]
        self._not_restored = [n for n in range(self.num_envs) if f"too_long_{n}" in state]
        self._truncateds[self._not_restored] = True  # so that the next step resets them

    def _restore_wrappers(self, n: int, state: Mapping[str, Any]) -> None:
        for wrapper, wrapper_state in zip(self._wrappers[n], state.get(f"wrappers_{n}", ()), strict=False):
            restore(wrapper, wrapper_state)

    def _repeat(self, n: int, actions: Column) -> None:
        """Take the steps of a running episode again."""
        kept, given = nested.unstack(_copied(actions)), nested.unstack(_copied(actions))
        for action, own in zip(kept, given, strict=True):
            self._actions[n].append(action)
            try:
                self._envs[n].step(own)
            except USER_ERRORS as error:
                raise failure_of(error, "step", self._place(n), f"action {_short(action)}") from error
            self._num_steps[n] += 1

    def close(self) -> None:
        """Close every environment."""
        close_environments(self._envs)


def seed_of(seed: int, name: tuple[int | str, ...]) -> int:
    """Return the seed of a reset, named by role, index, generation and further numbers, from the run's seed."""
    role, *index = name
    return integer_seed(seed, str(role), *(int(i) for i in index))


def _reset(env: Any, seed: int, where: str = "") -> tuple[Any, Any]:
    """Return the observations and infos of a reset."""
    try:
        answer = env.reset(seed=seed)
    except RunnerError:  # of a curriculum
        raise
    except USER_ERRORS as error:
        raise failure_of(error, "reset", where) from error
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2 and isinstance(answer[1], (Mapping, Sequence))):
        what = f"the environment's reset returned {kinds_of(answer)}"
        raise RunFailure(Problem(what, where or None, expected="a tuple (observation, info), with a dict as info"))
    obs, info = answer
    return obs, info


def _short(value: Any) -> str:
    if isinstance(value, (dict, tuple)):
        return str(nested.map_leaves(_short, value))
    return np.array2string(np.asarray(value), threshold=8, separator=", ")


def _copied(column: Column) -> Column:
    return column.copy() if type(column) is np.ndarray else nested.map_leaves(np.copy, column)


def _store_row(rows: Array, n: int, item: Any) -> None:
    shape = item.shape if type(item) is np.ndarray else np.shape(item)
    if shape != rows.shape[1:]:  # numpy would broadcast some shapes
        raise ValueError("wrong shape")
    if rows.dtype.kind != "f" and type(item) is not int and not converts(np.asarray(item), rows.dtype):
        raise ValueError("wrong dtype")  # numpy would truncate 1.5
    rows[n] = item
