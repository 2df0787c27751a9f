"""A group whose number of runners is not fixed: who joins, who leaves, and what a resumed one goes on with."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from runner.cluster.actors import LocalActor
from runner.cluster.elastic_group import ElasticGroup, Size
from runner.cluster.futures import Future, LocalFuture
from runner.config.errors import RunFailure
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.episodes.columns import Rollout
from runner.experiment.trainer import Trainer
from runner.restarts import ActorDied, Restarts
from tests.conftest import WAIT_S, without_times
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of


class Runner(LocalActor):
    """A runner in this process that can be lost as one in another process."""

    is_lost = False

    def submit(self, method: str, *args: Any) -> Future:
        """Lose the call where the runner is lost."""
        return LocalFuture(self._lose) if self.is_lost else super().submit(method, *args)

    def _lose(self) -> None:
        raise ActorDied("env runner died")


class Cluster:
    """Has so many places for further runners."""

    places = 0

    def count(self, most: int) -> int:
        """Return the places, of which the caller takes all."""
        given = min(most, self.places)
        self.places -= given
        return given


@pytest.fixture(autouse=True)
def _looks_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.cluster.elastic_group._POLL_INTERVAL_S", 0.0)


def group_of(cluster: Cluster, fewest: int, most: int, first: int, max_restarts: int = 9) -> EnvRunnerGroup:
    """Runners of two sub-environments each."""

    def make(index: int, generation: int) -> Runner:
        env, _ = coded_envs("sync", 2, [3, 5])
        return Runner(lambda *_: make_runner(env, coded_module(), seed_name=("env_runner", index, generation)), 0, 0)

    env, _ = coded_envs("sync", 1, [1])
    pipelines = {"default_policy": make_runner(env, coded_module()).env_to_module}
    size = Size(fewest, most, cluster.count, "address")
    group = EnvRunnerGroup(ElasticGroup(make, size, first, "env runner", Restarts(max_restarts, "")), pipelines)
    group.addresses()
    group.set_weights(weights_of(coded_module()))
    return group


def lose(group: EnvRunnerGroup, index: int) -> None:
    """Let the runner be lost with its next call."""
    runner = group.actors.callers[group.actors.indexes.index(index)]
    assert isinstance(runner, Runner)
    runner.is_lost = True


def ids_of(rollout: Rollout) -> list[str]:
    """The ids of its episodes."""
    return [id_ for block in rollout.blocks.values() for id_ in block.episode_ids]


def test_it_starts_with_the_first_and_grows_to_the_most() -> None:
    cluster = Cluster()
    group = group_of(cluster, 1, 4, 2)
    assert group.actors.indexes == [0, 1]
    cluster.places = 9
    seen = [len(group.sample(4, True)) for _ in range(3)]
    assert seen == [2, 4, 4], "a new runner takes part once it is ready"
    assert group.metrics()["fault_tolerance/num_healthy_workers"] == 4


def test_others_make_what_a_lost_runner_owes_and_one_comes_back_with_other_seeds() -> None:
    cluster = Cluster()
    group = group_of(cluster, 1, 3, 3)
    before = group.sample(30, True)
    lose(group, 1)
    samples = group.sample(30, True)
    assert group.actors.indexes == [0, 2]
    assert sum(sample.rollout.num_env_steps for sample in samples) >= 30
    assert {sample.runner for sample in samples} == {0, 2}
    assert group.num_restarts == 0
    cluster.places = 1
    group.sample(6, True)
    after = group.sample(30, True)
    assert [sample.runner for sample in after] == [0, 1, 2]
    assert group.num_restarts == 1
    assert not set(ids_of(before[1].rollout)) & set(ids_of(after[1].rollout))
    assert all(id_.startswith("0-env_runner-1.1-") for id_ in ids_of(after[1].rollout)), ids_of(after[1].rollout)


def test_a_runner_below_the_least_is_replaced_at_once() -> None:
    group = group_of(Cluster(), 2, 3, 2)
    lose(group, 0)
    assert [sample.runner for sample in group.sample(4, True)] == [0, 1]
    assert (group.actors.generations, group.num_restarts) == ([1, 0, 0], 1)


def test_without_restarts_the_first_loss_ends_the_run() -> None:
    group = group_of(Cluster(), 1, 3, 3, max_restarts=0)
    lose(group, 2)
    with pytest.raises(RunFailure, match="restarts are disabled"):
        group.sample(4, True)


def test_a_runner_that_was_lost_too_often_does_not_come_back() -> None:
    cluster = Cluster()
    group = group_of(cluster, 1, 2, 2, max_restarts=1)
    for indexes in ([0, 1], [0]):
        lose(group, 1)
        for places in (0, 1, 0):  # it is noticed, another one starts, and joins
            cluster.places = places
            group.sample(4, True)
        assert group.actors.indexes == indexes


def test_another_runner_takes_the_place_of_one_that_does_not_come_back() -> None:
    cluster = Cluster()
    group = group_of(cluster, 1, 3, 2, max_restarts=1)
    for indexes in ([0, 1], [0, 2]):
        lose(group, 1)
        for places in (0, 1, 0):  # it is noticed, another one starts, and joins
            cluster.places = places
            group.sample(4, True)
        assert group.actors.indexes == indexes


@pytest.mark.parametrize(
    ("num_before", "lost", "num_after", "indexes", "generations"),
    [
        (3, None, 3, [0, 1, 2], [0, 0, 0, 0]),
        (3, None, 2, [0, 1], [0, 0, 1, 0]),
        (2, None, 3, [0, 1, 2], [0, 0, 0, 0]),
        (3, 0, 2, [1, 2], [1, 0, 0, 0]),
        (3, 0, 1, [1], [1, 0, 1, 0]),
        (3, 1, 3, [0, 1, 2], [0, 1, 0, 0]),
    ],
)
def test_a_resumed_group_goes_on_with_the_runners_that_there_are(
    num_before: int, lost: int | None, num_after: int, indexes: list[int], generations: list[int]
) -> None:
    group = group_of(Cluster(), 1, 4, num_before)
    group.sample(8, True)
    if lost is not None:
        lose(group, lost)
        group.sample(8, True)
    state = group.get_state()
    resumed = group_of(Cluster(), 1, 4, num_after)
    resumed.set_state(state)
    assert (resumed.actors.indexes, resumed.actors.generations) == (indexes, generations)
    states = resumed.get_state()["runners"]
    for index in map(str, indexes):
        assert bool(states[index]) == (index in state["runners"]), "a fresh one has not sampled"
    for sample, generation in zip(resumed.sample(8, True), [generations[index] for index in indexes], strict=True):
        name = f"0-env_runner-{sample.runner}" + (f".{generation}-" if generation else "-")
        assert all(id_.startswith(name) for id_ in ids_of(sample.rollout)), ids_of(sample.rollout)


SMALL = ("algorithm.train_batch_size_per_learner=60", "algorithm.minibatch_size=20", "module.fcnet_hiddens=[4]")
PPO = partial(Trainer.from_experiment, "ppo_cartpole")


@pytest.mark.slow
@pytest.mark.ray
def test_the_same_numbers_as_with_a_fixed_number_and_after_a_resume(ray_cluster: None) -> None:
    results = []
    for number in ("2", "{min: 2, max: 2}"):
        overrides = [*SMALL, f"env_runners.num_env_runners={number}", "evaluation=none", "tracking=none"]
        with PPO([*overrides, "env_runners.num_cpus_per_env_runner=0.1"]) as trainer:
            of_run = [without_times(trainer.train()) for _ in range(2)]
            state = trainer.get_state()
            results.append([*of_run, without_times(trainer.train())])
    assert results[0] == results[1]
    with PPO([*overrides, "env_runners.num_cpus_per_env_runner=0.1"]) as trainer:
        trainer.set_state(state)
        assert without_times(trainer.train()) == results[0][-1]


@pytest.mark.slow
@pytest.mark.ray
def test_runners_that_evaluate_and_learners_keep_their_places(ray_cluster: None) -> None:
    """Of four CPUs one is the evaluation's and one the learner's."""
    evaluation = ["evaluation.evaluation_interval=1", "evaluation.evaluation_num_env_runners=1"]
    others = [*evaluation, "evaluation.evaluation_duration=1", "learners.num_learners=1", "tracking=none"]
    with PPO([*SMALL, "env_runners.num_env_runners={min: 1, max: 9}", *others]) as trainer:
        deadline_s = time.monotonic() + WAIT_S
        while trainer.env_runners.num_runners < 2:
            assert time.monotonic() < deadline_s
            trainer.train()
        for _ in range(5):
            result = trainer.train()
        assert result["fault_tolerance/num_healthy_workers"] == 2
        assert result["evaluation/env_runners/num_episodes"] == 1
