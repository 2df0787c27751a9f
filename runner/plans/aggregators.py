"""Ray actors that turn samples into columns of train batches while the learner updates on earlier ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runner.cluster.placement import Placement
from runner.cluster.waiting import find_lack_of_room
from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.metrics import NUM_AGGREGATOR_RESTARTS
from runner.config.own_code import problem_of
from runner.config.schemas import LearnersConfig
from runner.creation_failures import creation_failure
from runner.env_runners.sample import Sample
from runner.interrupts import is_interrupted
from runner.learners.prepared_columns import Prepared
from runner.modules.rl_module import RLModule
from runner.pipelines.pipeline import LearnerConnectorPipeline, taken_metrics
from runner.restarts import Restarts

_LOOK_UP_S = 0.2

_log = logging.getLogger(__name__)


class MakePipelines(Protocol):
    """A plan that makes learner pipelines in the process of an aggregator; it is sent there."""

    def __call__(self) -> tuple[Mapping[str, RLModule], Mapping[str, LearnerConnectorPipeline]]:
        """Return all modules, and the learner pipelines of the ones that are trained, by module id."""


class _AggregatorActor:
    """The learner pipelines of one process."""

    def __init__(self, make_pipelines: MakePipelines) -> None:
        import torch

        torch.set_num_threads(1)
        self._modules, self._pipelines = make_pipelines()
        self._lock = threading.Lock()  # pieces are called by one thread at a time

    def is_there(self) -> bool:
        return True

    def prepare(self, sample: Sample) -> tuple[None, Prepared]:
        """Return nothing, by which the driver sees that it is done, and what has been made."""
        with self._lock:
            try:
                columns = prepared_columns(sample, self._modules, self._pipelines)
            except RunnerError:
                raise
            except Exception as error:  # the user's lines are known here, and their text travels
                raise RunFailure(problem_of(error, "connectors.learner")) from error
            return None, Prepared(columns, taken_metrics({id_: [one] for id_, one in self._pipelines.items()}))


def prepared_columns(
    sample: Sample, modules: Mapping[str, RLModule], pipelines: Mapping[str, LearnerConnectorPipeline]
) -> dict[str, Any]:
    """Return the columns that the pieces before `NumpyToTensor` make of each module's rows.

    Raises:
        RunFailure: a piece leaves a note for a piece that comes after these.
    """
    blocks = sample.with_writable_rows().rollout.blocks
    columns: dict[str, Any] = {}
    for module_id, pipeline in pipelines.items():
        if module_id in blocks and blocks[module_id].num_rows:
            notes: dict[str, Any] = {}
            context = {"rl_module": modules, "shared_data": notes, "episodes_of_modules": blocks}
            columns[module_id] = pipeline.begin(episodes=blocks[module_id], **context)
            if notes:
                what = "a piece in an aggregator leaves shared_data, which no piece in the learner gets"
                allowed = "columns of the batch, or learners.num_aggregator_actors=0"
                raise RunFailure(Problem(what, "connectors.learner", ", ".join(map(str, notes)), allowed))
    return columns


@dataclass
class Preparation:
    """The columns of one sample, in the making.

    Attributes:
        sample: Ray's reference to the sample that was asked for.
        actor: the aggregator that was asked.
        done, prepared: Ray's references to what `_AggregatorActor.prepare` returns.
    """

    sample: Any
    actor: Any
    done: Any
    prepared: Any


class Aggregators:
    """N actors that each hold the learner pipelines; samples go from env runners to them in turn.

    An aggregator is asked for a sample's columns together with the env runner for the sample, which passes from one to
    the other by itself. A lost aggregator is replaced; what it had not finished, and whatever comes before the new one
    has started, is left to the learner.

    Args:
        make_pipelines: makes the learner pipelines of one actor.
        config: number, resources and places of aggregators, and how often lost ones are replaced.
        start_timeout_s: until all are there.

    Raises:
        RunFailure: an aggregator cannot be made.
    """

    def __init__(self, make_pipelines: MakePipelines, config: LearnersConfig, start_timeout_s: float) -> None:
        self._make_pipelines = make_pipelines
        self._placement = Placement(
            config.resources_per_aggregator_actor, config.num_aggregator_actors, config.aggregator_scheduling_strategy
        )
        self._restarts = Restarts(config.max_restarts, "learners.max_restarts")
        self._num_asked = 0
        self._starting: dict[Any, Any] = {}  # actor -> Ray's reference that is ready once it has started
        self._actors = [self._make() for _ in range(config.num_aggregator_actors)]
        try:
            self._wait_for_start(start_timeout_s)
        except BaseException:
            self.close()
            raise

    def _make(self) -> Any:
        import ray

        # Calls of an actor with several threads need not wait for each other's samples, of which one may come late.
        options = {"max_restarts": 0, "max_concurrency": 2, **self._placement.place()}
        actor: Any = ray.remote(_AggregatorActor).options(**options).remote(self._make_pipelines)
        self._starting[actor] = actor.is_there.remote()
        return actor

    def _wait_for_start(self, timeout_s: float) -> None:
        import ray

        calls = list(self._starting.values())
        started, missing = ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        try:
            ray.get(started)
        except ray.exceptions.RayError as error:
            _log.error("aggregator: %s", error)
            raise creation_failure(error, "an aggregator cannot be made") from error
        if missing:
            what = f"{len(missing)} of {len(calls)} aggregators did not start within {timeout_s:g} s"
            lack = find_lack_of_room(self._actors, timeout_s)
            raise RunFailure(lack or Problem(what, "ray.actor_start_timeout_s"))

    @property
    def num_restarts(self) -> int:
        """Number of lost aggregators that were replaced so far."""
        return self._restarts.count

    def ask(self, sample: Any) -> Preparation | None:
        """Let the next aggregator in turn prepare a sample; None: none has started.

        Args:
            sample: Ray's reference to it, which need not be ready.
        """
        for _ in self._actors:
            actor = self._actors[self._num_asked % len(self._actors)]
            self._num_asked += 1
            if self._has_started(actor):
                return Preparation(sample, actor, *actor.prepare.options(num_returns=2).remote(sample))
        return None

    def _has_started(self, actor: Any) -> bool:
        import ray

        if actor in self._starting and ray.wait([self._starting[actor]], timeout=0)[0]:
            del self._starting[actor]
        return actor not in self._starting

    def finish(self, preparation: Preparation, sample: Sample, reference: Any) -> Sample:
        """Return the sample with its columns, waiting for them; as it is where the learner is to make them.

        Args:
            preparation: of the sample.
            sample: as its env runner has given it.
            reference: Ray's to the sample; another one than was asked for where its env runner had to be replaced.

        Raises:
            RunFailure: a piece failed, or restarts are used up.
        """
        import ray

        if preparation.sample != reference:
            return sample
        try:
            while not ray.wait([preparation.done], timeout=_LOOK_UP_S)[0]:
                if is_interrupted():
                    return sample
            ray.get(preparation.done)
            return sample.with_prepared(preparation.prepared)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RunnerError):
                raise error.cause from None
            if isinstance(error.cause, ray.exceptions.RayError):  # the sample was lost on its way, with a node
                return sample
            _log.error("aggregator: %s", error)
            what = f"an aggregator failed: {type(error.cause).__name__}: {error.cause}"
            raise RunFailure(Problem(what, "its Ray actor; the stack trace is in runner.log")) from error
        except ray.exceptions.RayError as error:
            self._replace(preparation.actor, type(error).__name__)
            return sample

    def _replace(self, lost: Any, how: str) -> None:
        """Put a new actor in the place of a lost one, unless that has been done for another of its samples."""
        import ray

        if lost in self._actors:
            number = self._actors.index(lost)
            self._restarts.add(f"aggregator {number} is gone ({how})", losses_in_a_row=1)
            ray.kill(lost)
            self._placement.leave()
            self._actors[number] = self._make()

    def metrics(self) -> dict[str, int]:
        """Return what is reported at the end of an iteration."""
        return {NUM_AGGREGATOR_RESTARTS: self.num_restarts}

    def get_state(self) -> dict[str, Any]:
        """Return the count of restarts; samples of a checkpoint are prepared by the learner."""
        return {"num_restarts": self.num_restarts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._restarts.count = int(state.get("num_restarts", 0))

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
            self._placement.leave()
        self._actors = []
