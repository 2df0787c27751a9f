"""`autotune`: which settings it keeps, its file, and how it ends."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import yaml  # type: ignore[import-untyped]

from runner.cli.autotune import Measurement, Tuner
from runner.cli.short_runs import NotMeasuredError, ShortRuns, TooSlowError, overrides_of_short_run, upper_quartile
from runner.config.overrides import override_value
from tests.conftest import QUICK, ROOT, WAIT_S, Run, wait_until
from tests.support.configs import config_from

MODE, NUM_ENVS = "env_runners.gym_env_vectorize_mode", "env_runners.num_envs_per_env_runner"
THREADS, COMPILE = "learners.torch_num_threads", "learners.compile"
FAULTY = [
    "env.env=null",
    "env._target_=tests.support.environments.Faulty",
    "env.env_config={fault: raise_in_step, fault_step: 3}",
]
SLOW_STEPS = "env.wrappers=[{_target_: tests.support.environments.SlowSteps, step_s: %s}]"


@dataclass(frozen=True, kw_only=True)
class KnownSpeeds(ShortRuns):
    """Runs of known speeds.

    Attributes:
        factors: setting -> factor of its speed, or the error of its runs.
        noise: factor of the speed of each of the first runs.
        measured: overrides of each run.
    """

    config_dir: Path | None = None
    window_s: float = 1.0
    ends_s: float = math.inf
    factors: dict[str, float | Exception]
    noise: list[float] = field(default_factory=list)
    measured: list[list[str]] = field(default_factory=list)

    def measure(self, overrides: Sequence[str], limit_s: float) -> float:
        self.measured.append(list(overrides))
        speed = 1000.0 * (self.noise.pop(0) if self.noise else 1.0)
        for setting in set(self.factors).intersection(overrides):
            factor = self.factors[setting]
            if isinstance(factor, Exception):
                raise factor
            speed *= factor
        return speed


def tuned(runs: ShortRuns, *overrides: str) -> Tuner:
    tuner = Tuner(config_from(*overrides), overrides, runs, is_quiet=True)
    tuner.run()
    return tuner


def rows_of(tuner: Tuner) -> dict[str, Measurement]:
    return {row.setting: row for row in tuner.rows}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


def test_faster_settings_are_kept_and_combined() -> None:
    runs = KnownSpeeds(factors={f"{MODE}=sync": 1.2, f"{MODE}=async": 1.5, f"{THREADS}=2": 1.1, f"{NUM_ENVS}=32": 3.0})
    tuner = tuned(runs, "experiment=ppo_cartpole")
    assert tuner.kept == {MODE: "async", THREADS: "2"}
    assert tuner.gain == pytest.approx(1.5 * 1.1)
    assert tuner.overrides == ["experiment=ppo_cartpole", f"{MODE}=async", f"{THREADS}=2"]
    rows = rows_of(tuner)
    assert rows[f"{MODE}=sync"].verdict == "replaced by async"
    assert (rows[f"{THREADS}=2"].verdict, rows[f"{THREADS}=2"].gain) == ("faster", pytest.approx(1.1))
    assert rows[f"{NUM_ENVS}=16"].verdict == "less than 5 % faster"
    assert rows[f"{NUM_ENVS}=32"].verdict == "hint: it changes the data of an iteration"
    assert rows[f"{COMPILE}=true"].verdict == "not measured: too few updates (14,400 of 100,000)"
    assert all("seed" not in text for run in runs.measured for text in run)


def test_a_close_setting_is_repeated_next_to_the_present_one() -> None:
    # The current settings, async, and then two pairs of both: async is 4 % faster, and seems to be 16 % faster.
    runs = KnownSpeeds(factors={f"{MODE}=async": 1.04}, noise=[0.9, 1.0, 1.0, 1.0, 1.1, 1.0])
    tuner = tuned(runs, "experiment=ppo_pendulum", f"{NUM_ENVS}=4")
    assert tuner.kept == {}
    modes = [f"{MODE}=async" in overrides for overrides in runs.measured[:6]]
    assert modes == [False, True, False, True, False, True]
    assert rows_of(tuner)[f"{MODE}=async"].verdict == "less than 5 % faster"
    assert rows_of(tuner)[f"{MODE}=async"].gain == pytest.approx(1.04)


def test_settings_that_fail_or_are_slow() -> None:
    failures = {f"{MODE}=async": NotMeasuredError("the rail is bent"), f"{THREADS}=2": TooSlowError("too slow")}
    tuner = tuned(KnownSpeeds(factors=failures), "experiment=ppo_cartpole")
    assert rows_of(tuner)[f"{MODE}=async"].verdict == "does not run: the rail is bent"
    assert rows_of(tuner)[f"{THREADS}=2"].verdict == "slower: too slow"


def test_what_does_not_fit_into_the_time_is_named() -> None:
    tuner = tuned(KnownSpeeds(factors={f"{THREADS}=2": 2.0}, ends_s=0.0), "experiment=ppo_cartpole")
    verdicts = {row.verdict for row in tuner.rows[1:] if row.setting != f"{COMPILE}=true"}
    assert (verdicts, tuner.kept) == ({"not measured: no time left"}, {})


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        (["experiment=ppo_pendulum"], [f"{THREADS}=2"]),  # one sub-environment without batched implementation
        (["experiment=ppo_multi_agent_cartpole"], [f"{THREADS}=2"]),
        (["experiment=ppo_cartpole", f"{MODE}=sync"], [f"{MODE}=auto", f"{MODE}=async", f"{THREADS}=2"]),
        (["experiment=ppo_half_cheetah", f"{THREADS}=2"], [f"{COMPILE}=false", f"{THREADS}=1"]),
        (["experiment=ppo_half_cheetah", f"{COMPILE}=auto"], [f"{COMPILE}=false", f"{THREADS}=2"]),
    ],
)
def test_candidates(overrides: list[str], settings: list[str]) -> None:
    if overrides == ["experiment=ppo_pendulum"]:
        overrides = [*overrides, f"{NUM_ENVS}=1"]
    runs = KnownSpeeds(factors={})
    tuner = tuned(runs, *overrides)
    measured = [row.setting for row in tuner.rows[1:] if not row.verdict.startswith(("hint", "not measured"))]
    assert [setting for setting in measured if not setting.startswith(NUM_ENVS)] == settings


def test_a_short_run_only_trains() -> None:
    config = config_from("experiment=sac_pendulum")
    overrides = list(overrides_of_short_run(config))
    short = config_from("experiment=sac_pendulum", *overrides)
    assert min(short.stop.values()) >= 10**12
    assert short.evaluation.evaluation_interval == 10**12
    assert (short.tracking.mlflow, short.checkpoint.every_iterations) == (False, None)
    assert replace(short.learners, compile=config.learners.compile) == config.learners
    assert short.algorithm.min_sample_timesteps_per_iteration == 250
    assert upper_quartile([1.0, 5.0, 2.0, 3.0, 4.0]) == 4.0


def test_the_command_of_the_faster_settings_has_the_folder(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_: ShortRuns, overrides: Sequence[str], limit_s: float) -> float:
        return 2000.0 if f"{THREADS}=2" in overrides else 1000.0

    monkeypatch.setattr(ShortRuns, "measure", measure)
    (tmp_path / "my conf" / "experiment").mkdir(parents=True)
    (tmp_path / "my conf" / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults: [ppo_cartpole]\n")
    ended = run_main("autotune", "mine", "-cd", "my conf")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == f"  train    runner train mine {THREADS}=2 --config-dir 'my conf'"


def test_a_temporary_folder_with_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []

    def start(command: Sequence[str], errors: Path) -> None:
        commands.append(command)
        raise NotMeasuredError

    monkeypatch.setattr("runner.cli.short_runs._started", start)
    folder = tmp_path / "my (own), 'folder'"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(NotMeasuredError):
        ShortRuns(None, 1.0, math.inf).measure(["experiment=ppo_cartpole"], 1.0)
    run_dir = override_value(commands[0][-1])
    assert Path(run_dir).parent.parent == folder


@pytest.mark.slow
def test_a_faster_experiment_is_written(run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    file = tmp_path / "conf" / "experiment" / "fast.yaml"
    given = [*QUICK[:-1], "algorithm.num_epochs=1", f"{MODE}=sync", SLOW_STEPS % 0.01]
    ended = run_main("autotune", "ppo_cartpole", *given, "-o", str(file), "--json", "--seconds", "600")
    assert ended.code == 0, ended.err
    shown = json.loads(ended.out)
    assert shown["kept"][MODE] == "async", shown
    assert shown["gain"] > 1.5
    assert shown["file"] == str(file)
    content = yaml.safe_load(file.read_text())
    assert content["defaults"] == ["ppo_cartpole"]
    assert content["env_runners"]["gym_env_vectorize_mode"] == "async"
    assert {"tracking", "offline", "checkpoint"}.isdisjoint(content)
    assert content["stop"] == {"env_runners/episode_return_mean": 1000}
    assert "measuring current settings" in ended.err
    assert run_main("validate", "fast", "--config-dir", "conf").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"conf"}


@pytest.mark.slow
def test_an_interruption_leaves_nothing(
    start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start_main("autotune", "ppo_cartpole", "-o", "conf/experiment/fast.yaml")
    wait_until(lambda: list(tmp_path.glob("runner_autotune_*/run/progress.jsonl")) != [], process)
    [run] = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130
    assert not run.is_running()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ppo_cartpol"], "did you mean  ppo_cartpole"),
        (["ppo_cartpole", "algorithm.gama=1"], "unknown key algorithm.gama"),
        (["ppo_cartpole", "--seconds", "5"], "--seconds is not valid\n   got           5"),
        (["ppo_external_cartpole"], "autotune does not support external simulators"),
        (["bc_cartpole", "offline.input_=data"], "this experiment learns from recorded data"),
        (["ppo_cartpole", "-o", "fast.yaml"], "an experiment must be a YAML file in a folder named experiment"),
        (["ppo_cartpole", "-o", "file/experiment/fast.yaml"], "the file cannot be written: "),
        (["ppo_cartpole", "-o", "experiment/fast.yaml"], "the file already exists"),
        (["mine", "-cd", ".", "-o", "experiment/mine.yaml", "--force"], "the experiment would build on itself"),
        (["mine", "-cd", ".", "-o", "conf/experiment/fast.yaml"], "cannot build on one in another folder"),
        (["ppo_cartpole", "~algorithm.grad_clip", "-o", "conf/experiment/f.yaml"], "file cannot remove a key"),
    ],
)
def test_mistakes(arguments: list[str], told: str, run_main: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "fast.yaml").write_text("# @package _global_\n")
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults: [ppo_cartpole]\n")
    (tmp_path / "data").mkdir()
    ended = run_main("autotune", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert not (tmp_path / "conf").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "code", "told"),
    [
        ([SLOW_STEPS % 1], 2, "the experiment is too slow for the time limit"),
        (FAULTY, 1, "the experiment cannot be measured: "),
    ],
)
def test_experiments_without_a_speed(
    overrides: list[str], code: int, told: str, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ended = run_main("autotune", "ppo_cartpole", *QUICK, *overrides, "--seconds", "10" if code == 2 else "600")
    assert (ended.code, told in ended.err) == (code, True), ended.err
    assert ("the arm has left its rail" in ended.err) == (code == 1)
