"""Env runners as Ray actors that die, hang or fail in the middle of an iteration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.experiment.trainer import Trainer
from runner.pipelines.mean_std_filter import Moments
from runner.streams import integer_seed
from tests.conftest import QUICK, Run, checkpoints_of, progress_of, result_of
from tests.support.environments import Faulty
from tests.support.problems import assert_error, raised_in, shown_problems, without_node

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

NUM_ENVS = 2
# The first reset of the first sub-environment of env runner 1, before any restart.
VICTIM = integer_seed(0, "env_runner", 1, 0, 0, 0)
REMOTE = (
    *QUICK,
    "env.env=null",
    "env._target_=tests.support.environments.Faulty",
    "env_runners.num_env_runners=2",
    f"env_runners.num_envs_per_env_runner={NUM_ENVS}",
    "connectors=mean_std_filter",
    "algorithm.train_batch_size_per_learner=200",
    "checkpoint.every_iterations=1",
)
# Each iteration is 100 steps a runner, 50 a sub-environment and resets on top: step 70 is in the second iteration.
FAULT_STEP = 70


def _fault(name: str, step: int = FAULT_STEP) -> str:
    return f"env.env_config={{fault: {name}, fault_step: {step}, fault_seed: {VICTIM}}}"


def _trainer(*overrides: str) -> Trainer:
    return Trainer.from_experiment("ppo_cartpole", [*REMOTE, *overrides])


def _filter_count(trainer: Trainer) -> float:
    (state,) = trainer.env_runners.shared_state["default_policy"].values()
    return float(state["merged_count"])


def _step_rows(block: Any) -> torch.Tensor:
    """(R, ...) observations that were acted on: those of a chunk but its last."""
    keep = np.ones(len(block.columns["obs"]), bool)
    keep[block.offsets[1:] + np.arange(len(block))] = False
    return torch.from_numpy(block.columns["obs"][keep])


@pytest.mark.parametrize(
    ("fault", "overrides"),
    [("kill", ()), pytest.param("sleep", ("env_runners.sample_timeout_s=2",), marks=pytest.mark.slow)],
)
def test_a_lost_runner_is_replaced_in_mid_iteration(fault: str, overrides: Sequence[str]) -> None:
    with _trainer("engine=inline") as undisturbed:
        undisturbed.train()
        expected = undisturbed.env_runners.sample(200, True)
    with _trainer(_fault(fault), *overrides) as trainer:
        first = trainer.train()
        assert first["fault_tolerance/num_remote_worker_restarts"] == 0
        (before,) = trainer.env_runners.shared_state["default_policy"].values()
        started = time.monotonic()
        samples = trainer.env_runners.sample(200, True)
        assert time.monotonic() - started < 45
        assert trainer.env_runners.num_restarts == 1

        # No row of the other runner is lost or changed, and the iteration has all its steps.
        assert (
            samples[0].rollout.blocks["default_policy"].num_rows
            == expected[0].rollout.blocks["default_policy"].num_rows
        )
        for name, column in expected[0].rollout.blocks["default_policy"].columns.items():
            np.testing.assert_array_equal(samples[0].rollout.blocks["default_policy"].columns[name], column)
        assert sum(sample.rollout.blocks["default_policy"].num_rows for sample in samples) >= 200

        # The new runner starts episodes of its own generation ...
        block = samples[1].rollout.blocks["default_policy"]
        assert block.t_started.tolist() == [0] * len(block)
        assert all("env_runner-1.1-" in name for name in block.episode_ids)
        # ... acts with the current weights ...
        module = trainer.learners.modules["default_policy"]
        with torch.no_grad():
            theta = module.forward_train({"obs": _step_rows(block)})["action_dist_inputs"]
        torch.testing.assert_close(torch.from_numpy(block.columns["action_dist_inputs"]), theta, rtol=1e-4, atol=1e-5)
        # ... through the filter with all rows seen before the loss, and its own reset rows on top.
        raw = np.array([_first_raw_obs(n, generation=1) for n in range(NUM_ENVS)])
        seen = Moments.from_state(before, "merged").merged(Moments.of_rows(raw))
        expected_first = np.clip((raw - seen.mean) / np.sqrt(seen.m2 / (seen.count - 1)), -10, 10)
        firsts = block.offsets[:-1] + np.arange(len(block))
        started_first = [firsts[block.episode_ids.index(f"0-env_runner-1.1-{n}-0")] for n in range(NUM_ENVS)]
        np.testing.assert_allclose(block.columns["obs"][started_first], expected_first, rtol=1e-4, atol=1e-5)
        # What the lost runner had seen in this iteration is gone, everything else is counted once.
        assert _filter_count(trainer) == before["merged_count"] + sum(
            _own_count(sample.shared_state) for sample in samples
        )

        result = trainer.train()
        assert result["fault_tolerance/num_remote_worker_restarts"] == 1
        assert result["fault_tolerance/num_healthy_workers"] == 2


def _first_raw_obs(n: int, generation: int) -> list[float]:
    seed = integer_seed(0, "env_runner", 1, generation, n, 0)
    return [0.0, float(np.float32(np.random.default_rng(seed).uniform(-5, 5)))]


def _own_count(shared_state: Any) -> float:
    (state,) = shared_state["default_policy"].values()
    return float(state["own_count"])


@pytest.mark.slow
def test_a_run_goes_on_over_a_killed_runner_and_its_checkpoint_too(run_main: Run, tmp_path: Path) -> None:
    train = ("+experiment=ppo_cartpole", *REMOTE, _fault("kill"))
    outcome = run_main(*train, "stop.training_iteration=5", "hydra.run.dir=straight")
    assert (outcome.code, outcome.err) == (0, "")
    lines = progress_of(tmp_path / "straight")
    assert [line["training_iteration"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["fault_tolerance/num_remote_worker_restarts"] for line in lines] == [0, 1, 1, 1, 1]
    assert all(line["num_env_steps_sampled"] >= 200 for line in lines)
    log = without_node((tmp_path / "straight" / "runner.log").read_text())
    assert "env runner 1 on 10.0.0.7 died (ActorDiedError in sample): starting it again" in log
    # A checkpoint from after the restart knows the new runner's seeds and state.
    source = tmp_path / "straight" / "checkpoints" / "iteration_000004"
    assert run_main("resume", str(source), "hydra.run.dir=resumed", "engine=inline").code == 0
    resumed = progress_of(tmp_path / "resumed")[-1]
    for name in ("env_runners/num_episodes", "learners/default_policy/total_loss"):
        assert resumed[name] == lines[-1][name]
    assert resumed["fault_tolerance/num_remote_worker_restarts"] == 1


def test_without_restarts_the_run_ends(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(
        "+experiment=ppo_cartpole",
        *REMOTE,
        _fault("kill"),
        "stop.training_iteration=5",
        "hydra.run.dir=run",
        "env_runners.restart_failed_env_runners=false",
    )
    assert outcome.code == 1
    assert shown_problems(without_node(outcome.err)) == [
        Problem(
            "env runner 1 on 10.0.0.7 died (ActorDiedError in sample), and restarts are disabled",
            where=(
                "env_runners.restart_failed_env_runners, env_runners.max_num_env_runner_restarts; "
                "env_runners.sample_timeout_s, evaluation.evaluation_sample_timeout_s"
            ),
        )
    ]
    assert [line["training_iteration"] for line in progress_of(tmp_path / "run")] == [1]
    assert checkpoints_of(tmp_path / "run") == ["iteration_000001"]
    assert result_of(tmp_path / "run")["status"] == "failed"


def test_an_environment_that_raises_is_not_restarted(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(
        "+experiment=ppo_cartpole",
        *REMOTE,
        _fault("raise_in_step"),
        "stop.training_iteration=5",
        "hydra.run.dir=run",
    )
    assert outcome.code == 1
    assert shown_problems(outcome.err) == [
        Problem(
            "the environment raised ValueError in step: the arm has left its rail",
            where=f"env runner 1, sub-environment 0, episode 8, step 5, {raised_in(Faulty.step, 'raise ValueError')}",
            got="action 0",
        )
    ]
    assert [line["fault_tolerance/num_remote_worker_restarts"] for line in progress_of(tmp_path / "run")] == [0]


@pytest.mark.slow
def test_a_killed_evaluation_runner_is_replaced_and_the_count_is_exact(tmp_path: Path) -> None:
    victim = integer_seed(0, "evaluation", 0, 0, 0, 0)  # not the training runner, which is in this process
    with _trainer(
        f"env.env_config={{fault: kill, fault_step: 11, fault_seed: {victim}, once_file: {tmp_path / 'killed'}}}",
        "evaluation.evaluation_num_env_runners=1",
        "env_runners.num_env_runners=0",
    ) as trainer:
        trainer.train()
        result = trainer.evaluate(20)
    assert result["evaluation/env_runners/num_episodes"] == 20
    assert result["evaluation/env_runners/episode_len_min"] == 8


@pytest.mark.slow
def test_no_restart_is_left_at_last() -> None:
    each_time = ("env.env_config={fault: kill, fault_step: 30}", "env_runners.num_env_runners=1")
    with (
        _trainer(*each_time, "env_runners.max_num_env_runner_restarts=1") as trainer,
        pytest.raises(RunFailure, match=r"the only allowed restart has been used"),
    ):
        trainer.train()


def test_resources_that_are_never_there_are_refused_at_once(run_main: Run, tmp_path: Path) -> None:
    started = time.monotonic()
    outcome = run_main(
        "+experiment=ppo_cartpole", *REMOTE, "env_runners.num_gpus_per_env_runner=1", "hydra.run.dir=run"
    )
    assert outcome.code == 2
    assert time.monotonic() - started < 60, "Ray itself may have to start"
    assert_error(
        outcome.err,
        ConfigError(
            [
                Problem(
                    "the Ray cluster does not have the resources that this run needs",
                    where=(
                        "env_runners.num_env_runners, evaluation.evaluation_num_env_runners, "
                        "env_runners.num_cpus_per_env_runner, num_gpus_per_env_runner"
                    ),
                    got="GPU 2",
                    expected="GPU 0",
                )
            ]
        ),
        tmp_path,
    )
    assert not (tmp_path / "run" / "progress.jsonl").exists()
