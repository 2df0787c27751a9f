"""The listings of the specification, as functions of as many lines and as YAML, and the examples that hold them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from runner.experiment.trainer import Trainer
from tests.conftest import ROOT, lines_of, progress_of, result_of, run_process, without_times

EXAMPLE = ROOT / "examples" / "plans"
SMALL = (
    "algorithm.train_batch_size_per_learner=40",
    "algorithm.min_sample_timesteps_per_iteration=0",
    "env_runners.num_envs_per_env_runner=2",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
    "engine=inline",
    "env_runners.num_env_runners=2",
    "stop.training_iteration=3",
)


@pytest.fixture(autouse=True)
def _example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)


REPLAY = (
    "[{Concurrently: {plans: [[ParallelRollouts, StoreToReplayBuffer], [Replay, TrainOneStep]], output_indexes: [1]}}]"
)


def results_of(plan: str) -> list[dict[str, Any]]:
    experiment = "a2c_replay_cartpole" if "eplay" in plan else "a2c_cartpole"
    with Trainer.from_experiment(experiment, [*SMALL, f"algorithm.plan={plan}"]) as trainer:
        return [without_times(trainer.train()) for _ in range(3)]


@pytest.mark.parametrize(
    ("function", "num_lines", "plan"),
    [
        ("a2c", 3, "[{ParallelRollouts: {mode: bulk_sync}}, ConcatBatches, TrainOneStep]"),
        ("a3c", 3, "[AsyncGradients, {ApplyGradients: {update_all: false}}]"),
        ("a2c_with_replay", 4, REPLAY),
        ("a2c_with_prints", 3, "[ParallelRollouts, ConcatBatches, DebugPrint, TrainOneStep]"),
    ],
)
def test_a_function_of_as_many_lines_gives_the_numbers_of_the_yaml(
    function: str, num_lines: int, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import my_plans  # type: ignore[import-not-found]

    body = inspect.getsource(getattr(my_plans, function)).split('"""')[-1]
    assert len(body.strip().splitlines()) == num_lines
    assert results_of(f"[{{_target_: my_plans.{function}}}]") == results_of(plan)
    seen = [line for line in capsys.readouterr().out.splitlines() if line.startswith("I saw")]
    expected = ["I saw <class 'runner.plans.items.Experiences'>"] * 3 + ["I saw Experiences of 4"] * 3
    assert [line[: len(start)] for line, start in zip(seen, expected, strict=False)] == expected[: len(seen)]
    assert len(seen) == (6 if "prints" in function else 0)


@pytest.mark.slow
def test_an_example_goes_on_exactly(tmp_path: Path) -> None:
    start = ("+experiment=random_share", "--config-dir", "my_conf", "tracking=none")
    drawn = run_process(EXAMPLE, "show", "--plan", *start[:3]).stdout
    assert "├─ my_plans.RandomShare(share=0.5)  -> Experiences" in drawn
    run_process(EXAMPLE, *start, f"hydra.run.dir={tmp_path / 'straight'}")
    run_process(EXAMPLE, *start, f"hydra.run.dir={tmp_path / 'run'}", "stop.training_iteration=1")
    run_process(EXAMPLE, "resume", str(tmp_path / "run"), "stop.training_iteration=3")
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "straight")
    trained, sampled = (
        progress_of(tmp_path / "run")[-1][f"num_env_steps_{name}_lifetime"] for name in ("trained", "sampled")
    )
    assert 0.3 * sampled < trained < 0.7 * sampled


def test_an_example_in_python(tmp_path: Path) -> None:
    arguments = ("+experiment=a2c_in_python", "--config-dir", "my_conf", "tracking=none")
    done = run_process(EXAMPLE, *arguments, f"hydra.run.dir={tmp_path / 'run'}", "stop.training_iteration=1")
    assert done.stdout.count("I saw <class 'runner.plans.items.Experiences'>") == 10
    assert result_of(tmp_path / "run")["status"] == "finished"
