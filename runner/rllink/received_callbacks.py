"""The callbacks of an env runner that receives episodes from simulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from runner.callbacks import Callbacks
from runner.env_runners.episode_callbacks import episodes_of
from runner.env_runners.sample import Sample
from runner.episodes.columns import Rollout
from runner.rllink.env_episodes import NotedEnvEpisodes, returns_of
from runner.rllink.received_episodes import OpenEpisode, SampledChunks
from runner.rllink.sample_listeners import SampleListener


class ReceivedCallbacks(SampleListener):
    """Calls the hooks of callbacks for complete episodes that have ended, and for samples.

    Args:
        callbacks: the callbacks of this env runner.
        env_runner_index: index of the env runner.
    """

    name: ClassVar[str] = "callbacks"

    def __init__(self, callbacks: Callbacks, env_runner_index: int) -> None:
        self._callbacks = callbacks
        self._callbacks.context["is_evaluation"] = False
        self._index = env_runner_index

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Call the hooks, and add the metrics that they have reported."""
        if self._callbacks.overrides_any("on_episode_end", "on_sample_end"):
            self._call_hooks(sample.rollout, returns_of(noted.counted))
        return replace(sample, connector_metrics=sample.connector_metrics | self._callbacks.take_metrics())

    def _call_hooks(self, rollout: Rollout, returns: Mapping[str, float]) -> None:
        """Call the hooks; `returns` (id -> return) belong to the complete env episodes that end in the rollout."""
        episodes = episodes_of(rollout)
        for episode in episodes if returns else ():
            if episode.id_ in returns and episode.is_done:
                own: list[dict[str, Any]] = [{"custom_data": {}} for _ in range(len(self._callbacks))]
                event = {"episode": episode, "episode_return": returns[episode.id_]}
                self._callbacks.call("on_episode_end", own, **event, env_index=None, rl_module=None)
        self._callbacks.call("on_sample_end", episodes=episodes, env_runner_index=self._index)

    def get_state(self) -> list[dict[str, Any]]:
        """See `Callbacks.get_state`."""
        return self._callbacks.get_state()

    def set_state(self, state: Any, running: Mapping[str, OpenEpisode]) -> None:
        """See `Callbacks.set_state`."""
        self._callbacks.set_state(state)
