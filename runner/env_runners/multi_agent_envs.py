"""N environments with several agents, stepped one by one, reset after their episodes, and restored by replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.user_code import USER_ERRORS
from runner.env_runners.env_answers import failure_of, flag_of, kinds_of
from runner.env_runners.env_closing import close_environments
from runner.env_runners.env_states import has_own_state
from runner.env_runners.multi_agent_env import ALL_AGENTS, AgentDict, MultiAgentEnv
from runner.env_runners.replayed_actions import MAX_REPLAYED_STEPS, as_given
from runner.env_runners.vector_envs import seed_of
from runner.episodes import nested


@dataclass(frozen=True)
class EnvStep:
    """The result of resetting or stepping one sub-environment; `is_reset` is true after a reset."""

    is_reset: bool
    obs: AgentDict
    rewards: AgentDict
    terminateds: AgentDict
    truncateds: AgentDict
    infos: AgentDict


class MultiAgentEnvironments:
    """N sub-environments with several agents.

    Each episode has a separate seed. A running episode is restored by the environment's `get_state` and `set_state` if
    it defines them, or else by its seed and a replay of its actions. An episode with more than `max_replayed_steps`
    actions is not restored: a new one begins instead.

    Args:
        make_env: makes one environment.
        num_envs: N.
        seed: seed of the run.
        max_replayed_steps: the option of the `env` block.

    Attributes:
        episode_numbers: number (N,) of the newest episode of each sub-environment, from 0.
        num_steps: env steps (N,) of the newest episode so far.
        not_restored: sub-environments whose episodes the newest `set_state` did not restore; the next step resets them.
    """

    not_restored: Sequence[int] = ()
    counts: Mapping[str, int] = {}

    def __init__(
        self,
        make_env: Callable[[], MultiAgentEnv],
        num_envs: int,
        seed: int,
        max_replayed_steps: int = MAX_REPLAYED_STEPS,
    ) -> None:
        self._max_replayed_steps = max_replayed_steps
        self.environments = [make_env() for _ in range(num_envs)]
        self.num_envs = num_envs
        self._seed = seed
        self._seed_name: tuple[int | str, ...] = ("unused",)
        self._has_own_state = has_own_state(self.environments[0])
        self.episode_numbers = [0] * num_envs
        self.num_steps = [0] * num_envs
        self._is_done = [True] * num_envs
        self._actions: list[list[AgentDict]] = [[] for _ in range(num_envs)]

    def reset(self, seed_name: tuple[int | str, ...]) -> list[EnvStep]:
        """Reset all; episode k of sub-environment n has the seed of `(seed, *seed_name, n, k)`."""
        self._seed_name = seed_name
        self.episode_numbers = [-1] * self.num_envs
        return [self._begin_next_episode(n) for n in range(self.num_envs)]

    def _begin_next_episode(self, n: int) -> EnvStep:
        self.episode_numbers[n] += 1
        if self.not_restored:
            self.not_restored = [other for other in self.not_restored if other != n]
        return self._begin_episode(n)

    def _begin_episode(self, n: int) -> EnvStep:
        seed = seed_of(self._seed, (*self._seed_name, n, self.episode_numbers[n]))
        self.num_steps[n], self._is_done[n], self._actions[n] = 0, False, []
        obs, infos = self._call("reset", n, seed=seed)
        return EnvStep(True, obs, {}, {}, {}, infos)

    def step(self, actions: Sequence[AgentDict]) -> list[EnvStep]:
        """Step each sub-environment with its agents' actions, or reset it if its episode is over."""
        return [
            self._begin_next_episode(n) if self._is_done[n] else self._step_one(n, by_agent)
            for n, by_agent in enumerate(actions)
        ]

    def _step_one(self, n: int, actions: AgentDict) -> EnvStep:
        if self.num_steps[n] >= self._max_replayed_steps:
            self._actions[n] = []
        elif not self._has_own_state:
            self._actions[n].append(_copied(actions))
        step = EnvStep(False, *self._call("step", n, _copied(actions)))  # the environment may change its arguments
        for name, flags in (("terminated", step.terminateds), ("truncated", step.truncateds)):
            for agent, flag in flags.items():
                if type(flag) is not bool:
                    flag_of(flag, name, f"{self.place(n)}, agent {agent}")
        self.num_steps[n] += 1
        self._is_done[n] = bool(step.terminateds.get(ALL_AGENTS) or step.truncateds.get(ALL_AGENTS))
        return step

    @property
    def is_done(self) -> npt.NDArray[np.bool_]:
        """Whether the episode is over (N,), so that the next step resets the sub-environment."""
        return np.array(self._is_done, np.bool_)

    def end_episode(self, n: int) -> None:
        """Record that the last agent of sub-environment n has finished, so the next step resets it."""
        self._is_done[n] = True

    def place(self, n: int) -> str:
        """Return sub-environment, episode and step, for messages."""
        return f"sub-environment {n}, episode {self.episode_numbers[n]}, step {self.num_steps[n]}"

    def _call(self, method: str, n: int, *args: Any, **kwargs: Any) -> Any:
        env = self.environments[n]
        try:
            result = getattr(env, method)(*args, **kwargs)
        except RunnerError:  # of a curriculum or of shared rewards
            raise
        except USER_ERRORS as error:
            raise failure_of(error, method, self.place(n), f"actions {args[0]}" if args else None) from error
        size = 2 if method == "reset" else 5
        if not (isinstance(result, tuple) and len(result) == size and all(isinstance(d, dict) for d in result)):
            what = f"the environment's {method} returned {kinds_of(result)}"
            raise RunFailure(Problem(what, self.place(n), expected=f"a tuple of {size} dicts by agent id"))
        return result

    def get_state(self) -> dict[str, Any]:
        """Return the episode numbers, and for each running episode its state or the actions so far."""
        state: dict[str, Any] = {
            "seed_name": list(self._seed_name),
            "episode_numbers": list(self.episode_numbers),
            "num_steps": list(self.num_steps),
            "is_done": list(self._is_done),
        }
        for n, env in enumerate(self.environments):
            stateful: Any = env
            state[f"env_{n}"] = stateful.get_state() if self._has_own_state else list(self._actions[n])
            is_forgotten = not self._has_own_state and len(self._actions[n]) < self.num_steps[n]
            if n in self.not_restored or (is_forgotten and not self._is_done[n]):
                state[f"too_long_{n}"] = True
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore every sub-environment."""
        self._seed_name = tuple(state["seed_name"])
        self.episode_numbers = [int(number) for number in state["episode_numbers"]]
        self.not_restored = [n for n in range(self.num_envs) if f"too_long_{n}" in state]
        for n, env in enumerate(self.environments):
            if n in self.not_restored:
                continue
            self._begin_episode(n)
            stateful: Any = env
            if self._has_own_state:
                stateful.set_state(state[f"env_{n}"])
            else:
                self._repeat(n, state[f"env_{n}"])
        self.num_steps = [int(number) for number in state["num_steps"]]
        self._is_done = [bool(flag) or n in self.not_restored for n, flag in enumerate(state["is_done"])]

    def _repeat(self, n: int, steps: Sequence[Mapping[str, Any]]) -> None:
        """Take the steps of a running episode again."""
        for stored in steps:
            actions = as_given(stored, self.environments[n].action_spaces)
            self._actions[n].append(actions)
            self._call("step", n, _copied(actions))
            self.num_steps[n] += 1

    def close(self) -> None:
        """Close every environment."""
        close_environments(self.environments)


def _copied(actions: Mapping[str, Any]) -> AgentDict:
    return {agent: nested.map_leaves(_copied_leaf, action) for agent, action in actions.items()}


def _copied_leaf(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
