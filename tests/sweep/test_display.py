"""What a sweep shows: the closing tables, and the table on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from runner.config.schemas import ExperimentConfig
from runner.sweep.display import LiveSweepDisplay, SweepDisplay
from runner.sweep.trials import SweepFolder
from tests.support.configs import config_from

RETURN, STEPS, TIME = "env_runners/episode_return_mean", "num_env_steps_sampled_lifetime", "time_total_s"


@pytest.fixture(scope="module")
def config() -> ExperimentConfig:
    return config_from("+experiment=ppo_cartpole")


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    made = SweepFolder.start_in(
        tmp_path / "s", "e", {RETURN: "max"}, {"overrides": [], "space": {"algorithm.lr": ["1", "2"]}}, False
    )
    for number, (status, value, steps) in enumerate(
        [("finished", 450.0, 90_000), ("running", 120.0, 150_000), ("failed", None, None), ("stopped", 20.0, 30_000)]
    ):
        trial = made.add({"algorithm.lr": 0.001 * (number + 1), "seed": "1"})
        trial.status = status  # type: ignore[assignment]
        trial.result = {} if value is None else {RETURN: value, STEPS: steps, TIME: steps / 10_000}
    made.trials[2].reason = "the arm has left its rail\nand more"
    return made


def test_the_closing_table_is_best_first(config: ExperimentConfig, folder: SweepFolder) -> None:
    stream = io.StringIO()
    SweepDisplay(config, {}, stream).finish(folder)
    lines = stream.getvalue().splitlines()
    assert lines[1].split() == ["trial", "status", "episode_return_mean", "env", "steps", "time", "values"]
    assert [line.split()[0] for line in lines[2:6]] == ["0", "1", "3", "2"]
    assert lines[6] == "best: trial 0, highest mean return: 450"
    assert lines[7] == "trial 2 failed: the arm has left its rail"
    assert lines[-1].startswith("1 finished, 1 running, 1 failed, 1 stopped in 0:00:00")


def test_an_interrupted_sweep_says_how_to_continue_and_shows_keys_as_typed(
    config: ExperimentConfig, tmp_path: Path
) -> None:
    folder = SweepFolder.start_in(tmp_path / "s", "one", {RETURN: "max"}, {"overrides": [], "space": {}}, False)
    folder.add({"+experiment": "one", "seed": "1"})
    stream = io.StringIO()
    SweepDisplay(config, {}, stream).finish(folder, is_interrupted=True)
    lines = stream.getvalue().splitlines()
    assert lines[2].endswith("  experiment=one seed=1")
    assert lines[-1] == "interrupted: run the same command again to continue this sweep"
    assert folder.trials[0].overrides == ["experiment=one", "seed=1"]


def test_the_pareto_table_has_what_no_other_trial_dominates(config: ExperimentConfig, folder: SweepFolder) -> None:
    stream = io.StringIO()
    both = replace(config.sweep, metric=[RETURN, TIME], mode=["max", "min"])
    SweepDisplay(replace(config, sweep=both), {}, stream).finish(folder)
    table = stream.getvalue().partition(
        "no other trial is better in episode_return_mean (max) and time_total_s (min)\n"
    )[2]
    assert [line.split()[0] for line in table.splitlines()[1:3]] == ["0", "3"]  # 1 took longer and reached less than 0


@pytest.mark.parametrize("width", [60, 160])
def test_the_table_on_a_terminal(config: ExperimentConfig, folder: SweepFolder, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, height=9, force_terminal=True)
    display = LiveSweepDisplay(config, {"search": "grid"}, 8, console)
    display.start(folder)
    with console.capture() as capture:
        console.print(display.render())
    display.finish(folder)
    lines = [line for line in capture.get().splitlines() if line.strip()]
    assert "120" in lines[1]  # what runs comes first
    assert "450" in lines[2]  # then the best
    assert len(lines) == 5  # the lowest terminal loses the worst trials
    assert "of 8" in lines[-1]
    if width == 160:
        assert "best 450 (trial 0)" in lines[-1]
        assert "0.002" in lines[1]
        assert "left" in lines[-1]
