"""What CI jobs ask of training: assertions, budgets, reports, annotations; and the exit codes."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from runner.cli.arguments import Arguments
from runner.cli.ci import Verdict, judged, parse_budget
from runner.cli.conditions import Condition
from runner.cli.trained import Case, write_report
from runner.interrupts import Interrupted, is_interrupted
from tests.cli.conftest import HEAVY_IMPORTS, RunCli
from tests.conftest import QUICK, WAIT_S, Run, checkpoints_of, progress_of, result_of

TRAIN = ("+experiment=ppo_cartpole", *QUICK, "hydra.run.dir=run")
FAULTY = ("env.env=null", "env._target_=tests.support.environments.Faulty")
RETURN = "env_runners/episode_return_mean"
COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def read_report(path: Path) -> dict[str, tuple[str, str]]:
    """Name -> (outcome, message) of each test; the file is checked for what its readers ask of it."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    assert {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"} == set(suite.attrib)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
    tests = suite.findall("testcase")
    assert [child.tag for child in suite] == ["properties"] * (len(suite) - len(tests)) + ["testcase"] * len(tests)
    for element in (root, suite):
        assert element.get("tests") == str(len(tests))
        for name, tag in COUNTED.items():
            assert element.get(name) == str(sum(test.find(tag) is not None for test in tests))
    read = {}
    for test in tests:
        assert set(test.attrib) == {"name", "classname", "time"}
        assert float(test.get("time", "")) >= 0
        outcome = [child for child in test if child.tag != "system-out"]
        assert len(outcome) <= 1
        read[test.get("name", "")] = (outcome[0].tag, outcome[0].get("message", "")) if outcome else ("passed", "")
    return read


def properties_of(path: Path) -> dict[str, str]:
    return {one.get("name", ""): one.get("value", "") for one in ElementTree.parse(path).iter("property")}


@pytest.fixture
def budget_ends_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """The clock of budgets stands still until a file is there."""

    def stand_still_until(path: Path) -> None:
        clock = SimpleNamespace(monotonic=lambda: 1e9 if path.exists() else 0.0)
        monkeypatch.setattr("runner.interrupts.time", clock)

    return stand_still_until


# -- assertions --------------------------------------------------------------------------------------------------------


def test_assertions_are_judged_printed_and_reported(run_main: Run, tmp_path: Path) -> None:
    dotted = "env_runners.episode_return_mean > 400"
    command = (*TRAIN, "stop.training_iteration=2", "--assert", f"{RETURN} >= 5", f"--assert={dotted}")
    outcome = run_main(*command, "--budget", "1h", "--junit", "reports/out.xml")
    assert (outcome.code, outcome.err) == (3, "")
    value = f"{result_of(tmp_path / 'run')[RETURN]:.6g}"
    holds, does_not = outcome.out.splitlines()[-2:]
    assert holds == f"assert {RETURN} >= 5: {value}, holds"
    assert does_not == f"assert {RETURN} > 400: {value}, does not hold"
    report = tmp_path / "reports" / "out.xml"
    assert read_report(report) == {
        "run": ("passed", ""),
        f"assert {RETURN} >= 5": ("passed", ""),
        f"assert {RETURN} > 400": ("failure", f"{value}, does not hold"),
    }
    properties = properties_of(report)
    assert properties["run_dir"] == str(tmp_path / "run")
    assert properties["env_steps"] == str(result_of(tmp_path / "run")["num_env_steps_sampled_lifetime"])
    assert float(properties["training_time_s"]) > 0
    assert ElementTree.parse(report).find("testsuite").get("name") == "ppo_cartpole"  # type: ignore[union-attr]


