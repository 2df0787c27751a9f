"""The context of a plan: the parts of the run that operators can use."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from runner.config.declared_metrics import Reports, free_name, meaning_of, operator_metric
from runner.config.errors import ConfigError, Problem, RunFailure, nearest_match
from runner.config.metrics import NUM_READY
from runner.config.operators import ENV_RUNNERS, QUEUES
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import place_of
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.episodes.columns import Rollout
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.pipeline_metrics import joined_reports
from runner.pipelines.raw_observations import Standardisation
from runner.plans.async_requests import AsyncRequests
from runner.plans.episode_metrics import Result
from runner.plans.items import Experiences, Item, Origin
from runner.plans.run_parts import RunParts

if TYPE_CHECKING:  # env runners import this module, and must not import the libraries of recorded data
    from runner.offline.training.offline_data import OfflineData


class NotReady(Enum):
    """Returned by a step of a plan that can do nothing now, so that other branches can proceed."""

    FOR_RUNNERS = "an env runner has to answer"
    FOR_QUEUE = "another branch has to fill or empty a queue"


class Registered(Protocol):
    """Interface of operators that the plan uses."""

    reports: ClassVar[Reports]
    metrics: CustomMetrics
    requests: AsyncRequests | None

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the parts of the run that the operator uses."""

    def get_state(self) -> dict[str, Any]:
        """Return the state that the next items depend on."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""


@dataclass
class Queue:
    """Queue of items between two branches, at most `capacity`."""

    capacity: int
    items: deque[Item] = field(default_factory=deque)


class PlanContext:
    """The parts that operators use, the queues between branches, and the operators of the plan.

    Args:
        config: configuration of the run.
        parts: parts of the run.
        adapting_losses: names of losses that adapt to updates, which env runners cannot compute.
        standardisation: standardises replayed observations with the newest statistics, or None to replay them as
            sampled.

    Attributes:
        learners: learners of all modules.
        metrics: counters, timers and running means of the run.
        callbacks: callbacks of the driver.
        replay_buffers: replay buffers by name.
        operators: operators by name, in the order in which the plan makes them; a second one of a class is `Name#2`.
        queues: queues by name.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        parts: RunParts,
        adapting_losses: Iterable[str] = (),
        standardisation: Standardisation | None = None,
    ) -> None:
        self.config, self._parts = config, parts
        self.learners, self.metrics, self.callbacks = parts.learners, parts.metrics, parts.callbacks
        self.replay_buffers = {part.buffer_name: part.buffer for part in parts.replay_buffers}
        self.adapting_losses, self._standardisation = tuple(adapting_losses), standardisation
        self.operators: dict[str, Registered] = {}
        self.queues: dict[str, Queue] = {}
        self._num_unnamed = 0

    @property
    def env_runners(self) -> EnvRunnerGroup:
        """The env runners that sample."""
        if self._parts.env_runners is None:
            raise AttributeError("this run does not use env runners: no operator of its plan names them in `needs`")
        return self._parts.env_runners

    @property
    def recorded_data(self) -> OfflineData:
        """The recorded data."""
        if self._parts.recorded_data is None:
            raise AttributeError("this run does not use recorded data: no operator of its plan names it in `needs`")
        return self._parts.recorded_data

    # -- weights and replayed experiences --------------------------------------------------------------------------

    def broadcast_weights(self, runners: Iterable[int] | None = None) -> None:
        """Send the newest weights to all env runners, or to some of them, with their next call."""
        if self._parts.env_runners is not None:
            self._parts.env_runners.set_weights(self.learners.get_weights(), runners)

    def lags_of(self, origins: Iterable[Origin]) -> list[tuple[int, int]]:
        """Return for each origin the lag of its weights behind the newest ones, in updates, and its env steps."""
        newest = 0 if self._parts.env_runners is None else self._parts.env_runners.weights_seq_no
        return [(newest - origin.weights_seq_no, origin.num_env_steps) for origin in origins]

    def experiences_of(self, item: Experiences, module_ids: Collection[str] | None = None) -> Experiences:
        """Return the experiences of some or all modules; an auxiliary module gets a copy of its source's."""
        rollout = item.rollout.of_modules(module_ids, self.config.multi_agent.auxiliary_modules)
        if rollout is item.rollout:
            return item
        return replace(item, rollout=replace(rollout, unsplit=item.rollout.unsplit or item.rollout.blocks))

    def check_module_ids(self, operator: str, module_ids: Iterable[str]) -> None:
        """Raise `ConfigError` if the options of an operator contain a module that does not exist."""
        for module_id in [module_id for module_id in module_ids if module_id not in self.learners.modules]:
            known = list(self.learners.modules)
            what = f"{operator} contains module {module_id}, which does not exist in this run"
            nearest = nearest_match(module_id, known)
            raise ConfigError([Problem(what, "algorithm.plan", module_id, ", ".join(known), nearest)])

    def standardised(self, rollout: Rollout) -> Rollout:
        """Return replayed experiences, with observations standardised by the newest statistics."""
        if self._standardisation is None:
            return rollout
        return self._standardisation(rollout, self._parts.shared_state)

    # -- operators and queues --------------------------------------------------------------------------------------

    def register(self, operator: Registered) -> str:
        """Add an operator to the plan, set its `metrics`, and return its key.

        Raises:
            ConfigError: it declares metrics that are not valid.
        """
        kind = type(operator)
        key = free_name(kind.__name__, self.operators)
        self.operators[key] = operator
        reports = joined_reports([operator], "algorithm.plan")
        where = f"algorithm.plan, {place_of(kind, 'transform', 'poll')}"
        operator.metrics = self.metrics.reporter(kind.__name__, where, reports, operator_metric(key, ""))
        if ENV_RUNNERS in operator.needed:
            self.metrics.counts_recorded = False
        return key

    def unnamed_key(self) -> str:
        """Return a new key for a stateless function or iterator of the plan."""
        self._num_unnamed += 1
        return f"unnamed#{self._num_unnamed}"

    @property
    def reported_metrics(self) -> dict[str, str]:
        """Return metric of the run -> meaning, for the metrics that operators report."""
        return {
            operator_metric(key, name): meaning_of(operator.reports, name)
            for key, operator in self.operators.items()
            for name in operator.reports
        }

    def queue(self, name: str, capacity: int | None = None) -> Queue:
        """Return the queue of this name, after setting its capacity if one is given."""
        queue = self.queues.setdefault(name, Queue(capacity or 1))
        queue.capacity = capacity or queue.capacity
        return queue

    def wait(self, reason: NotReady) -> None:
        """Wait until an env runner has answered, and add the seconds to `timers/env_runner_sampling`.

        Raises:
            RunFailure: branches wait for each other.
        """
        if reason is NotReady.FOR_QUEUE:
            problem = Problem("the plan is stuck: all of its branches wait for queues", "algorithm.plan")
            raise RunFailure(problem)
        started = time.perf_counter()
        self.env_runners.wait_for_any()
        self.metrics.add_seconds("env_runner_sampling", time.perf_counter() - started)

    def plan_metrics(self) -> Result:
        """Return metrics: items that wait in queues, and answers of env runners that no operator has taken."""
        metrics: Result = {f"{QUEUES}/{name}/num_items": len(queue.items) for name, queue in self.queues.items()}
        requests = [one.requests for one in self.operators.values() if isinstance(one.requests, AsyncRequests)]
        if requests:
            metrics[NUM_READY] = sum(one.num_ready for one in requests)
        return metrics
