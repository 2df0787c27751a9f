"""Trackers in addition to MLflow (`tracking.extra_trackers`): TensorBoard, Weights & Biases, and a CSV table.

Each receives the result of every iteration. If one fails, a warning is shown once and the run continues without it.
"""

from __future__ import annotations

import csv
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.config.documents import parse_json, read_regular
from runner.config.errors import Problem, UserError
from runner.config.signatures import foreign_reason, signed
from runner.tracking.headline import ENV_STEPS
from runner.tracking.known_run import find_original, folder_of
from runner.tracking.plain_values import TENSORBOARD_NAMES, escaped_name
from runner.tracking.progress_log import ProgressLog, write_result

Result = Mapping[str, float | int | None]
_KIND = "wandb run"
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Tracker(Protocol):
    """Receives the results of a run."""

    def log(self, result: Result) -> None:
        """Record the result of an iteration, which is already in progress.jsonl."""

    def close(self) -> None:
        """Write pending data and close the tracker."""


@dataclass(frozen=True)
class TrackedRun:
    """Description of a run for trackers.

    Attributes:
        run_dir: folder of the run.
        experiment: name of the experiment.
        name: name of the run.
        parameters: configuration by dotted key.
        num_env_steps: env steps at its start or resume.
        is_own: whether the folder is trusted. If not, ids stored in it are ignored.
    """

    run_dir: Path
    experiment: str
    name: str
    parameters: Mapping[str, Any]
    num_env_steps: int
    is_own: bool = True


class FurtherTrackers:
    """The trackers of `tracking.extra_trackers` as one.

    Args:
        names: names of the trackers.
        run: the run they record.
        warn: called with a message if one fails.

    Raises:
        UserError: a package is not installed, or a tracker cannot be started.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            try:
                self._trackers[name] = _started(name, run)
            except UserError:
                self.close()
                raise

    def log(self, result: Result) -> None:
        """Send the result of an iteration to all trackers."""
        self._each(lambda tracker: tracker.log(result))

    def close(self) -> None:
        """Close all trackers."""
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # a failing tracker must not end the run
                del self._trackers[name]
                self._warn(f"tracking.extra_trackers: {name} failed, and the run continues without it: {error}")


def _started(name: str, run: TrackedRun) -> Tracker:
    try:
        return _TRACKERS[name](run)
    except ImportError as error:
        what, fix = (
            f"tracking.extra_trackers: {name} needs a package that is not installed",
            f"pip install {_PACKAGES[name]}",
        )
        raise UserError(Problem(what, got=str(error), fix=fix)) from error
    except Exception as error:  # no login, no network, ...
        what = f"tracking.extra_trackers: {name} cannot be started: {type(error).__name__}: {error}"
        raise UserError(Problem(what)) from error


class _TensorBoard:
    """Writes event files to `tensorboard/`, over env steps."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        start = run.num_env_steps
        # Files are named by the second of their creation; a run may be resumed within the same second.
        self._writer = SummaryWriter(
            str(run.run_dir / "tensorboard"), purge_step=start + 1, filename_suffix=f".{start}"
        )
        if not start:
            lines = [f"    {name}: {value}" for name, value in run.parameters.items()]
            self._writer.add_text("configuration", "\n".join(lines), 0)

    def log(self, result: Result) -> None:
        step = int(result[ENV_STEPS] or 0)
        for name, value in result.items():
            if value is not None:
                self._writer.add_scalar(escaped_name(name, TENSORBOARD_NAMES), value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Csv:
    """Writes `progress.csv`, the table of progress.jsonl. A new metric rewrites the file with an additional column."""

    def __init__(self, run: TrackedRun) -> None:
        self._path, self._progress = run.run_dir / "progress.csv", ProgressLog(run.run_dir / "progress.jsonl")
        self._columns: list[str] = []

    def log(self, result: Result) -> None:
        if set(result) <= set(self._columns):
            with self._path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(result)
            return
        rows = self._progress.read()
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)

    def close(self) -> None:
        pass


class _Wandb:
    """A run of Weights & Biases, which a resumed run continues. WANDB_MODE=offline needs no network."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        id_ = _wandb_id(run.run_dir / "wandb_run.json", run.is_own)
        self._run: Any = wandb.init(
            project=run.experiment,
            name=run.name,
            id=id_,
            resume="allow",
            dir=str(run.run_dir),
            config=dict(run.parameters),
        )

    def log(self, result: Result) -> None:
        numbers = {name: value for name, value in result.items() if value is not None}
        self._run.log(numbers, step=int(result[ENV_STEPS] or 0))

    def close(self) -> None:
        self._run.finish()


def _wandb_id(file: Path, is_own: bool) -> str:
    """Return the stored id of the run if this installation wrote it for this folder, else create and store one."""
    if file.exists():
        content = parse_json(read_regular(file))
        is_signed = isinstance(content, dict) and is_own and foreign_reason(content, _KIND) is None
        if is_signed and find_original(file) is None:
            return str(content["id"])
    id_ = uuid.uuid4().hex[:8]
    write_result(file, signed({"id": id_, **folder_of(file)}, _KIND))
    return id_


_TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "csv": _Csv,
}
