"""The verbs that need no run: exit codes, what is printed where, and what is not imported."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from runner.cli.verbs import VERBS
from tests.cli.conftest import HEAVY_IMPORTS, RunCli

CARTPOLE = "+experiment=ppo_cartpole"
NOT_MADE = "  not made  environments, pipelines, modules; validate --build makes them and takes one step through them\n"


def test_validate_accepts(run_cli: RunCli) -> None:
    result = run_cli("validate", CARTPOLE)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"ppo_cartpole: no problems\n{NOT_MADE}"


def test_validate_reports_all_mistakes(run_cli: RunCli) -> None:
    result = run_cli("validate", CARTPOLE, "algorithm.gama=0.9", "seed=-1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("2 problems in the configuration\n\n1. ")
    assert "unknown key algorithm.gama\n   where         override algorithm.gama=0.9" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_adds_the_stack_trace(run_cli: RunCli) -> None:
    result = run_cli("validate", CARTPOLE, "seed=-1", "debug=true")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_validate_checks_every_value_of_a_sweep(run_cli: RunCli) -> None:
    good = run_cli("validate", CARTPOLE, "-m", "stop.training_iteration=1,2", "seed=range(0,3)")
    assert good.stdout == f"ppo_cartpole: no problems in 4 configurations that cover the sweep\n{NOT_MADE}"
    bad = run_cli("validate", CARTPOLE, "-m", "seed=1,2,-3", "algorithm.lr=1,two")
    assert bad.returncode == 2
    assert "override seed=-3" in bad.stderr
    assert "override algorithm.lr=two" in bad.stderr


def test_training_validates_first(run_cli: RunCli, tmp_path: Path) -> None:
    result = run_cli(CARTPOLE, "algorithm.gama=0.9")
    assert (result.returncode, result.stdout) == (2, "")
    assert "did you mean  gamma" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_validates_first(run_cli: RunCli, tmp_path: Path) -> None:
    result = run_cli("-m", CARTPOLE, "algorithm.gamma=0.9,2")
    assert result.returncode == 2
    assert "override algorithm.gamma=2" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validte"], "did you mean  validate"),
        (["train"], "unknown verb train"),
        (
            [CARTPOLE, "--cfg", "job"],
            "--cfg is a flag of Hydra that runner does not have\n   expected      python -m runner show",
        ),
        ([CARTPOLE, "--resolve"], "python -m runner show"),
        ([CARTPOLE, "--info"], "python -m runner show"),
        (["-cn", "ppo_cartpole"], "experiment=NAME"),
        (["--config-name=ppo_cartpole"], "experiment=NAME"),
        (["--hydra-help"], "python -m runner --help"),
        (["evaluate", "--cfg=job"], "python -m runner show"),
        (["-cd", "nowhere", CARTPOLE], "no such folder"),
        (["--confg-dir=x"], "did you mean  --config-dir"),
        (["validate", "--config-dir"], "--config-dir needs a folder"),
        (["validate", "--config-dir", "nowhere", CARTPOLE], "no such folder"),
        (["validate", "ppo_cartpole"], "ppo_cartpole is no override"),
        ([CARTPOLE, "seed"], "seed is no override"),
    ],
)
def test_wrong_command_lines(run_cli: RunCli, arguments: list[str], message: str) -> None:
    result = run_cli(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_help_and_version(run_cli: RunCli) -> None:
    result = run_cli("--help")
    assert result.returncode == 0
    assert all(verb in result.stdout for verb in ("validate", "show", "list", "resume", "evaluate", "130"))
    assert run_cli().returncode == 2
    assert run_cli("--version").stdout.startswith("runner ")


def test_list(run_cli: RunCli, tmp_path: Path) -> None:
    mine = tmp_path / "my_conf" / "experiment"
    mine.mkdir(parents=True)
    (mine / "maze.yaml").write_text("# @package _global_\n# Out of the maze.\nseed: 1\n")
    lines = run_cli("list", "--config-dir", "my_conf").stdout.splitlines()
    assert lines[0] == "experiments: +experiment=NAME"
    assert any(line.split() == ["maze", "Out", "of", "the", "maze."] for line in lines)
    assert any(line.split()[:4] == ["ppo_cartpole", "PPO", "on", "CartPole-v1"] for line in lines)
    assert any(line.startswith("algorithm: algorithm=NAME (default ppo)") for line in lines)


def test_descriptions_are_whole_sentences(run_cli: RunCli) -> None:
    lines = {line.split()[0]: line for line in run_cli("list").stdout.splitlines() if line.startswith("  ")}
    assert lines["pb2"].endswith("2002.02518); all of them are intervals.")
    assert lines["pbt"].endswith("(Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846).")
    assert lines["cql_pendulum"].endswith("give them with offline.input_=...")
    cut = [name for name, line in lines.items() if not line.endswith((".", "!", "?"))]
    assert not cut


def test_every_verb_stands_in_the_help(run_cli: RunCli) -> None:
    text = run_cli("--help").stdout
    for name, verb in VERBS.items():
        assert verb.meaning in text
        assert f"python -m runner {verb.example}" in text
        assert find_spec(verb.module) is not None
        assert name is None or f"\n  {name}" in text


@pytest.mark.parametrize(
    ("verb", "option", "message"),
    [("show", "--build", "option of validate"), ("validate", "--profile", "option of show")],
)
def test_an_option_of_another_verb(run_cli: RunCli, verb: str, option: str, message: str) -> None:
    result = run_cli(verb, CARTPOLE, option)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def test_show(run_cli: RunCli) -> None:
    result = run_cli("show", CARTPOLE, "seed=7", "stop.evaluation.env_runners.episode_return_mean=450")
    assert result.returncode == 0
    parts = [line.partition("# ") for line in result.stdout.splitlines()]
    lines = {text.rstrip(): source for text, _, source in parts}
    assert lines["seed: 7"] == "override seed=7"
    assert lines["  lr: 0.003"] == "conf/experiment/ppo_cartpole.yaml:7"
    assert lines["  gamma: 0.99"] == "default"
    assert lines["        lambda_: 0.95"] == "conf/algorithm/ppo.yaml:13"
    assert lines["  num_env_steps_sampled_lifetime: 300000"] == "conf/experiment/ppo_cartpole.yaml:12"
    metric = "  evaluation/env_runners/episode_return_mean: 450"
    assert lines[metric] == "override stop.evaluation.env_runners.episode_return_mean=450"
    assert len({line.index("  # ") for line in result.stdout.splitlines() if "  # " in line}) == 1


@pytest.mark.parametrize("verb", ["validate", "list"])
def test_no_heavy_imports(run_cli: RunCli, verb: str) -> None:
    start = time.perf_counter()
    result = run_cli(verb, *([] if verb == "list" else [CARTPOLE]), code=HEAVY_IMPORTS)
    print(f"{verb}: {time.perf_counter() - start:.2f} s")
    assert (result.returncode, result.stderr) == (0, "[]\n")
