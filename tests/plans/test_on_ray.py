"""Plans on Ray actors: the same numbers as in one process, and runners that are lost in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.cluster.actor_group import ActorGroup
from runner.cluster.actors import Caller, LocalActor, RemoteActor, Role
from runner.cluster.futures import wait_any
from runner.cluster.placement import Placement
from runner.config.operators import AsyncGradientsConfig, ParallelRolloutsConfig
from runner.env_runners.env_runner_actor import EnvRunnerActor
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.sample import Sample
from runner.episodes.columns import Rollout
from runner.experiment.trainer import Trainer
from runner.interrupts import Budget, PartialIteration, within
from runner.plans.async_requests import AsyncRequests
from runner.plans.run_metrics import RunMetrics
from runner.restarts import ActorDied, Restarts
from runner.rows.finished_episodes import FinishedEpisodes
from tests.conftest import WAIT_S, marked_but
from tests.support.resuming import assert_same_on_ray, assert_same_runs, train

SMALL = (
    "algorithm.train_batch_size_per_learner=60",
    "env_runners.num_envs_per_env_runner=2",
    "env_runners.num_env_runners=2",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
    "connectors=mean_std_filter",
)
A3C = "algorithm.plan=[{AsyncGradients: {num_async: 2}}, {ApplyGradients: {update_all: false}}]"


def trainer_of(algorithm: str, *overrides: str) -> Trainer:
    own = {"ppo": ["algorithm.minibatch_size=20"], "a2c": ["algorithm.min_sample_timesteps_per_iteration=60"]}
    return Trainer.from_experiment(f"{algorithm}_cartpole", [*SMALL, *own[algorithm], *overrides])


@pytest.mark.ray
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_the_same_numbers_inline_and_on_ray(algorithm: str, ray_cluster: None) -> None:
    assert_same_on_ray(partial(trainer_of, algorithm), 3)


DETERMINISTIC = (
    "{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}, {ConcatBatches: {min_env_steps: 40}}"
)
REPLAYED = "{MixInReplay: {replay_proportion: 0.5}}"
DETERMINISTIC_PLANS = {
    "impala_cartpole": f"[{DETERMINISTIC}, TrainOneStep]",
    "appo_cartpole": f"[{DETERMINISTIC}, {REPLAYED}, TrainOneStep, UpdateTargetNetwork]",
    "apex_cartpole": "[{Concurrently: {output_indexes: [1], round_robin_weights: auto, plans: ["
    "[{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}, StoreToReplayBuffer], "
    "[{Replay: {learning_starts: 40}}, TrainOneStep, UpdatePriorities]]}}]",
    "a2c_cartpole": "[{AsyncGradients: {num_async: 2, deterministic: true}}, ApplyGradients]",
}


@pytest.mark.ray
@pytest.mark.parametrize("experiment", marked_but(pytest.mark.slow, DETERMINISTIC_PLANS, "impala_cartpole"))
def test_deterministic_asynchrony_gives_the_same_numbers_whoever_is_slow(experiment: str, ray_cluster: None) -> None:
    uneven = "env.wrappers=[{_target_: tests.support.environments.UnevenSteps}]"
    plan = f"algorithm.plan={DETERMINISTIC_PLANS[experiment]}"
    settings = [*SMALL, plan, "algorithm.min_sample_timesteps_per_iteration=150", uneven]
    engines = ("inline", "ray", "ray")
    makes = (partial(Trainer.from_experiment, experiment, [*settings, f"engine={engine}"]) for engine in engines)
    results = assert_same_runs(makes, 3)
    assert results[-1]["env_runners/weights_lag_max"] >= 1


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("experiment", ["impala_cartpole", "a2c_cartpole"])
def test_a_stop_while_a_plan_waits_for_runners_changes_nothing(experiment: str, ray_cluster: None) -> None:
    slow = "env.wrappers=[{_target_: tests.support.environments.SlowSteps}]"
    plan = f"algorithm.plan={DETERMINISTIC_PLANS[experiment]}"
    settings = [*SMALL, plan, "algorithm.min_sample_timesteps_per_iteration=150", slow]
    make = partial(Trainer.from_experiment, experiment, settings)
    with make() as trainer:
        straight = train(trainer, 3)
    with make() as trainer:
        assert train(trainer, 1) == straight[:1]
        with within(Budget("0 s", 0.0)), pytest.raises(PartialIteration):
            trainer.train()
        state = trainer.get_state()
        assert train(trainer, 2) == straight[1:], "the run continues without a checkpoint"
    with make() as trainer:
        trainer.set_state(state)
        assert train(trainer, 2) == straight[1:]


@pytest.mark.slow
@pytest.mark.ray
def test_env_steps_before_a_stop_count_in_their_iteration(ray_cluster: None) -> None:
    slow = "env.wrappers=[{_target_: tests.support.environments.SlowSteps}]"
    settings = [*SMALL, "algorithm.min_sample_timesteps_per_iteration=150", slow]
    with Trainer.from_experiment("impala_cartpole", settings) as trainer:
        before = trainer.train()
        with within(Budget("0 s", 0.0)), pytest.raises(PartialIteration):
            trainer.train()
        state = trainer.get_state()
    with Trainer.from_experiment("impala_cartpole", settings) as trainer:
        trainer.set_state(state)
        result = trainer.train()
    lifetimes = [int(one["num_env_steps_sampled_lifetime"] or 0) for one in (before, result)]
    assert result["num_env_steps_sampled"] == lifetimes[1] - lifetimes[0]


@pytest.mark.ray
def test_a_runner_killed_in_the_middle_of_asynchronous_sampling_is_replaced(ray_cluster: None) -> None:
    with trainer_of("a2c", A3C) as trainer:
        trainer.train()
        group = trainer.env_runners
        assert {request.index for request in group.in_flight} == {0, 1}, "requests are in flight between iterations"
        caller: Any = group.actors.callers[1]
        import ray

        pid = ray.get(caller.actor.__ray_call__.remote(lambda actor: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + WAIT_S
        while group.num_restarts == 0:
            assert time.monotonic() < deadline
            result = trainer.train()
        assert group.actors.generations[1] == 1
        before = result["num_env_steps_trained_lifetime"]
        for _ in range(3):
            result = trainer.train()
        assert result["fault_tolerance/num_remote_worker_restarts"] == 1
        assert result["num_env_steps_trained_lifetime"] > before  # type: ignore[operator]


def test_samples_say_which_weights_acted() -> None:
    seen = []
    with trainer_of("a2c", "engine=inline", "algorithm.plan=[ParallelRollouts,ConcatBatches,TrainOneStep]") as trainer:
        for _ in range(3):
            trainer.train()
            seen += [(sample.runner, sample.weights_seq_no) for sample in trainer.env_runners.sample(4, True)]
        newest = trainer.env_runners.weights_seq_no
    numbers = [number for _, number in seen]
    assert [runner for runner, _ in seen] == [0, 1] * 3
    assert numbers == sorted(numbers)
    assert numbers[-1] == newest
    assert len(set(numbers)) == 3


# -- futures -------------------------------------------------------------------------------------------------------


class Clerk:
    """Answers with what it was asked, the number of calls before, and fails when told to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def answer(self, value: Any, seconds: float = 0.0) -> tuple[Any, int]:
        """Return the value and how many calls came before."""
        time.sleep(seconds)
        self.calls.append(value)
        return value, len(self.calls) - 1

    def fail(self) -> None:
        """Fail as environments do."""
        from runner.config.errors import Problem, RunFailure

        raise RunFailure(Problem("it failed"))

    def die(self) -> None:
        """End the process."""
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Close nothing."""


def make_clerk(index: int, generation: int) -> Clerk:
    return Clerk()


def make_gated_clerk(gates: Path, index: int, generation: int) -> GatedClerk:
    clerk = GatedClerk()
    clerk.gate = str(gates / str(index))
    return clerk


def make_slow_clerk(index: int, generation: int) -> SlowClerk:
    return SlowClerk()


def make_hanging_clerk(index: int, generation: int) -> HangingClerk:
    return HangingClerk()


MakeCaller = Callable[[], Caller]


def remote_clerk(answer_timeout_s: float = 30.0) -> RemoteActor:
    """A clerk in a Ray actor."""
    return RemoteActor(role_of_runners(answer_timeout_s), make_clerk, 0)


def role_of_runners(answer_timeout_s: float = WAIT_S) -> Role:
    """Env runners, ten per CPU."""
    return Role("env runner", EnvRunnerActor, Placement({"CPU": 0.1}), answer_timeout_s)


@pytest.fixture(params=["local", pytest.param("remote", marks=pytest.mark.ray)])
def make_caller(request: pytest.FixtureRequest) -> Any:
    """Makes clerks, here or in Ray actors."""
    made: list[Caller] = []
    if request.param == "remote":
        request.getfixturevalue("ray_cluster")

    def make() -> Caller:
        made.append(remote_clerk() if request.param == "remote" else LocalActor(make_clerk, 0, 0))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


def test_calls_are_answered_in_their_order_however_they_are_asked_for(make_caller: MakeCaller) -> None:
    caller = make_caller()
    futures = [caller.submit("answer", name) for name in "abc"]
    assert [future.result() for future in reversed(futures)] == [("c", 2), ("b", 1), ("a", 0)]
    assert futures[1].result() == ("b", 1), "an answer can be asked for twice"


def test_any_of_several_runners(make_caller: MakeCaller) -> None:
    slow, fast = make_caller(), make_caller()
    for caller in (slow, fast):
        caller.submit("answer", "ready").result()
    futures = [slow.submit("answer", "slow", 0.5), fast.submit("answer", "fast")]
    number = wait_any(futures)
    assert futures[number].is_ready()
    left = {"slow", "fast"} - {futures[number].result()[0]}
    assert futures[1 - number].result() == (*left, 1)
    assert wait_any(futures) == 0, "both are ready"


def test_a_call_that_fails_fails_alone(make_caller: MakeCaller) -> None:
    from runner.config.errors import RunFailure

    caller = make_caller()
    before, failing, after = caller.submit("answer", 1), caller.submit("fail"), caller.submit("answer", 2)
    assert after.result() == (2, 1)
    for _ in range(2):
        with pytest.raises(RunFailure, match="it failed"):
            failing.result()
    assert failing.is_ready()
    assert before.result() == (1, 0)


@pytest.mark.ray
def test_tickets_of_a_runner_that_died_are_ready_and_say_so(ray_cluster: None) -> None:
    caller = remote_clerk()
    caller.submit("answer", 1).result()
    futures = [caller.submit("die"), caller.submit("answer", 2)]
    wait_any(futures)
    for future in futures:
        with pytest.raises(ActorDied):
            future.result()
        assert future.is_ready()
    caller.close()


@pytest.mark.slow
@pytest.mark.ray
def test_a_silent_runner_costs_its_timeout_once(ray_cluster: None) -> None:
    timeout_s = 4.0
    caller = remote_clerk(timeout_s)
    caller.submit("answer", 1).result()
    silent = caller.submit("answer", 2, 60.0)
    wait_any([silent])
    waited_s = time.monotonic()
    with pytest.raises(ActorDied, match="did not answer answer within its timeout"):
        silent.result()
    assert time.monotonic() - waited_s < timeout_s / 2
    caller.close()


class HangingClerk(Clerk):
    """A runner that does not close."""

    def close(self) -> None:
        """Wait for ever."""
        time.sleep(3600.0)


@pytest.mark.slow
@pytest.mark.ray
def test_runners_that_hang_cost_the_timeout_of_one(ray_cluster: None) -> None:
    group = ActorGroup(partial(RemoteActor, role_of_runners(), make_hanging_clerk), 4, "env runner", Restarts(0, ""))
    group.call_all("answer", 1)
    began_s = time.monotonic()
    group.close()
    assert time.monotonic() - began_s < 3 * 3.0
    for caller in group.callers:
        with pytest.raises(ActorDied):
            caller.submit("answer", 2).result()


# -- waiting -------------------------------------------------------------------------------------------------------


class GatedClerk(Clerk):
    """A runner that answers once there is a file."""

    gate: str

    def sample(self, num_env_steps: int, explore: bool, weights: Any, shared: Any, *_: Any) -> Sample:
        """Wait for the file."""
        while not os.path.exists(self.gate):
            time.sleep(0.01)
        return Sample(Rollout({}, num_env_steps), FinishedEpisodes(*[np.zeros(0)] * 3), {})


class SlowClerk(Clerk):
    """A runner whose requests say when they are answered."""

    def sample(self, num_env_steps: int, explore: bool, weights: Any, shared: Any, *_: Any) -> Sample:
        """Answer once there is a file with this number."""
        while not os.path.exists(f"{shared['gates']}/{num_env_steps}"):
            time.sleep(0.01)
        return Sample(Rollout({}, num_env_steps), FinishedEpisodes(*[np.zeros(0)] * 3), {})


def remote_group(make_runner: Callable[[int, int], Any], num_runners: int) -> EnvRunnerGroup:
    """Runners in Ray actors."""
    make = partial(RemoteActor, role_of_runners(), make_runner)
    return EnvRunnerGroup(ActorGroup(make, num_runners, "env runner", Restarts(0, "")), {})


@pytest.mark.slow
@pytest.mark.ray
def test_a_plan_that_has_its_turn_waits_whatever_is_ready_for_another(ray_cluster: None, tmp_path: Path) -> None:
    """Two plans of the same runners; the answer of the first one is ready, and the second one holds its turn."""
    gates = [tmp_path / "1", tmp_path / "2"]
    group = remote_group(make_slow_clerk, 1)
    group.set_weights({})
    group.shared_state = {"gates": str(tmp_path)}
    options, metrics = AsyncGradientsConfig(), RunMetrics(1)
    first, second = (AsyncRequests(group, metrics, options, "sample", int(gate.name), True) for gate in gates)
    assert first.next_ready() is None
    assert second.next_ready() is None
    gates[0].touch()
    group.wait_for_any()
    assert [request.is_ready() for request in group.in_flight] == [True, False]
    assert second.next_ready() is None
    opening = threading.Timer(0.5, gates[1].touch)
    opening.start()
    group.wait_for_any()
    assert [request.is_ready() for request in group.in_flight] == [True, True]
    assert second.next_ready() is not None
    group.close()


@pytest.mark.slow
@pytest.mark.ray
def test_a_sample_at_the_bound_of_lag_is_waited_for(ray_cluster: None, tmp_path: Path) -> None:
    """Runner 0 does not answer; runner 1's answers are taken until two updates were made since runner 0 was asked."""
    group = remote_group(partial(make_gated_clerk, tmp_path), 2)
    group.set_weights({})
    (tmp_path / "1").touch()
    options = ParallelRolloutsConfig(mode="async", max_weights_lag=2)
    requests = AsyncRequests(group, RunMetrics(1), options, "sample", 5, True)
    taken = []
    while len(taken) < 2:
        sample = requests.next_ready()
        if sample is None:
            group.wait_for_any()
        else:
            taken.append(sample.runner)
            group.set_weights({})
    assert taken == [1, 1]
    assert requests.next_ready() is None
    group.in_flight[-1].result()  # runner 1 has answered once more
    assert requests.next_ready() is None
    (tmp_path / "0").touch()
    group.wait_for_any()
    overdue = requests.next_ready()
    assert overdue is not None
    assert overdue.runner == 0
    assert group.weights_seq_no - overdue.weights_seq_no == 2
    group.close()
