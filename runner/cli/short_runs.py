"""Short runs of an experiment, each in its own process, which measure env steps per second."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.config.overrides import quoted
from runner.config.schemas import ExperimentConfig
from runner.interrupts import Interrupted, reason_to_end
from runner.tracking.progress_log import parse_line

_SPEED, _SECONDS, _UPDATES = "env_steps_per_s", "time_this_iter_s", "num_gradient_steps_lifetime"
_FEWEST_ITERATIONS = 2
_POLL_S = 0.05
_GRACE_S = 3.0  # after each request to end
_NEVER = 10**12
_LEARNING_STARTS, _ITERATION = "num_steps_sampled_before_learning_starts", "min_sample_timesteps_per_iteration"
# Off-policy runs: env steps of an iteration, and before the first update, at most.
_SHORT = {_LEARNING_STARTS: 500, _ITERATION: 250}


class NotMeasuredError(Exception):
    """A run failed, or was too slow to measure."""


class TooSlowError(NotMeasuredError):
    """A run was too slow to measure."""


@dataclass(frozen=True)
class ShortRuns:
    """Measure an experiment with different settings.

    Args:
        config_dir: folder with custom experiments and options.
        window_s: training time that is measured, without the first iteration.
        ends_s: value of `time.monotonic()` at which all runs must have ended.
    """

    config_dir: Path | None
    window_s: float
    ends_s: float

    def measure(self, overrides: Sequence[str], limit_s: float) -> float:
        """Train for a short time and return env steps per second: the upper quartile of the iterations.

        Other processes of the machine slow down some iterations, so that the fast ones are the same more often.

        Args:
            overrides: overrides of the run, including `experiment=NAME`.
            limit_s: time limit of the run, including its start.

        Raises:
            NotMeasuredError: the run failed, or did not end two iterations in time (`TooSlowError`).
            Interrupted: the command was interrupted.
        """
        folder_option = [] if self.config_dir is None else ["--config-dir", str(self.config_dir)]
        with TemporaryDirectory(prefix="runner_autotune_", ignore_cleanup_errors=True) as folder:
            run_dir, errors = Path(folder, "run"), Path(folder, "stderr")
            command = [sys.executable, "-m", "runner", "train", *folder_option, "--quiet", *overrides]
            with _started([*command, f"hydra.run.dir={quoted(str(run_dir))}"], errors) as process:
                speeds = self._wait(process, run_dir / "progress.jsonl", limit_s)
                code = process.poll()
            if not speeds and code is None:
                raise TooSlowError(f"two iterations did not end within {limit_s:.0f} s")
            if not speeds:
                raise NotMeasuredError(_last_error(errors))
        return upper_quartile(speeds)

    def _wait(self, process: subprocess.Popen[bytes], progress: Path, limit_s: float) -> list[float]:
        """Return the speeds of iterations, when there are enough, the time is over, or the run has ended."""
        ends_s = min(self.ends_s, time.monotonic() + limit_s)
        while True:
            has_ended = process.poll() is not None
            rows = _measured_rows(progress)
            is_enough = len(rows) >= _FEWEST_ITERATIONS and sum(row[_SECONDS] for row in rows) >= self.window_s
            if has_ended or is_enough or time.monotonic() >= ends_s:
                return [row[_SPEED] for row in rows]
            if (reason := reason_to_end()) is not None:
                raise Interrupted(reason)
            time.sleep(_POLL_S)


def upper_quartile(speeds: Sequence[float]) -> float:
    """Return the value that a quarter of the speeds exceed."""
    return statistics.quantiles(speeds, n=4, method="inclusive")[-1] if len(speeds) > 1 else speeds[0]


def overrides_of_short_run(config: ExperimentConfig) -> Iterator[str]:
    """Yield the overrides that leave out everything but training, and do not change its speed."""
    yield from ("tracking.mlflow=false", "tracking.extra_trackers=[]", "offline.output=null")
    yield from ("checkpoint.every_iterations=null", "checkpoint.upload_to=null", "checkpoint.save_replay_buffers=none")
    if config.evaluation.evaluation_interval is not None:
        yield f"evaluation.evaluation_interval={_NEVER}"
    yield from (f"stop.{metric}={_NEVER}" for metric in config.stop)
    if hasattr(config.algorithm, _LEARNING_STARTS):
        yield from (f"algorithm.{name}={min(getattr(config.algorithm, name), most)}" for name, most in _SHORT.items())


def _measured_rows(progress: Path) -> list[dict[str, Any]]:
    """Return the iterations after the first one with updates, in which processes start and code is compiled."""
    lines = progress.read_bytes().splitlines() if progress.is_file() else []
    rows = [row for line in lines if (row := parse_line(line)) is not None]
    updated = [row for row in rows if row.get(_UPDATES, 1) > 0]
    return updated[1:]


def _last_error(file: Path) -> str:
    """Return the first line of the last paragraph of a run's messages, without its number."""
    paragraphs = [text.strip() for text in file.read_text(errors="replace").split("\n\n") if text.strip()]
    return re.sub(r"^\d+\. ", "", paragraphs[-1].splitlines()[0]) if paragraphs else "the run ended without a message"


@contextmanager
def _started(command: Sequence[str], errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a new process group, which ends with this context."""
    nowhere = subprocess.DEVNULL
    with (
        errors.open("wb") as file,
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=file, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a run to end, twice if necessary, and then kill its process group."""
    try:
        for _ in range(2):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
