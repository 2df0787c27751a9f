"""Env runners that are killed in a deterministic run: its numbers are as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from runner.cluster.placement import Placement
from runner.env_runners.handles import RunnerLost
from runner.env_runners.restorable_handle import _CALLS_PER_SNAPSHOT, RestorableHandle
from runner.experiment.trainer import Trainer
from tests.conftest import WAIT_S, without_times
from tests.plans.test_on_ray import DETERMINISTIC_PLANS, SMALL

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

# Metrics of what the kills did.
LOSSES = ("fault_tolerance/num_remote_worker_restarts",)


def kill(handle: Any) -> None:
    """End the process of an env runner, and wait until it has gone."""
    import ray

    pid = ray.get(handle._actor.__ray_call__.remote(lambda actor: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(handle._actor.__ray_call__.remote(lambda actor: None))


def results_of(experiment: str, kills: Mapping[int, tuple[int, ...]], *overrides: str) -> list[dict[str, Any]]:
    """Return the metrics of eight iterations; env runners of `kills` are killed before the iteration."""
    plan = f"algorithm.plan={DETERMINISTIC_PLANS[experiment]}"
    settings = [*SMALL, plan, "algorithm.min_sample_timesteps_per_iteration=150", *overrides]
    results = []
    with Trainer.from_experiment(experiment, settings) as trainer:
        for iteration in range(8):
            for index in kills.get(iteration, ()):
                kill(trainer.env_runners.handles[index])
            results.append(without_times(trainer.train()))
        assert trainer.env_runners.num_restarts == sum(map(len, kills.values()))
        assert trainer.env_runners.generations == [0, 0], "nobody has got other seeds"
    return [{name: value for name, value in result.items() if name not in LOSSES} for result in results]


@pytest.mark.parametrize("experiment", DETERMINISTIC_PLANS)
def test_numbers_are_as_if_no_env_runner_had_been_killed(experiment: str) -> None:
    undisturbed = results_of(experiment, {}, "engine=inline")
    assert results_of(experiment, {1: (1,), 6: (0, 1), 7: (1,)}) == undisturbed


def test_restored_env_runners_go_on_after_a_checkpoint() -> None:
    """A state of the run in which one has been restored, and one that is restored after it was set."""
    plan = f"algorithm.plan={DETERMINISTIC_PLANS['impala_cartpole']}"
    settings = [*SMALL, plan, "algorithm.min_sample_timesteps_per_iteration=150"]
    with Trainer.from_experiment("impala_cartpole", settings) as first:
        first.train()
        kill(first.env_runners.handles[0])
        first.train()
        state = first.get_state()
        expected = without_times(first.train())
    with Trainer.from_experiment("impala_cartpole", settings) as second:
        second.set_state(state)
        kill(second.env_runners.handles[1])
        found = without_times(second.train())
    assert {**found, LOSSES[0]: 1} == {**expected, LOSSES[0]: 1}


class Counter:
    """An env runner that counts, and does what its process is told."""

    def __init__(self) -> None:
        self.sum = 0
        self.factor = 1
        self.refuses = False

    def add(self, number: int) -> int:
        self.sum += number * self.factor
        return self.sum

    def scale(self, factor: int) -> None:
        self.factor = factor

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def refuse(self) -> None:
        self.refuses = True

    def get_state(self) -> dict[str, Any]:
        if self.refuses:
            raise ValueError("it has no state")
        return {"sum": self.sum}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.sum = state["sum"]

    def close(self) -> None: ...


def make_counter(index: int, generation: int) -> Counter:
    return Counter()


@pytest.fixture
def handle() -> Iterator[RestorableHandle]:
    """A counter in a Ray actor."""
    made = RestorableHandle(make_counter, 0, 0, Placement({"CPU": 0.1}), WAIT_S)
    yield made
    made.close()


@pytest.mark.parametrize("num_before", [0, 3, _CALLS_PER_SNAPSHOT, 3 * _CALLS_PER_SNAPSHOT + 1])
def test_calls_and_announcements_since_a_snapshot_are_repeated(handle: RestorableHandle, num_before: int) -> None:
    handle.announce("factor", "scale", 10)
    for _ in range(num_before):
        handle.submit("add", 1).result()
    assert len(handle._periods) <= 2
    answered, waiting = handle.submit("add", 1), []
    assert answered.result() == 10 * (num_before + 1)
    kill(handle)
    handle.announce("factor", "scale", 100)
    waiting = [handle.submit("add", 1) for _ in range(2)]
    for ticket in waiting:
        with pytest.raises(RunnerLost):
            ticket.result()
    assert handle.restore()
    assert answered.result() == 10 * (num_before + 1), "an answer can be asked for twice"
    assert [ticket.result() for ticket in waiting] == [10 * (num_before + 1) + 100, 10 * (num_before + 1) + 200]
    assert handle.submit("add", 1).result() == 10 * (num_before + 1) + 300


def test_a_call_that_kills_is_repeated_once(handle: RestorableHandle) -> None:
    """Else a run would go round in circles: another env runner with other seeds takes the place."""
    handle.submit("add", 1).result()
    fatal = handle.submit("die")
    for can_be_restored in (True, False):
        with pytest.raises(RunnerLost):
            fatal.result()
        assert handle.restore() is can_be_restored


def test_an_older_snapshot_takes_the_place_of_one_that_is_lost(handle: RestorableHandle) -> None:
    for _ in range(_CALLS_PER_SNAPSHOT + 1):
        handle.submit("add", 1).result()
    handle.submit("refuse").result()
    for _ in range(_CALLS_PER_SNAPSHOT - 3):
        handle.submit("add", 1).result()
    unanswered = [handle.submit("add", 1) for _ in range(2)]
    assert len(handle._periods) == 2, "with the snapshot that is refused"
    kill(handle)
    assert handle.restore()
    assert unanswered[-1].result() == 2 * _CALLS_PER_SNAPSHOT
