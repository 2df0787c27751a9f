"""`tracking.extra_trackers`: TensorBoard, CSV and Weights & Biases beside MLflow."""

from __future__ import annotations

import csv
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, UserError
from runner.config.required_trust import find_trust_requirements
from runner.config.validation import build_experiment_config
from runner.tracking import further_trackers
from runner.tracking.further_trackers import FurtherTrackers, TrackedRun
from tests.conftest import QUICK, Run, progress_of

RUN = ("+experiment=ppo_cartpole", *QUICK, "tracking.extra_trackers=[tensorboard,csv]", "hydra.run.dir=run")


def events_of(folder: Path) -> Iterator[Any]:
    """Yield the events of TensorBoard's files (records: length, its checksum, content, its checksum), oldest first."""
    for file in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def scalars_of(folder: Path) -> dict[str, dict[int, float]]:
    """Return metric -> env steps -> value, as TensorBoard shows them: a later start drops what it begins anew."""
    found: dict[str, dict[int, float]] = {}
    for event in events_of(folder):
        if event.HasField("session_log"):
            found = {name: {t: v for t, v in values.items() if t < event.step} for name, values in found.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_every_tracker_has_what_the_run_has(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*RUN, "stop.training_iteration=3", "evaluation.evaluation_interval=2")
    assert outcome.code == 0, outcome.err
    outcome = run_main("resume", "run", "stop.training_iteration=5")
    assert outcome.code == 0, outcome.err
    progress = progress_of(tmp_path / "run")
    assert len(progress) == 5
    with (tmp_path / "run" / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, result in zip(rows, progress, strict=True):
        assert {name: value for name, value in row.items() if value} == {
            name: str(value) for name, value in result.items() if value is not None
        }
    scalars = scalars_of(tmp_path / "run" / "tensorboard")
    steps = [result["num_env_steps_sampled_lifetime"] for result in progress]
    for name in ("env_runners/episode_return_mean", "learners/default_policy/policy_loss"):
        assert list(scalars[name]) == steps
        assert list(scalars[name].values()) == pytest.approx([result[name] for result in progress])
    assert list(scalars["evaluation/env_runners/episode_return_mean"]) == [
        result["num_env_steps_sampled_lifetime"]
        for result in progress
        if "evaluation/env_runners/episode_return_mean" in result
    ]


def run_of(folder: Path) -> TrackedRun:
    return TrackedRun(folder, "experiment", "name", {"algorithm.lr": 1e-3}, 0)


def test_wandb_gets_one_run_over_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    logged: list[tuple[dict[str, float], int]] = []

    def init(**settings: Any) -> Any:
        asked.append(settings)
        return SimpleNamespace(log=lambda numbers, step: logged.append((numbers, step)), finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # the real one wants an account
    for _ in range(2):
        trackers = FurtherTrackers(["wandb"], run_of(tmp_path), pytest.fail)
        trackers.log({"num_env_steps_sampled_lifetime": 7, "a": 1.5, "b": None})
        trackers.close()
    assert asked[0]["id"] == asked[1]["id"]
    assert (asked[0]["project"], asked[0]["resume"], asked[0]["config"]) == (
        "experiment",
        "allow",
        {"algorithm.lr": 1e-3},
    )
    assert logged == 2 * [({"num_env_steps_sampled_lifetime": 7, "a": 1.5}, 7)]


def test_the_real_wandb_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    trackers = FurtherTrackers(["wandb"], run_of(tmp_path), pytest.fail)
    trackers.log({"num_env_steps_sampled_lifetime": 7, "a": 1.5})
    trackers.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_the_id_of_somebody_elses_run_is_not_taken(tmp_path: Path) -> None:
    trackers = further_trackers._wandb_id
    own = trackers(tmp_path / "a.json", True)
    assert trackers(tmp_path / "a.json", True) == own
    assert trackers(tmp_path / "a.json", False) != own
    (tmp_path / "b.json").write_text('{"id": "theirs"}')
    assert trackers(tmp_path / "b.json", True) != "theirs"


def test_a_copied_folder_gets_a_new_id_and_a_moved_one_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    id_of = further_trackers._wandb_id
    own = id_of(tmp_path / "run" / "id.json", True)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert id_of(tmp_path / "moved" / "id.json", True) == own
    shutil.copytree(tmp_path / "moved", tmp_path / "run")
    new = id_of(tmp_path / "copy" / "id.json", True)
    assert new != own
    assert id_of(tmp_path / "copy" / "id.json", True) == new


def test_wandb_is_a_demand() -> None:
    (demand,) = find_trust_requirements({"tracking": {"extra_trackers": ["csv", "wandb"]}})
    assert (demand.verb, demand.key, demand.value) == ("contacts", "tracking.extra_trackers.1", '"wandb"')


def test_a_tracker_that_fails_is_told_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    trackers = FurtherTrackers(["csv", "tensorboard"], run_of(tmp_path), warnings.append)
    (tmp_path / "progress.csv").mkdir()
    for step in range(3):
        trackers.log({"num_env_steps_sampled_lifetime": step, "a": 1.0})
    trackers.close()
    assert len(warnings) == 1
    assert "csv failed, and the run continues without it" in warnings[0]
    assert list(scalars_of(tmp_path / "tensorboard")["a"]) == [0, 1, 2]


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb"):
        FurtherTrackers(["wandb"], run_of(tmp_path), pytest.fail)


@pytest.mark.parametrize(("also", "message"), [("[tensorbord]", "did you mean  tensorboard"), ("[csv,csv]", "twice")])
def test_mistakes_are_told(also: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_experiment_config(
            compose_experiment(["+experiment=ppo_cartpole", f"tracking.extra_trackers={also}"], None)
        )
