"""Checkpoints that release 0.1.0 wrote: after two iterations, beside what the third gave there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import CheckpointError, load_checkpoint, read_manifest
from runner.checkpoints.release_0_1 import converted_config, converted_state
from runner.checkpoints.trust import StoredValues
from runner.experiment.trainer import Trainer
from tests.conftest import ROOT, Outcome, progress_of, without_times

DATA = ROOT / "tests" / "data" / "checkpoints_0_1_0"
PLANS = {"ppo": ["ParallelRollouts", "ConcatBatches", "TrainOneStep"], "bc": ["ReadRecorded", "TrainOneStep"]}


def checkpoint_of(name: str) -> Path:
    return DATA / name / "checkpoints" / "iteration_000002"


def third_iteration(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / name / "third_iteration.json").read_text())
    return content


def assert_goes_on(name: str, result: dict[str, Any], without: str = "-") -> None:
    expected = {metric: value for metric, value in third_iteration(name).items() if not metric.startswith(without)}
    got = without_times(result)
    assert set(expected) <= set(got)
    for metric, value in expected.items():
        assert got[metric] == pytest.approx(value, rel=1e-4, abs=1e-6), metric


def test_sampled_episodes_go_on() -> None:
    # 0.1.0 cut 65 rows with minibatch_size 32 into three minibatches; the nearest number is two.
    with Trainer.from_checkpoint(checkpoint_of("ppo"), ["algorithm.minibatch_size=22"]) as trainer:
        assert trainer.config.algorithm.plan == PLANS["ppo"]
        assert trainer.training_iteration == 2
        assert_goes_on("ppo", trainer.train())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_recorded_data_are_read_on(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the run named its data so
    with Trainer.from_checkpoint(checkpoint_of("bc")) as trainer:
        assert trainer.resources.recorded_data.num_batches == 4
        assert_goes_on("bc", trainer.train())


def test_on_the_command_line(run_main: Callable[..., Outcome], tmp_path: Path) -> None:
    shutil.copytree(DATA / "ppo", tmp_path / "run")
    outcome = run_main("resume", "run")
    assert outcome.code == 0, outcome.err
    assert "no changes" in outcome.out.splitlines()
    assert_goes_on("ppo", progress_of(tmp_path / "run")[-1], without="learners/")
    newest = tmp_path / "run" / "checkpoints" / "iteration_000003"
    assert read_manifest(newest)["config"]["algorithm"]["plan"] == PLANS["ppo"]
    assert "dataflow" not in read_manifest(newest)["config"]["algorithm"]


def test_a_module_of_it_begins_a_new_run() -> None:
    checkpoint = checkpoint_of("ppo")
    load = ["connectors=mean_std_filter", "module.fcnet_hiddens=[4]", f"module.load_state_path={checkpoint}"]
    with (
        Trainer.from_checkpoint(checkpoint) as old,
        Trainer.from_experiment("ppo_cartpole", [*load, "tracking=none"]) as trainer,
    ):
        (weights,), (expected,) = trainer.learners.get_weights().values(), old.learners.get_weights().values()
        assert np.array_equal(weights, expected)
        assert str(trainer.env_runners.shared_state) == str(old.env_runners.shared_state)


@pytest.mark.parametrize("name", ["ppo", "bc"])
def test_all_parts_of_the_state_are_kept(name: str) -> None:
    state, manifest = load_checkpoint(checkpoint_of(name))
    assert manifest["schema_version"] == 1
    source = {"ppo": "env_runners", "bc": "recorded_data"}[name]
    assert list(state) == ["learners", "metrics", source, "plan"]
    assert list(state["plan"]["settings"]) == [source]
    assert converted_state(state) == state, "a state of this release stays"


def test_a_dataflow_of_ones_own_is_refused() -> None:
    checkpoint = checkpoint_of("ppo")
    manifest = read_manifest(checkpoint)
    config = {**manifest["config"], "algorithm": {**manifest["config"]["algorithm"], "dataflow": "my_package.flow"}}
    with pytest.raises(CheckpointError, match=r"dataflow of its own[\s\S]*got +my_package.flow[\s\S]*load_state_path"):
        StoredValues.of(checkpoint, {**manifest, "config": config}, is_trusted=True)


@pytest.mark.parametrize("loss", ["iql.IQLLoss", "cql.CQLLoss"])
def test_q_functions_in_another_order_are_refused(loss: str) -> None:
    checkpoint = checkpoint_of("bc")
    manifest = read_manifest(checkpoint)
    config = {**manifest["config"], "algorithm": {**manifest["config"]["algorithm"], "loss": f"runner.learners.{loss}"}}
    with pytest.raises(CheckpointError, match=r"another order now[\s\S]*got +runner.learners." + loss):
        StoredValues.of(checkpoint, {**manifest, "config": config}, is_trusted=True)


@pytest.mark.parametrize("algorithm", [None, [], {"plan": ["ReadRecorded"]}])
def test_other_configurations_stay(algorithm: Any) -> None:
    config = {"algorithm": algorithm, "seed": 1}
    assert converted_config(config, "here") == config
