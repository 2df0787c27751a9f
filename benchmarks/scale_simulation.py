"""Discrete-event simulation of asynchronous sampling with many env runners, as in `AsyncRequests`.

The driver is one thread. It sends a request to each env runner with fewer than `num_async` requests, looks for the
oldest finished answer, and collects it. Once it has a train batch, it waits for the learners' update. An env runner
handles its requests in order. Answers pass the network into the driver's node one after the other. New weights are
stored when the first request uses them, and leave the driver's node once per other node.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FREE, DETERMINISTIC, ROUNDS = "free", "deterministic", "rounds"
_BUSY = 0.9  # share of its time from which a component counts as the bottleneck


@dataclass(frozen=True)
class Costs:
    """Measured costs in seconds and bytes.

    Attributes:
        ask_s, collect_s: driver time to request a sample, and to collect one, without its bytes.
        look_s: driver time to check which requests are answered, without the time per request.
        look_per_runner_s: driver time to check one request.
        per_runner_s: driver time per sample and env runner, in the lists of the plan.
        byte_s: driver time to copy a byte of a sample.
        put_s, take_s: time to put new weights into the object store, and for an env runner to fetch them.
        row_s, update_s: learner time per row, and per update without its rows.
        bytes_per_env_step: size of an env step in a sample.
        weights_bytes: size of all parameters.
    """

    ask_s: float = 0.0
    collect_s: float = 0.0
    look_s: float = 0.0
    look_per_runner_s: float = 0.0
    per_runner_s: float = 0.0
    byte_s: float = 0.0
    put_s: float = 0.0
    take_s: float = 0.0
    row_s: float = 0.0
    update_s: float = 0.0
    bytes_per_env_step: float = 0.0
    weights_bytes: float = 0.0


@dataclass(frozen=True)
class Setting:
    """Settings of a run.

    Attributes:
        step_s, sigma: mean of the lognormal time of an env step, and sigma of its logarithm.
        fragment: env steps per request.
        batch: env steps per update of all learners together.
        plan: free, deterministic, or rounds.
        runners_per_node: env runners per node; the driver's node does not run any.
        bytes_per_s, latency_s: network speed of a node in each direction, and latency of one step of an all-reduce.
    """

    num_runners: int
    num_learners: int = 1
    step_s: float = 0.005
    sigma: float = 1.0
    fragment: int = 100
    batch: int = 2048
    num_async: int = 2
    max_weights_lag: int | None = None
    plan: str = FREE
    runners_per_node: int = 32
    bytes_per_s: float = 1.25e9
    latency_s: float = 1e-4


@dataclass(frozen=True)
class Outcome:
    """Results of a simulation; shares refer to the simulated time."""

    env_steps_per_s: float
    driver: float
    learners: float
    runners: float
    network: float
    mean_lag: float
    max_lag: int
    bytes_per_s: float

    @property
    def binds(self) -> str:
        """Return the bottleneck; the driver waits for learners, so their shares add up to at most 1."""
        if self.runners >= _BUSY:
            return "env runners"
        shares = {"driver": self.driver, "learners": self.learners, "network": self.network}
        return max(shares, key=lambda name: shares[name])


def update_seconds(setting: Setting, costs: Costs) -> tuple[float, float]:
    """Return the seconds of an update of the learners, and on the network for rows, all-reduce and state.

    The driver puts each learner's rows into the object store; gradients are reduced in a ring; the first learner's
    answer contains parameters and Adam's two moments.
    """
    number = setting.num_learners
    seconds = costs.update_s + costs.row_s * setting.batch / number
    if number == 1:
        return seconds, 0.0
    batch_bytes = costs.bytes_per_env_step * setting.batch
    ring_bytes = 2 * costs.weights_bytes * (number - 1) / number
    moved_s = (batch_bytes + ring_bytes + 3 * costs.weights_bytes) / setting.bytes_per_s
    return seconds + batch_bytes * costs.byte_s, moved_s + 2 * (number - 1) * setting.latency_s


@dataclass
class _Request:
    number: int
    version: int


@dataclass
class _Runner:
    free_s: float = 0.0
    version: int = 0
    in_flight: deque[_Request] = field(default_factory=deque)
    ready_s: deque[float] = field(default_factory=deque)  # times of the arrived answers, oldest first


class _Run:
    """A run whose driver is at `now_s`."""

    def __init__(self, setting: Setting, costs: Costs, num_samples: int, seed: int) -> None:
        self.setting, self.costs = setting, costs
        number = setting.num_runners
        stream = np.random.default_rng(seed)
        size = (num_samples + (setting.num_async + 1) * number, setting.fragment)
        steps = stream.lognormal(-(setting.sigma**2) / 2, setting.sigma, size) if setting.sigma else np.ones(size)
        self.durations = iter((setting.step_s * steps.sum(1)).tolist())
        self.runners = [_Runner() for _ in range(number)]
        self.version_of_node = [0] * -(-number // setting.runners_per_node)
        self.weights_there_s = [0.0] * len(self.version_of_node)
        self.answers: list[tuple[float, int]] = []  # (seconds, runner) of answers that have not passed the network
        self.oldest_number, self.oldest_ready_s = np.zeros(number, np.int64), np.full(number, np.inf)
        self.now_s = self.in_free_s = self.out_free_s = 0.0
        self.driver_s = self.learners_s = self.runners_s = self.in_s = self.out_s = self.moved_s = 0.0
        self.version, self.put_version, self.num_requests = 1, 0, 0
        self.lags: list[int] = []
        self.waiting_versions: list[int] = []

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.driver_s += seconds

    def ask(self, index: int) -> None:
        costs, runner = self.costs, self.runners[index]
        if self.put_version != self.version:
            self.put_version = self.version
            self.work(costs.put_s)
        self.work(costs.ask_s)
        runner.in_flight.append(_Request(self.num_requests, self.version))
        self.num_requests += 1
        starts_s = max(runner.free_s, self.now_s, self._weights_at(index))
        duration = next(self.durations) + (costs.take_s if runner.version != self.version else 0.0)
        runner.version, runner.free_s = self.version, starts_s + duration
        self.runners_s += duration
        heapq.heappush(self.answers, (runner.free_s, index))
        self._show(index)

    def _weights_at(self, index: int) -> float:
        node = index // self.setting.runners_per_node
        if self.version_of_node[node] != self.version:
            seconds = self.costs.weights_bytes / self.setting.bytes_per_s
            self.out_free_s = max(self.out_free_s, self.now_s) + seconds
            self.out_s += seconds
            self.version_of_node[node], self.weights_there_s[node] = self.version, self.out_free_s
        return self.weights_there_s[node]

    def _show(self, index: int) -> None:
        runner = self.runners[index]
        self.oldest_number[index] = runner.in_flight[0].number if runner.in_flight else self.num_requests + 1
        self.oldest_ready_s[index] = runner.ready_s[0] if runner.ready_s else np.inf

    def _pass_network(self, until_s: float) -> None:
        """Move answers into the driver's node, in the order in which they were sent."""
        seconds = self.costs.bytes_per_env_step * self.setting.fragment / self.setting.bytes_per_s
        while self.answers and self.answers[0][0] <= until_s:
            answered_s, index = heapq.heappop(self.answers)
            self.in_free_s = max(self.in_free_s, answered_s) + seconds
            self.in_s += seconds
            self.runners[index].ready_s.append(self.in_free_s)
            self._show(index)

    def take(self) -> None:
        """Wait for the next answer and collect it."""
        self._pass_network(self.now_s)
        first = int(self.oldest_number.argmin())
        most = self.setting.max_weights_lag
        is_first_due = self.setting.plan == DETERMINISTIC or (
            most is not None and self.version - self.runners[first].in_flight[0].version >= most
        )
        index = self._wait_for(first) if is_first_due else self._next_ready()
        runner = self.runners[index]
        request = runner.in_flight.popleft()
        runner.ready_s.popleft()
        self._show(index)
        bytes_s = self.costs.byte_s * self.costs.bytes_per_env_step * self.setting.fragment
        self.work(self.costs.collect_s + bytes_s + self.costs.per_runner_s * self.setting.num_runners)
        self.waiting_versions.append(request.version)

    def _wait_for(self, index: int) -> int:
        while not self.runners[index].ready_s:
            self._pass_network(self.answers[0][0])
        self.now_s = max(self.now_s, self.runners[index].ready_s[0])
        self.work(self.costs.look_s)
        return index

    def _next_ready(self) -> int:
        is_ready = self.oldest_ready_s <= self.now_s
        if not is_ready.any():
            self._look()
            self._look()  # starts to wait
            self._pass_network(self.now_s)
            if not (self.oldest_ready_s <= self.now_s).any():
                self._idle()
            is_ready = self.oldest_ready_s <= self.now_s
        index = int(np.where(is_ready, self.oldest_number, np.iinfo(np.int64).max).argmin())
        self._look()
        return index

    def _look(self) -> None:
        self.work(self.costs.look_s + self.costs.look_per_runner_s * self.setting.num_runners)

    def _idle(self) -> None:
        if not np.isfinite(self.oldest_ready_s.min()):
            self._pass_network(self.answers[0][0])
        self.now_s = max(self.now_s, float(self.oldest_ready_s.min()))

    def update(self) -> None:
        learners_s, moved_s = update_seconds(self.setting, self.costs)
        self.now_s += learners_s + moved_s
        self.learners_s += learners_s
        self.moved_s += moved_s
        self.lags += [self.version - version for version in self.waiting_versions]
        self.waiting_versions.clear()
        self.version += 1

    def play(self, num_samples: int) -> None:
        if self.setting.plan == ROUNDS:
            return self._play_rounds(num_samples)
        for _ in range(num_samples):
            for _ in range(self.setting.num_async):
                for index in self._hungry():
                    self.ask(index)
            self.take()
            if len(self.waiting_versions) * self.setting.fragment >= self.setting.batch:
                self.update()
        return None

    def _hungry(self) -> list[int]:
        most = self.setting.num_async
        return [index for index, runner in enumerate(self.runners) if len(runner.in_flight) < most]

    def _play_rounds(self, num_samples: int) -> None:
        while num_samples > 0:
            for index in range(self.setting.num_runners):
                self.ask(index)
            for index in range(self.setting.num_runners):
                self._wait_for(index)
                runner = self.runners[index]
                self.waiting_versions.append(runner.in_flight.popleft().version)
                runner.ready_s.popleft()
                self.work(self.costs.collect_s)
            self.update()
            num_samples -= self.setting.num_runners


