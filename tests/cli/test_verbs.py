"""The verbs that need no run: exit codes, what is printed where, and what is not imported."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from runner.cli.arguments import Arguments, parse_arguments
from runner.cli.help import general_help, verb_help
from runner.cli.main import main
from runner.cli.verbs import GROUPS, VERBS, options_of
from tests.cli.conftest import HEAVY_IMPORTS, RunCli

CARTPOLE = "+experiment=ppo_cartpole"
LONG = "x" * 300
NOT_CHECKED = "  not checked  environments, pipelines, modules (use --build to build them and take one step)\n"


def test_validate_accepts(run_cli: RunCli) -> None:
    result = run_cli("validate", CARTPOLE, code=HEAVY_IMPORTS)
    assert (result.returncode, result.stderr) == (0, "[]\n")
    assert result.stdout == f"ppo_cartpole: no problems\n{NOT_CHECKED}"


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
    assert good.stdout == f"ppo_cartpole: no problems in 4 configurations that cover the sweep\n{NOT_CHECKED}"
    bad = run_cli("validate", CARTPOLE, "-m", "seed=1,2,-3", "algorithm.lr=1,two")
    assert bad.returncode == 2
    assert "override seed=-3" in bad.stderr
    assert "override algorithm.lr=two" in bad.stderr


@pytest.mark.parametrize("command", [("validate", "-m"), ("sweep",)])
def test_a_sweep_needs_values(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, CARTPOLE, "algorithm.lr=1e-3,2e-3", "seed=range(1,3,0)"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("1 problem in the configuration\n\n1. seed does not have a value to try\n")


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
        (["validte"], "validte is not a verb\n   expected      train, sweep, resume"),
        (["validte"], "did you mean  validate\n   fix           runner help"),
        (["ppo_cartpole", "seed=1"], "fix           runner train ppo_cartpole seed=1"),
        (["import"], "import needs a command\n   expected      import sb3-zoo, import rllib"),
        (["rllink", "chek"], "did you mean  rllink check"),
        (["train"], "EXPERIMENT is missing"),
        (["sweep", "bets", "x"], "x is not an override\n   expected      KEY=VALUE, GROUP=OPTION or ~KEY"),
        ([CARTPOLE, "--cfg", "job"], "--cfg is a Hydra flag that runner does not support"),
        ([CARTPOLE, "--cfg", "job"], f"fix           runner show {CARTPOLE}"),
        (["train", "ppo_cartpole", "seed=1", "--cfg", "job"], "fix           runner show ppo_cartpole seed=1"),
        ([CARTPOLE, "--resolve"], "runner show"),
        (["-cn", "ppo_cartpole"], "runner train EXPERIMENT"),
        (["--config-name=ppo_cartpole"], "runner train EXPERIMENT"),
        (["--hydra-help"], "runner help"),
        (["-sc"], "runner completion bash"),
        (["evaluate", "--cfg=job"], "runner show"),
        (["-cd", "nowhere", CARTPOLE], "the folder does not exist"),
        (["--confg-dir=x"], "did you mean  --config-dir"),
        (["evaluate", "x", "--jsn"], "did you mean  --json"),
        (["validate", "--config-dir"], "--config-dir needs a value"),
        (["validate", "--config-dir", "nowhere", CARTPOLE], "the folder does not exist"),
        (
            ["validate", CARTPOLE, "--format=githb"],
            "--format is not valid\n   got           githb\n   expected      text, github\n   did you mean  github",
        ),
        (["evaluate", "x", "--episodes", "0"], "expected      an integer of 1 or more"),
        ([CARTPOLE, "seed"], "seed is not an override"),
        (["list", "env", "x*", "y"], "y is an unexpected argument"),
        (["list", "enw"], "enw is not a group"),
        (["list", "experiments", "sarsa*"], "no name matches sarsa*"),
        (["resume", "latest"], "there is no run in outputs"),
    ],
)
def test_wrong_command_lines(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume", LONG], "the folder cannot be read: File name too long"),
        (["report", LONG], "the folder cannot be read: File name too long"),
        (["validate", CARTPOLE, "--config-dir", LONG], "the folder cannot be read: File name too long"),
        (["play", f"{LONG}.onnx"], "the policy file does not exist"),
        (["schema", "-o", LONG], "the file cannot be written"),
        (["train", LONG], "unknown experiment"),
        ([LONG], "is not a verb"),
    ],
)
def test_paths_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    """The system reports such a name with an error, as it reports a path in a folder of another user."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--config-dir=mine"], ["-cd", "mine"]])
def test_names_of_any_alphabet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine", "experiment").mkdir(parents=True)
    Path("mine", "experiment", "größe.yaml").write_text("# @package _global_\ndefaults: [ppo_cartpole]\n")
    assert main(["validate", "größe", *option]) == 0
    assert capsys.readouterr().out.startswith("größe: no problems\n")
    assert main([*option, "größe"]) == 2
    assert "größe is an experiment, not a verb" in capsys.readouterr().err
    assert main(["validate", "experiment=größe", *option]) == 2
    assert "expected      quotes: \"experiment='größe'\"" in capsys.readouterr().err


