"""Listeners of the env runner of external simulators, which follow the episodes in its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from runner.callbacks import Callbacks
from runner.env_runners.episode_callbacks import episodes_of
from runner.env_runners.fragment_checks import check_fragment
from runner.env_runners.observation_checks import ObservationChecks
from runner.env_runners.sample import Sample
from runner.episodes.columns import Rollout
from runner.rllink.env_episodes import NotedEnvEpisodes, returns_of, task_of
from runner.rllink.received_episodes import OpenEpisode, SampledChunks
from runner.rows.finished_episodes import OutsideObservations
from runner.rows.task_outcomes import TASK_OUTCOMES, TaskOutcome


class SampleListener:
    """Base class of listeners: override the hooks that the listener needs.

    Attributes:
        name: key of its state in the state of the env runner; empty without state.
    """

    name: ClassVar[str] = ""

    @property
    def receivers(self) -> Mapping[str, Callable[..., None]]:
        """Receiver name -> function that is called when a part of the run sends an announcement to it."""
        return {}

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Return the sample with the data that the listener adds.

        Args:
            sample: the sample.
            chunks: its chunks, with observations as simulators sent them.
            noted: changes of env episodes by the chunks.
        """
        return sample

    def get_state(self) -> Any:
        """Return the state as plain values and arrays."""

    def set_state(self, state: Any, running: Mapping[str, OpenEpisode]) -> None:
        """Restore a state of `get_state`; `running` are the episodes that continue, by id."""


class ClientTasks(SampleListener):
    """Passes the probabilities of tasks to clients, and adds the outcomes of their episodes.

    Args:
        use_odds: sends clients the probability of each task.
    """

    def __init__(self, use_odds: Callable[[Mapping[str, float]], None]) -> None:
        self._use_odds = use_odds

    @property
    def receivers(self) -> Mapping[str, Callable[..., None]]:
        """`tasks`: the probabilities with which clients draw the tasks of new episodes."""
        return {"tasks": self._use_odds}

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Add the outcomes of env episodes whose clients have reported their task."""
        tasks = [(task_of(agents), sum(episode.return_ for episode in agents)) for agents in noted.counted]
        outcomes = tuple(TaskOutcome(task, value) for task, value in tasks if task is not None)
        finished = replace(sample.finished, outcomes={**sample.finished.outcomes, TASK_OUTCOMES: outcomes})
        return replace(sample, finished=finished)


class OutsideCount(SampleListener):
    """Counts observations outside of their space, for `env.validate_observations=warn`.

    Args:
        checks: module id -> checks of its observation space.
    """

    def __init__(self, checks: Mapping[str, ObservationChecks]) -> None:
        self._checks = checks

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Add the number of observations outside of their space."""
        found = [check_fragment(one.block, one.raw_obs, self._checks[one.block.module_id]) for one in chunks]
        return replace(sample, finished=replace(sample.finished, outside=OutsideObservations.total(found)))


class ReceivedCallbacks(SampleListener):
    """Calls the hooks of callbacks for complete episodes that have ended, and for samples.

    Args:
        callbacks: the callbacks of this env runner.
        env_runner_index: index of the env runner.
    """

    name: ClassVar[str] = "callbacks"

    def __init__(self, callbacks: Callbacks, env_runner_index: int) -> None:
        self._callbacks = callbacks
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
