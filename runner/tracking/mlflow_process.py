"""`python -m runner.tracking.mlflow_process`: the child process that uses MLflow, started by `MLflowTracker`.

stdin and stdout carry one JSON object per line, with its type in `kind`. A run may have child runs; their messages name
them in `child`.
In:  start (the settings), metrics (step, time_s, metrics), artifact (path, artifact_path), data_sets (data_sets),
     describe (params, tags), start_child (the settings), finish_child (status, time_s), finish (status, time_s).
Out: run (run_id), written (num_metrics), warning (text), failed (text), finished.
If stdin ends without `finish`, the trainer has died and the run ends as KILLED.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from runner.tracking.known_run import check_sqlite_writable, error_line, write_known_run

if TYPE_CHECKING:
    from runner.tracking.mlflow_writer import RunWriter

Message = Mapping[str, Any]
Inbox = queue.SimpleQueue[Message | None]  # None: end of stdin
Reply = Callable[..., None]  # kind, then the content as keywords
Runs = dict[str | None, "RunWriter"]  # children by name, their parent under None

END_PATIENCE_S = 5.0
PARENT_TAG = "mlflow.parentRunId"
NICENESS = 5
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PARENT_CHECK_INTERVAL_S = 1.0

_LOGGER = logging.getLogger(__name__)


def main() -> int:
    """Return exit code 0 if the run has its final status, 1 if MLflow could not be used."""
    answers = _take_over_stdout()
    _ignore_signals()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT)
    inbox: Inbox = queue.SimpleQueue()
    # Reading starts before MLflow is imported, so that the trainer's pipe never fills up.
    threading.Thread(target=_read_messages, args=(sys.stdin, inbox), daemon=True).start()
    settings = inbox.get()
    if settings is None:
        return 1

    def reply(kind: str, **content: Any) -> None:
        with suppress(OSError, ValueError):  # the trainer has stopped reading
            answers.write(json.dumps({"kind": kind, **content}) + "\n")
            answers.flush()

    try:
        check_sqlite_writable(settings["tracking_uri"])
        runs: Runs = {None: _open_run(settings, reply)}
    except Exception as error:
        _LOGGER.exception("the run could not be opened")
        reply("failed", text=error_line(error))
        return 1
    reply("run", run_id=runs[None].run_id)
    end = _serve(runs, inbox, reply, settings["flush_interval_s"], settings["parent_pid"])
    parent = runs.pop(None)
    for name in list(runs):
        _end_child(runs, {**end, "child": name}, reply)
    return _end_run(parent, end, reply)


def _open_run(settings: Message, reply: Reply) -> RunWriter:
    from runner.tracking.mlflow_writer import RunWriter

    writer = RunWriter(
        settings,
        report_written=lambda num_metrics: reply("written", num_metrics=num_metrics),
        warn=lambda text: reply("warning", text=text),
    )
    if settings["run_file"]:  # written here, so that even a killed trainer finds its run on resume
        write_known_run(settings["run_file"], writer.run_id, settings["tracking_uri"])
    for path, artifact_path in settings["artifacts"]:
        with _losses_reported(f"artifact {path} was not stored", reply):
            writer.log_artifact(path, artifact_path)
    return writer


def _serve(runs: Runs, inbox: Inbox, reply: Reply, interval_s: float, parent_pid: int) -> Message:
    """Handle messages until the run is over. Return its final status and end time."""
    flush_at = time.monotonic() + interval_s
    while True:
        wait_s = min(max(flush_at - time.monotonic(), 0.0), PARENT_CHECK_INTERVAL_S)
        try:
            message = inbox.get(timeout=wait_s)
        except queue.Empty:
            if os.getppid() != parent_pid:  # a fork of the trainer may hold the pipe open
                return {"status": "KILLED", "time_s": time.time()}
        else:
            if message is None:
                return {"status": "KILLED", "time_s": time.time()}
            if message["kind"] == "finish":
                return message
            _handle(message, runs, reply)
        if time.monotonic() >= flush_at:
            waiting = [writer for writer in runs.values() if not writer.flush()]
            if waiting:
                reply("warning", text=f"metrics are waiting to be written: {waiting[0].last_error}")
            flush_at = time.monotonic() + interval_s


def _handle(message: Message, runs: Runs, reply: Reply) -> None:
    if message["kind"] == "start_child":
        _start_child(runs, message, reply)
        return
    writer = runs.get(message.get("child"))
    if writer is None:  # a child that could not be opened, as already reported
        return
    if message["kind"] == "finish_child":
        _end_child(runs, message, reply)
    elif message["kind"] == "metrics":
        writer.add_metrics(message["step"], message["time_s"], message["metrics"])
    elif message["kind"] == "describe":
        with _losses_reported("params and tags were not recorded", reply):
            writer.describe(message["params"], message["tags"])
    elif message["kind"] == "artifact":
        with _losses_reported(f"artifact {message['path']} was not stored", reply):
            writer.log_artifact(message["path"], message["artifact_path"])
    elif message["kind"] == "data_sets":
        with _losses_reported("the data sets were not recorded", reply):
            writer.log_data_sets(message["data_sets"])


def _start_child(runs: Runs, message: Message, reply: Reply) -> None:
    tags = {**message["tags"], PARENT_TAG: runs[None].run_id}
    with _losses_reported(f"run {message['run_name']} was not recorded", reply):
        runs[message["child"]] = _open_run({**message, "tags": tags}, reply)


def _end_child(runs: Runs, message: Message, reply: Reply) -> None:
    with _losses_reported("a run could not be ended", reply):
        _end(runs.pop(message["child"]), message, reply)


def _end_run(writer: RunWriter, message: Message, reply: Reply) -> int:
    try:
        _end(writer, message, reply)
    except Exception as error:
        _LOGGER.exception("the run could not be ended as %s", message["status"])
        reply("failed", text=f"the run could not be ended as {message['status']}: {error_line(error)}")
        return 1
    reply("finished")
    return 0


def _end(writer: RunWriter, message: Message, reply: Reply) -> None:
    if not writer.end(message["status"], message["time_s"], END_PATIENCE_S):
        reply("warning", text=f"metrics could not be written: {writer.last_error}")


@contextmanager
def _losses_reported(what: str, reply: Reply) -> Iterator[None]:
    """Report an error within the block as a loss, and continue after it."""
    try:
        yield
    except Exception as error:
        _LOGGER.exception("%s", what)
        reply("warning", text=f"{what}: {error_line(error)}", is_loss=True)


def _read_messages(stdin: TextIO, inbox: Inbox) -> None:
    for line in stdin:
        try:
            inbox.put(json.loads(line))
        except ValueError:  # the trainer was killed in the middle of a line
            _LOGGER.warning("incomplete message of %d characters", len(line))
    inbox.put(None)


def _take_over_stdout() -> TextIO:
    """Keep the real stdout for answers. All other output goes to stderr, the run's mlflow.log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _ignore_signals() -> None:
    """Ignore signals: only the trainer ends the run, by `finish` or the end of stdin."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(NICENESS)


if __name__ == "__main__":
    code = main()
    gc.freeze()  # skips the interpreter's last collections over all modules, for which the run would wait
    sys.exit(code)
