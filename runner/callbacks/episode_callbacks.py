"""The callbacks of one env runner: which episodes begin, step and end in its vector steps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.callbacks.callbacks import Callbacks
from runner.episodes.columns import ColumnBlock
from runner.pipelines.piece_metrics import ConnectorMetrics
from runner.rows.lock_step_rows import LockStepRows


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
        callbacks.call("on_environment_created", env=env, env_runner_index=env_runner_index)

    def before_first_reset(self) -> None:
        """All sub-environments are about to be reset."""
        self._create(np.ones(len(self._own), np.bool_))

    def before_step(self, rows: LockStepRows) -> None:
        """The next vector step resets the sub-environments whose episodes have ended."""
        self._create(rows.awaits_reset)

    def _create(self, are_reset: npt.NDArray[np.bool_]) -> None:
        self._are_reset = are_reset
        for n in _numbers(are_reset):
            self._own[n] = [{"custom_data": {}} for _ in range(len(self._callbacks))]
            self._call("on_episode_created", n)

    def after_reset(self, rows: LockStepRows) -> None:
        """Sub-environments show the first observations of their episodes."""
        for n in _numbers(self._are_reset) if self._hears_start else ():
            self._call("on_episode_start", n, episode=rows[n])

    def after_step(self, rows: LockStepRows) -> None:
        """A vector step is written to the rows."""
        self.after_reset(rows)
        for n in _numbers(~self._are_reset) if self._hears_step else ():
            self._call("on_episode_step", n, episode=rows[n])
        for n in _numbers(rows.awaits_reset) if self._hears_end else ():
            self._call("on_episode_end", n, episode=rows[n], episode_return=rows.episode_return(n))

    def _call(self, hook: str, n: int, **event: Any) -> None:
        self._callbacks.call(hook, self._own[n], **event, env_index=n, rl_module=self._rl_module)

    def after_sample(self, episodes: ColumnBlock) -> None:
        """The env runner has sampled."""
        self._callbacks.call("on_sample_end", episodes=episodes, env_runner_index=self._index)

    def take_metrics(self) -> ConnectorMetrics:
        """See `Callbacks.take_metrics`."""
        return self._callbacks.take_metrics()

    def get_state(self) -> dict[str, Any]:
        """Return the custom data of running episodes, and the state of the callbacks."""
        return {"own": copy.deepcopy(self._own), "callbacks": self._callbacks.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`; callbacks that it does not have hear of the next episodes only."""
        places = self._callbacks.set_state(state["callbacks"])
        self._own = [
            [None if place is None or own[place] is None else copy.deepcopy(dict(own[place])) for place in places]
            for own in state["own"]
        ]


def _numbers(are_meant: npt.NDArray[np.bool_]) -> Sequence[int]:
    """Return the numbers of the sub-environments that are meant; hardly ever is one."""
    return np.flatnonzero(are_meant).tolist() if np.count_nonzero(are_meant) else ()
