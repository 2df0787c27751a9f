"""The parts of a run, in the order in which they are saved, restored and closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.callbacks import Callbacks
from runner.closing import close_each
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.learners.remote_learner_group import Learners
from runner.parts import Part
from runner.plans.episode_metrics import Result
from runner.plans.run_metrics import RunMetrics
from runner.replay.replay_part import ReplayPart

if TYPE_CHECKING:  # env runners must not import the libraries of recorded data
    from runner.offline.training.offline_data import OfflineData


@dataclass(frozen=True)
class RunParts:
    """The parts of a run.

    Attributes:
        learners: learners of all modules.
        metrics: counters, timers and running means.
        callbacks: callbacks of the driver.
        env_runners: env runners that sample, or None if the plan needs none.
        recorded_data: recorded data to learn from, or None if the plan needs none.
        replay_buffers: replay buffers.
        features: further parts, such as a league and the evaluations.
        stored_shared_state: `shared_state` of a run without sources, which only evaluates a stored policy.
    """

    learners: Learners
    metrics: RunMetrics
    callbacks: Callbacks
    env_runners: EnvRunnerGroup | None = None
    recorded_data: OfflineData | None = None
    replay_buffers: Sequence[ReplayPart] = ()
    features: Sequence[Part] = ()
    stored_shared_state: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Part]:
        """Yield the parts in the order of restoring: a part comes after the parts it refers to."""
        yield from (self.learners, self.metrics, self.callbacks)
        yield from self.sources
        yield from self.replay_buffers
        yield from self.features

    @property
    def sources(self) -> list[EnvRunnerGroup | OfflineData]:
        """The sources of experiences: env runners and recorded data, if the run has them."""
        return [source for source in (self.env_runners, self.recorded_data) if source is not None]

    # -- information for parts and evaluations -------------------------------------------------------------------------

    @property
    def num_env_steps(self) -> int:
        """Env steps sampled so far."""
        return self.metrics.num_env_steps_sampled_lifetime

    @property
    def shared_state(self) -> Mapping[str, Any]:
        """Module id -> merged state of the connectors whose state env runners share."""
        return self.sources[0].shared_state if self.sources else self.stored_shared_state

    def get_weights(self) -> Mapping[str, Any]:
        """Return module id -> parameters (P,)."""
        return self.learners.get_weights()

    def outcomes(self, name: str) -> Sequence[Any]:
        """Return the values that the episodes of this iteration report to the part of this name."""
        return self.metrics.outcomes.get(name, ())

    # -- progress of a run ---------------------------------------------------------------------------------------------

    def broadcast_policy(self, shared_state: Mapping[str, Any]) -> None:
        """Send the learners' weights and this state of shared connectors to all sources."""
        for source in self.sources:
            source.use_shared_state(shared_state)
            source.set_weights(self.learners.get_weights())

    def begin(self) -> None:
        """Call `begin` of each part, in a new run and again after a restore, before anything is sampled."""
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
        """Return the metrics of an evaluation from the outcomes of its episodes: name of a part -> outcomes."""
        return {
            name: value for part in self for name, value in part.evaluation_metrics(outcomes.get(part.name, ())).items()
        }

    def write_files(self, run_dir: Path, is_final: bool = False) -> None:
        """Write all files of parts that have new content."""
        for part in self:
            part.write_files(run_dir, is_final)

    def summary(self, run_dir: Path) -> list[str]:
        """Return lines for the end of a run."""
        return [line for part in self for line in part.summary(run_dir)]

    def close(self) -> None:
        """Close all parts, learners first because they read from the others."""
        close_each(list(self))