def simulate(setting: Setting, costs: Costs, num_samples: int = 8000, seed: int = 0) -> Outcome:
    """Simulate `num_samples` samples after a first sample of each env runner, which does not count.

    Raises:
        ValueError: there are too few samples for an update.
    """
    if num_samples * setting.fragment < setting.batch:
        raise ValueError(
            f"{num_samples} samples of {setting.fragment} env steps do not fill a batch of {setting.batch}"
        )
    run = _Run(setting, costs, num_samples, seed)
    run.play(num_samples)
    seconds = run.now_s
    moved = (run.in_s + run.out_s) * setting.bytes_per_s
    if setting.num_learners > 1:
        each = costs.bytes_per_env_step * setting.batch + 3 * costs.weights_bytes
        moved += each * (run.version - 1)
    still_s = sum(max(0.0, runner.free_s - seconds) for runner in run.runners)  # requested, but not done yet
    return Outcome(
        env_steps_per_s=num_samples * setting.fragment / seconds,
        driver=run.driver_s / seconds,
        learners=run.learners_s / seconds,
        runners=min(1.0, (run.runners_s - still_s) / seconds / setting.num_runners),
        network=min(1.0, (max(run.in_s, run.out_s) + run.moved_s) / seconds),
        mean_lag=float(np.mean(run.lags)) if run.lags else 0.0,
        max_lag=max(run.lags, default=0),
        bytes_per_s=moved / seconds,
    )
