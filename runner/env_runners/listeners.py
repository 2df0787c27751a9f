"""Listeners follow the episodes of an env runner: metrics from infos, tasks, recorders and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure, list_names, nearest_match
from runner.env_runners.evaluation_quotas import EvaluationQuotas
from runner.env_runners.multi_agent_envs import EnvStep
from runner.env_runners.running_agents import FinishedEpisode
from runner.episodes.columns import Rollout
from runner.pipelines.custom_metrics import ReducedMetrics
from runner.rows.finished_episodes import NO_EPISODES, NONE_OUTSIDE, FinishedEpisodes, OutsideObservations
from runner.rows.fragments import Fragment
from runner.rows.infos import Infos

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


class ObservedEpisodes(Protocol):
    """The newest episodes of N sub-environments. As a sequence, it holds views that are made on demand."""

    def __getitem__(self, n: int) -> Any:
        """Return a view of one episode."""

    def episode_return(self, n: int) -> float:
        """Return the undiscounted sum of its rewards so far."""


@dataclass(slots=True, eq=False)  # a frozen dataclass takes four times longer to make
class VectorStep:
    """One vector step of N sub-environments, or their first reset. Arrays are reused: copy what you keep.

    Attributes:
        is_reset: (N,) whether the sub-environment was reset instead of stepped.
        is_done: (N,) whether its episode has ended.
        counted: (N,) whether the step counts; in evaluations, false for sub-environments whose quota is used up.
        episodes: views of the newest episodes.
        aborted: sub-environments that failed during an episode and were re-created: the next episode has begun.
        infos: with a single agent, infos of the sub-environments.
        results: with several agents, the result of each sub-environment.
        ended: with several agents, the env episodes that ended, ordered by sub-environment.
        ended_unseen: with several agents, sub-environment and id of each agent that ended without a final observation.
    """

    is_reset: BoolArray
    is_done: BoolArray
    counted: BoolArray
    episodes: ObservedEpisodes
    aborted: Sequence[int] = ()
    infos: Infos = ()
    results: Sequence[EnvStep] = ()
    ended: Sequence[FinishedEpisode] = ()
    ended_unseen: Sequence[tuple[int, str]] = ()


@dataclass(slots=True, eq=False)
class Cut:
    """The rows since the previous cut, which leave the env runner.

    Attributes:
        fragments: module id -> fragment.
        num_env_steps: env steps of all sub-environments.
        weights_seq_no: number of the weights that chose the action.
        quotas: quotas of an evaluation; None in a sample, in which all episodes count.
        finished: with a single agent, the episodes that ended.
        ended: with several agents, the env episodes that ended.
        aborted: ids of episodes that failed.
        outside: observations outside of their space.
        tasks: task of each episode that ended, in the order of their ends; None if episodes do not belong to tasks.
    """

    fragments: Mapping[str, Fragment]
    num_env_steps: int
    weights_seq_no: int
    quotas: EvaluationQuotas | None
    finished: FinishedEpisodes = NO_EPISODES
    ended: Sequence[FinishedEpisode] = ()
    aborted: Sequence[str] = ()
    outside: OutsideObservations = NONE_OUTSIDE
    tasks: Sequence[str] | None = None


class EpisodeListener:
    """Base class of listeners: override the hooks that the listener needs.

    Attributes:
        name: key of its state in the state of the env runner; empty if it does not have a state.
        runs_user_code: whether its hooks call user code, which may train a network.
    """

    name: ClassVar[str] = ""
    runs_user_code: ClassVar[bool] = False

    @property
    def receivers(self) -> Mapping[str, Callable[..., None]]:
        """Receiver name -> function that is called when a part of the run sends an announcement to it."""
        return {}

    def begin(self) -> None:
        """Called before all sub-environments are reset, and after they are restored: forget earlier episodes."""

    def before_reset(self, envs: BoolArray) -> None:
        """Called before these sub-environments (N,) are reset, between the forward pass and the env step."""

    def on_step(self, step: VectorStep) -> None:
        """Called after a vector step, when its rows are written and the env-to-module connectors have run."""

    def on_cut(self, cut: Cut) -> None:
        """Called when rows leave the env runner."""

    def on_sample(self, rollout: Rollout) -> ReducedMetrics:
        """Called at the end of each sample; returns metric of the run -> values."""
        return {}

    def begin_evaluation(self) -> None:
        """Called before `begin` of an evaluation."""

    def complete(self, finished: FinishedEpisodes, counted: IntArray | None) -> FinishedEpisodes:
        """Return finished episodes with the data that the listener adds; called once per sample or evaluation.

        Args:
            finished: the episodes.
            counted: in an evaluation, their indices among all episodes that ended in it; None: `finished` has all.
        """
        return finished

    def get_state(self) -> Any:
        """Return the state of running episodes, as plain values and arrays."""

    def set_state(self, state: Any) -> None:
        """Restore a state of `get_state`."""

    def on_restored(self, running: Sequence[str]) -> None:
        """Called after a restore with the ids of running env episodes, whose first steps were sampled before."""

    def finish(self) -> Any:
        """Finish files and return a report of them, or None if there are no files."""

    def close(self) -> None:
        """Free resources, and drop episodes that are not in a complete file."""


def hooks_of(listeners: Sequence[EpisodeListener], name: str) -> tuple[Callable[..., None], ...]:
    """Return the hook of all listeners that override it, so that empty ones are not called in each step."""
    empty = getattr(EpisodeListener, name)
    return tuple(getattr(one, name) for one in listeners if getattr(type(one), name) is not empty)


def receiver_of(receivers: Iterable[Mapping[str, Callable[..., None]]], name: str) -> Callable[..., None]:
    """Return the function with this name among the receivers of an env runner's listeners.

    Raises:
        RunFailure: none of the listeners has such a receiver.
    """
    known = {key: function for of_listener in receivers for key, function in of_listener.items()}
    if name not in known:
        what = f"no listener of the env runner has the receiver `{name}`, which a part of the run announces to"
        expected = list_names(known) or "nothing: none of the listeners has receivers"
        raise RunFailure(Problem(what, "env_runners.announce", name, expected, nearest_match(name, known)))
    return known[name]
