"""The callbacks of one env runner, called for episodes that begin, step and end."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from runner.callbacks import Callbacks
from runner.env_runners.listeners import BoolArray, EpisodeListener, IntArray, VectorStep
from runner.episodes import multi_agent_episodes, nested
from runner.episodes.columns import DEFAULT_MODULE_ID, Rollout
from runner.pipelines.custom_metrics import ReducedMetrics
from runner.rows.finished_episodes import FinishedEpisodes

_EPISODE_HOOKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class EpisodeCallbacks(EpisodeListener):
    """Calls the hooks of callbacks for the episodes of N sub-environments.

    Args:
        callbacks: the callbacks of this env runner.
        env: the sub-environments, which `on_environment_created` gets.
        env_runner_index: number of the env runner.
        num_envs: N.
        rl_module: the module that acts.
    """

    name: ClassVar[str] = "callbacks"
    runs_user_code: ClassVar[bool] = True

    def __init__(self, callbacks: Callbacks, env: Any, env_runner_index: int, num_envs: int, rl_module: Any) -> None:
        self._callbacks = callbacks
        self._index = env_runner_index
        self._rl_module = rl_module
        self._calls_start, self._calls_step, self._calls_end = (
            callbacks.overrides_any(f"on_episode_{event}") for event in ("start", "step", "end")
        )
        # Arguments of each sub-environment and callback; None if its `on_episode_created` was not called.
        self._own: list[list[dict[str, Any] | None]] = [[None] * len(callbacks) for _ in range(num_envs)]
        self._first_state = copy.deepcopy(callbacks.get_state())
        callbacks.call("on_environment_created", env=env, env_runner_index=env_runner_index)

    @property
    def has_missed_episodes(self) -> bool:
        """Whether callbacks have episode hooks, and the env runner has not called any yet."""
        has_hooks = self._callbacks.overrides_any(*_EPISODE_HOOKS)
        return has_hooks and all(own is None for of_env in self._own for own in of_env)

    def begin_evaluation(self) -> None:
        """Start from the initial state; evaluations do not depend on earlier events."""
        self._callbacks.set_state(copy.deepcopy(self._first_state))
        self._callbacks.take_metrics()

    def before_reset(self, envs: BoolArray) -> None:
        """Call `on_episode_created`."""
        self._create(_numbers(envs))

    def _create(self, envs: Sequence[int]) -> None:
        for n in envs:
            self._own[n] = [{"custom_data": {}} for _ in range(len(self._callbacks))]
            self._call("on_episode_created", n)

    def on_step(self, step: VectorStep) -> None:
        """Call the hooks of episodes that have begun, stepped or ended."""
        if step.aborted:
            self._create([n for n in step.aborted if step.counted[n]])
        episodes = step.episodes
        for n in _numbers(step.is_reset, step.counted) if self._calls_start else ():
            self._call("on_episode_start", n, episode=_read_only(episodes[n]))
        for n in _numbers(~step.is_reset, step.counted) if self._calls_step else ():
            self._call("on_episode_step", n, episode=_read_only(episodes[n]))
        for n in _numbers(step.is_done, step.counted) if self._calls_end else ():
            episode = _read_only(episodes[n])
            self._call("on_episode_end", n, episode=episode, episode_return=episodes.episode_return(n))

    def _call(self, hook: str, n: int, **event: Any) -> None:
        self._callbacks.call(hook, self._own[n], **event, env_index=n, rl_module=self._rl_module)

    def on_sample(self, rollout: Rollout) -> ReducedMetrics:
        """Call `on_sample_end`, and return the values reported since the previous sample."""
        if self._callbacks.overrides_any("on_sample_end"):
            self._callbacks.call("on_sample_end", episodes=episodes_of(rollout), env_runner_index=self._index)
        return self._callbacks.take_metrics()

    def complete(self, finished: FinishedEpisodes, counted: IntArray | None) -> FinishedEpisodes:
        """Add the values reported in an evaluation."""
        return finished if counted is None else replace(finished, reported=(self._callbacks.take_metrics(),))

    def get_state(self) -> dict[str, Any]:
        """Return the custom data of running episodes, and the state of the callbacks."""
        return {"own": copy.deepcopy(self._own), "callbacks": self._callbacks.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; callbacks missing from it are called from the next episodes on."""
        places = self._callbacks.restore(state["callbacks"])
        self._own = [
            [None if place is None or own[place] is None else copy.deepcopy(dict(own[place])) for place in places]
            for own in state["own"]
        ]


def _numbers(*masks: BoolArray) -> Sequence[int]:
    """Return the numbers of the sub-environments for which all masks (N,) are true; usually there are none."""
    first, *others = masks
    if not np.count_nonzero(first):
        return ()
    for other in others:
        first = first & other
    numbers: list[int] = np.flatnonzero(first).tolist()
    return numbers


def _read_only(episode: Any) -> Any:
    """Make the episode's views of sampled rows read-only, and return it."""
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