def test_check_env_can_print_stack_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPol-v1", "debug=true"]) == 2
    shown = capsys.readouterr().err
    assert "the environment CartPol-v1 is not registered" in shown
    assert "Traceback" in shown


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("help",), ("help", "evaluate"), ("evaluate", "-h")])
def test_help(run_cli: RunCli, arguments: tuple[str, ...]) -> None:
    result = run_cli(*arguments, code=HEAVY_IMPORTS)
    assert (result.returncode, result.stderr) == (0, "[]\n")
    assert result.stdout.startswith("usage: runner ")
    assert "evaluate" in result.stdout


def test_without_arguments_and_version(run_cli: RunCli) -> None:
    assert run_cli().returncode == 2
    assert run_cli("--version").stdout.startswith("runner ")
    assert run_cli("-V").stdout.startswith("runner ")


def test_help_names_every_verb_on_one_line() -> None:
    text = general_help()
    assert all(group in text.splitlines() for group in GROUPS)
    for name, verb in VERBS.items():
        assert f"  {' '.join([name, *verb.words])} " in text
        assert find_spec(verb.module) is not None
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) < 70


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb(name: str) -> None:
    text = verb_help(name)
    assert all(option.usage in text for option in options_of(name))
    assert all(f"  runner {example}\n" in text for example in VERBS[name].examples)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("example", [example for verb in VERBS.values() for example in verb.examples])
def test_examples_are_accepted(example: str) -> None:
    parse_arguments(shlex.split(example.partition(" > ")[0]))


def test_words_and_options_in_any_order() -> None:
    expected = Arguments("train", (), ("experiment=ppo_cartpole", "seed=7"), {"--budget": ("1h",), "--quiet": ("",)})
    for line in (
        "train ppo_cartpole seed=7 --budget 1h -q",
        "-q --budget=1h train ppo_cartpole seed=7",
        "train --budget 1h --quiet ppo_cartpole seed=7",
        "experiment=ppo_cartpole seed=7 -q --budget 1h",
    ):
        parsed = parse_arguments(line.split())
        assert (parsed.verb, parsed.words, parsed.overrides) == (expected.verb, expected.words, expected.overrides)
        assert parsed.options == expected.options


def test_a_sweep_is_the_verb_or_the_option() -> None:
    assert parse_arguments(["sweep", "ppo_cartpole", "seed=1,2"]).is_multirun
    assert parse_arguments(["-m", "experiment=ppo_cartpole", "seed=1,2"]).is_multirun
    assert parse_arguments(["sweep", "best", "x"]).verb == "sweep best"


def test_earlier_spellings_print_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_arguments(["sweep", "best", "s", "--emit", "f"]).value("--output") == "f"
    assert parse_arguments(["register", "r", "--if", "a > 1"]).assertions == ("a > 1",)
    assert capsys.readouterr().err.splitlines() == ["note: --emit is now -o/--output", "note: --if is now --assert"]


def test_quiet(run_cli: RunCli) -> None:
    assert run_cli("validate", "ppo_cartpole", "-q").stdout == ""
    result = run_cli("validate", "ppo_cartpole", "-q", "seed=-1", "--debug")
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" in result.stderr


def test_validate_as_json(run_cli: RunCli) -> None:
    result = run_cli("validate", "ppo_cartpole", "seed=-1", "--json")
    [problem] = json.loads(result.stdout)["problems"]
    assert (result.returncode, problem["where"], problem["got"]) == (2, "override seed=-1", "-1")
    assert json.loads(run_cli("validate", "ppo_cartpole", "--json").stdout)["problems"] == []


def test_list(run_cli: RunCli, tmp_path: Path) -> None:
    mine = tmp_path / "my_conf" / "experiment"
    mine.mkdir(parents=True)
    (mine / "maze.yaml").write_text("# @package _global_\n# Out of the maze. It is hard.\nseed: 1\n")
    lines = run_cli("list", "--config-dir", "my_conf").stdout.splitlines()
    assert lines[0] == "experiments: runner train NAME"
    assert any(line.split() == ["maze", "Out", "of", "the", "maze."] for line in lines)
    assert any(line.startswith("  ppo_cartpole ") for line in lines)
    assert any(line.startswith("algorithm: algorithm=NAME (default ppo)") for line in lines)
    assert max(map(len, lines)) <= 100


def test_list_a_group_and_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "experiments", "dqn_*"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "experiments: runner train NAME"
    assert lines
    assert all(line.startswith("  dqn_") for line in lines)
    assert main(["list", "env", "--json"]) == 0
    assert "cartpole" in json.loads(capsys.readouterr().out)["env"]


@pytest.mark.parametrize(
    ("verb", "option", "message"),
    [
        ("show", "--build", "--build is an option of `runner validate`, not of `runner show`"),
        ("validate", "--timings", "--timings is an option of `runner show`, not of `runner validate`"),
    ],
)
def test_an_option_of_another_verb(verb: str, option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, CARTPOLE, option]) == 2
    assert message in capsys.readouterr().err


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


def test_list_imports_nothing_heavy(run_cli: RunCli) -> None:
    result = run_cli("list", code=HEAVY_IMPORTS)
    assert (result.returncode, result.stderr) == (0, "[]\n")
