"""The examples do what their text says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, result_of

CORRIDOR = ROOT / "examples" / "corridor"
RECORDED_DATA = ROOT / "examples" / "recorded_data"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


ITEM_BY_ITEM = (
    "connectors.learner=[{insert_before: AddColumnsFromEpisodesToTrainBatch, "
    "piece: {_target_: corridor.NoveltyBonusItemByItem, scale: 0.2}}]"
)


@pytest.mark.parametrize("overrides", [[], [ITEM_BY_ITEM]], ids=["vectorised", "item_by_item"])
def test_the_corridor_is_learned(tmp_path: Path, overrides: list[str]) -> None:
    run_dir = tmp_path / "run"
    arguments = ["+experiment=corridor", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}"]
    arguments += overrides
    command = [sys.executable, "-m", "runner", *arguments]
    result = subprocess.run(command, cwd=CORRIDOR, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result_of(run_dir)["stop_reason"].startswith("env_runners/episode_return_mean")


@pytest.mark.ray
@pytest.mark.parametrize("experiment", ["sentences", "pictures", "mirrored"])
def test_recorded_data_through_parts_of_ones_own(tmp_path: Path, experiment: str) -> None:
    folder, run_dir = tmp_path / "example", tmp_path / "run"
    shutil.copytree(RECORDED_DATA, folder)
    if experiment == "pictures":
        subprocess.run([sys.executable, "pictures.py"], cwd=folder, env=ENVIRONMENT, check=True, timeout=60)
    arguments = [f"+experiment={experiment}", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}"]
    if experiment == "mirrored":
        arguments.append(f"offline.input_={ROOT / 'tests' / 'data' / 'rllib_cartpole_episodes'}")
    command = [sys.executable, "-m", "runner", *arguments]
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result_of(run_dir)["stop_reason"].startswith("evaluation/env_runners/episode_return_mean")
    assert "WARNING" not in result.stderr
    assert "core_worker" not in result.stderr
