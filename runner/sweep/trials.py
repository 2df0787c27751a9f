"""What has become of each trial, in a file that one process appends to and that survives its kill."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runner.config.errors import Problem, RunFailure, UserError
from runner.sweep.space import Combination, difference, override_text
from runner.tracking import write_result

Status = Literal["waiting", "running", "interrupted", "finished", "stopped", "failed"]

FOLDER_FILE = "sweep.json"
_TRIALS_FILE = "trials.jsonl"
_VERSION = 1


@dataclass
class Trial:
    """One run of a sweep.

    Attributes:
        number: from 0; the name of its run dir.
        combination: its values by key, the seed among them.
        status: `interrupted` goes on, `stopped` was ended by the scheduler, `finished` met a stop criterion.
        reason: why it ended.
        result: its last metrics.
        num_failures: how often it has failed.
    """

    number: int
    combination: Combination
    status: Status = "waiting"
    reason: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    num_failures: int = 0

    @property
    def overrides(self) -> list[str]:
        """What it differs in, as on the command line."""
        return [override_text(key, value) for key, value in self.combination.items()]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, also when the sweep is started again."""
        return self.status in ("finished", "stopped")


class SweepFolder:
    """The folder of a sweep: what it searches (`sweep.json`), its trials (`trials.jsonl`), their run dirs.

    Args:
        path: the folder; made if it is not there.
        space: what is searched, as plain values.

    Raises:
        UserError: it cannot be written, or holds something else.
    """

    def __init__(self, path: Path, space: Mapping[str, Any], may_change: bool) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._take_possession(space, may_change)
            self.trials = self._read()
            (path / _TRIALS_FILE).touch()
        except OSError as error:
            raise UserError(f"the sweep's folder cannot be used: {error}") from error

    def _take_possession(self, space: Mapping[str, Any], may_change: bool) -> None:
        file = self.path / FOLDER_FILE
        if not file.exists():
            others = sorted(own.name for own in self.path.iterdir() if not own.name.startswith("."))
            if others:
                raise UserError(
                    f"{self.path} holds something else ({', '.join(others[:3])}), no sweep\n"
                    "   allowed  an empty folder or that of a sweep: sweep.name=NAME or hydra.sweep.dir=DIR"
                )
        else:
            before = _read_json(file)
            changes = difference(before["searched"], space)
            if changes and not may_change:
                listed = "\n".join(f"            {line}" for line in changes)
                raise UserError(
                    f"{self.path} holds a sweep of something else; it differs in\n{listed}\n"
                    "   allowed  the same overrides, sweep.on_change=extend to add to it, or another sweep.name"
                )
            if not changes:
                return
        write_result(file, {"version": _VERSION, "searched": dict(space)})

    def _read(self) -> list[Trial]:
        """The trials of an earlier start; what ran then is interrupted."""
        file = self.path / _TRIALS_FILE
        trials: dict[int, Trial] = {}
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        for number, line in enumerate(lines):
            if not line.endswith("\n"):  # killed in the middle of it
                file.write_text("".join(lines[:number]), encoding="utf-8")
                break
            try:
                read = json.loads(line)
                trial = trials.setdefault(read["number"], Trial(read["number"], {}))
                for name in ("combination", "status", "reason", "result", "num_failures"):
                    setattr(trial, name, read.get(name, getattr(trial, name)))
            except (ValueError, KeyError, TypeError) as error:
                problem = Problem("this line is no trial", f"{file}:{number + 1}", str(error))
                raise RunFailure(problem) from error
        for trial in trials.values():
            if trial.status == "running":
                trial.status = "interrupted"
        return [trials[number] for number in sorted(trials)]

    def add(self, combination: Combination) -> Trial:
        """A new trial."""
        trial = Trial(len(self.trials), combination)
        self.trials.append(trial)
        return trial

    def write(self, trial: Trial) -> None:
        """Write down what has become of a trial."""
        with (self.path / _TRIALS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**dataclasses.asdict(trial), "time": time.time()}) + "\n")

    def run_dir(self, trial: Trial) -> Path:
        """Where a trial writes."""
        return self.path / str(trial.number)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["version"] != _VERSION or not isinstance(content["searched"]["overrides"], list):
            raise ValueError(f"version {content['version']}, not {_VERSION}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read: {error}\n   allowed  another sweep.name") from error
    return dict(content)


def unfinished(trials: Sequence[Trial]) -> list[Trial]:
    """Those that go on when the sweep is started again."""
    return [trial for trial in trials if not trial.is_over]


def best_first(trials: Sequence[Trial], objectives: Mapping[str, str]) -> list[Trial]:
    """Trials by the first objective; those without a value last."""
    metric, mode = next(iter(objectives.items()))
    sign = -1 if mode == "max" else 1

    def rank(trial: Trial) -> tuple[bool, float, int]:
        value = trial.result.get(metric)
        return value is None, 0.0 if value is None else sign * value, trial.number

    return sorted(trials, key=rank)
