"""The checkpoints of a run: which are kept, and which one a run goes on from."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoints import CheckpointFolder, load_checkpoint, save_checkpoint
from runner.checkpoints.folder import newest_checkpoint
from runner.config.blocks import CheckpointConfig
from runner.config.errors import UserError
from tests.conftest import checkpoints_of

RETURN = "env_runners/episode_return_mean"


def _save(folder: CheckpointFolder, iteration: int, value: float | None = 0.0) -> Path:
    result: dict[str, Any] = {"training_iteration": iteration, RETURN: value}
    return folder.save({"part": {"iteration": iteration}}, {}, result)


def _saved(run_dir: Path, values: list[float | None], **settings: Any) -> CheckpointFolder:
    folder = CheckpointFolder(run_dir, CheckpointConfig(**settings))
    for iteration, value in enumerate(values, start=1):
        _save(folder, iteration, value)
    return folder


def _iterations(run_dir: Path) -> list[int]:
    return [int(name.removeprefix("iteration_")) for name in checkpoints_of(run_dir)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"keep_last": 2, "keep_best": 0}, [5, 6]),
        ({"keep_last": 1, "keep_best": 1}, [3, 6]),
        ({"keep_last": 2, "keep_best": 2}, [1, 3, 5, 6]),
        ({"keep_last": 1, "keep_best": 1, "mode": "min"}, [4, 6]),
        ({"keep_last": 1, "keep_best": 2, "mode": "min"}, [2, 4, 6]),
        ({"keep_last": 9, "keep_best": 1}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_last_and_the_best_are_kept(tmp_path: Path, settings: dict[str, Any], expected: list[int]) -> None:
    _saved(tmp_path, [8.0, 1.0, 9.0, 0.0, 5.0, 6.0], **settings)
    assert _iterations(tmp_path) == expected


def test_the_best_comes_first(tmp_path: Path) -> None:
    folder = _saved(tmp_path, [8.0, 1.0, 9.0], keep_last=3)
    assert [path.name for path in folder.best(2)] == ["iteration_000003", "iteration_000001"]


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_checkpoint_without_the_metric_is_not_the_best(tmp_path: Path, missing: float | None) -> None:
    folder = _saved(tmp_path, [missing, -5.0, missing], keep_last=3)
    assert [path.name for path in folder.best(3)] == ["iteration_000002"]


def test_the_newest_one_is_found(tmp_path: Path) -> None:
    _saved(tmp_path, [1.0, 2.0], keep_last=2)
    newest = newest_checkpoint(tmp_path)
    assert newest.name == "iteration_000002"
    older = tmp_path / "checkpoints" / "iteration_000001"
    assert newest_checkpoint(older) == older


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "the folder does not exist"), (".", "does not contain a checkpoint")]
)
def test_no_checkpoint_is_the_users_mistake(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        newest_checkpoint(tmp_path / name)


def test_runs_below_a_folder_are_named(tmp_path: Path) -> None:
    for number in range(7):
        run = tmp_path / "outputs" / "maze" / "2026-01-01" / f"0{number}-00-00"
        _saved(run, [1.0])
        os.utime(run / "checkpoints" / "iteration_000001" / "manifest.json", (number, number))
    with pytest.raises(UserError) as caught:
        newest_checkpoint(tmp_path / "outputs")
    problem = caught.value.problem
    assert (problem.what, problem.where) == ("the folder does not contain a checkpoint", str(tmp_path / "outputs"))
    first, *runs = (problem.fix or "").splitlines()
    assert first == "use one of these runs (newest first):"
    assert [Path(run).name for run in runs] == [f"0{number}-00-00" for number in (6, 5, 4, 3, 2)]
    assert newest_checkpoint(Path(runs[0])).name == "iteration_000001"


def test_the_newest_run_with_a_checkpoint_is_named_for_a_run_without_one(tmp_path: Path) -> None:
    for number in range(3):
        run = tmp_path / "outputs" / "maze" / "2026-01-01" / f"0{number}-00-00"
        _saved(run, [1.0])
        os.utime(run / "checkpoints" / "iteration_000001" / "manifest.json", (number, number))
    failed = tmp_path / "outputs" / "maze" / "2026-01-02" / "00-00-00"
    failed.mkdir(parents=True)
    with pytest.raises(UserError) as caught:
        newest_checkpoint(failed)
    newest = tmp_path / "outputs" / "maze" / "2026-01-01" / "02-00-00"
    assert caught.value.problem.fix == f"use the newest run with a checkpoint:\n{newest}"


def test_what_a_killed_process_left_half_written_is_ignored_and_swept_up(tmp_path: Path) -> None:
    folder = _saved(tmp_path, [1.0])
    half = tmp_path / "checkpoints" / ".iteration_000002.99999.tmp"
    shutil.copytree(tmp_path / "checkpoints" / "iteration_000001", half)
    assert newest_checkpoint(tmp_path).name == "iteration_000001"
    _save(folder, 2)
    assert checkpoints_of(tmp_path) == ["iteration_000001", "iteration_000002"]


def test_a_damaged_neighbour_does_not_stop_a_run(tmp_path: Path) -> None:
    folder = _saved(tmp_path, [1.0, 2.0], keep_last=3)
    (tmp_path / "checkpoints" / "iteration_000002" / "manifest.json").write_text("{")
    _save(folder, 3, 3.0)
    assert [path.name for path in folder.best()] == ["iteration_000003"]


def test_going_back_to_an_older_one_drops_what_came_after_it(tmp_path: Path) -> None:
    _saved(tmp_path, [1.0, 2.0, 3.0], keep_last=3)
    resumed_from_1 = CheckpointFolder(tmp_path, CheckpointConfig(keep_last=1, keep_best=0))
    saved = _save(resumed_from_1, 2)
    assert saved.exists(), "the newest one is kept, whatever lay beside it"
    assert newest_checkpoint(tmp_path) == saved
    assert load_checkpoint(saved)[0]["part"] == {"iteration": 2}
    assert _iterations(tmp_path) == [2]


def test_one_that_is_there_already_is_replaced(tmp_path: Path) -> None:
    folder = _saved(tmp_path, [1.0])
    saved = folder.save({"part": {"iteration": 100}}, {}, {"training_iteration": 1, RETURN: 7.0})
    assert load_checkpoint(saved)[0]["part"] == {"iteration": 100}
    assert _iterations(tmp_path) == [1]


def test_a_run_dir_that_is_moved_away_right_after_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is noticed by the next write; there is nothing to prune."""
    run_dir = tmp_path / "run"
    folder = _saved(run_dir, [1.0, 2.0])

    def save_and_move(*arguments: Any) -> None:
        save_checkpoint(*arguments)
        run_dir.rename(tmp_path / "moved")

    monkeypatch.setattr("runner.checkpoints.folder.save_checkpoint", save_and_move)
    _save(folder, 3)
    assert not run_dir.exists()
    assert _iterations(tmp_path / "moved") == [1, 2, 3]
