"""The installed command `runner` finds the modules that `python -m runner` finds, also in Ray's workers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import QUICK, run_process

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
    overrides = ("+experiment=ppo_cartpole", "env.env=null", "env._target_=my_envs.SteepCartPole")
    program = [str(tmp_path / "bin" / "runner")]
    return run_process(work, *arguments, *overrides, program=program, exit_code=None, env=variables)


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
