"""The examples do what their text says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, result_of

CORRIDOR = ROOT / "examples" / "corridor"


def test_the_corridor_is_learned(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ["+experiment=corridor", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "runner", *arguments]
    result = subprocess.run(command, cwd=CORRIDOR, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result_of(run_dir)["stop_reason"].startswith("env_runners/episode_return_mean")
