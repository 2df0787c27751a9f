"""Env runners that are killed in a deterministic run: its numbers are as if nothing had happened."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from runner.cluster.actor_group import ActorGroup
from runner.cluster.actors import Caller, LocalActor
from runner.cluster.replaying_actor import ReplayingActor
from runner.config.errors import RunFailure
from runner.experiment.trainer import Trainer
from runner.restarts import ActorDied, Restarts
from tests.conftest import marked_but, without_times
from tests.plans.test_on_ray import DETERMINISTIC_PLANS, SMALL, role_of_runners

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

# Metrics of what the kills did.
LOSSES = ("fault_tolerance/num_remote_worker_restarts",)


CALLS_PER_SNAPSHOT = 16


def kill(caller: Any) -> None:
    """End the process of an env runner once it has answered what it was asked, and wait until it has gone."""
    end(caller, caller.submit_function(process_of).result())


def process_of(actor: Any) -> int:
    """Return the number of the process."""
    return os.getpid()


def end(caller: Any, pid: int) -> None:
    """End the process of an env runner, whatever it does, and wait until it has gone."""
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDied):
        caller.submit_function(process_of).result()


def results_of(experiment: str, kills: Mapping[int, tuple[int, ...]], *overrides: str) -> list[dict[str, Any]]:
    """Return the metrics of eight iterations; env runners of `kills` are killed before the iteration."""
    plan = f"algorithm.plan={DETERMINISTIC_PLANS[experiment]}"
    settings = [*SMALL, plan, "algorithm.min_sample_timesteps_per_iteration=150", *overrides]
    results = []
    with Trainer.from_experiment(experiment, settings) as trainer:
        for iteration in range(8):
            for index in kills.get(iteration, ()):
                kill(trainer.env_runners.actors.callers[index])
            results.append(without_times(trainer.train()))
        assert trainer.env_runners.num_restarts == sum(map(len, kills.values()))
        assert trainer.env_runners.actors.generations == [0, 0], "nobody has got other seeds"
    return [{name: value for name, value in result.items() if name not in LOSSES} for result in results]


@pytest.mark.parametrize("experiment", marked_but(pytest.mark.slow, DETERMINISTIC_PLANS, "a2c_cartpole"))
def test_numbers_are_as_if_no_env_runner_had_been_killed(experiment: str) -> None:
    undisturbed = results_of(experiment, {}, "engine=inline")
    assert results_of(experiment, {1: (1,), 6: (0, 1), 7: (1,)}) == undisturbed


@pytest.mark.slow
def test_restored_env_runners_go_on_after_a_checkpoint() -> None:
    """A state of the run in which one has been restored, and one that is restored after it was set."""
    plan = f"algorithm.plan={DETERMINISTIC_PLANS['impala_cartpole']}"
    settings = [*SMALL, plan, "algorithm.min_sample_timesteps_per_iteration=150"]
    with Trainer.from_experiment("impala_cartpole", settings) as first:
        first.train()
        kill(first.env_runners.actors.callers[0])
        first.train()
        state = first.get_state()
        expected = without_times(first.train())
    with Trainer.from_experiment("impala_cartpole", settings) as second:
        second.set_state(state)
        kill(second.env_runners.actors.callers[1])
        found = without_times(second.train())
    assert (expected.pop(LOSSES[0]), found.pop(LOSSES[0])) == (1, 2)
    assert found == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_lost_evaluation_runner_changes_no_number() -> None:
    plan = f"algorithm.plan={DETERMINISTIC_PLANS['impala_cartpole']}"
    further = ["evaluation=periodic", "evaluation.evaluation_num_env_runners=1", "evaluation.evaluation_interval=1"]
    settings = [*SMALL, plan, "algorithm.min_sample_timesteps_per_iteration=150", *further]
    settings.remove("evaluation=none")
    found = []
    for is_killed in (False, True):
        with Trainer.from_experiment("impala_cartpole", settings) as trainer:
            found.append([without_times(trainer.train())])
            if is_killed:
                assert trainer.evaluator.env_runners is not None
                kill(trainer.evaluator.env_runners.actors.callers[0])
            found[-1] += [without_times(trainer.train()) for _ in range(2)]
    assert found[0] == found[1]


class Counter:
    """An env runner that counts, and does what it is told."""

    def __init__(self) -> None:
        self.sum = 0
        self.factor = 1
        self.has_state = self.takes_state = True
        self.nap_s = 0.0

    def add(self, number: int, seconds: float = 0.0) -> int:
        time.sleep(seconds)
        self.sum += number * self.factor
        return self.sum

    def scale(self, factor: int) -> None:
        self.factor = factor

    def fail(self, reason: str) -> None:
        raise ValueError(reason)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def forbid(self, get_state: bool = False, set_state: bool = False) -> None:
        self.has_state, self.takes_state = not get_state, not set_state

    def be_slow(self, nap_s: float) -> None:
        self.nap_s = nap_s

    def get_state(self) -> dict[str, Any]:
        if not self.has_state:
            raise ValueError("it has no state")
        return {"sum": self.sum, "takes_state": self.takes_state, "nap_s": self.nap_s}

    def set_state(self, state: Mapping[str, Any]) -> None:
        if not state["takes_state"]:
            raise ValueError("it takes no state")
        time.sleep(state["nap_s"])
        self.sum = state["sum"]

    def close(self) -> None: ...


def make_counter(index: int, generation: int) -> Counter:
    return Counter()


@pytest.fixture
def caller() -> Iterator[ReplayingActor]:
    """A counter in a Ray actor."""
    made = ReplayingActor(role_of_runners(), make_counter, 0)
    yield made
    made.close()


NUMBERS = [0, 3, CALLS_PER_SNAPSHOT - 1, CALLS_PER_SNAPSHOT, 3 * CALLS_PER_SNAPSHOT]


@pytest.mark.parametrize("num_before", marked_but(pytest.mark.slow, NUMBERS, 3))
def test_calls_and_announcements_since_a_snapshot_are_repeated(caller: ReplayingActor, num_before: int) -> None:
    for _ in range(num_before):
        caller.submit("add", 1).result()
    caller.announce("factor", "scale", 10)  # for one of the numbers right before a snapshot
    for number in (1, 2):
        assert caller.submit("add", 1).result() == num_before + 10 * number
    answered = caller.submit("add", 1)
    assert answered.result() == num_before + 30
    kill(caller)
    caller.announce("factor", "scale", 100)
    waiting = [caller.submit("add", 1) for _ in range(2)]
    for future in waiting:
        with pytest.raises(ActorDied):
            future.result()
    assert caller.restore()
    assert answered.result() == num_before + 30, "an answer can be asked for twice"
    assert not caller._has_answered, "that was no answer of the new actor"
    assert [future.result() for future in waiting] == [num_before + 130, num_before + 230]
    assert caller.submit("add", 1).result() == num_before + 330
    assert num_calls_of(caller) <= CALLS_PER_SNAPSHOT + 6


@pytest.mark.parametrize("is_remote", [False, True])
def test_the_next_call_raises_the_error_of_an_announcement(is_remote: bool) -> None:
    def make(index: int, generation: int) -> Caller:
        if not is_remote:
            return LocalActor(make_counter, index, generation)
        return ReplayingActor(role_of_runners(), make_counter, index, generation)

    with closing(ActorGroup(make, 1, "env runner", Restarts(1, ""))) as group:
        group.announce("factor", "scale", 3)
        answer = group.submit(0, "add", 2)
        if is_remote:
            kill(group.callers[0])
        assert answer.result() == 6
        group.announce("factor", "fail", "there is no such task")
        with pytest.raises((ValueError, RunFailure), match="there is no such task"):
            group.submit(0, "add", 1).result()
        assert group.submit(0, "add", 1).result() == 12  # the failed call was made too


def num_calls_of(caller: ReplayingActor) -> int:
    """Return how many calls the caller knows."""
    return sum(len(period.calls) for period in caller._periods)


def call_of_a_restored_runner(caller: ReplayingActor) -> Any:
    """Return a call that the actor died before, and that its restored one answers."""
    kill(caller)
    lost = caller.submit("add", 1)
    with pytest.raises(ActorDied):
        lost.result()
    assert caller.restore()
    return lost


@pytest.mark.slow
def test_one_that_dies_in_a_call_with_a_snapshot_behind_it(caller: ReplayingActor) -> None:
    """Calls in flight are answered by the new actor; what is known of calls does not grow over the losses."""
    expected = 0
    for _ in range(3):
        pid = caller.submit_function(process_of).result()
        for _ in range(CALLS_PER_SNAPSHOT - num_calls_of(caller) % CALLS_PER_SNAPSHOT - 2):
            expected += 1
            assert caller.submit("add", 1).result() == expected
        running = [caller.submit("add", 1, 1.0), *(caller.submit("add", 1) for _ in range(2))]
        end(caller, pid)
        with pytest.raises(ActorDied):
            running[0].result()
        assert caller.restore()
        assert [future.result() for future in running] == [expected + 1, expected + 2, expected + 3]
        expected += 3
    for _ in range(3 * CALLS_PER_SNAPSHOT):
        caller.submit("add", 1).result()
    assert num_calls_of(caller) <= 2 * CALLS_PER_SNAPSHOT


@pytest.mark.slow
def test_a_call_that_kills_is_repeated_once(caller: ReplayingActor, caplog: pytest.LogCaptureFixture) -> None:
    """Else a run would end that an env runner with other seeds lets go on."""
    caller.submit("add", 1).result()
    fatal = caller.submit("die")
    for can_be_restored in (True, False):
        assert "cannot be restored" not in caplog.text
        with pytest.raises(ActorDied):
            fatal.result()
        assert caller.restore() is can_be_restored
    assert "env runner 0 cannot be restored: a new one replaces it" in caplog.text


@pytest.mark.slow
def test_calls_before_a_snapshot_are_repeated_if_their_answers_were_not_taken(caller: ReplayingActor) -> None:
    """Large answers are lost together with the node of the actor, small snapshots are not."""
    import ray

    for _ in range(CALLS_PER_SNAPSHOT):
        caller.submit("add", 1).result()
    awaited = [caller.submit("add", 1) for _ in range(CALLS_PER_SNAPSHOT)]
    assert ray.get(caller._periods[-1].is_made), "the snapshot after these calls"
    references = [future.reference for future in awaited]
    kill(caller)
    assert caller.restore()
    assert not {*references} & {future.reference for future in awaited}
    assert [future.result() for future in awaited] == [CALLS_PER_SNAPSHOT + number for number in range(1, 17)]
    caller.submit("add", 1).result()
    assert num_calls_of(caller) <= CALLS_PER_SNAPSHOT + 1


@pytest.mark.slow
def test_an_older_snapshot_takes_the_place_of_one_that_is_not_there(caller: ReplayingActor) -> None:
    for _ in range(CALLS_PER_SNAPSHOT + 1):
        caller.submit("add", 1).result()
    caller.submit("forbid", True).result()
    for _ in range(CALLS_PER_SNAPSHOT - 3):
        caller.submit("add", 1).result()
    unanswered = [caller.submit("add", 1) for _ in range(2)]
    assert len(caller._periods) == 2, "with the snapshot that is refused"
    kill(caller)
    assert caller.restore()
    assert unanswered[-1].result() == 2 * CALLS_PER_SNAPSHOT


@pytest.mark.slow
def test_calls_are_forgotten_if_no_snapshot_can_be_made(caller: ReplayingActor) -> None:
    caller.submit("forbid", True).result()
    for _ in range(8 * CALLS_PER_SNAPSHOT):
        caller.submit("add", 1).result()
    assert num_calls_of(caller) <= 5 * CALLS_PER_SNAPSHOT
    caller.submit("forbid", False).result()
    for _ in range(CALLS_PER_SNAPSHOT + 1):
        caller.submit("add", 1).result()
    lost = call_of_a_restored_runner(caller)
    assert lost.result() == 9 * CALLS_PER_SNAPSHOT + 2


@pytest.mark.slow
def test_a_runner_that_does_not_take_its_own_state_is_lost(caller: ReplayingActor) -> None:
    caller.submit("forbid", False, True).result()
    for _ in range(CALLS_PER_SNAPSHOT):
        caller.submit("add", 1).result()
    lost = call_of_a_restored_runner(caller)
    with pytest.raises(ActorDied, match="cannot restore a snapshot of its state"):
        lost.result()
    assert not caller.restore()


@pytest.mark.slow
def test_a_restored_runner_that_is_silent_is_not_waited_for_again(
    caller: ReplayingActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    caller.submit("be_slow", 5.0).result()
    for _ in range(CALLS_PER_SNAPSHOT):
        caller.submit("add", 1).result()
    lost = call_of_a_restored_runner(caller)
    ray.get(caller._node)  # the new actor has started
    monkeypatch.setattr(caller, "deadline_s", lambda submitted_s: 0.0)
    assert lost.is_ready()
    with pytest.raises(ActorDied, match="did not answer set_state within its timeout"):
        lost.result()
