"""The parts of a run, in the order in which they are saved, restored and closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.callbacks import Callbacks
from runner.closing import close_each
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.learners.remote_learner_group import Learners
from runner.parts import Part
from runner.plans.run_metrics import Result, RunMetrics
from runner.replay.replay_part import ReplayPart

if TYPE_CHECKING:  # env runners do without the libraries of recorded data
    from runner.offline.training.offline_data import OfflineData


@dataclass(frozen=True)
class RunParts:
    """What a run consists of.

    Attributes:
        learners: learners of all modules.
        metrics: counters, timers and running means.
        callbacks: callbacks of the driver.
        env_runners: env runners that sample, or None if the plan needs none.
        recorded_data: recorded data to learn from, or None if the plan needs none.
        replay_buffers: replay buffers.
        features: further parts, such as a league, a curriculum, and the evaluations.
    """

    learners: Learners
    metrics: RunMetrics
    callbacks: Callbacks
    env_runners: EnvRunnerGroup | None = None
    recorded_data: OfflineData | None = None
    replay_buffers: Sequence[ReplayPart] = ()
    features: Sequence[Part] = ()

    def __iter__(self) -> Iterator[Part]:
        """Yield the parts in the order in which they are restored: what a part refers to comes before it."""
        yield from (self.learners, self.metrics, self.callbacks)
        yield from self.sources
        yield from self.replay_buffers
        yield from self.features

    @property
    def sources(self) -> list[EnvRunnerGroup | OfflineData]:
        """The parts that experiences come from: env runners and recorded data, if the run has them."""
        return [source for source in (self.env_runners, self.recorded_data) if source is not None]

    # -- what parts and evaluations ask of the run -----------------------------------------------------------------

    @property
    def num_env_steps(self) -> int:
        """Env steps sampled so far."""
        return self.metrics.num_env_steps_sampled_lifetime

    @property
    def shared_state(self) -> Mapping[str, Any]:
        """Module id -> merged state of the connectors that env runners share."""
        return self.sources[0].shared_state

    def get_weights(self) -> Mapping[str, Any]:
        """Return module id -> parameters (P,)."""
        return self.learners.get_weights()

    def outcomes(self, name: str) -> Sequence[Any]:
        """Return what the episodes of this iteration report to the part of this name."""
        return self.metrics.outcomes.get(name, ())

    # -- the course of a run ---------------------------------------------------------------------------------------

    def broadcast_policy(self, shared_state: Mapping[str, Any]) -> None:
        """Let all sources work with the learners' weights and with this state of shared connectors."""
        for source in self.sources:
            source.use_shared_state(shared_state)
            source.set_weights(self.learners.get_weights())

    def begin(self) -> None:
        """Begin or resume: the weights are known, and nothing was sampled since."""
        for part in self:
            part.begin(self)
        self._announce()

    def _announce(self) -> None:
        if self.env_runners is not None:
            for part in self:
                part.announce_to(self.env_runners, is_evaluation=False)

    def end_iteration(self, of_plan: Result) -> Result:
        """End an iteration and return its result.

        Args:
            of_plan: metrics of the plan itself.
        """
        metrics = {name: value for part in self for name, value in part.metrics().items()} | of_plan
        for part in self:
            metrics |= part.end_iteration(self)
        self._announce()
        return self.metrics.finish_iteration(metrics)

    def evaluation_metrics(self, outcomes: Mapping[str, Sequence[Any]]) -> Result:
        """Return the metrics of an evaluation from what its episodes report: name of a part -> outcomes."""
        return {
            name: value for part in self for name, value in part.evaluation_metrics(outcomes.get(part.name, ())).items()
        }

    def write_files(self, run_dir: Path, is_final: bool = False) -> None:
        """Write the files of all parts that have new content."""
        for part in self:
            part.write_files(run_dir, is_final)

    def summary(self, run_dir: Path) -> list[str]:
        """Return lines for the end of a run."""
        return [line for part in self for line in part.summary(run_dir)]

    def close(self) -> None:
        """Close all parts; learners first, since they stop reading."""
        close_each(list(self))
