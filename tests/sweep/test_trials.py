"""The table of trials: their order, which of them are over, and what a killed process leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.config.errors import RunFailure
from runner.locks import held
from runner.sweep.statistics import rank
from runner.sweep.trials import Status, SweepFolder, Trial, unfinished

METRIC = "env_runners/episode_return_mean"


def trials_of(values: Sequence[float | None]) -> list[Trial]:
    return [Trial(number, {}, result={} if value is None else {METRIC: value}) for number, value in enumerate(values)]


@pytest.mark.parametrize(("mode", "order"), [("max", [4, 2, 3, 0, 1]), ("min", [3, 2, 4, 0, 1])])
def test_trials_without_a_value_come_last(mode: str, order: list[int]) -> None:
    trials = trials_of([None, float("nan"), -2.0, -7.0, -1.0])
    assert [trial.number for trial in rank(trials, {METRIC: mode}).trials] == order


@pytest.mark.parametrize(
    ("status", "is_over"),
    [
        *[("waiting", False), ("running", False), ("interrupted", False), ("failed", False)],
        *[("finished", True), ("stopped", True)],
    ],
)
def test_all_but_those_that_met_an_end_go_on(status: Status, is_over: bool) -> None:
    trial = Trial(0, {}, status)
    assert trial.is_over == is_over
    assert unfinished([trial]) == ([] if is_over else [trial])


def test_what_a_killed_process_leaves_is_interrupted_and_has_its_newest_metrics(tmp_path: Path) -> None:
    searched = {"overrides": [], "space": {}}
    folder = SweepFolder.start_in(tmp_path / "s", "e", {METRIC: "max"}, searched, may_change=False)
    for status in ("running", "finished", "failed"):
        trial = folder.add({"seed": status})
        trial.status, trial.result = status, {METRIC: 1.0}
        folder.write(trial)
        folder.run_dir(trial).mkdir()
        lines = [{METRIC: 5.0, "training_iteration": 1}, {METRIC: None, "training_iteration": 2}]
        (folder.run_dir(trial) / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with held(folder.path):
        assert [trial.status for trial in SweepFolder.open(folder.path).trials] == ["running", "finished", "failed"]
    opened = SweepFolder.open(folder.path).trials
    assert [trial.status for trial in opened] == ["interrupted", "finished", "failed"]
    assert opened[0].result == {METRIC: 5.0, "training_iteration": 2}
    assert opened[1].result == {METRIC: 1.0}


@pytest.mark.parametrize("name", ["trials.jsonl", "mutations.jsonl"])
def test_a_file_that_cannot_be_written_ends_the_sweep(tmp_path: Path, name: str) -> None:
    folder = SweepFolder.start_in(tmp_path, "e", {METRIC: "max"}, {"overrides": [], "space": {}}, may_change=False)
    trial = Trial(0, {"algorithm.lr": 0.1})
    (tmp_path / name).mkdir()
    with pytest.raises(RunFailure, match="the sweep's folder cannot be written") as failure:
        folder.mutate(trial, 1, {"algorithm.lr": 0.2}, {})
    assert failure.value.problem.where == str(tmp_path)
    assert "IsADirectoryError" in str(failure.value.problem.got)
