"""The callbacks of an env runner whose episodes come from simulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.callbacks import Callbacks
from runner.env_runners.episode_callbacks import episodes_of
from runner.episodes.columns import Rollout
from runner.pipelines.custom_metrics import ReducedMetrics


class ReceivedCallbacks:
    """Tells callbacks of the episodes that simulators have sent to the end, and of samples.

    Args:
        callbacks: of this env runner.
        env_runner_index: number of the env runner.
    """

    def __init__(self, callbacks: Callbacks, env_runner_index: int) -> None:
        self._callbacks = callbacks
        self._callbacks.context["is_evaluation"] = False
        self._index = env_runner_index

    def after_sample(self, rollout: Rollout, returns: Mapping[str, float]) -> None:
        """The env runner has sampled.

        Args:
            rollout: what it has sampled.
            returns: id -> return of the whole env episodes that end in it.
        """
        if not self._callbacks.hears("on_episode_end", "on_sample_end"):
            return
        episodes = episodes_of(rollout)
        for episode in episodes if returns else ():
            if episode.id_ in returns and episode.is_done:
                own: list[dict[str, Any]] = [{"custom_data": {}} for _ in range(len(self._callbacks))]
                event = {"episode": episode, "episode_return": returns[episode.id_]}
                self._callbacks.call("on_episode_end", own, **event, env_index=None, rl_module=None)
        self._callbacks.call("on_sample_end", episodes=episodes, env_runner_index=self._index)

    def take_metrics(self) -> ReducedMetrics:
        """See `Callbacks.take_metrics`."""
        return self._callbacks.take_metrics()

    def get_state(self) -> list[dict[str, Any]]:
        """See `Callbacks.get_state`."""
        return self._callbacks.get_state()

    def set_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """See `Callbacks.set_state`."""
        self._callbacks.set_state(state)
