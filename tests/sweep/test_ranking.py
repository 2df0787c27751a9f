"""The best trial of a sweep: one definition for the table, the report, `sweep best`, MLflow and `--assert`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from runner.cli.conditions import Condition
from runner.cli.trained import TrainedSweep
from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config
from runner.report.sweep_record import read_sweep
from runner.sweep.display import SweepDisplay
from runner.sweep.ranking import rank, rank_folder
from runner.sweep.trials import SweepFolder, Trial
from tests.conftest import Outcome

RETURN, STEPS = "env_runners/episode_return_mean", "num_env_steps_sampled_lifetime"


def trials_of(reached: Mapping[str, Sequence[tuple[float, int]]]) -> list[Trial]:
    """Make trials from learning rate -> (return, env steps) of each seed."""
    pairs = [(lr, str(seed), own) for lr, seeds in reached.items() for seed, own in enumerate(seeds)]
    return [
        Trial(number, {"algorithm.lr": lr, "seed": seed}, "finished", result={RETURN: value, STEPS: steps})
        for number, (lr, seed, (value, steps)) in enumerate(pairs)
    ]


def test_a_lucky_seed_does_not_make_its_combination_the_best() -> None:
    ranking = rank(
        trials_of({"3e-3": [(500, 9), (10, 9), (20, 9)], "1e-3": [(300, 9), (310, 9), (290, 9)]}), {RETURN: "max"}
    )
    assert [trial.number for trial in ranking.trials] == [4, 3, 5, 0, 2, 1]
    assert ranking.reason == f"highest {RETURN}: 300 (inter-quartile mean of 3 seeds)"


def test_trials_that_stop_at_the_target_are_ranked_by_the_env_steps_that_they_needed() -> None:
    trials = trials_of({"1e-3": [(459.0, 90_000)], "3e-3": [(450.5, 20_000)], "1e-2": [(449.0, 100)]})
    ranking = rank(trials, {RETURN: "max"}, target=450.0)
    assert [trial.number for trial in ranking.trials] == [1, 0, 2]
    assert ranking.reason == f"reached {RETURN} 450 in the fewest env steps: 20,000"
    without_target = rank(trials, {RETURN: "max"})
    assert [trial.number for trial in without_target.trials] == [0, 1, 2]


def test_one_seed_that_misses_the_target_counts() -> None:
    trials = trials_of({"1e-3": [(450, 90_000), (451, 80_000)], "3e-3": [(480, 10_000), (100, 300_000)]})
    assert rank(trials, {RETURN: "max"}, target=450.0).groups[0].combination == {"algorithm.lr": "1e-3"}


def test_equal_values_are_ranked_by_env_steps() -> None:
    trials = trials_of({"1e-3": [(500, 300)], "3e-3": [(500, 200)]})
    assert [trial.number for trial in rank(trials, {RETURN: "max"}).trials] == [1, 0]


def test_without_values_there_is_no_best_trial() -> None:
    ranking = rank([Trial(0, {"algorithm.lr": "1"})], {RETURN: "max"}, target=450.0)
    assert (ranking.best, ranking.reason, len(ranking.trials)) == (None, "", 1)
    assert rank([], {RETURN: "max"}).best is None


@pytest.mark.parametrize("target", [None, 450.0])
def test_all_views_agree(run_main: Callable[..., Outcome], tmp_path: Path, target: float | None) -> None:
    searched = {
        "overrides": ["+experiment=ppo_cartpole"],
        "space": {"algorithm.lr": ["1e-3", "3e-3"], "seed": ["0", "1"]},
    }
    folder = SweepFolder.start_in(tmp_path / "s", "ppo_cartpole", {RETURN: "max"}, searched, False, target=target)
    for trial in trials_of({"3e-3": [(470, 20_000), (451, 30_000)], "1e-3": [(465, 90_000), (464, 90_000)]}):
        own = folder.add(trial.combination)
        own.status, own.result = trial.status, trial.result
        folder.write(own)
    folder = SweepFolder.open(tmp_path / "s")
    expected = 2 if target is None else 0
    assert folder.target == target
    assert rank_folder(folder).best is folder.trials[expected]
    stream = io.StringIO()
    SweepDisplay(build_experiment_config(compose_experiment(["+experiment=ppo_cartpole"])), {}, stream).finish(folder)
    assert stream.getvalue().splitlines()[2].split()[0] == str(expected)
    assert f"best: trial {expected}, " in stream.getvalue()
    best = read_sweep(folder).best
    assert best is not None
    assert best.number == expected
    assert f"  trial    {expected}, finished" in run_main("sweep", "best", str(tmp_path / "s")).out
    judged = TrainedSweep(folder).value_of(Condition.parse(f"{RETURN} >= 450", "--assert"))
    assert judged.of == f"the best trial, {expected} of 4"
