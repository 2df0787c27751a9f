"""`check-env` and two training iterations with environments that share memory or process state with us."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from tests.conftest import Outcome, Run, progress_of
from tests.offline.reading.test_column_types import BASE, READABLE, UNREADABLE
from tests.support.hostile_environments import Images, OddTypes

ROOM = "tests.support.hostile_environments"
SMALL = (
    *("algorithm.train_batch_size_per_learner=80", "algorithm.minibatch_size=40", "algorithm.num_epochs=1"),
    *("module.fcnet_hiddens=[8]", "stop.training_iteration=2", "tracking=none", "hydra.run.dir=run"),
    "env_runners.num_envs_per_env_runner=2",
)
# Class -> overrides that it needs.
CLASSES = {
    "InPlaceMultiDiscrete": [],
    "InPlaceMultiBinary": [],
    "InPlaceIntegerBox": [],
    "InPlaceFloatBox": ["env.clip_actions=false", "env.normalize_actions=false"],
    "InPlaceObservation": [],
    "ChangesFolder": ["env.env_config.folder=elsewhere"],
    "TurnsGradientsOff": [],
    "TurnsGradientsOffInSteps": [],
    "DefaultsToFloat64": [],
    "DefaultsToFloat64InSteps": [],
    "TrainsANetwork": [],
    "SeedsEverything": [],
    "RaisesOnClose": [],
    "KeysThatAreNotStrings": ["env.env_config={names: {0: left, $left: 1}}"],
    "IntegerKeys": [],
    "ReplacesActionSpace": [],
}
# Class -> a word of the finding of `check-env`; without one the environment is right.
FINDINGS = {
    "InPlaceMultiDiscrete": "changed its action",
    "InPlaceMultiBinary": "changed its action",
    "InPlaceIntegerBox": "changed its action",
    "InPlaceFloatBox": "changed its action",
    "RaisesOnClose": "close",
}


@pytest.fixture(autouse=True)
def state_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Restore what the environments change; temporary files go to a folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, is_grad_enabled, dtype = os.getcwd(), torch.is_grad_enabled(), torch.get_default_dtype()
    yield
    os.chdir(folder)
    torch.set_grad_enabled(is_grad_enabled)
    torch.set_default_dtype(dtype)


def trained(run_main: Run, tmp_path: Path, *overrides: str) -> Outcome:
    """Train for two iterations."""
    outcome = run_main(*SMALL, *overrides)
    assert outcome.code == 0, outcome.err
    lines = progress_of(tmp_path / "run")
    assert [line["training_iteration"] for line in lines] == [1, 2]
    assert all(line["learners/default_policy/policy_loss"] is not None for line in lines)
    return outcome


@pytest.mark.parametrize("name", CLASSES)
def test_two_iterations_and_a_checkpoint(run_main: Run, tmp_path: Path, name: str) -> None:
    trained(run_main, tmp_path, f"env._target_={ROOM}.{name}", *CLASSES[name])
    os.chdir(tmp_path)
    resumed = run_main("resume", "run", "stop.training_iteration=3")
    assert resumed.code == 0, resumed.err
    assert len(progress_of(tmp_path / "run")) == 3


@pytest.mark.parametrize("name", CLASSES)
def test_check_env(run_main: Run, name: str) -> None:
    outcome = run_main("check-env", f"{ROOM}.{name}", *(text for text in CLASSES[name] if text.startswith("env.")))
    finding = FINDINGS.get(name)
    text = outcome.out + outcome.err
    assert "Traceback" not in text
    if finding is None:
        assert outcome.code == 0, text
    else:
        assert finding in text


@pytest.mark.parametrize("name", ["InPlaceMultiDiscrete", "InPlaceMultiBinary", "InPlaceIntegerBox", "InPlaceFloatBox"])
def test_the_recorded_actions_are_those_that_were_given(run_main: Run, tmp_path: Path, name: str) -> None:
    overrides = ["offline.output=data", "offline.output_write_episodes=false"]
    trained(run_main, tmp_path, f"env._target_={ROOM}.{name}", *CLASSES[name], *overrides)
    files = sorted((tmp_path / "data").rglob("*.parquet"))
    table = pa.concat_tables([pyarrow.parquet.read_table(file) for file in files])
    assert len({json.dumps(action) for action in table.column("actions").to_pylist()}) > 2


def test_a_changed_folder_moves_no_output(run_main: Run, tmp_path: Path) -> None:
    changed = [f"env._target_={ROOM}.ChangesFolder", *CLASSES["ChangesFolder"]]
    trained(run_main, tmp_path, *changed, "offline.output=data")
    assert any((tmp_path / "data").rglob("*"))
    assert Path.cwd() == tmp_path / "elsewhere"
    assert list(Path.cwd().iterdir()) == []


def test_endless_episodes_are_evaluated(run_main: Run, tmp_path: Path) -> None:
    evaluation = ["evaluation.evaluation_interval=1", "evaluation.evaluation_duration=2"]
    endless = f"env._target_={ROOM}.EndlessEpisodes"
    trained(run_main, tmp_path, endless, *evaluation, "evaluation.max_episode_steps=30")
    assert progress_of(tmp_path / "run")[-1]["evaluation/env_runners/episode_len_mean"] == 30.0


@pytest.mark.parametrize("reward", OddTypes.REWARDS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_odd_rewards(run_main: Run, tmp_path: Path, reward: str, mode: str) -> None:
    config = [f"env.env_config.reward='{reward}'", f"env_runners.gym_env_vectorize_mode={mode}"]
    trained(run_main, tmp_path, f"env._target_={ROOM}.OddTypes", *config)


@pytest.mark.parametrize("flag", OddTypes.FLAGS)
def test_odd_flags(run_main: Run, tmp_path: Path, flag: str) -> None:
    trained(run_main, tmp_path, f"env._target_={ROOM}.OddTypes", f"env.env_config.flag='{flag}'")
    assert progress_of(tmp_path / "run")[-1]["env_runners/episode_len_mean"] == 20.0


@pytest.mark.parametrize("layout", Images.LAYOUTS)
def test_images(run_main: Run, tmp_path: Path, layout: str) -> None:
    trained(run_main, tmp_path, f"env._target_={ROOM}.Images", f"env.env_config.layout='{layout}'")
    checked = run_main("check-env", f"{ROOM}.Images", f"env.env_config.layout='{layout}'")
    assert "Traceback" not in checked.out + checked.err


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_recorded_columns_of_every_arrow_type(run_main: Run, tmp_path: Path, ray_cluster: None) -> None:
    """Behaviour cloning reads the columns that it knows and leaves the others out."""
    others = {name: column for name, column in {**READABLE, **UNREADABLE}.items() if name != "extension"}
    steps = BASE | {"obs": pa.array([[0.1, -0.2]] * 6, pa.list_(pa.float32(), 2))}
    pyarrow.parquet.write_table(pa.table(steps | others), tmp_path / "data.parquet")
    overrides = ["algorithm=bc", f"env._target_={ROOM}.Hostile", "offline.input_=data.parquet"]
    outcome = run_main(
        *("stop.training_iteration=2", "module.fcnet_hiddens=[8]", "tracking=none", "hydra.run.dir=run"),
        *("algorithm.train_batch_size_per_learner=6", "offline.dataset_num_iters_per_learner=1"),
        "checkpoint.metric=training_iteration",
        *overrides,
    )
    assert outcome.code == 0, outcome.err
    assert len(progress_of(tmp_path / "run")) == 2
