"""Operators that sample: all env runners in rounds, or each at its own pace."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.errors import ConfigError, Problem
from runner.config.operators import ASYNC, AsyncGradientsConfig, AsyncRequestsConfig, ParallelRolloutsConfig
from runner.config.plans.training_ratio import env_steps_per_round
from runner.config.schemas import ExperimentConfig
from runner.env_runners.gradient_runner import GradientSample
from runner.env_runners.sample import Sample
from runner.episodes.columns import concat_rollouts
from runner.plans.async_requests import AsyncRequests
from runner.plans.context import NotReady, PlanContext
from runner.plans.items import Experiences, Gradients, Origin
from runner.plans.operator import Source


class ParallelRollouts(Source):
    """Sample with all env runners: in rounds with a barrier (bulk_sync, raw), or each at its own pace (async)."""

    is_counted = True
    options: ParallelRolloutsConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._rest: deque[Sample] = deque()  # remaining samples of a raw round
        if self.options.mode == ASYNC:
            self.requests = _requests(context, self.options, "sample", Sample)

    def poll(self) -> Experiences | NotReady:
        """Return the next experiences."""
        started = time.perf_counter()
        if self.requests is not None:
            sample = self.requests.next_ready()
            return NotReady.FOR_RUNNERS if sample is None else _experiences([sample], started)
        if self.options.mode == "bulk_sync":
            return _experiences(self._sample(), started)
        if not self._rest:
            self._rest.extend(self._sample())
        return _experiences([self._rest.popleft()], started)

    def _sample(self) -> list[Sample]:
        config, num_sampled = self.context.config, self.context.metrics.num_env_steps_sampled_lifetime
        runners = self.context.env_runners
        runners.follow_capacity()  # before their number is counted
        num_env_steps = env_steps_per_round(config, runners.num_runners)
        return runners.sample(num_env_steps, config.env_runners.explore, num_sampled)

    def get_state(self) -> dict[str, Any]:
        """Return answers of runners that no operator has taken."""
        if self.requests is not None:
            return {"requests": self.requests.get_state()}
        return {"rest": [sample.get_state() for sample in self._rest]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        if self.requests is not None:
            self.requests.set_state(state["requests"])
        self._rest = deque(Sample.from_state(sample) for sample in state.get("rest", ()))


class AsyncGradients(Source):
    """Make env runners compute gradients on their own samples, and return each as soon as it is ready.

    Raises:
        ConfigError: the loss adapts to updates.
    """

    is_counted = True
    state = ("requests",)
    options: AsyncGradientsConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        for loss in context.adapting_losses:
            what = f"AsyncGradients: {loss} adapts to updates, which env runners do not make"
            expected = "a loss without adaptive state, for example A2C, or PPO with algorithm.use_kl_loss=false"
            raise ConfigError([Problem(what, "algorithm.plan", loss, expected)])
        self.requests: AsyncRequests = _requests(context, self.options, "sample_gradients", GradientSample)

    def poll(self) -> Gradients | NotReady:
        """Return the next gradients that are ready."""
        started = time.perf_counter()
        sample = self.requests.next_ready()
        if not isinstance(sample, GradientSample):
            return NotReady.FOR_RUNNERS
        return Gradients(
            sample.gradients,
            sample.rollout.num_env_steps,
            (origin_of(sample),),
            timers={"env_runner_sampling": time.perf_counter() - started},
            samples=(sample,),
            connector_metrics=sample.gradients.connector_metrics,
        )


def _requests(
    context: PlanContext, options: AsyncRequestsConfig, method: str, sample_class: type[Sample]
) -> AsyncRequests:
    num_env_steps, explore = env_steps_per_request(context.config), context.config.env_runners.explore
    return AsyncRequests(context.env_runners, context.metrics, options, method, num_env_steps, explore, sample_class)


def env_steps_per_request(config: ExperimentConfig) -> int:
    """Return the env steps that one runner makes per asynchronous request, including those beyond the minimum."""
    num_runners = max(1, config.env_runners.min_env_runners)
    return max(1, -(-env_steps_per_round(config, num_runners) // num_runners))


def origin_of(sample: Sample) -> Origin:
    """Return the origin of a sample."""
    return Origin(sample.runner, sample.weights_seq_no, sample.rollout.num_env_steps)


def _experiences(samples: Sequence[Sample], started: float) -> Experiences:
    """Join samples to one item.

    Args:
        samples: samples of one or several runners.
        started: `time.perf_counter()` when they were requested.
    """
    rollout = concat_rollouts([sample.rollout for sample in samples])
    return Experiences(
        rollout,
        tuple(origin_of(sample) for sample in samples),
        aborted=tuple(id_ for sample in samples for id_ in sample.aborted),
        timers={"env_runner_sampling": time.perf_counter() - started},
        samples=[sample.without_rollout() for sample in samples],
    )
