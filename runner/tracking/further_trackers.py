"""Trackers beside MLflow (`tracking.extra_trackers`): TensorBoard, Weights & Biases, and a CSV table.

Each gets the result of every iteration. One that fails is told once, and the run goes on without it.
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
from runner.tracking.plain_values import TENSORBOARD_NAMES, escaped_name
from runner.tracking.progress_log import ProgressLog, write_result

Result = Mapping[str, float | int | None]
_KIND = "wandb run"
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Tracker(Protocol):
    """Gets the results of a run."""

    def log(self, result: Result) -> None:
        """Take the result of an iteration, which is in progress.jsonl already."""

    def close(self) -> None:
        """Write what is left."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers name it.

    Attributes:
        run_dir: its folder.
        experiment: its name.
        name: of this run.
        parameters: its configuration, by dotted key.
        num_env_steps: after which it begins or goes on.
        is_own: what its folder says is followed; false for a run of somebody else.
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
        names: of the trackers.
        run: what they record.
        warn: gets a line where one fails.

    Raises:
        UserError: the package of one is not installed, or it does not start.
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
        """Give the result of an iteration to all."""
        self._each(lambda tracker: tracker.log(result))

    def close(self) -> None:
        """Close all."""
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # of others' code; a run does not end because a tracker does
                del self._trackers[name]
                self._warn(f"tracking.extra_trackers: {name} has failed, the run goes on without it: {error}")


def _started(name: str, run: TrackedRun) -> Tracker:
    try:
        return _TRACKERS[name](run)
    except ImportError as error:
        what, expected = (
            f"tracking.extra_trackers: {name} needs a package that is not installed",
            f"pip install {_PACKAGES[name]}",
        )
        raise UserError(Problem(what, got=str(error), expected=expected).render_alone()) from error
    except Exception as error:  # no login, no network, ...
        what = f"tracking.extra_trackers: {name} does not start: {type(error).__name__}: {error}"
        raise UserError(Problem(what).render_alone()) from error


class _TensorBoard:
    """Event files in `tensorboard/`, over env steps."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        start = run.num_env_steps
        # A file is named after the second that it is made in; a run may be resumed within it.
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
    """`progress.csv`: what progress.jsonl has, as a table; written anew where an iteration brings a new metric."""

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
    """A run of Weights & Biases, which goes on when the run is resumed; WANDB_MODE=offline needs no network."""

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
    """Return the id that the run has had, which only this installation may say, else a new one, and keep it."""
    if file.exists():
        content = parse_json(read_regular(file))
        if isinstance(content, dict) and (is_own and foreign_reason(content, _KIND) is None):
            return str(content["id"])
    id_ = uuid.uuid4().hex[:8]
    write_result(file, signed({"id": id_}, _KIND))
    return id_


_TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "csv": _Csv,
}
