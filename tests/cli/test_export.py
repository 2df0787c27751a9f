"""`export` and `register`: files and models of a real run, and what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.rllink.client.local_policy import LocalPolicy
from tests.cli.conftest import HEAVY_IMPORTS, RunCli
from tests.conftest import QUICK, MakeRun, Run

START = ("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=2")
TRAIN = (*START, "hydra.run.dir=run")
MULTI_AGENT = ("+experiment=ppo_multi_agent_cartpole", *QUICK, "hydra.run.dir=run", "stop.training_iteration=1")
FILTERED = (
    "connectors.env_to_module=[{insert_after: AddObservationsFromEpisodesToBatch, "
    "connector: {_target_: runner.pipelines.MeanStdFilter}}]"
)


@pytest.fixture
def run_dir(copy_of_run: MakeRun) -> Path:
    """A finished run of two iterations with a filter."""
    return copy_of_run(*START, FILTERED)


def test_a_run_becomes_an_onnx_file(run_main: Run, run_dir: Path, tmp_path: Path) -> None:
    outcome = run_main("export", "run", "--format", "onnx", "-o", "policy.onnx")
    assert (outcome.code, outcome.err) == (0, "")
    content = (tmp_path / "policy.onnx").read_bytes()
    assert f"policy.onnx, {len(content):,} bytes" in outcome.out
    assert "inputs        obs  float32 [batch, 4]" in outcome.out
    assert "onnxruntime differs from the module by at most" in outcome.out
    policy = LocalPolicy(content)
    assert policy.manifest["experiment"] == "ppo_cartpole"
    mean = policy.manifest["statistics"]["env_to_module.connectors.MeanStdFilter.mean"]
    assert np.abs(mean).max() > 0
    action, extra = policy.act(np.zeros(4, np.float32))
    assert action in (0, 1)
    assert extra["action_dist_inputs"].shape == (2,)
    again = run_main("export", "run", "--output", "policy.onnx")
    assert again.code == 2
    assert again.err == (
        "the file already exists\n   where         policy.onnx\n"
        "   fix           choose another file, or add --force to overwrite it\n"
    )
    (tmp_path / "policy.onnx").write_bytes(b"old")
    assert run_main("export", "run", "-o", "policy.onnx", "--force").code == 0
    assert (tmp_path / "policy.onnx").read_bytes() == content


def test_a_run_becomes_a_torch_program(run_main: Run, run_dir: Path, tmp_path: Path) -> None:
    import torch

    outcome = run_main("export", "run", "-o", "policy.pt2")
    assert (outcome.code, outcome.err) == (0, "")
    files = {"manifest.json": ""}
    program = torch.export.load(tmp_path / "policy.pt2", extra_files=files).module()
    assert json.loads(files["manifest.json"])["experiment"] == "ppo_cartpole"
    outputs = program({"obs": torch.zeros(5, 4)})
    assert outputs["actions"].shape == (5,)
    assert str(Path(__file__).parents[2]).encode() not in (tmp_path / "policy.pt2").read_bytes()


def test_one_module_of_several(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*MULTI_AGENT).code == 0
    outcome = run_main("export", "run", "--output", "policy.onnx")
    assert outcome.code == 2
    assert "the run has several modules" in outcome.err
    modules = outcome.err.partition("--module ")[2].split()[0].split("|")
    assert len(modules) > 1
    outcome = run_main("export", "run", "policy.onnx", "--module", modules[0] + "x")
    assert outcome.code == 2
    assert f"did you mean  {modules[0]}" in outcome.err
    assert not (tmp_path / "policy.onnx").exists()
    outcome = run_main("export", "run", "-o", "policy.onnx", "--module", modules[1])
    assert (outcome.code, outcome.err) == (0, "")
    assert LocalPolicy((tmp_path / "policy.onnx").read_bytes()).manifest["module_id"] == modules[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "--output is missing"),
        ([], "RUN is missing"),
        (
            ["run", "-o", "policy"],
            "the suffix of the file does not belong to a known format\n   where         policy\n   expected      .onnx",
        ),
        (
            ["run", "policy.onnx", "--format", "onx"],
            "--format is not valid\n   got           onx\n   expected      onnx, pt2",
        ),
        (["run", "policy.onnx", "--format"], "--format needs a value"),
        (["run", "policy.onnx", "--forse"], "did you mean  --force"),
        (["run", "policy.onnx", "another"], "another is an unexpected argument"),
        (["nowhere", "policy.onnx"], "the folder does not exist"),
        (["run", "run", "--format", "onnx"], "the path is a folder"),
        (["run", "policy.onnx", "module.fcnet_hiddens=[3]"], "module.fcnet_hiddens cannot change"),
    ],
)
def test_mistakes(run_main: Run, tmp_path: Path, arguments: list[str], told: str) -> None:
    if "cannot change" in told:
        assert run_main(*TRAIN).code == 0
    (tmp_path / "run").mkdir(exist_ok=True)
    outcome = run_main("export", *arguments)
    assert outcome.code == 2
    assert told in outcome.err
    assert not (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "--name is missing"),
        (["run", "--name", "x", "--assert", "best"], "--assert is not a valid condition\n   got           best"),
        (["run", "--name", "x", "--if", "a >= b"], "got           a >= b"),
        (["nowhere", "--name", "x"], "the folder does not exist"),
    ],
)
def test_mistakes_of_register(run_main: Run, arguments: list[str], told: str) -> None:
    outcome = run_main("register", *arguments)
    assert outcome.code == 2
    assert told in outcome.err


def test_mistakes_are_told_before_anything_heavy_is_imported(run_cli: RunCli) -> None:
    for verb, *arguments in (("export", "nowhere", "policy.onnx"), ("register", "nowhere", "--name", "x")):
        result = run_cli(verb, *arguments, code=HEAVY_IMPORTS)
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1] == "[]"


@pytest.mark.filterwarnings("ignore")  # of MLflow's own dependencies
def test_conditions_and_the_registry(run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run, for what needs MLflow: it is slow to start."""
    arguments = [text for text in TRAIN if text != "tracking=none"]
    outcome = run_main(*arguments, "evaluation.evaluation_interval=1", "hydra.run.dir=outputs/run")
    assert outcome.code == 0, outcome.err

    metric = "evaluation/env_runners/episode_return_mean"
    outcome = run_main("register", "outputs/run", "--name", "cartpole", "--assert", f"{metric} >= 1e9")
    assert outcome.code == 3
    assert "not registered: an assertion does not hold" in outcome.err
    assert f"expected      {metric} >= 1e+09" in outcome.err
    outcome = run_main("register", "outputs/run", "--name", "cartpole", "--if", f"{metric[:-1]} >= 1")
    assert outcome.code == 2
    assert f"did you mean  {metric}" in outcome.err

    import mlflow

    known = json.loads((tmp_path / "outputs/run/mlflow_run.json").read_text())
    client = mlflow.MlflowClient(known["tracking_uri"])
    assert list(client.search_registered_models()) == []
    before = client.get_run(known["run_id"]).info

    outcome = run_main("register", "outputs/run", "--name", "cartpole", "--if", f"{metric} > 1")
    assert outcome.code == 0, outcome.err
    assert "model    cartpole, version 1" in outcome.out
    (version,) = client.search_model_versions("name = 'cartpole'")
    assert version.run_id == known["run_id"]
    assert Path(version.tags["runner.checkpoint"]).name == "iteration_000002"
    after = client.get_run(known["run_id"]).info
    assert (after.status, after.end_time) == (before.status, before.end_time)
    assert "MLFLOW_TRACKING_URI" not in os.environ  # register leaves nothing behind
    monkeypatch.setenv("MLFLOW_TRACKING_URI", known["tracking_uri"])
    check_loaded()


def check_loaded() -> None:
    """What the registry gives back acts, and says what it takes."""
    import mlflow
    import mlflow.onnx

    signature: Any = mlflow.models.get_model_info("models:/cartpole/1").signature
    assert [(one.name, one.shape, str(one.type)) for one in signature.inputs] == [("obs", (-1, 4), "float32")]
    assert [one.name for one in signature.outputs] == ["actions", "action_dist_inputs"]
    policy = LocalPolicy(mlflow.onnx.load_model("models:/cartpole/1").SerializeToString())
    assert policy.manifest["experiment"] == "ppo_cartpole"


def test_a_run_without_mlflow(run_main: Run, run_dir: Path) -> None:
    outcome = run_main("register", "run", "--name", "cartpole")
    assert outcome.code == 2
    assert "the run was not tracked by MLflow" in outcome.err
