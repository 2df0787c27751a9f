"""The ends of episodes in a fragment, and observations that are outside of their space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem
from runner.episodes.columns import REWARDS, ColumnBlock
from runner.fast.lean_pickle import LeanPickle


@dataclass(frozen=True)
class OutsideObservations(LeanPickle):
    """Observations with a value outside of the bounds of their space: their number, and the first one."""

    count: int = 0
    first: Problem | None = None

    @classmethod
    def total(cls, parts: Sequence[OutsideObservations]) -> OutsideObservations:
        """Return the observations of all parts."""
        return cls(sum(part.count for part in parts), next((part.first for part in parts if part.first), None))


NONE_OUTSIDE = OutsideObservations()


@dataclass(frozen=True)
class FinishedEpisodes(LeanPickle):
    """The F episodes that ended in a sample or an evaluation, as columns, in the order of their ends.

    Attributes:
        returns: return (F,) of each episode; with several agents, the sum of their returns.
        lengths: number (F,) of env steps.
        env_of: sub-environment (F,).
        by_agent, by_module: with several agents, agent or module id -> returns of agents.
        outside: observations outside of their space in all steps, also of episodes that have not ended.
        infos: metric -> numbers (F,) from infos, NaN if missing; with several agents, one for each agent's episode.
        reported: for each evaluation, the values that callbacks reported: metric -> `ReducedValue`.
        info_keys: if a metric did not find a number in any info, the keys of the newest last infos, for messages.
        outcomes: name of a part of the run -> outcomes that episodes report to it, each a sequence of plain values; the
            part reads them with `RunView.outcomes`. With a single agent, one for each episode, in the same order.
    """

    VECTOR_DTYPES: ClassVar[Mapping[str, Any]] = {"returns": np.float64, "lengths": np.int64, "env_of": np.int64}

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    env_of: npt.NDArray[np.int64]
    by_agent: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    by_module: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    outside: OutsideObservations = NONE_OUTSIDE
    infos: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    reported: tuple[Mapping[str, Any], ...] = ()
    info_keys: tuple[str, ...] = ()
    outcomes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def concatenated(cls, parts: Sequence[FinishedEpisodes]) -> FinishedEpisodes:
        """Return the episodes of all parts in one object."""
        return cls(
            np.concatenate([part.returns for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.env_of for part in parts]),
            _joined([part.by_agent for part in parts]),
            _joined([part.by_module for part in parts]),
            OutsideObservations.total([part.outside for part in parts]),
            _joined([part.infos for part in parts]),
            tuple(reported for part in parts for reported in part.reported),
            next((part.info_keys for part in reversed(parts) if part.info_keys), ()),
            _joined_outcomes([part.outcomes for part in parts]),
        )


NO_EPISODES = FinishedEpisodes(np.zeros(0, np.float64), np.zeros(0, np.int64), np.zeros(0, np.int64))


class RunningReturns:
    """The returns of episodes that continue after a cut.

    Args:
        num_envs: N.

    Attributes:
        so_far: undiscounted sum of rewards (N,) of each sub-environment's episode before the fragment, 0 if it is new.
    """

    def __init__(self, num_envs: int) -> None:
        self.so_far = np.zeros(num_envs, np.float64)

    def finish(
        self,
        block: ColumnBlock,
        sums: npt.NDArray[np.float64],
        env_of: npt.NDArray[np.int64],
        t_end: npt.NDArray[np.int64],
        num_steps: int,
    ) -> FinishedEpisodes:
        """Return the episodes that end in a fragment, and keep the returns of episodes that continue after it.

        Args:
            block: E chunks.
            sums: sum of the rewards (E,) of each chunk.
            env_of: sub-environment (E,) of each chunk.
            t_end: last vector step (E,) of each chunk.
            num_steps: vector steps of the fragment.
        """
        is_done = block.is_terminated | block.is_truncated
        num_done = np.count_nonzero(is_done)  # `any` takes five times longer on a few values
        num_rows = len(block.columns[REWARDS])
        if not num_steps:
            return NO_EPISODES
        if num_rows == num_steps * len(self.so_far) and not num_done:  # every episode continues in one chunk
            self.so_far += sums
            return NO_EPISODES
        returns = sums + np.where(block.t_started > 0, self.so_far[env_of], 0.0)
        continues = ~is_done & (t_end == num_steps - 1)  # an aborted episode neither ends nor continues
        self.so_far[:] = 0.0
        self.so_far[env_of[continues]] = returns[continues]
        if not num_done:
            return NO_EPISODES
        in_time = np.argsort(t_end[is_done], kind="stable")
        lengths = (block.t_started + block.lengths)[is_done]
        return FinishedEpisodes(returns[is_done][in_time], lengths[in_time], env_of[is_done][in_time])


def _joined(parts: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: np.concatenate([part[key] for part in parts if key in part]) for key in keys}


def _joined_outcomes(parts: Sequence[Mapping[str, tuple[Any, ...]]]) -> dict[str, tuple[Any, ...]]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: tuple(one for part in parts for one in part.get(name, ())) for name in names}


@dataclass(frozen=True)
class EndedEpisode:
    """The end of an env episode with several agents, for its recording.

    Attributes:
        id: id of the env episode.
        length: number of env steps.
        is_terminated: whether it is terminated; otherwise it is truncated.
        task: name of the task that it belongs to, if known.
    """

    id: str
    length: int
    is_terminated: bool
    task: str | None = None