def test_the_last_value_that_was_reported_counts(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*TRAIN, "stop.training_iteration=3").code == 0
    metric = "evaluation/env_runners/episode_return_mean"
    lines = progress_of(tmp_path / "run")
    lines[0][metric], lines[1][metric] = 10.0, 460.0  # the last line has none: no evaluation
    lines[2]["learners/default_policy/total_loss"] = None  # not a number
    (tmp_path / "run" / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = [f"{metric} >= 450", "learners/default_policy/total_loss < 1e9", "timers/evaluation < 100"]
    changed = ("evaluation.evaluation_interval=2", "--junit", "out.xml")
    outcome = run_main("resume", "run", *changed, *(f"--assert={text}" for text in asked))
    assert outcome.code == 3
    assert outcome.out.startswith("already finished")
    assert outcome.out.splitlines()[-3:] == [
        f"assert {metric} >= 450: 460, holds",
        "assert learners/default_policy/total_loss < 1e+09: its last value is not a number, does not hold",
        "assert timers/evaluation < 100: never reported, does not hold",
    ]
    assert read_report(tmp_path / "out.xml")["run"] == ("passed", "")


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [("a >= 450", 449.99999999, "449.99999999"), ("a>=450", 450.123456, "450.123"), ("a == 1234567", 1234567.0, "")],
)
def test_a_value_is_never_shown_as_what_it_is_not(text: str, value: float, shown: str) -> None:
    condition = Condition.parse(text)
    assert condition.value_text(value) == (shown or repr(value))
    assert float(str(condition).split()[-1]) == condition.number


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("120s", 120), ("2m", 120), ("1h30m", 5400), ("90", 90), ("0.5s", 0.5), ("1h1m1.5s", 3661.5)]
)
def test_durations(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("runner.interrupts.time", SimpleNamespace(monotonic=lambda: now[0]))
    budget = parse_budget(text)
    now[0] = seconds - 0.01
    assert not budget.is_used_up
    now[0] = seconds
    assert budget.is_used_up


def test_a_budget_that_is_over_before_the_run(run_main: Run, tmp_path: Path) -> None:
    command = (*TRAIN, "stop.training_iteration=2", "--assert", f"{RETURN} >= 5", "--budget", "0.001")
    outcome = run_main(*command, "--junit", "out.xml")
    assert outcome.code == 4
    assert outcome.out.splitlines()[-1] == f"assert {RETURN} >= 5: never reported, does not hold"
    result = result_of(tmp_path / "run")
    reason = "budget of 0.001s used up after iteration 0"
    assert (result["status"], result["stop_reason"]) == ("interrupted", reason)
    assert not (tmp_path / "run" / "progress.jsonl").exists()
    assert read_report(tmp_path / "out.xml")["run"] == ("error", reason)


def test_a_budget_that_is_used_up_in_a_run_leaves_a_checkpoint(
    run_main: Run, tmp_path: Path, budget_ends_with: Callable[[Path], None]
) -> None:
    run_dir = tmp_path / "run"
    budget_ends_with(run_dir / "progress.jsonl")
    asked = ("--assert", f"{RETURN} >= 1000")
    first = run_main(*TRAIN, "stop.training_iteration=3", "--budget", "10m", *asked)
    assert first.code == 4
    assert "interrupted: budget of 10m used up after iteration 1" in first.out
    assert re.search(r"^assert .*: \d.*, does not hold$", first.out, re.MULTILINE)
    assert checkpoints_of(run_dir) == ["iteration_000001"]
    second = run_main("resume", "run", *asked)  # the budget was the first command's
    assert second.code == 3
    assert [line["training_iteration"] for line in progress_of(run_dir)] == [1, 2, 3]


def test_a_budget_ends_the_wait_for_simulators(run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = tmp_path / "run" / "rllink.json"
    times = itertools.chain([0.0], itertools.repeat(1e9))  # the first look is before the iteration that waits
    monkeypatch.setattr(
        "runner.interrupts.time", SimpleNamespace(monotonic=lambda: next(times) if announced.exists() else 0.0)
    )
    command = ("+experiment=ppo_external_cartpole", "env.port=0", "tracking=none", "hydra.run.dir=run")
    outcome = run_main(*command, "--budget", "1h")
    assert (outcome.code, outcome.err) == (4, "")
    assert "interrupted: budget of 1h used up after iteration 0" in outcome.out


# -- reports -----------------------------------------------------------------------------------------------------------


def test_a_run_that_fails(run_main: Run, tmp_path: Path) -> None:
    settings = (*FAULTY, "env.env_config={fault:raise_in_step}", "stop.training_iteration=2")
    asked = ("--assert", f"{RETURN} >= 5", "--junit", "out.xml")
    outcome = run_main(*TRAIN, *settings, *asked)
    assert outcome.code == 1
    assert "the arm has left its rail" in outcome.err
    report = read_report(tmp_path / "out.xml")
    assert report["run"][0] == "failure"
    assert report[f"assert {RETURN} >= 5"] == ("failure", "never reported, does not hold")
    details = ElementTree.parse(tmp_path / "out.xml").findtext(".//failure")
    assert "the arm has left its rail" in str(details)


def test_mistakes_in_the_configuration(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*TRAIN, "algorithm.gama=1", "seed=-1", "--junit", "out.xml", "--assert", f"{RETURN} >= 5")
    assert outcome.code == 2
    assert read_report(tmp_path / "out.xml") == {
        "unknown key algorithm.gama": ("failure", "unknown key algorithm.gama"),
        "seed is out of range": ("failure", "seed is out of range"),
    }
    outcome = run_main("resume", "run", "--junit", "out.xml")
    assert outcome.code == 2
    assert read_report(tmp_path / "out.xml")["command line"][0] == "failure"
    spaces = (*FAULTY, "env.env_config={fault:raise_in_init}")  # shows when the run is built
    outcome = run_main(*TRAIN, *spaces, "stop.training_iteration=2", "--junit", "out.xml")
    assert outcome.code == 2
    (message,) = [told for outcome, told in read_report(tmp_path / "out.xml").values() if outcome == "failure"]
    assert message in outcome.err


def test_a_budget_that_ends_the_start_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def start(_: Verdict) -> int:
        while not is_interrupted():
            pass
        raise Interrupted

    report = str(tmp_path / "out.xml")
    options = {"--budget": ("0.001s",), "--junit": (report,)}
    assert judged(Arguments(overrides=("+experiment=mine",), options=options), start) == 4
    assert capsys.readouterr().err == "stopped while the run was starting: budget of 0.001s used up\n"
    assert read_report(Path(report)) == {"run": ("error", "budget of 0.001s used up")}


def test_a_command_that_is_killed_leaves_a_report(run_main: Run, tmp_path: Path) -> None:
    Verdict(Arguments(overrides=("+experiment=mine",), options={"--junit": (str(tmp_path / "out.xml"),)}))
    outcome, message = read_report(tmp_path / "out.xml")["run"]
    assert (outcome, "killed" in message) == ("error", True)


@pytest.mark.slow
def test_an_interrupted_run(start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    run = start_main(*TRAIN, "stop.training_iteration=100000", "--junit", "out.xml", "--assert", f"{RETURN} >= 1e3")
    assert run.stdout is not None
    while not run.stdout.readline().startswith(" iter"):
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130
    assert re.search(r"^assert .*: \d.*, does not hold$", out, re.MULTILINE)
    assert read_report(tmp_path / "out.xml")["run"] == ("error", result_of(tmp_path / "run")["stop_reason"])


def test_what_xml_cannot_hold_is_left_out(tmp_path: Path) -> None:
    text = "\x1b[31mred\x1b[0m \x00\x08\ud800<&>\"'\t\u00e4 \U0001f600 \ufffe"
    case = Case(text, "failure", text + "\nsecond line", text, output=text)
    write_report(tmp_path / "out.xml", text, [case], {"env": text, "none": None}, 1.0, 0.0)
    clean = "red <&>\"'\t\u00e4 \U0001f600 "
    ((name, told),) = read_report(tmp_path / "out.xml").items()
    assert (name, told) == (clean, ("failure", clean + "\nsecond line"))
    assert properties_of(tmp_path / "out.xml") == {"env": clean}
    assert ElementTree.parse(tmp_path / "out.xml").findtext(".//system-out") == clean


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--assert", "best"], "--assert is not a valid condition\n   got           best\n   expected      'METRIC >="),
        (["--assert", "a >= b"], "got           a >= b"),
        (["--assert"], "--assert needs a value"),
        (["--assert", f"{RETURN[:-1]} >= 4"], f"   did you mean  {RETURN}"),
        (["--assert", f"evaluation/{RETURN} >= 4"], f"this run does not produce the metric evaluation/{RETURN}"),
        (["--assert", f"iqm({RETURN}) >= 4"], "needs the seeds of a sweep, and this is a single run"),
        (["--assert", f"mean({RETURN}) >= 4"], "got           mean("),
        (["-m", "seed=1,2", "--assert", f"iqm({RETURN[:-1]}) >= 4"], f"   did you mean  {RETURN}"),
        (["--budget", "5x"], "--budget is not valid\n   got           5x\n   expected      120s, 2m, 1h30m"),
        (["--budget", "1h30"], "got           1h30"),
        (["--budget", "0s"], "got           0s"),
        (["--budget", ""], "--budget is not valid"),
        (["--budget"], "--budget needs a value"),
        (["--junit", "file/out.xml"], "the report cannot be written"),
        (["--junit", "folder"], "the report cannot be written: Is a directory"),
        (["--junit", "pipe"], "the report cannot be written: this is not a regular file"),
        (
            ["--format", "github"],
            "--format is an option of `runner validate` and `runner export`, not of `runner train`",
        ),
        (["-m", "seed=1,2", "hydra/sweeper=basic", "--budget", "1h"], "runner's own sweeper"),
    ],
)
def test_mistakes_start_nothing(run_main: Run, tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    outcome = run_main(*TRAIN, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert told in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_report_cannot_be_written_to_an_open_pipe(run_main: Run) -> None:
    reader, writer = os.pipe()  # as /dev/stdout in `runner train --junit /dev/stdout | less`
    try:
        outcome = run_main(*TRAIN, "--junit", f"/dev/fd/{writer}")
    finally:
        os.close(reader)
        os.close(writer)
    assert (outcome.code, outcome.out) == (2, "")
    assert "the report cannot be written: this is not a regular file" in outcome.err


@pytest.mark.parametrize("verb", ["validate", "show", "list", "evaluate", "record", "convert"])
@pytest.mark.parametrize("option", ["--assert", "--budget=1h", "--junit"])
def test_verbs_that_do_not_train(run_main: Run, verb: str, option: str) -> None:
    outcome = run_main(verb, option, "x")
    assert outcome.code == 2
    assert outcome.err.startswith(f"{option.partition('=')[0]} is an option of `runner train`, `runner sweep`")


def test_resume_knows_the_metrics(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*TRAIN, "stop.training_iteration=1").code == 0
    before = (tmp_path / "run" / "progress.jsonl").read_bytes()
    outcome = run_main("resume", "run", "stop.training_iteration=2", "--assert", f"{RETURN[:-1]} >= 4")
    assert outcome.code == 2
    assert f"did you mean  {RETURN}" in outcome.err
    assert (tmp_path / "run" / "progress.jsonl").read_bytes() == before


# -- validate --format -------------------------------------------------------------------------------------------------


def test_annotations(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_golden: Callable[[str, str], None]
) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    folder = tmp_path / "my, conf" / "experiment"
    folder.mkdir(parents=True)
    mine = '# @package _global_\ndefaults: [ppo_cartpole]\nalgorithm:\n  gama: "100%"\n  lr: -1\n'
    (folder / "mine.yaml").write_text(mine)
    command = ("validate", "--format", "github", "--config-dir", "my, conf", "+experiment=mine", "seed=-1")
    outcome = run_main(*command)
    assert (outcome.code, outcome.err) == (2, "")
    assert_golden("validate_github", outcome.out)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path.parent))
    assert f"::error file={tmp_path.name}/my%2C conf/experiment/mine.yaml,line=4,title=" in run_main(*command).out


def test_formats(run_cli: RunCli) -> None:
    for name in ("github", "text"):
        good = run_cli("validate", "--format", name, TRAIN[0], code=HEAVY_IMPORTS)
        assert (good.returncode, good.stdout.splitlines()[0], good.stderr) == (0, "ppo_cartpole: no problems", "[]\n")
    long = run_cli("validate", "--format", "github", TRAIN[0], f"nothing={'x' * 300}")  # no name of a file
    assert (long.returncode, long.stdout.count("::error title=")) == (2, 1)
    nowhere = run_cli("validate", "--format", "github", "--config-dir", "nowhere", TRAIN[0])
    assert nowhere.returncode == 2
    assert nowhere.stdout == (
        "::error title=runner::the folder does not exist%0A   where         --config-dir nowhere%0A   expected      "
        "a folder with experiments and options of config groups\n"
    )


# -- sweeps ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # Ray Tune warns about its own future
def test_a_sweep_with_a_budget_goes_on_and_is_judged_by_its_best_trial(
    run_main: Run, ray_cluster: None, tmp_path: Path, budget_ends_with: Callable[[Path], None]
) -> None:
    settings = ("stop.training_iteration=100", "seed=1,2", "sweep.name=s", "sweep.max_concurrent_trials=1")
    asked = ("--assert", f"{RETURN} >= 1000", "--assert", f"iqm({RETURN}) >= 1000")
    command = ("-m", *TRAIN[:-1], *settings, *asked, "--junit", "out.xml")
    folder, report = tmp_path / "outputs" / "ppo_cartpole" / "sweeps" / "s", tmp_path / "out.xml"
    before = run_main(*command, "--budget", "0.001s")
    assert before.code == 4
    assert read_report(report)["sweep"] == ("error", "budget of 0.001s used up")

    budget_ends_with(folder / "0" / "progress.jsonl")
    first = run_main(*command, "--budget", "10m")
    assert first.code == 4, first.err
    assert "budget of 10m used up; the same command continues the sweep\n" in first.out
    assert result_of(folder / "0")["status"] == "interrupted"
    assert checkpoints_of(folder / "0")
    assert not (folder / "1").exists()
    cases = read_report(report)
    assert cases["sweep"] == cases["trial 0 seed=1"] == ("error", "budget of 10m used up")
    assert cases[f"assert {RETURN} >= 1000"][0] == "failure"

    second = run_main(*command)
    assert second.code == 3, second.err
    assert [result_of(folder / number)["status"] for number in "01"] == ["finished"] * 2
    reached = [(progress_of(folder / number)[-1][RETURN], number) for number in "01"]
    best, mean = max(reached), (reached[0][0] + reached[1][0]) / 2
    assert second.out.splitlines()[-2:] == [
        f"assert {RETURN} >= 1000: {best[0]:.6g} of the best trial, {best[1]} of 2, does not hold",
        f"assert iqm({RETURN}) >= 1000: {mean:.6g} of the best combination, 2 seeds, does not hold",
    ]
    cases = read_report(report)
    assert [cases[f"trial {number} seed={number + 1}"][0] for number in (0, 1)] == ["passed"] * 2
    assert "sweep" not in cases
    properties = properties_of(report)
    assert Path(properties["best_run_dir"]).resolve() == folder / best[1]
    steps = [progress_of(folder / number)[-1]["num_env_steps_sampled_lifetime"] for number in "01"]
    assert properties["env_steps"] == str(sum(steps))
