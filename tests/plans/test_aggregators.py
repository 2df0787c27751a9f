"""Aggregators: the numbers of a run are the same whoever makes its train batches, and whoever dies."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.experiment.trainer import Trainer
from runner.interrupts import Budget, within
from runner.learners.prepared_columns import Prepared, fetch_prepared
from runner.pipelines.piece_metrics import ReducedValue
from tests.conftest import marked_but, without_times

pytestmark = pytest.mark.ray

RESTARTS = "fault_tolerance/num_aggregator_restarts"
PROCESS, NUM_ROWS = "connectors/learner/process", "connectors/learner/num_rows"
PIECE = "{insert_before: AgentToModuleMapping, piece: {_target_: tests.aggregated_pieces.ProcessNumber}}"
REPORTING = f"connectors.learner=[{PIECE}]"
IN_ORDER = "{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}"
JOINED = f"{IN_ORDER}, {{ConcatBatches: {{min_env_steps: 100}}}}"  # of two samples at least
REPLAYED = f"{JOINED}, {{MixInReplay: {{replay_proportion: 0.5}}}}"
SMALL = (
    "algorithm.train_batch_size_per_learner=60",
    "algorithm.min_sample_timesteps_per_iteration=300",
    "env_runners.num_envs_per_env_runner=2",
    "env_runners.num_env_runners=2",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
)
RUNS = {
    "impala": ("impala_cartpole", f"algorithm.plan=[{JOINED}, TrainOneStep]", "connectors=mean_std_filter"),
    "appo": ("appo_cartpole", f"algorithm.plan=[{REPLAYED}, TrainOneStep, UpdateTargetNetwork]"),
    "memory": (
        "appo_stateless_cartpole_lstm",
        f"algorithm.plan=[{REPLAYED}, TrainOneStep, UpdateTargetNetwork]",
        "module.lstm_cell_size=4",
        "algorithm.minibatch_size=null",
    ),
    "agents": ("impala_multi_agent_cartpole", f"algorithm.plan=[{JOINED}, TrainOneStep]"),
}


@pytest.fixture(autouse=True)
def _cluster(ray_cluster: None) -> None: ...


def trainer_of(run: str, *overrides: str) -> Trainer:
    experiment, *own = RUNS[run]
    return Trainer.from_experiment(experiment, [*SMALL, *own, *overrides])


def results_of(trainer: Trainer, num_iterations: int) -> list[dict[str, Any]]:
    """Results without times, restarts of aggregators and numbers of processes."""
    results = [without_times(trainer.train()) for _ in range(num_iterations)]
    return [{name: value for name, value in result.items() if name not in (RESTARTS, PROCESS)} for result in results]


def kill(trainer: Trainer, number: int) -> None:
    """SIGKILL of an aggregator."""
    import ray

    assert trainer.resources.aggregators is not None
    actor = trainer.resources.aggregators._actors[number]
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


@pytest.mark.parametrize("run", marked_but(pytest.mark.slow, RUNS, "appo"))
def test_the_same_numbers_whoever_makes_the_train_batches(run: str) -> None:
    one, two = (f"learners.num_aggregator_actors={number}" for number in (1, 2))
    further = [(one,), (one, "learners.num_learners=1")] if run == "impala" else []
    outcomes = []
    for overrides in ((), (two,), *further):
        with trainer_of(run, *overrides) as trainer:
            outcomes.append((results_of(trainer, 3), trainer.learners.get_weights()))
    for results, weights in outcomes[1:]:
        assert results == outcomes[0][0]
        np.testing.assert_equal(weights, outcomes[0][1])


@pytest.mark.slow
def test_pieces_before_the_loading_run_in_aggregators_and_report() -> None:
    reported = []
    for number in (0, 2):
        with trainer_of("impala", REPORTING, f"learners.num_aggregator_actors={number}") as trainer:
            reported.append([trainer.train() for _ in range(2)])
    assert {result[PROCESS] for result in reported[0]} == {os.getpid()}
    assert os.getpid() not in {result[PROCESS] for result in reported[1]}
    assert [result[NUM_ROWS] for result in reported[1]] == [result[NUM_ROWS] for result in reported[0]]


@pytest.mark.slow
def test_a_killed_aggregator_is_replaced_and_its_samples_are_prepared_again() -> None:
    with trainer_of("appo") as trainer:
        undisturbed = results_of(trainer, 4)
    with trainer_of("appo", "learners.num_aggregator_actors=2") as trainer:
        results = results_of(trainer, 1)
        kill(trainer, 0)
        results += results_of(trainer, 1)
        kill(trainer, 0)  # the one in its place
        kill(trainer, 1)
        results += results_of(trainer, 2)
        assert results == undisturbed
        assert trainer.last_result[RESTARTS] == 3
        assert trainer.get_state()["aggregators"] == {"num_restarts": 3}


@pytest.mark.slow
def test_a_lost_aggregator_ends_a_run_without_restarts() -> None:
    with trainer_of("impala", "learners.num_aggregator_actors=1", "learners.max_restarts=0") as trainer:
        kill(trainer, 0)
        with pytest.raises(RunFailure, match=r"aggregator 0 is gone .*and restarts are off"):
            trainer.train()


@pytest.mark.slow
def test_a_killed_env_runner_is_replaced_as_without_aggregators() -> None:
    import ray

    with trainer_of("impala", "learners.num_aggregator_actors=1") as trainer:
        trainer.train()
        handle: Any = trainer.env_runners.handles[1]
        os.kill(ray.get(handle._actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        results = [trainer.train() for _ in range(2)]
    assert results[-1]["fault_tolerance/num_remote_worker_restarts"] == 1
    assert results[-1][RESTARTS] == 0
    assert results[-1]["num_env_steps_trained_lifetime"] >= 900


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_with_another_number_of_aggregators() -> None:
    """Samples that wait to be joined are in the checkpoint; what pieces report of them counts once."""
    with trainer_of("appo", REPORTING) as trainer:
        straight = results_of(trainer, 3)
    with trainer_of("appo", REPORTING, "learners.num_aggregator_actors=1") as trainer:
        results_of(trainer, 1)
        state = trainer.get_state()
        assert results_of(trainer, 1) == straight[1:2], "the run goes on after its checkpoint"
    for number in (0, 2):
        with trainer_of("appo", REPORTING, f"learners.num_aggregator_actors={number}") as trainer:
            trainer.set_state(state)
            assert results_of(trainer, 2) == straight[1:]


def test_an_end_that_is_asked_for_waits_for_no_aggregator() -> None:
    import ray

    edits = "connectors.learner=[{prepend: {_target_: tests.aggregated_pieces.Stalling}}]"
    # Of several env runners, whose sample comes first is a matter of chance: the piece lets the first one through.
    one_of_each = ("env_runners.num_env_runners=1", "learners.num_aggregator_actors=1")
    with trainer_of("impala", edits, *one_of_each) as trainer:
        requests = trainer.resources.operators["ParallelRollouts"].requests  # type: ignore[attr-defined]
        prepared = requests.next_ready()
        assert prepared is not None
        assert len(prepared.rollout.prepared) == 1
        ray.get([ticket.reference for ticket in requests._tickets])
        with within(Budget("no time", 0.0)):
            samples = [requests.next_ready() for _ in requests._tickets[:]]
        assert None not in samples, "none is lost"
        assert all(sample and sample.rollout.prepared == () for sample in samples), "the learner prepares them"


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        ("Failing", r"these rows are not good[\s\S]*aggregated_pieces.py:\d+"),
        ("Noting", r"leaves shared_data[\s\S]*seen"),
    ],
)
def test_a_piece_that_fails_in_an_aggregator_ends_the_run(piece: str, reason: str) -> None:
    edits = f"connectors.learner=[{{prepend: {{_target_: tests.aggregated_pieces.{piece}}}}}]"
    with trainer_of("impala", edits, "learners.num_aggregator_actors=1") as trainer:
        with pytest.raises(RunFailure) as failure:
            results_of(trainer, 2)
        assert re.search(reason, failure.value.problem.render_alone()), failure.value
        assert trainer.resources.aggregators is not None
        assert trainer.resources.aggregators.num_restarts == 0


def test_columns_of_several_parts_are_joined_in_their_order() -> None:
    import ray

    first = {"p": {"obs": {"x": np.arange(2)}, "infos": [{"a": 1}], "actions": (np.zeros(1), np.ones(1))}}
    second = {"p": {"obs": {"x": np.arange(3)}, "infos": [], "actions": (np.ones(2), np.zeros(2))}, "q": {"obs": [1]}}
    reported = [ReducedValue("sum") for _ in range(2)]
    for one in reported:
        one.add(2.0, 1.0)
    parts = [Prepared(columns, {"rows": one}) for columns, one in zip((first, second), reported, strict=True)]
    found = fetch_prepared([ray.put(part) for part in parts])
    assert found is not None
    assert found.reported["rows"].result == 4.0
    joined = found.columns
    obs = joined["p"]["obs"]["x"]
    np.testing.assert_array_equal(obs, [0, 1, 0, 1, 2])
    assert obs.flags.writeable
    np.testing.assert_equal(joined["p"]["actions"], (np.array([0.0, 1, 1]), np.array([1.0, 0, 0])))
    assert joined["p"]["infos"] == [{"a": 1}]
    assert joined["q"] == {"obs": [1]}
    assert fetch_prepared(()) is None


def test_columns_that_only_some_samples_have_are_refused() -> None:
    import ray

    parts = [Prepared({"p": {"obs": np.zeros(3), **more}}, {}) for more in ({"w": np.zeros(3)}, {})]
    with pytest.raises(RunFailure, match=r"some samples columns that others lack, in p\n(.*\n)*.*got +w"):
        fetch_prepared([ray.put(part) for part in parts])
