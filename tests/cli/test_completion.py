"""Completions of the command line, and the scripts of three shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.completion import complete
from runner.cli.main import main
from tests.conftest import ROOT, WAIT_S


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ev", ["evaluate"]),
        ("imp", ["import"]),
        ("import ", ["rllib", "sb3-zoo"]),
        ("sweep be", ["best"]),
        ("au", ["autotune"]),
        ("autotune ppo_cartpole_r", ["ppo_cartpole_remote"]),
        ("autotune ppo_cartpole --se", ["--seconds"]),
        ("help import s", ["sb3-zoo"]),
        ("train ppo_cart", ["ppo_cartpole", "ppo_cartpole_remote", "ppo_cartpole_two_learners"]),
        ("-q train ppo_cartpole_r", ["ppo_cartpole_remote"]),
        ("train --budget 1h ppo_cartpole_r", ["ppo_cartpole_remote"]),
        ("train ppo_cartpole algorithm.lam", ["algorithm.lambda_="]),
        ("train dqn_cartpole algorithm.replay_buffers.replay.cap", ["algorithm.replay_buffers.replay.capacity="]),
        ("train ppo_cartpole algo", ["algorithm.", "algorithm="]),
        ("train ppo_cartpole +env=stateless_c", ["+env=stateless_cartpole"]),
        ("train ppo_cartpole tracking.display=l", ["tracking.display=live"]),
        ("train ppo_cartpole debug=", ["debug=false", "debug=true"]),
        ("train ppo_cartpole learners.compile=", [f"learners.compile={text}" for text in ("auto", "false", "true")]),
        ("train ppo_cartpole algorithm.optimizer.name=ra", ["algorithm.optimizer.name=radam"]),
        ("train ppo_cartpole algorithm.use_kl_loss=f", ["algorithm.use_kl_loss=false"]),
        ("train munchausen_dqn_cartpole algorithm.double_q=", ["algorithm.double_q=false"]),
        ("experiment=ppo_cartpole_t", ["experiment=ppo_cartpole_two_learners"]),
        ("evaluate x --js", ["--json"]),
        ("validate --format ", ["github", "text"]),
        ("new experiment x --algorithm ra", ["rainbow"]),
        ("play zoo:ppo_lunar", ["zoo:ppo_lunarlander"]),
        ("list en", ["env", "env_defaults", "env_runners"]),
        ("resume la", ["latest"]),
        ("completion f", ["fish"]),
        ("nonsense ", []),
        ("train nonsense algorithm.x", []),
    ],
)
def test_candidates(line: str, expected: list[str]) -> None:
    assert complete(line.split(" ")) == expected


def test_run_dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("outputs/ppo_cartpole/2026-01-10/09-00-00/.hydra").mkdir(parents=True)
    assert complete(["resume", "outputs"]) == ["outputs/ppo_cartpole/2026-01-10/09-00-00"]
    assert complete(["resume", "ppo"]) == ["ppo_cartpole"]


@pytest.mark.parametrize("option", [["--config-dir=mine"], ["--config-dir", "mine"], ["-cd", "mine"]])
def test_experiments_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine", "experiment").mkdir(parents=True)
    Path("mine", "experiment", "maze.yaml").touch()
    assert complete(["train", *option, "maz"]) == ["maze"]


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert "did you mean  bash" in capsys.readouterr().err


@pytest.fixture
def shell_environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `runner` is the command of this interpreter."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "runner"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m runner "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}


def shell(program: str, script: str, environment: dict[str, str]) -> list[str]:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    options = ["--norc", "--noprofile"] if program == "bash" else ["-f"] if program == "zsh" else ["--no-config"]
    command = [program, *options, "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert ended.stderr == ""
    return ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("runner ev", ["evaluate"]),
        ("runner import ", ["rllib", "sb3-zoo"]),
        ("runner train ppo_cartpole env=cartp", ["cartpole"]),
        ("runner train ppo_cartpole algorithm.lam", ["algorithm.lambda_="]),
        ("runner play zoo:ppo_lunar", ["ppo_lunarlander"]),
    ],
)
def test_bash(line: str, expected: list[str], shell_environment: dict[str, str]) -> None:
    script = f"""
        eval "$(runner completion bash)"
        compopt() {{ :; }}
        COMP_LINE={line!r} COMP_POINT={len(line)}
        _runner_complete
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert shell("bash", script, shell_environment) == expected


def test_bash_completes_in_an_interactive_shell(shell_environment: dict[str, str]) -> None:
    script = 'eval "$(runner completion bash)"; complete -p runner'
    assert shell("bash", script, shell_environment) == ["complete -F _runner_complete runner"]


def test_zsh(shell_environment: dict[str, str]) -> None:
    script = """
        compdef() { print compdef "$@"; }
        compadd() { shift; [[ $1 == -S ]] && shift 2; shift; print -l -- "$@"; }
        eval "$(runner completion zsh)"
        words=(runner train ppo_cartpole_t) CURRENT=3
        _runner
    """
    expected = ["compdef _runner runner", "ppo_cartpole_two_learners"]
    assert [line for line in shell("zsh", script, shell_environment) if line] == expected


def test_fish(shell_environment: dict[str, str]) -> None:
    script = "runner completion fish | source; complete -C 'runner train ppo_cartpole_t'"
    assert shell("fish", script, shell_environment) == ["ppo_cartpole_two_learners"]
