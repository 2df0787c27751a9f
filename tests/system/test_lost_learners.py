"""Learners in Ray actors that die: the run goes on as if none had died, each update done once and by all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.errors import Problem, RunFailure
from runner.experiment.trainer import Trainer
from tests.conftest import Run, checkpoints_of, progress_of, result_of, without_times
from tests.support.problems import shown_problems, without_node
from tests.system.test_several_learners import BC, PPO

pytestmark = [
    pytest.mark.ray,
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]

RESTARTS = "fault_tolerance/num_learner_restarts"
ONLINE = (*PPO, "algorithm.train_batch_size_per_learner=200", "algorithm.minibatch_size=50")  # 8 passes an update


@pytest.fixture
def dying(tmp_path: Path) -> Callable[..., list[str]]:
    """Overrides for a learner that dies in its `at`-th forward pass, at `most` so many times."""

    def overrides(rank: int, at: int, most: int = 1, raises: bool = False) -> list[str]:
        folder = tmp_path / "deaths"
        folder.mkdir(exist_ok=True)
        fate = f"rank: {rank}, at: {at}, most: {most}, folder: {folder}, raises: {str(raises).lower()}"
        return ["module._target_=tests.learners.dying_module.DyingModule", f"module.model_config={{{fate}}}"]

    return overrides


def _train(experiment: str, overrides: list[str], num_iterations: int) -> tuple[list[dict[str, Any]], Any, int]:
    """Metrics without times and restarts, the state of the learners at the end, and the restarts."""
    with Trainer.from_experiment(experiment, overrides) as trainer:
        results = [without_times(trainer.train()) for _ in range(num_iterations)]
        restarts = [result.pop(RESTARTS) for result in results]
        assert restarts == sorted(restarts)
        state = trainer.learners.get_state()
        assert state.pop("num_restarts", 0) == restarts[-1]
        return results, state, restarts[-1]


def _assert_equal(one: Any, other: Any) -> None:
    np.testing.assert_equal(_plain(one), _plain(other))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return [_plain(value) for value in state] if isinstance(state, list) else np.asarray(state)


def _call(trainer: Trainer, rank: int, function: Callable[[Any], Any]) -> Any:
    """What `function` gives in the process of a learner."""
    learners: Any = trainer.learners
    return learners.gang.actors[rank].submit_function(function).result()


def _kill(trainer: Trainer, rank: int) -> None:
    os.kill(_call(trainer, rank, lambda actor: os.getpid()), signal.SIGKILL)


@pytest.mark.slow
def test_an_update_in_which_a_learner_dies_is_done_again_by_all(dying: Callable[..., list[str]]) -> None:
    overrides = [*ONLINE, "learners.num_learners=2"]
    undisturbed, expected, _ = _train("ppo_cartpole", overrides, 3)
    with Trainer.from_experiment("ppo_cartpole", [*overrides, *dying(rank=1, at=13)]) as trainer:  # in its second
        results = [without_times(trainer.train()) for _ in range(2)]
        learners = [_call(trainer, rank, lambda actor: actor.held.get_state()["learners"]) for rank in range(2)]
        first, second = (learner["default_policy"] for learner in learners)
        _assert_equal(first["module"], second["module"])
        _assert_equal(first["optimizer"], second["optimizer"])

        _kill(trainer, rank=0)  # between two updates, with a checkpoint next
        state = trainer.get_state()
        _assert_equal(state["learners"]["learners"]["default_policy"], first)
        results.append(without_times(trainer.train()))
        assert [result.pop(RESTARTS) for result in results] == [0, 1, 2]
        assert results == undisturbed
        got = trainer.learners.get_state()
    assert got.pop("num_restarts") == 2
    _assert_equal(got, expected)


@pytest.mark.slow
def test_a_learner_without_peers_loses_nothing_either_if_it_dies_twice(dying: Callable[..., list[str]]) -> None:
    undisturbed, expected, _ = _train("ppo_cartpole", [*ONLINE], 2)
    overrides = [*ONLINE, "learners.num_learners=1", *dying(rank=0, at=5, most=2)]
    results, state, num_restarts = _train("ppo_cartpole", overrides, 2)
    assert num_restarts == 2
    assert results == undisturbed
    assert state.pop("peers") == []
    _assert_equal(state, expected)


@pytest.mark.slow
@pytest.mark.parametrize("num_learners", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_learners_read_recorded_data_again_from_where_they_were(
    dying: Callable[..., list[str]], num_learners: int
) -> None:
    overrides = [*BC, f"learners.num_learners={num_learners}", "algorithm.train_batch_size_per_learner=256"]
    undisturbed, expected, _ = _train("bc_cartpole", overrides, 2)
    results, state, num_restarts = _train("bc_cartpole", [*overrides, *dying(num_learners - 1, at=5)], 2)
    assert num_restarts == 1
    assert results == undisturbed
    _assert_equal(state, expected)


@pytest.mark.slow
def test_a_learner_that_raises_is_not_started_again(dying: Callable[..., list[str]]) -> None:
    """Its peer waits in a mean of gradients for ever, and is ended with it."""
    overrides = [*ONLINE, "learners.num_learners=2", *dying(rank=1, at=3, raises=True)]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        with pytest.raises(RunFailure, match="learner 1 failed in update: ValueError: this module cannot go on"):
            trainer.train()
        assert trainer.learners.num_restarts == 0


@pytest.mark.slow
def test_the_run_ends_when_its_restarts_are_used_up(
    run_main: Run,
    tmp_path: Path,
    dying: Callable[..., list[str]],
) -> None:
    outcome = run_main(
        "+experiment=ppo_cartpole",
        *ONLINE,
        "learners.num_learners=1",
        *dying(rank=0, at=13, most=2),  # in the second and in the third update
        "learners.max_restarts=1",
        "checkpoint.every_iterations=1",
        "stop={training_iteration: 5}",
        "tracking=none",
        "hydra.run.dir=run",
    )
    assert outcome.code == 1
    assert shown_problems(without_node(outcome.err)) == [
        Problem(
            "learner 0 on 10.0.0.7 died (ActorDiedError in update), and the only allowed restart has been used",
            where="learners.max_restarts",
        )
    ]
    assert "learner restarts so far: 1; see" in outcome.out
    assert [line[RESTARTS] for line in progress_of(tmp_path / "run")] == [0, 1]
    assert checkpoints_of(tmp_path / "run")[-1] == "iteration_000002"
    assert result_of(tmp_path / "run")["status"] == "failed"
    log = without_node((tmp_path / "run" / "runner.log").read_text())
    assert "learner 0 on 10.0.0.7 died (ActorDiedError in update): starting it again" in log

    more = ("learners.max_restarts=2", "stop={training_iteration: 4}", "hydra.run.dir=resumed")
    assert run_main("resume", "run", *more).code == 0
    assert [line[RESTARTS] for line in progress_of(tmp_path / "resumed")] == [0, 1, 1, 1]
