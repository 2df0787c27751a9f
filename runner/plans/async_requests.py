"""Requests to env runners that are in flight while the plan continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runner.cluster.futures import ready, wait_any
from runner.config.operators import AsyncRequestsConfig
from runner.env_runners.env_runner_group import EnvRunnerGroup, SampleFuture
from runner.env_runners.sample import Sample
from runner.plans.run_metrics import RunMetrics


class AsyncRequests:
    """Keeps a fixed number of requests in flight per runner, and returns answers in the order in which they are ready.

    Runners in this process answer in the order of the requests, so a run gives the same results again. With
    `options.deterministic`, answers are taken in this order everywhere. A run then gives the same results everywhere,
    but waits for a slow runner once the others have answered all of their requests.

    Args:
        env_runners: env runners that receive the requests.
        metrics: metrics of the run, which count the sampled env steps.
        options: number of requests in flight, order and lag.
        method: method of a runner that returns a sample.
        explore: whether actions are sampled.
        num_env_steps: minimum number of env steps per request.
        sample_class: class of the answers.
    """

    def __init__(
        self,
        env_runners: EnvRunnerGroup,
        metrics: RunMetrics,
        options: AsyncRequestsConfig,
        method: str,
        num_env_steps: int,
        explore: bool,
        sample_class: type[Sample] = Sample,
    ) -> None:
        metrics.reports_lag = True
        self._env_runners = env_runners
        self._metrics = metrics
        self._num_env_steps, self._explore, self._method = num_env_steps, explore, method
        self._sample_class = sample_class
        self._options = options
        self._requests: list[SampleFuture] = []
        self._num_left = self._num_at_once

    @property
    def _num_at_once(self) -> int:
        return self._options.num_async * self._env_runners.num_runners

    def next_ready(self) -> Sample | None:
        """Send requests to runners that have too few, and return an answer, or None if none is ready.

        Runners in this process compute an answer when it is taken, so one is always ready. To give other branches
        their turn, this method also returns None once after every N answers, with N requests in flight.
        """
        self._env_runners.follow_capacity()
        self._requests = [request for request in self._requests if not request.has_left]
        num_in_flight = Counter(request.index for request in self._requests)
        for _ in range(self._options.num_async):
            for index in self._env_runners.actors.indexes:
                if num_in_flight[index] < self._options.num_async:
                    self._requests.append(self._request(index))
                    num_in_flight[index] += 1
        takeable = self._takeable()
        request = self._ready(takeable)
        if request is None:
            self._num_left = self._num_at_once
            self._env_runners.awaited |= dict.fromkeys(takeable)
            return None
        self._num_left -= 1
        self._requests.remove(request)
        sample = self._env_runners.collect(request)
        self._metrics.add_lag_when_taken(self._lag_of(request), sample.rollout.num_env_steps)
        return sample

    @property
    def num_ready(self) -> int:
        """Number of ready answers that were not taken yet; 0 for runners in this process."""
        return sum(1 for _ in ready([request for request in self._requests if request.reference is not None]))

    def _ready(self, takeable: Sequence[SampleFuture]) -> SampleFuture | None:
        if self._options.deterministic:
            wait_any(takeable)
        may_be_taken = ready(takeable) if self._num_left else ()
        return next((request for request in may_be_taken if not request.has_left), None)

    def _takeable(self) -> list[SampleFuture]:
        """Return the requests that may be answered next: the oldest of each runner, which answers in order."""
        most_lag = self._options.max_weights_lag
        if self._options.deterministic or (most_lag is not None and self._lag_of(self._requests[0]) >= most_lag):
            return self._requests[:1]
        oldest: dict[int, SampleFuture] = {}
        for request in self._requests:
            oldest.setdefault(request.index, request)
        return list(oldest.values())

    def _lag_of(self, request: SampleFuture) -> int:
        return self._env_runners.weights_seq_no - request.weights_seq_no

    def _request(self, index: int) -> SampleFuture:
        num_sampled = self._metrics.num_env_steps_sampled_lifetime
        return self._env_runners.request(index, self._num_env_steps, self._explore, num_sampled, self._method)

    def get_state(self) -> dict[str, Any]:
        """Wait for all answers and return them, in the order of the requests."""
        answers = [
            {"runner": request.index, "weights_seq_no": request.weights_seq_no, "answer": request.result().get_state()}
            for request in self._requests
            if request.has_answer()
        ]
        return {"answers": answers, "num_left": self._num_left}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the answers of `get_state`."""
        self._num_left = int(state["num_left"])
        self._requests = [
            self._env_runners.answered(
                int(one["runner"]), int(one["weights_seq_no"]), self._sample_class.from_state(one["answer"])
            )
            for one in state["answers"]
        ]
