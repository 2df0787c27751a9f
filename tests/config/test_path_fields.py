"""Paths become absolute when the configuration is read; URLs and other text are unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.compose import compose_experiment
from runner.config.path_fields import absolute_paths
from runner.config.stored import compose_stored
from tests.conftest import Run, progress_of

HERE = "tests.config.test_path_fields"
QUICK = (
    *("algorithm=ppo", "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=64"),
    *("algorithm.num_epochs=1", "module.fcnet_hiddens=[8]", "checkpoint.every_iterations=1"),
)


class Wandering(gym.Env[Any, int]):
    """Changes the working directory whenever it can."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, places: str = "") -> None:
        self._places = places.split(":")
        self._t = 0
        self._go()

    def _go(self) -> None:
        os.chdir(self._places[self._t % len(self._places)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._t = 0
        self._go()
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self._t += 1
        self._go()
        return np.zeros(2, np.float32), 1.0, self._t == 5, False, {}


@pytest.mark.parametrize(
    ("override", "key", "made"),
    [
        ("offline.output=data", "offline.output", "{cwd}/data"),
        ("offline.input_=data/*.parquet", "offline.input_", "{cwd}/data/*.parquet"),
        ("offline.input_=[a,s3://b/c,/d]", "offline.input_", ["{cwd}/a", "s3://b/c", "/d"]),
        ("evaluation.offline_evaluation_input_=../a", "evaluation.offline_evaluation_input_", "{parent}/a"),
        ("module.load_state_path=runs/one", "module.load_state_path", "{cwd}/runs/one"),
        ("+multi_agent.modules.a.load_state_path=one", "multi_agent.modules.a.load_state_path", "{cwd}/one"),
        ("rllink.tls_key=key.pem", "rllink.tls_key", "{cwd}/key.pem"),
        ("rllink.tls_certificate='~/a.pem'", "rllink.tls_certificate", "{home}/a.pem"),
        (
            "+league.fixed={a: a.onnx, b: {m: b.onnx}}",
            "league.fixed",
            {"a": "{cwd}/a.onnx", "b": {"m": "{cwd}/b.onnx"}},
        ),
        ("+league.fixed={a: {_target_: p.A, name: n}}", "league.fixed", {"a": {"_target_": "p.A", "name": "n"}}),
        ("checkpoint.upload_to=store", "checkpoint.upload_to", "{cwd}/store"),
        ("checkpoint.upload_to=s3://store/a", "checkpoint.upload_to", "s3://store/a"),
        ("tracking.tracking_uri=mlruns", "tracking.tracking_uri", "{cwd}/mlruns"),
        ("tracking.tracking_uri=sqlite:///a/b.db", "tracking.tracking_uri", "sqlite:///{cwd}/a/b.db"),
        ("tracking.tracking_uri=sqlite:////a/b.db", "tracking.tracking_uri", "sqlite:////a/b.db"),
        ("tracking.tracking_uri=file:mlruns", "tracking.tracking_uri", "file://{cwd}/mlruns"),
        ("tracking.tracking_uri=databricks", "tracking.tracking_uri", "databricks"),
        ("tracking.tracking_uri=http://host:5000", "tracking.tracking_uri", "http://host:5000"),
        ("tracking.artifact_location=art", "tracking.artifact_location", "{cwd}/art"),
        ("tracking.artifact_location=mlflow-artifacts:/a", "tracking.artifact_location", "mlflow-artifacts:/a"),
    ],
)
def test_fields_that_are_paths(
    override: str, key: str, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"cwd": str(tmp_path), "parent": str(tmp_path.parent), "home": os.path.expanduser("~")}

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            for name, place in places.items():
                value = value.replace("{" + name + "}", place)
            return value
        if isinstance(value, list):
            return [filled(item) for item in value]
        return {name: filled(item) for name, item in value.items()}

    def at(values: Any) -> Any:
        for name in key.split("."):
            values = values[name]
        return values

    composed = compose_experiment(["env=cartpole", override])
    assert at(composed.values) == filled(made)
    assert at(composed.unresolved) == filled(made)
    monkeypatch.chdir("/")  # resume from another folder
    assert at(compose_stored(composed.unresolved, [], (), None).values) == filled(made)


@pytest.mark.parametrize(
    "offline",
    [
        {"input_": "select * from a", "input_read_method": "read_sql"},
        {"input_": "a", "input_read_method": "my_package.read"},
        {"input_": "bucket/a", "input_filesystem": "s3"},
        {"output": "bucket/a", "output_filesystem": "gcs"},
        {"output": "a", "output_write_method": "write_mongo"},
        {"input_": "${oc.env:DATA}/a"},
        {"input_": {"_target_": "my_package.episodes", "path": "a"}},
        {"input_": None, "output": None},
    ],
)
def test_what_is_no_local_path_stays(offline: dict[str, Any]) -> None:
    assert absolute_paths({"offline": offline}) == {"offline": offline}


@pytest.mark.slow
def test_an_environment_that_changes_the_folder_moves_nothing(run_main: Run, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    places = ":".join(map(str, folders))
    own = (f"env._target_={HERE}.Wandering", f"env.env_config={{places: '{places}'}}")
    tracking = ("tracking.tracking_uri=sqlite:///track/m.db", "tracking.artifact_location=art")
    recording = ("offline.output=data", "hydra.run.dir=run", *tracking)
    (tmp_path / "track").mkdir()
    ended = run_main(*own, *QUICK, *recording, "stop.training_iteration=2")
    assert ended.code == 0, ended.err
    os.chdir(tmp_path / "two")
    resumed = run_main("resume", str(tmp_path / "run"), "stop.training_iteration=3", "offline.output=null")
    assert resumed.code == 0, resumed.err
    os.chdir(tmp_path)
    data = ("algorithm=bc", "offline.input_=data", "module.load_state_path=run", "evaluation=periodic")
    metric = "checkpoint.metric=evaluation/env_runners/episode_return_mean"
    trained = run_main("validate", "--build", *own, *QUICK, *data, metric, "stop.training_iteration=1")
    assert trained.code == 0, trained.err
    assert len(progress_of(tmp_path / "run")) == 3
    assert list((tmp_path / "data").iterdir())
    assert (tmp_path / "track" / "m.db").is_file()
    assert [list(folder.iterdir()) for folder in folders] == [[], []], "nothing is written where the environment went"
