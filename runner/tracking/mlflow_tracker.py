"""The trainer's side of MLflow: sends lines to a child process without waiting or raising errors."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from runner.tracking.known_run import MLFLOW_VARIABLES
from runner.tracking.plain_values import finite_number
from runner.tracking.run_info import DataSet

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

MAX_WAITING_MESSAGES = 10_000
LOG_FILE_NAME = "mlflow.log"

_LOGGER = logging.getLogger(__name__)
_REMOVED_VARIABLES = (
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_ENABLE_ASYNC_LOGGING",
)


@dataclasses.dataclass(frozen=True)
class MLflowSettings:
    """Store and description of a run. For `tracking_uri` and `artifact_location`, see `resolve_store`.

    If `run_id` is set, that run continues and keeps its name. Equal params are not logged again. Changed params become
    tags `override.<name>`, because MLflow's params cannot change. `run_file` is written with the run's id and tracking
    URI as soon as the run exists. `start_time_s` is the Unix time at which a new run began; a continued run keeps its
    start time.
    """

    tracking_uri: str
    artifact_location: str | None
    experiment_name: str
    run_name: str | None = None
    run_id: str | None = None
    start_time_s: float = dataclasses.field(default_factory=time.time)
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    artifacts: Sequence[tuple[str, str | None]] = ()  # (path, folder in the run's artifacts)
    flush_interval_s: float = 2.0
    run_file: str | None = None


class MLflowTracker:
    """Records a run and its child runs in MLflow, through a child process that may outlive the trainer.

    Problems are reported once, through `warn` in the thread that calls `log_metrics`, and by `finish` with the number
    of lost values. Details are in `run_dir`/mlflow.log. Problems of MLflow are never raised.
    """

    def __init__(
        self,
        settings: MLflowSettings,
        run_dir: str | os.PathLike[str],
        warn: Callable[[str], None] = _LOGGER.warning,
    ) -> None:
        self._settings = settings
        self._log_path = Path(run_dir) / LOG_FILE_NAME
        self._warn = warn
        self._outbox: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._run_id: str | None = settings.run_id
        self._has_answered = threading.Event()
        self._is_over = False  # whether the child has ended, or could not be started
        self._is_finished = False  # whether the child has reported that the run has its final status
        self._trouble: str | None = None
        self._losses: list[str] = []
        self._has_warned = False
        self._num_metrics = 0
        self._num_written = 0

    def start(self) -> None:
        """Start the child without waiting. It imports MLflow and creates the run, which takes seconds."""
        try:
            self._process = _start_process(self._log_path)
        except OSError as error:
            self._is_over = True
            self._trouble = f"its process could not be started: {error}"
            self._has_answered.set()
            return
        self._send("start", parent_pid=os.getpid(), **_as_message(self._settings))
        threading.Thread(target=self._send_messages, name="mlflow-send", daemon=True).start()
        self._reader = threading.Thread(target=self._read_answers, name="mlflow-read", daemon=True)
        self._reader.start()

    def describe(self, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Add params and tags to the run."""
        self._send("describe", params=dict(params), tags=dict(tags))

    def start_child(self, name: str, settings: MLflowSettings) -> None:
        """Start or continue a child run, which later calls refer to as `name`."""
        self._send("start_child", f"run {settings.run_name} was not recorded", child=name, **_as_message(settings))

    def finish_child(self, name: str, status: RunStatus) -> None:
        """End a child's run."""
        self._send("finish_child", child=name, status=status, time_s=time.time())

    def log_metrics(
        self, step: int, metrics: Mapping[str, Any], time_s: float | None = None, child: str | None = None
    ) -> None:
        """Record the finite numbers of `metrics` at env step `step` and Unix time `time_s` (None: now)."""
        numbers = ((name, finite_number(value)) for name, value in metrics.items())
        values = {name: number for name, number in numbers if number is not None}
        self._num_metrics += len(values)
        if self._trouble is not None and not self._has_warned:
            self._has_warned = True
            self._warn(f"MLflow: {self._trouble}; training continues, see {self._log_path}")
        if self._is_over or self._outbox.qsize() >= MAX_WAITING_MESSAGES:
            self._trouble = self._trouble or "its process is too slow, so metrics are dropped"
            return
        time_s = time.time() if time_s is None else time_s
        self._send("metrics", step=int(step), time_s=float(time_s), metrics=values, child=child)

    def log_artifact(
        self, path: str | os.PathLike[str], artifact_path: str | None = None, child: str | None = None
    ) -> None:
        """Store a file or folder in the run. The child reads it later, so it must not be deleted until then."""
        loss = f"artifact {os.fspath(path)} was not stored"
        self._send("artifact", loss, path=os.path.abspath(path), artifact_path=artifact_path, child=child)

    def log_data_sets(self, data_sets: Sequence[DataSet]) -> None:
        """Record the data sets that the run reads. Repeating them in a continued run is harmless."""
        if data_sets:
            described = [dataclasses.asdict(one) for one in data_sets]
            self._send("data_sets", "the data sets were not recorded", data_sets=described)

    def _send(self, kind: str, loss: str | None = None, **content: Any) -> None:
        """Queue a message; after the end of the child, note the loss instead."""
        if not self._is_over:
            self._outbox.put({"kind": kind, **content})
        elif loss is not None:
            self._losses.append(loss)

    def run_id(self, timeout_s: float = 0.0) -> str | None:
        """Return MLflow's id of the run, or None if it is unknown after `timeout_s` seconds."""
        self._has_answered.wait(timeout_s)
        return self._run_id

    def finish(self, status: RunStatus = "FINISHED", timeout_s: float = 30.0) -> str | None:
        """Write everything and end the run. Return a warning to show if data were lost, else None.

        After `timeout_s` seconds the call returns, and the child continues writing even when the trainer exits.
        """
        if self._reader is not None:
            self._send("finish", status=status, time_s=time.time())
            self._outbox.put(None)
            self._reader.join(timeout_s)
            if self._reader.is_alive():
                waited = f"still writing after {timeout_s:g} s"
                return f"MLflow: {waited}; it continues in the background, see {self._log_path}"
            self._reader = None
        return self._loss_report()

    def _loss_report(self) -> str | None:
        if self._process is None and self._trouble is None:
            return None  # never started
        problems = list(self._losses)
        num_lost = self._num_metrics - self._num_written
        if num_lost > 0:
            problems.insert(0, f"{num_lost} of {self._num_metrics} metric values were not written")
        if not self._is_finished:
            problems.append("the run does not have a final status")
        if not problems:
            return None
        cause = f" ({self._trouble})" if self._trouble else ""
        return f"MLflow: {'; '.join(problems)}{cause}; see {self._log_path}"

    def _send_messages(self) -> None:
        """Send messages in the writer thread, the only place that may wait for the child."""
        stdin = _pipe(self._process, "stdin")
        with suppress(OSError, ValueError):  # the child has ended, which _read_answers reports
            while (message := self._outbox.get()) is not None:
                stdin.write(json.dumps(message, default=str) + "\n")
                stdin.flush()
        with suppress(OSError):
            stdin.close()

    def _read_answers(self) -> None:
        """Read answers in the reader thread, which ends with the child."""
        with suppress(OSError, ValueError), _pipe(self._process, "stdout") as stdout:
            for line in stdout:
                self._take_answer(json.loads(line))
        assert self._process is not None
        exit_code = self._process.wait()
        if not self._is_finished and self._trouble is None:
            self._trouble = f"its process ended with exit code {exit_code}"
        self._is_over = True
        self._has_answered.set()
        self._outbox.put(None)

    def _take_answer(self, answer: Mapping[str, Any]) -> None:
        kind = answer["kind"]
        if kind == "run":
            self._run_id = answer["run_id"]
            self._has_answered.set()
        elif kind == "written":
            self._num_written += answer["num_metrics"]
        elif kind == "finished":
            self._is_finished = True
        elif kind == "failed":
            self._trouble = answer["text"]
        elif answer.get("is_loss"):
            self._losses.append(answer["text"])
            self._trouble = self._trouble or answer["text"]
        else:
            self._trouble = self._trouble or answer["text"]


def _as_message(settings: MLflowSettings) -> dict[str, Any]:
    artifacts = [(os.fspath(path), folder) for path, folder in settings.artifacts]
    return {**dataclasses.asdict(settings), "artifacts": artifacts}


def _start_process(log_path: Path) -> subprocess.Popen[str]:
    """Start the child in a new session, so that Ctrl-C in the terminal only reaches the trainer."""
    with _open_log(log_path) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.tracking.mlflow_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_child_environment(),
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )


def _open_log(path: Path) -> IO[Any]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError:
        return open(os.devnull, "ab")


def _child_environment() -> dict[str, str]:
    defaults = {**MLFLOW_VARIABLES, "OMP_NUM_THREADS": "1"}
    environment = defaults | {k: v for k, v in os.environ.items() if k not in _REMOVED_VARIABLES}
    root = str(Path(__file__).resolve().parents[2])
    if Path(root).name != "site-packages":  # a checkout, which -P removes from the path
        paths = [environment.get("PYTHONPATH", ""), root]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _pipe(process: subprocess.Popen[str] | None, name: str) -> IO[str]:
    pipe = getattr(process, name)
    assert pipe is not None
    return pipe  # type: ignore[no-any-return]
