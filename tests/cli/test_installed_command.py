"""The installed command `runner` finds the modules that `python -m runner` finds, also in Ray's workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT
from tests.conftest import QUICK, WAIT_S

# What pip writes for an entry of [project.scripts].
COMMAND = "import sys\nfrom runner.__main__ import command\nsys.exit(command())\n"
ENVIRONMENT = """
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class SteepCartPole(CartPoleEnv): ...
"""


def run_installed(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command, which lies in another folder than the user's module, in the user's folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "runner").write_text(COMMAND)
    work = tmp_path / "work"
    work.mkdir()
    (work / "my_envs.py").write_text(ENVIRONMENT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"} | variables
    command = [sys.executable, str(tmp_path / "bin" / "runner"), *arguments, "env._target_=my_envs.SteepCartPole"]
    command += ["+experiment=ppo_cartpole", "env.env=null"]
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=WAIT_S)


def test_a_module_of_the_working_folder(tmp_path: Path) -> None:
    result = run_installed(tmp_path, "validate", "--build")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_safe_path_is_respected(tmp_path: Path) -> None:
    result = run_installed(tmp_path, "validate", PYTHONSAFEPATH="1")
    assert result.returncode == 2
    assert "there is no package my_envs" in result.stderr


@pytest.mark.slow
@pytest.mark.ray
def test_a_module_of_the_working_folder_in_an_actor(tmp_path: Path) -> None:
    stop = ("env_runners.num_env_runners=1", "stop.training_iteration=1", "checkpoint.every_iterations=null")
    result = run_installed(tmp_path, *QUICK, *stop)
    assert (result.returncode, "finished" in result.stdout) == (0, True), result.stderr
