"""The callbacks of one env runner: which episodes begin, step and end in its vector steps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runner.callbacks.callbacks import Callbacks
from runner.episodes import multi_agent_episodes, nested
from runner.episodes.columns import DEFAULT_MODULE_ID, Rollout
from runner.pipelines.custom_metrics import ReducedMetrics

_EPISODE_HOOKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class HeardEpisodes(Protocol):
    """The episodes of N sub-environments; as a sequence, views of them that are made on demand."""

    @property
    def awaits_reset(self) -> npt.NDArray[np.bool_]:
        """Whether (N,) the episode has ended."""

    def __getitem__(self, n: int) -> Any:
        """Return a view of one."""

    def episode_return(self, n: int) -> float:
        """Return the undiscounted sum of its rewards so far."""


class EpisodeCallbacks:
    """Tells callbacks of the episodes of N sub-environments.

    Args:
        callbacks: of this env runner.
        env: the sub-environments as their owner knows them.
        env_runner_index: number of the env runner.
        num_envs: N.
        rl_module: that acts.
    """

    def __init__(self, callbacks: Callbacks, env: Any, env_runner_index: int, num_envs: int, rl_module: Any) -> None:
        self._callbacks = callbacks
        self._index = env_runner_index
        self._rl_module = rl_module
        self._hears_start, self._hears_step, self._hears_end = (
            callbacks.hears(f"on_episode_{event}") for event in ("start", "step", "end")
        )
        # Of each sub-environment and callback; None: it has not heard that the episode was created.
        self._own: list[list[dict[str, Any] | None]] = [[None] * len(callbacks) for _ in range(num_envs)]
        self._are_reset = np.zeros(num_envs, np.bool_)  # in the newest vector step
        self._heard_envs = np.ones(num_envs, np.bool_)
        self._first_state = copy.deepcopy(callbacks.get_state())
        callbacks.call("on_environment_created", env=env, env_runner_index=env_runner_index)

    @property
    def has_missed_episodes(self) -> bool:
        """Whether callbacks hear of episodes, and the env runner has told of none yet."""
        is_asked = self._callbacks.hears(*_EPISODE_HOOKS)
        return is_asked and all(own is None for of_env in self._own for own in of_env)

    def begin_evaluation(self, is_running: npt.NDArray[np.bool_]) -> None:
        """Forget what was kept since the start, and tell only of sub-environments (N,) that have anything to run."""
        self._callbacks.set_state(copy.deepcopy(self._first_state))
        self._callbacks.take_metrics()
        self.tell_of(is_running)

    def tell_of(self, is_running: npt.NDArray[np.bool_]) -> None:
        """Tell only of sub-environments (N,) that have anything left to run."""
        self._heard_envs = is_running

    def end_evaluation(self) -> ReducedMetrics:
        """Tell of all sub-environments again; return metric of the run -> what was reported in the evaluation."""
        self._heard_envs = np.ones(len(self._own), np.bool_)
        return self._callbacks.take_metrics()

    def before_first_reset(self) -> None:
        """All sub-environments are about to be reset."""
        self._create(np.ones(len(self._own), np.bool_))

    def before_step(self, episodes: HeardEpisodes) -> None:
        """The next vector step resets the sub-environments whose episodes have ended."""
        self._create(episodes.awaits_reset)

    def _create(self, are_reset: npt.NDArray[np.bool_]) -> None:
        self._are_reset = are_reset
        for n in self._numbers(are_reset):
            self._own[n] = [{"custom_data": {}} for _ in range(len(self._callbacks))]
            self._call("on_episode_created", n)

    def break_off(self, envs: Sequence[int]) -> None:
        """The newest vector step has begun other episodes in these sub-environments; the ones before have no end."""
        are_reset = self._are_reset.copy()
        are_new = np.zeros_like(are_reset)
        are_new[list(envs)] = True
        self._create(are_new & ~are_reset)
        self._are_reset = are_reset | are_new

    def after_reset(self, episodes: HeardEpisodes) -> None:
        """Sub-environments show the first observations of their episodes."""
        for n in self._numbers(self._are_reset) if self._hears_start else ():
            self._call("on_episode_start", n, episode=_read_only(episodes[n]))

    def after_step(self, episodes: HeardEpisodes) -> None:
        """A vector step is written to the rows."""
        self.after_reset(episodes)
        for n in self._numbers(~self._are_reset) if self._hears_step else ():
            self._call("on_episode_step", n, episode=_read_only(episodes[n]))
        for n in self._numbers(episodes.awaits_reset) if self._hears_end else ():
            episode = _read_only(episodes[n])
            self._call("on_episode_end", n, episode=episode, episode_return=episodes.episode_return(n))

    def _numbers(self, are_meant: npt.NDArray[np.bool_]) -> Sequence[int]:
        """Return the numbers of the sub-environments that are meant; hardly ever is one."""
        if not np.count_nonzero(are_meant):
            return ()
        numbers: list[int] = np.flatnonzero(are_meant & self._heard_envs).tolist()
        return numbers

    def _call(self, hook: str, n: int, **event: Any) -> None:
        self._callbacks.call(hook, self._own[n], **event, env_index=n, rl_module=self._rl_module)

    def after_sample(self, rollout: Rollout) -> None:
        """The env runner has sampled."""
        if self._callbacks.hears("on_sample_end"):
            self._callbacks.call("on_sample_end", episodes=episodes_of(rollout), env_runner_index=self._index)

    def take_metrics(self) -> ReducedMetrics:
        """See `Callbacks.take_metrics`."""
        return self._callbacks.take_metrics()

    def get_state(self) -> dict[str, Any]:
        """Return the custom data of running episodes, and the state of the callbacks."""
        return {"own": copy.deepcopy(self._own), "callbacks": self._callbacks.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`; callbacks that it does not have hear of the next episodes only."""
        places = self._callbacks.restore(state["callbacks"])
        self._own = [
            [None if place is None or own[place] is None else copy.deepcopy(dict(own[place])) for place in places]
            for own in state["own"]
        ]


def _read_only(episode: Any) -> Any:
    """Return the episode, whose views of the rows that are learned from cannot be written into any more."""
    for one in getattr(episode, "agent_episodes", {"": episode}).values():
        for buffer in (one.observations, one.actions, one.rewards, *one.extra_model_outputs.values()):
            for leaf in nested.leaves(buffer.data):
                if isinstance(leaf, np.ndarray):
                    leaf.setflags(write=False)
    return episode


def episodes_of(rollout: Rollout) -> Sequence[Any]:
    """Return the episodes of a rollout: a column block, or with several agents a list of multi-agent episodes."""
    block = rollout.blocks.get(DEFAULT_MODULE_ID)
    return multi_agent_episodes(rollout) if block is None or block.agents is not None else block
