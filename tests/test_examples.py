"""The examples do what their text says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, result_of

CORRIDOR = ROOT / "examples" / "corridor"


ITEM_BY_ITEM = (
    "connectors.learner=[{insert_before: AddColumnsFromEpisodesToTrainBatch, "
    "piece: {_target_: corridor.NoveltyBonusItemByItem, scale: 0.2}}]"
)


@pytest.mark.parametrize("overrides", [[], [ITEM_BY_ITEM]], ids=["vectorised", "item_by_item"])
def test_the_corridor_is_learned(tmp_path: Path, overrides: list[str]) -> None:
    run_dir = tmp_path / "run"
    arguments = ["+experiment=corridor", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}"]
    arguments += overrides
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "runner", *arguments]
    result = subprocess.run(command, cwd=CORRIDOR, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result_of(run_dir)["stop_reason"].startswith("env_runners/episode_return_mean")
