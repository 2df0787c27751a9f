"""Sweeps that somebody else wrote: nothing is run or emitted that does more than compute, unless it is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.checkpoints.trust import UntrustedError
from runner.config.signatures import SIGNATURE
from runner.sweep.space import Choices, SearchSpace
from runner.sweep.trials import SweepFolder, check_trials
from tests.conftest import Run
from tests.report.folders import write_sweep

SPACE = SearchSpace((), (Choices("algorithm.lr", ("1e-3", "1e-4")),), ("0", "1"))
METRIC = "env_runners/episode_return_mean"


def folder_with(path: Path, combination: dict[str, str], overrides: list[str] | None = None) -> SweepFolder:
    """A sweep of one trial, written by this installation."""
    searched = {"overrides": overrides or ["experiment=ppo_cartpole"], "space": {}}
    folder = SweepFolder.start_in(path, "ppo_cartpole", {METRIC: "max"}, searched, may_change=False)
    trial = folder.add(combination)
    trial.result = {METRIC: 100.0}
    folder.write(trial)
    return folder


def without_signatures(path: Path) -> None:
    """As a stranger would write it."""
    for file in (path / "sweep.json", path / "trials.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.suffix == ".jsonl" else None
        contents = rows if rows is not None else [json.loads(file.read_text())]
        for content in contents:
            del content[SIGNATURE]
        file.write_text("".join(json.dumps(content) + "\n" for content in contents))


def test_a_trial_sets_only_what_is_searched(tmp_path: Path) -> None:
    folder_with(tmp_path / "ours", {"env._target_": "strange.Env"})
    check_trials(SPACE, SweepFolder.open(tmp_path / "ours"))
    folder_with(tmp_path / "fits", {"algorithm.lr": "1e-3", "seed": "1"})
    without_signatures(tmp_path / "fits")
    check_trials(SPACE, SweepFolder.open(tmp_path / "fits"))
    folder_with(tmp_path / "odd", {"algorithm.lr": "1e-3", "env._target_": "strange.Env"})
    without_signatures(tmp_path / "odd")
    with pytest.raises(UntrustedError) as caught:
        check_trials(SPACE, SweepFolder.open(tmp_path / "odd"))
    assert [(one.verb, one.key) for one in caught.value.requirements] == [("sets", "trial 0: env._target_")]
    check_trials(SPACE, SweepFolder.open(tmp_path / "odd", is_trusted=True))


@pytest.mark.parametrize("number", [-1, "../../elsewhere", True, 1.5, None])
def test_the_number_of_a_trial_names_no_other_folder(run_main: Run, number: object) -> None:
    folder = write_sweep(Path("s"), {"seed": ["0"]}, [{"combination": {"seed": "0"}}])
    line = json.loads((folder / "trials.jsonl").read_text().splitlines()[0])
    (folder / "trials.jsonl").write_text(json.dumps({**line, "number": number}) + "\n")
    outcome = run_main("report", "s")
    assert outcome.code == 2
    assert "this line is not a valid trial: its number is" in outcome.err


@pytest.mark.parametrize(
    ("combination", "overrides", "told"),
    [
        (
            {"algorithm.loss": "strange.Loss"},
            ["experiment=ppo_cartpole"],
            'imports       algorithm.loss  "strange.Loss"',
        ),
        (
            {"seed": "1"},
            ["experiment=ppo_cartpole", "tracking.run_name=${oc.env:HOME}"],
            "resolves      tracking.run_name",
        ),
        ({"seed": "1"}, ["experiment=../../somewhere/else"], "reads         experiment  ../../somewhere/else"),
    ],
)
def test_the_best_trial_of_somebody_else(
    run_main: Run, combination: dict[str, str], overrides: list[str], told: str
) -> None:
    folder_with(Path("s"), combination, overrides)
    without_signatures(Path("s"))
    command = ("sweep", "best", "s", "--emit", "experiment/best.yaml")
    outcome = run_main(*command)
    assert outcome.code == 2
    assert told in outcome.err
    assert not Path("experiment/best.yaml").exists()
    assert run_main(*command, "--trust").code == 0


def test_the_name_of_a_sweep_adds_no_line_to_the_file(run_main: Run) -> None:
    folder_with(Path("s"), {"seed": "1"})
    described = json.loads(Path("s/sweep.json").read_text())
    Path("s/sweep.json").write_text(json.dumps({**described, "experiment": "x\nalgorithm: {loss: strange.Loss}"}))
    assert run_main("sweep", "best", "s", "--emit", "experiment/best.yaml").code == 0
    assert not [line for line in Path("experiment/best.yaml").read_text().splitlines() if line.startswith("algorithm")]
