"""What an assertion is judged by: a run, the best trial of a sweep, or its best combination over seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.cli.ci import Assertion
from runner.cli.conditions import Condition
from runner.cli.trained import TrainedSweep
from runner.sweep.trials import SweepFolder

RETURN, LOSS = "env_runners/episode_return_mean", "learners/default_policy/total_loss"
LUCKY, STEADY = {"algorithm.lr": 0.01}, {"algorithm.lr": 0.001}
SEEDS = [(LUCKY, 500.0), (LUCKY, 20.0), (LUCKY, 30.0), (LUCKY, 10.0)] + [
    (STEADY, value) for value in (300.0, 310.0, 290.0, 305.0)
]


def sweep_of(path: Path, trials: Sequence[tuple[dict[str, Any], float | None]], mode: str = "max") -> TrainedSweep:
    """A sweep whose trials have reached these returns, each with another seed; None: it never reported one."""
    searched = {"overrides": [], "space": {}}
    folder = SweepFolder.start_in(path / "s", "e", {RETURN: mode}, searched, may_change=False)
    for number, (combination, value) in enumerate(trials):
        trial = folder.add({**combination, "seed": str(number)})
        trial.status, trial.result = "finished", {} if value is None else {RETURN: value}
        folder.write(trial)
        folder.run_dir(trial).mkdir()
        lines = [] if value is None else [{RETURN: 0.0, LOSS: 1.0}, {RETURN: value}]
        (folder.run_dir(trial) / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TrainedSweep(folder)


def judged(sweep: TrainedSweep, text: str) -> str:
    condition = Condition.parse(text)
    return str(Assertion(condition, sweep.value_of(condition)))


def test_a_lucky_seed_makes_neither_the_best_trial_nor_the_best_combination(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SEEDS)
    assert judged(sweep, f"{RETURN} >= 450") == "310 of the best trial, 5 of 8, does not hold"
    over_seeds = "302.5 of the best combination with algorithm.lr=0.001, 4 seeds"  # without the lowest and the highest
    assert judged(sweep, f"iqm({RETURN}) >= 450") == f"{over_seeds}, does not hold"
    assert judged(sweep, f"iqm({RETURN.replace('/', '.')}) >= 300") == f"{over_seeds}, holds"
    assert judged(sweep, f"iqm({LOSS}) < 2") == "1 of the best combination with algorithm.lr=0.001, 4 seeds, holds"


def test_the_best_combination_may_be_the_lowest(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SEEDS, mode="min")
    expected = "25 of the best combination with algorithm.lr=0.01, 4 seeds, holds"
    assert judged(sweep, f"iqm({RETURN}) <= 30") == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([400.0, None, 500.0], "450 of the best combination, 2 of 3 seeds, holds"),
        ([None, None], "never reported of the best combination, 0 of 2 seeds, does not hold"),
        ([460.0], "460 of the best combination, 1 seed, holds"),
        ([], "never reported, does not hold"),
    ],
)
def test_seeds_without_a_number_are_told(tmp_path: Path, values: list[float | None], expected: str) -> None:
    sweep = sweep_of(tmp_path, [({}, value) for value in values])
    assert judged(sweep, f"iqm({RETURN}) >= 450") == expected


@pytest.mark.parametrize("text", ["iqm( a/b ) >= 1.5", "iqm(a.b)>=1.5"])
def test_a_condition_over_seeds_is_written_in_one_way(text: str) -> None:
    assert str(Condition.parse(text)) == "iqm(a/b) >= 1.5"
