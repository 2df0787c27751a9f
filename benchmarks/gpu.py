"""Measure runner on a machine with a GPU within a number of minutes: `python benchmarks/gpu.py --minutes 12`.

Parts run in order of value, each with a share of the time that is left. A part that no longer fits is skipped.
`benchmarks/results/gpu.json` is written after each part and every few seconds during it, so that nothing is lost if the
machine is taken away. The tables are in `benchmarks/results/gpu.md`.

Set-up on a machine that has only this repository and Python 3.11. PyPI's wheel of torch includes CUDA, and
`constraints.txt` pins its version:

    python3 -m venv .venv
    .venv/bin/pip install --constraint constraints.txt --editable '.[test]'
    .venv/bin/python -c 'import torch; print(torch.__version__, torch.cuda.is_available())'
    .venv/bin/python benchmarks/gpu.py --minutes 12

`--device cpu --small --minutes 4` tries the script on a machine without a GPU; its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_common as bc
import torch

from runner.durable_files import write_atomically
from runner.zoo_runs import ENV_STEPS, RETURN, SECONDS

RESULTS = bc.ROOT / "benchmarks" / "results"
RESULT, PAGE = RESULTS / "gpu.json", RESULTS / "gpu.md"
CPU, CUDA = "cpu", "cuda"
GRADIENT_STEPS = "num_gradient_steps_lifetime"
ATARI_GOAL, ATARI_RETURN = 13_600, 400  # env steps/s: twice LeanRL's on an H100
POLL_S, WRITE_EVERY_S, STOP_S = 1.0, 10.0, 20.0
NUM_POINTS = 20  # of a curve
Result = dict[str, Any]
Report = Callable[[Result], None]

COMMON = ("tracking=none", "evaluation.evaluation_interval=null", "checkpoint.every_iterations=null")
# An update for each env step, on the environment of the published figures.
HALF_CHEETAH = (
    *("env=half_cheetah", "module.fcnet_hiddens=[256,256]", "algorithm.min_sample_timesteps_per_iteration=500"),
    "algorithm.num_steps_sampled_before_learning_starts=1000",
)
ENDLESS = ("~stop.evaluation/env_runners/episode_return_mean", f"stop.{ENV_STEPS}=100000000")
SMALL_IMAGES = ("module.conv_filters=[[4,8,4],[4,4,2]]", "module.fcnet_hiddens=[8]")


@dataclass(frozen=True)
class Place:
    """The machine of a session.

    Attributes:
        device: cpu or cuda.
        is_small: whether to try the script with small networks.
        folder: for run dirs and logs.
    """

    device: str
    is_small: bool
    folder: Path

    @property
    def learner(self) -> list[str]:
        """Overrides of the learner. It does not reserve its GPU in Ray, because env runners use the same GPU."""
        is_compiled = str(not self.is_small).lower()
        return [
            f"learners.device={self.device}",
            "learners.num_gpus_per_learner=0",
            f"learners.compile={is_compiled}",
            *COMMON,
        ]


@dataclass(frozen=True)
class Part:
    """A measurement.

    Attributes:
        name: key of the result.
        title: on the page.
        least_s: time below which it is skipped.
        share: of the time, relative to the shares of the later parts.
        measure: runs for a number of seconds and reports results, the last one in the end.
        reference: figure to compare with, or an empty text.
    """

    name: str
    title: str
    least_s: float
    share: float
    measure: Callable[[Place, float, Report], None]
    reference: str = ""


def budget_of(parts: Sequence[Part], left_s: float) -> float | None:
    """Return the seconds for the first of the remaining parts, or None if it no longer fits."""
    if left_s < parts[0].least_s:
        return None
    share = parts[0].share / sum(part.share for part in parts)
    return min(left_s, max(parts[0].least_s, share * left_s))


# -- training runs -----------------------------------------------------------------------------------------------------


def train(place: Place, name: str, command: Sequence[str], budget_s: float, report: Report, result_of: Any) -> None:
    """Train in another process, until it ends or the time is over.

    Args:
        name: of the run dir.
        command: experiment and overrides.
        budget_s: time for all, with the start and the end of the process.
        result_of: function of the lines of progress.jsonl that returns the result to report.
    """
    run_dir = place.folder / name
    arguments = [sys.executable, "-m", "runner", "train", *command, "--quiet", f"hydra.run.dir={run_dir}"]

    def show(status: str) -> None:
        report({"status": status, "command": " ".join(command), **result_of(lines_of(run_dir))})

    code, log = run_until(arguments, place.folder / f"{name}.log", budget_s, lambda: show("running"))
    if code in (0, None) and lines_of(run_dir):
        show("measured")
    else:
        status = "failed" if code else "too slow"
        report({"status": status, "command": " ".join(command), "log": log[-2000:]})


def run_until(
    arguments: Sequence[str], log: Path, budget_s: float, on_time: Callable[[], None]
) -> tuple[int | None, str]:
    """Run a process, and interrupt it near the end of the time.

    Args:
        on_time: called every few seconds.

    Returns:
        Exit code, or None if it was interrupted; and its output.
    """
    started = written = time.monotonic()
    is_interrupted = False
    path = os.pathsep.join(filter(None, [str(bc.ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "RAY_worker_niceness": "0"}
    with log.open("w") as output:
        process = subprocess.Popen(
            arguments, cwd=bc.ROOT, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **variables}
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                now = time.monotonic()
                if now - written >= WRITE_EVERY_S:
                    written = now
                    on_time()
                if not is_interrupted and now - started >= budget_s - min(STOP_S, budget_s / 5):
                    is_interrupted = True
                    process.send_signal(signal.SIGINT)
                if now - started >= budget_s:
                    break
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return None if is_interrupted else process.returncode, log.read_text(errors="replace")


def lines_of(run_dir: Path) -> list[Result]:
    """Return the complete lines of progress.jsonl."""
    path = run_dir / "progress.jsonl"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def rate_of(lines: Sequence[Mapping[str, Any]], counter: str) -> float | None:
    """Return the increase of a counter per second in the second half of the time, or None without two lines in it.

    The first half excludes compilation and the env steps before learning.
    """
    late = [line for line in lines if line[SECONDS] >= lines[-1][SECONDS] / 2 and line.get(counter) is not None]
    if len(late) < 2 or late[-1][SECONDS] == late[0][SECONDS]:
        return None
    return float(f"{(late[-1][counter] - late[0][counter]) / (late[-1][SECONDS] - late[0][SECONDS]):.6g}")


def curve_of(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return at most `NUM_POINTS` points: env steps, seconds, mean return of training episodes."""
    points = [[line[ENV_STEPS], round(line[SECONDS], 1), round(line[RETURN], 2)] for line in lines if line.get(RETURN)]
    step = -(-len(points) // NUM_POINTS)
    return points[::-1][::step][::-1] if points else []


# -- parts -------------------------------------------------------------------------------------------------------------


def atari_command(place: Place, budget_s: float) -> list[str]:
    """Return the experiment with many sub-environments, which act on the GPU in two processes.

    Minibatches are four times as large as in the experiment, and the learning rate is twice as large. It decreases to a
    tenth within the env steps that the goal allows.
    """
    if place.is_small:
        sizes = ["env_runners.num_env_runners=1", "env_runners.num_envs_per_env_runner=4", *SMALL_IMAGES]
        batches = ["algorithm.train_batch_size_per_learner=256", "algorithm.minibatch_size=64"]
        return ["ppo_atari_breakout_gpu", *sizes, *batches, *place.learner]
    num_env_steps = int(ATARI_GOAL * max(60.0, budget_s - 60.0))
    gpu = "0.2" if place.device == CUDA else "0"
    return [
        "ppo_atari_breakout_gpu",
        "env_runners.num_env_runners=2",
        "env_runners.num_envs_per_env_runner=64",
        f"env_runners.num_gpus_per_env_runner={gpu}",
        "algorithm.train_batch_size_per_learner=8192",
        "algorithm.minibatch_size=1024",
        f"algorithm.lr=[[0,5e-4],[{num_env_steps},5e-5]]",
        *place.learner,
    ]


def measure_atari(place: Place, budget_s: float, report: Report) -> None:
    """Train PPO on Atari Breakout; report env steps/s, the curve, and the times of sampling and updates."""

    def result_of(lines: Sequence[Result]) -> Result:
        if not lines:
            return {}
        returns = [line[RETURN] for line in lines if line.get(RETURN) is not None]
        timers = {name: round(lines[-1][name], 4) for name in lines[-1] if name.startswith("timers/")}
        result = {"env_steps_per_s": rate_of(lines, ENV_STEPS), "env_steps": lines[-1][ENV_STEPS], "timers": timers}
        return result | {"best_return": max(returns, default=None), "curve": curve_of(lines)}

    train(place, "atari", atari_command(place, budget_s), budget_s, report, result_of)


def updates_part(*command: str) -> Callable[[Place, float, Report], None]:
    """Return the measurement of an experiment's updates/s."""

    def measure(place: Place, budget_s: float, report: Report) -> None:
        small = SMALL_IMAGES if "atari" in command[0] else ("module.fcnet_hiddens=[16,16]",)
        given = [*command, *(small if place.is_small else ()), *place.learner]
        train(place, command[0], given, budget_s, report, _updates_of)

    return measure


def _updates_of(lines: Sequence[Result]) -> Result:
    if not lines:
        return {}
    return {"updates_per_s": rate_of(lines, GRADIENT_STEPS), "env_steps_per_s": rate_of(lines, ENV_STEPS)}


def measure_tests(place: Place, budget_s: float, report: Report) -> None:
    """Run the tests that need a GPU, and report how many passed; tests that do not fit in the time are not counted."""
    log = place.folder / "tests.log"
    arguments = [sys.executable, "-m", "pytest", "tests/system/test_gpu.py", "-v", "-p", "no:cacheprovider"]

    def show(status: str) -> None:
        report({"status": status, **outcomes_of(log.read_text(errors="replace"))})

    code, _ = run_until(arguments, log, budget_s, lambda: show("running"))
    show("stopped" if code is None else "measured" if code in (0, 5) else "failed")


def outcomes_of(output: str) -> Result:
    """Return the numbers of outcomes in the output of `pytest -v`, and the names of failed tests."""
    lines = [line.split() for line in output.splitlines() if line.startswith("tests/") and "::" in line]
    outcomes = {word.lower(): sum(word in line for line in lines) for word in ("PASSED", "FAILED", "ERROR", "SKIPPED")}
    failures = [line[0] for line in lines if "FAILED" in line or "ERROR" in line]
    return {**outcomes, "failures": failures}


def measure_learner(place: Place, budget_s: float, report: Report) -> None:
    """Run `gpu_updates.py`, and report its tables."""
    if place.device == CPU:
        report({"status": "skipped", "why": "needs a GPU"})
        return
    log = place.folder / "gpu_updates.log"
    arguments = [sys.executable, str(bc.ROOT / "benchmarks" / "gpu_updates.py"), "--repeats", "1", "--seconds", "1"]
    code, output = run_until(arguments, log, budget_s, lambda: None)
    tables = [line for line in output.splitlines() if line.startswith("|")]
    report({"status": "measured" if code == 0 else "stopped" if code is None else "failed", "tables": tables})


SAC = updates_part("sac_hopper", *HALF_CHEETAH)
TD3 = updates_part("td3_pendulum", *HALF_CHEETAH, "algorithm.num_random_steps=1000", *ENDLESS)
DQN = updates_part(
    "dqn_atari_breakout",
    "algorithm.num_steps_sampled_before_learning_starts=2000",
    "algorithm.min_sample_timesteps_per_iteration=1000",
    "algorithm.replay_capacity=20000",
)
ATARI = f"{ATARI_GOAL:,} (twice LeanRL's PPO on an H100); a return of {ATARI_RETURN}"
PARTS = (
    Part("atari", "PPO on Atari Breakout: env steps/s", 60, 56, measure_atari, ATARI),
    Part("sac", "SAC on HalfCheetah, compiled: updates/s", 60, 10, SAC, "725 (LeanRL's SAC on an H100)"),
    Part("tests", "GPU tests", 45, 15, measure_tests),
    Part("td3", "TD3 on HalfCheetah, compiled: updates/s", 60, 9, TD3, "936 (LeanRL's TD3 on an H100)"),
    Part("dqn", "DQN on Atari Breakout, compiled: updates/s", 60, 9, DQN),
    Part("learner", "Updates and acting, see gpu_updates.py", 60, 9, measure_learner),
)


# -- results -----------------------------------------------------------------------------------------------------------


class Session:
    """Runs parts within a time, and writes their results.

    Args:
        place: the machine.
        result: file for the results as JSON, which keeps the results of parts that are not run again.
        page: file for the tables.
        total_s: time for all parts.
        clock: returns seconds.
    """

    def __init__(
        self, place: Place, result: Path, page: Path, total_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._path, self._page, self._clock = place, result, page, clock
        self._deadline = clock() + total_s
        self._result: Result = {"parts": {}}
        if result.is_file():
            self._result["parts"] = json.loads(result.read_text(encoding="utf-8"))["parts"]
        self._facts = facts_of(place)

    def run(self, parts: Sequence[Part]) -> None:
        """Run the parts that fit, in order."""
        for number, part in enumerate(parts):
            left_s = self._deadline - self._clock()
            budget_s = budget_of(parts[number:], left_s)
            if budget_s is None:
                bc.log(f"{part.name}: skipped, {left_s:.0f} s left, it needs {part.least_s:.0f} s")
                continue
            bc.log(f"{part.name}: up to {budget_s:.0f} s")
            self._run(part, budget_s)

    def _run(self, part: Part, budget_s: float) -> None:
        started = self._clock()

        def report(result: Result) -> None:
            seconds = round(self._clock() - started, 1)
            self._result["parts"][part.name] = {**result, "seconds": seconds, **self._facts}
            self.write()

        try:
            part.measure(self._place, budget_s, report)
        except Exception as error:  # the other parts still run
            report({"status": "failed", "log": f"{type(error).__name__}: {error}"})
        shown = {name: value for name, value in self._result["parts"][part.name].items() if name not in self._facts}
        bc.log(f"{part.name}: {json.dumps(shown)[:600]}")

    def write(self) -> None:
        """Write both files; a stop in between leaves complete files."""
        write_atomically(self._path, (json.dumps(self._result, indent=1) + "\n").encode())
        write_atomically(self._page, page_of(self._result).encode())


def facts_of(place: Place) -> Result:
    """Return the machine, the version of torch, and the date."""
    facts = bc.machine_facts([])
    names = [f"{facts['cores']} cores, {facts['cpu']}"]
    if place.device == CUDA:
        names.insert(0, torch.cuda.get_device_name())
    return {
        "machine": "; ".join(names) + (" (small)" if place.is_small else ""),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def page_of(result: Mapping[str, Any]) -> str:
    """Return the page: one row for each part that has a result, and the curve of Atari."""
    rows = []
    for part in PARTS:
        if (found := result["parts"].get(part.name)) is not None:
            rows.append([part.title, value_of(found), part.reference, found["machine"], found["date"]])
    lines = ["# One machine with a GPU", "", "`python benchmarks/gpu.py` writes this section.", ""]
    lines.append(bc.markdown_table(["measurement", "runner", "reference", "machine", "date"], rows))
    if curve := result["parts"].get("atari", {}).get("curve"):
        points = [[f"{steps:,}", f"{seconds:,.0f}", f"{value:,.1f}"] for steps, seconds, value in curve]
        lines += ["", "## PPO on Atari Breakout: mean return of the last 100 training episodes", ""]
        lines.append(bc.markdown_table(["env steps", "seconds", "return"], points))
    return "\n".join([*lines, ""])


def value_of(found: Mapping[str, Any]) -> str:
    """Return the cell of a result."""
    if found["status"] in ("failed", "skipped", "too slow"):
        return str(found["status"])
    if "passed" in found:
        counts = [f"{found[name]} {name}" for name in ("passed", "failed", "error", "skipped") if found[name]]
        return ", ".join(counts) or "no test ended"
    if "tables" in found:
        return str(found["status"])
    value = found.get("updates_per_s", found.get("env_steps_per_s"))
    shown = "-" if value is None else f"{value:,.0f}"
    best = found.get("best_return")
    return shown if best is None else f"{shown}; best return {best:,.1f} at {found['env_steps']:,} env steps"


def main() -> None:
    """Run the parts that fit in the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=12.0, help="time for all parts")
    parser.add_argument("--parts", nargs="*", choices=[part.name for part in PARTS], help="default: all")
    parser.add_argument("--device", choices=(CUDA, CPU), default=CUDA)
    parser.add_argument("--small", action="store_true", help="try the script; the numbers are meaningless")
    parser.add_argument("--out", type=Path, default=RESULT, help="file for the results; the page is next to it")
    parser.add_argument("--folder", type=Path, help="for run dirs and logs; default: a temporary one")
    args = parser.parse_args()
    if args.device == CUDA and not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU on this machine; try the script with --device cpu --small")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as temporary:
        place = Place(args.device, args.small, args.folder or Path(temporary))
        place.folder.mkdir(parents=True, exist_ok=True)
        session = Session(place, args.out, args.out.with_suffix(".md"), 60 * args.minutes)
        session.run([part for part in PARTS if args.parts is None or part.name in args.parts])


if __name__ == "__main__":
    main()
