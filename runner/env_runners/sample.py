"""The result of one call of `sample`: steps, finished episodes and values of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem
from runner.episodes.block_state import rollout_from_state, rollout_to_state
from runner.episodes.columns import Rollout
from runner.fast.copies import changed_copy
from runner.fast.lean_pickle import LeanPickle
from runner.pipelines.custom_metrics import ReducedMetrics, metrics_from_state, metrics_to_state
from runner.rows.finished_episodes import FinishedEpisodes, OutsideObservations
from runner.rows.to_record import ToRecord

# Module id -> parameters (P,).
Weights = Mapping[str, npt.NDArray[np.float32]]


@dataclass(eq=False)  # one per sample; frozen dataclasses take longer to create
class Sample(LeanPickle):
    """The result of one call of `sample`.

    Attributes:
        rollout: the sampled steps.
        finished: the episodes that ended.
        shared_state: by module id, the state of connectors that runners share (running means, for example), not merged.
        counts: metric name -> count of this runner since it was made.
        further_states: like `shared_state`, of further pipelines of this runner, which may have started from older
            merged states.
        to_record: additional data for recording, if the group records.
        runner: number of the runner.
        weights_seq_no: number of the weights that it used.
        connector_metrics: metric of the run -> values reported by connectors of the pipelines.
        aborted: ids of aborted episodes, which neither ended nor continue.
        idle_s: seconds that a runner in a separate process had waited for the call.
        bytes_per_env_step: size of such a runner's samples in transit; 0 in this process.
    """

    rollout: Rollout
    finished: FinishedEpisodes
    shared_state: dict[str, Any]
    counts: Mapping[str, int] = field(default_factory=dict)
    further_states: Sequence[dict[str, Any]] = ()
    to_record: ToRecord | None = None
    runner: int = 0
    weights_seq_no: int = 0
    connector_metrics: ReducedMetrics = field(default_factory=dict)
    aborted: Sequence[str] = ()
    idle_s: float = 0.0
    bytes_per_env_step: float = 0.0

    def without_rollout(self) -> Self:
        """Return the sample without its steps, keeping their number."""
        return changed_copy(self, rollout=Rollout({}, self.rollout.num_env_steps))

    def sent(self, idle_s: float, bytes_per_env_step: float) -> Self:
        """Return the sample of a runner in a separate process."""
        return changed_copy(self, idle_s=idle_s, bytes_per_env_step=bytes_per_env_step)

    def numbered(self, runner: int, weights_seq_no: int) -> Self:
        """Return the sample with the numbers of its runner and of its weights."""
        if (self.runner, self.weights_seq_no) == (runner, weights_seq_no):
            return self
        return changed_copy(self, runner=runner, weights_seq_no=weights_seq_no)

    def with_writable_rows(self) -> Self:
        """Return the sample with a rollout whose rows are writable."""
        rollout = self.rollout.with_writable_rows()
        return self if rollout is self.rollout else changed_copy(self, rollout=rollout)

    def get_state(self) -> dict[str, Any]:
        """Return the sample as nested dicts and lists of arrays and plain values.

        Without `to_record`, and without `idle_s` and `bytes_per_env_step`, which depend on where the runner is.
        """
        return {
            "rollout": rollout_to_state(self.rollout),
            "finished": _finished_to_state(self.finished),
            "shared_state": self.shared_state,
            "counts": dict(self.counts),
            "further_states": list(self.further_states),
            "runner": self.runner,
            "weights_seq_no": self.weights_seq_no,
            "connector_metrics": metrics_to_state(self.connector_metrics),
            "broken_off": list(self.aborted),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Sample:
        """Invert `get_state`."""
        rollout, finished = rollout_from_state(state["rollout"]), _finished_from_state(state["finished"])
        reported = metrics_from_state(state["connector_metrics"])
        others = {name: value for name, value in state.items() if name != "broken_off"}
        read = {"rollout": rollout, "finished": finished, "connector_metrics": reported, "aborted": state["broken_off"]}
        return cls(**{**others, **read})


def _finished_to_state(finished: FinishedEpisodes) -> dict[str, Any]:
    first = finished.outside.first
    outside = {"count": finished.outside.count, "first": None if first is None else asdict(first)}
    outcomes = {name: [list(one) for one in reported] for name, reported in finished.outcomes.items()}
    return {**vars(finished), "outside": outside, "outcomes": outcomes}


def _finished_from_state(state: Mapping[str, Any]) -> FinishedEpisodes:
    first = state["outside"]["first"]
    outside = OutsideObservations(int(state["outside"]["count"]), None if first is None else Problem(**first))
    outcomes = {name: tuple(map(tuple, reported)) for name, reported in state["outcomes"].items()}
    return FinishedEpisodes(**{**state, "outside": outside, "outcomes": outcomes})
