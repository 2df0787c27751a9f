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
    """The folder of a sweep: what it is (`sweep.json`), its trials (`trials.jsonl`), their run dirs (`0/`, `1/`, ...).

    `start_in` makes one or goes on with it, `open` reads it.

    Attributes:
        path: the folder.
        experiment: its name.
        objectives: metrics that trials are judged by, each with `max` or `min`; the first one counts.
        searched: `SearchSpace.to_dict` of what is searched.
        trials: by number.
    """

    def __init__(self, path: Path, described: Mapping[str, Any]) -> None:
        self.path = path
        self.experiment = str(described["experiment"])
        self.objectives: dict[str, str] = dict(described["objectives"])
        self.searched: dict[str, Any] = dict(described["searched"])
        self.trials = self._read()

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """The sweep in a folder, as it stands.

        Raises:
            UserError: there is none, or it cannot be read.
        """
        if not (path / FOLDER_FILE).is_file():
            raise UserError(f"{path} is no sweep: it has no {FOLDER_FILE}\n   allowed  the folder of a sweep (-m)")
        return cls(path, _read_json(path / FOLDER_FILE))

    @classmethod
    def start_in(
        cls, path: Path, experiment: str, objectives: Mapping[str, str], searched: Mapping[str, Any], may_change: bool
    ) -> SweepFolder:
        """The folder for a sweep that begins or goes on; made if it is not there.

        Args:
            path: the folder.
            experiment, objectives, searched: as of the attributes.
            may_change: whether a sweep that searches something else goes on as this one.

        Raises:
            UserError: it cannot be written, or holds something else.
        """
        file = path / FOLDER_FILE
        described = {
            "version": _VERSION,
            "experiment": experiment,
            "objectives": dict(objectives),
            "searched": dict(searched),
        }
        try:
            path.mkdir(parents=True, exist_ok=True)
            if file.exists():
                _check_same(path, _read_json(file)["searched"], searched, may_change)
            else:
                _check_empty(path)
            write_result(file, described)
            (path / _TRIALS_FILE).touch()
            return cls(path, described)
        except OSError as error:
            raise UserError(f"the sweep's folder cannot be used: {error}") from error

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


def _check_empty(path: Path) -> None:
    others = sorted(own.name for own in path.iterdir() if not own.name.startswith("."))
    if others:
        raise UserError(
            f"{path} holds something else ({', '.join(others[:3])}), no sweep\n"
            "   allowed  an empty folder or that of a sweep: sweep.name=NAME or hydra.sweep.dir=DIR"
        )


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_change: bool) -> None:
    changes = difference(before, now)
    if changes and not may_change:
        listed = "\n".join(f"            {line}" for line in changes)
        raise UserError(
            f"{path} holds a sweep of something else; it differs in\n{listed}\n"
            "   allowed  the same overrides, sweep.on_change=extend to add to it, or another sweep.name"
        )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["version"] != _VERSION or not isinstance(content["searched"]["overrides"], list):
            raise ValueError(f"version {content['version']}, not {_VERSION}")
        if not content["objectives"] or not set(content["objectives"].values()) <= {"max", "min"}:
            raise ValueError("its objectives are none")
        str(content["experiment"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
