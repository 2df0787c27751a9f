"""The trials of a sweep, in an append-only file of one process that survives a kill."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from runner.checkpoints.trust import UntrustedError, find_links
from runner.config.documents import parse_json
from runner.config.errors import Problem, RunFailure, UserError, show_value
from runner.config.paths import check_folder
from runner.config.required_trust import TrustRequirement
from runner.config.signatures import foreign_reason, signed
from runner.locks import owner_of
from runner.sweep.space import Combination, SearchSpace, combination_key, difference, override_text, value_text
from runner.tracking.plain_values import finite_number, json_value
from runner.tracking.progress_log import ProgressLog, write_result
from runner.tracking.series import Follow, follow_columns

Status = Literal["waiting", "running", "interrupted", "finished", "stopped", "failed"]

FOLDER_FILE = "sweep.json"
_TRIALS_FILE, _MUTATIONS_FILE = "trials.jsonl", "mutations.jsonl"
_VERSION = 1
_KIND, _TRIAL_KIND = "sweep", "trial"


@dataclass
class Trial:
    """One run of a sweep.

    Attributes:
        number: number from 0, which is the name of its run dir.
        combination: key -> initial value, including the seed.
        status: `interrupted` can be resumed, `stopped` was ended by the scheduler, `finished` met a stop criterion.
        reason: reason why it ended.
        result: its newest metrics.
        num_failures: number of failures so far.
        changed: values that a population has changed since.
    """

    number: int
    combination: Combination
    status: Status = "waiting"
    reason: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    num_failures: int = 0
    changed: Combination = field(default_factory=dict)

    @property
    def values(self) -> Combination:
        """The current values."""
        return {**self.combination, **self.changed}

    @property
    def values_text(self) -> str:
        """Its differences from other trials, for display."""
        return " ".join(f"{key.lstrip('+')}={value_text(value)}" for key, value in self.values.items())

    @property
    def overrides(self) -> list[str]:
        """Its differences from other trials, as overrides."""
        return [override_text(key, value) for key, value in self.values.items()]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, even if the sweep is started again."""
        return self.status in ("finished", "stopped")


class SweepFolder:
    """The folder of a sweep: its definition (`sweep.json`), its trials (`trials.jsonl`), their run dirs (`0/`, ...).

    `start_in` creates or continues a sweep, `open` reads it.

    Attributes:
        path: the folder.
        experiment: name of the experiment.
        objectives: metrics that rank trials, each with `max` or `min`; the first one counts.
        searched: `SearchSpace.to_dict` of the search space.
        target: value of the first objective at which trials stop; None if it is not a stop criterion.
        arguments: command-line arguments of the sweep that all trials share and a single run accepts.
        trials: by number.
        foreign: number of a trial -> reason why its line is not trusted.
        origin: reason why the search space is not trusted, or None if this installation wrote it.
        is_trusted: whether the user trusts the sweep, whatever its origin.
    """

    def __init__(
        self, path: Path, described: Mapping[str, Any], is_new: bool = False, is_trusted: bool = False
    ) -> None:
        self.path = path
        self.is_trusted = is_trusted
        self.origin = None if is_new or is_trusted else foreign_reason(described, _KIND)
        self.foreign: dict[int, str] = {}
        self._to_describe = dict(described) if is_new else None
        self.experiment = str(described["experiment"])
        self.objectives: dict[str, str] = dict(described["objectives"])
        self.target: float | None = described.get("target")
        self.searched: dict[str, Any] = dict(described["searched"])
        self.arguments: list[str] = list(described.get("arguments", self.searched["overrides"]))
        self._log = ProgressLog(path / _TRIALS_FILE)
        self._mutations_log = ProgressLog(path / _MUTATIONS_FILE)
        self.trials = self._read()

    @classmethod
    def open(cls, path: Path, is_trusted: bool = False, follow: Follow = follow_columns) -> SweepFolder:
        """Return the sweep in a folder, in its current state.

        Args:
            path: the folder.
            is_trusted: whether the user trusts it, regardless of its origin.
            follow: replaces `follow_columns`.

        Raises:
            UserError: there is no sweep, or it cannot be read.
        """
        expected = "the folder of a sweep: outputs/EXPERIMENT/sweeps/NAME"
        check_folder(path, expected)
        if not (path / FOLDER_FILE).is_file():
            raise UserError(Problem(f"the folder does not contain {FOLDER_FILE}", str(path), expected=expected))
        folder = cls(path, _read_json(path / FOLDER_FILE), is_trusted=is_trusted)
        folder._catch_up(follow, is_running=owner_of(path) is not None)
        return folder

    @classmethod
    def start_in(
        cls,
        path: Path,
        experiment: str,
        objectives: Mapping[str, str],
        searched: Mapping[str, Any],
        may_change: bool,
        arguments: Sequence[str] = (),
        is_trusted: bool = False,
        target: float | None = None,
    ) -> SweepFolder:
        """Return the folder of a new or continued sweep; a new one is written with its first trial.

        Args:
            path: the folder.
            experiment, objectives, searched, arguments, target: see the attributes.
            may_change: whether to continue a sweep with another search space.
            is_trusted: whether the user trusts an existing sweep, regardless of its origin.

        Raises:
            UserError: the folder cannot be written, or holds something else.
        """
        file = path / FOLDER_FILE
        described = {
            "version": _VERSION,
            "experiment": experiment,
            "objectives": dict(objectives),
            "target": target,
            "searched": dict(searched),
            "arguments": list(arguments),
        }
        try:
            path.mkdir(parents=True, exist_ok=True)
            if file.exists():
                _check_same(path, _read_json(file)["searched"], searched, may_change)
            else:
                _check_empty(path)
            folder = cls(path, described, is_new=True, is_trusted=is_trusted)
        except OSError as error:
            raise UserError(f"the sweep's folder cannot be used: {error}") from error
        folder._catch_up(follow_columns, is_running=False)
        return folder

    def _read(self) -> list[Trial]:
        """Return the trials in their newest state."""
        trials: dict[int, Trial] = {}
        for number, read in enumerate(self._log.read()):
            fault = _find_fault(read)
            if fault is not None:
                what = f"this line is not a valid trial: {fault}"
                raise UserError(Problem(what, f"{self._log.path}:{number + 1}"))
            trial = trials.setdefault(read["number"], Trial(read["number"], {}))
            for name in ("combination", "status", "reason", "result", "num_failures", "changed"):
                setattr(trial, name, read.get(name, getattr(trial, name)))
            reason = None if self.is_trusted else foreign_reason(read, _TRIAL_KIND)
            if reason is not None:
                self.foreign[trial.number] = reason
        return [trials[number] for number in sorted(trials)]

    def _catch_up(self, follow: Follow, is_running: bool) -> None:
        """Read the progress of unfinished trials from their files; if no process runs, they have been killed."""
        for trial in unfinished(self.trials):
            columns = follow(self.run_dir(trial), ())
            columns.read()
            trial.result |= columns.newest
            if trial.status == "running" and not is_running:
                trial.status = "interrupted"

    def trial(self, number: int) -> Trial:
        """Return the trial with this number."""
        return next(trial for trial in self.trials if trial.number == number)

    def add(self, combination: Combination) -> Trial:
        """Return a new trial, which is recorded before it runs."""
        trial = Trial(max((trial.number for trial in self.trials), default=-1) + 1, combination)
        self.trials.append(trial)
        self.write(trial)
        return trial

    def write(self, trial: Trial) -> None:
        """Record the new state of a trial.

        Raises:
            RunFailure: the file system rejects the write.
        """
        with self._writing():
            if self._to_describe is not None:
                write_result(self.path / FOLDER_FILE, signed(self._to_describe, _KIND))
                self._to_describe = None
            _append(self._log, dataclasses.asdict(trial), _TRIAL_KIND)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            fix = "free some space, or make it writable; then run the same command again"
            got = f"{type(error).__name__}: {error}"
            raise RunFailure(Problem("the sweep's folder cannot be written", str(self.path), got, fix=fix)) from error

    def mutations(self) -> list[dict[str, Any]]:
        """Return the rows of `mutate`, oldest first."""
        return self._mutations_log.read()

    def mutate(self, trial: Trial, donor: int, values: Combination, at: Mapping[str, Any]) -> dict[str, Any]:
        """Record that a trial continues from the state of another one, with other values.

        Args:
            trial: the trial, still with its old values.
            donor: number of the trial to continue from.
            values: new values of the trial.
            at: progress of the donor, by name.

        Returns:
            The row of `mutations`.
        """
        changed = {key: value for key, value in values.items() if trial.values[key] != value}
        before = {key: trial.values[key] for key in changed}
        row = {"trial": trial.number, "donor": donor, **at, "before": before, "after": changed}
        with self._writing():
            _append(self._mutations_log, row, "mutation")
        trial.changed = {**trial.changed, **changed}
        self.write(trial)
        return row

    def run_dir(self, trial: Trial) -> Path:
        """Return the run dir of a trial."""
        return self.path / str(trial.number)


def _append(log: ProgressLog, row: Mapping[str, Any], kind: str) -> None:
    """Append a line with the time and a signature; close the file, because lines are rare."""
    log.append(signed({name: json_value(value) for name, value in {**row, "time": time.time()}.items()}, kind))
    log.close()


def _check_empty(path: Path) -> None:
    others = sorted(found.name for found in path.iterdir() if not found.name.startswith("."))
    if others:
        what, got = "the folder holds files that are not a sweep", ", ".join(others[:3])
        raise UserError(Problem(what, str(path), got, fix="another sweep.name or hydra.sweep.dir"))


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_change: bool) -> None:
    changes = difference(before, now)
    if changes and not may_change:
        fix = "the same overrides, sweep.on_change=extend to add to the sweep, or another sweep.name"
        raise UserError(Problem("the folder holds a different sweep", str(path), "\n".join(changes), fix=fix))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_bytes())
        if content["version"] != _VERSION or not isinstance(content["searched"]["overrides"], list):
            raise ValueError(f"its version is {content['version']}, expected {_VERSION}")
        if not content["objectives"] or not set(content["objectives"].values()) <= {"max", "min"}:
            raise ValueError("its objectives are not metrics with max or min")
        if content.get("target") is not None and finite_number(content["target"]) is None:
            raise ValueError("its target is not a number")
        if not isinstance(content["experiment"], str) or not isinstance(content["searched"]["space"], dict):
            raise ValueError("it does not have a name or a search space")
        if not all(isinstance(text, str) for text in content["searched"]["overrides"]):
            raise ValueError("its overrides are not strings")
        if not all(isinstance(text, str) for text in content.get("arguments", [])):
            raise ValueError("its arguments are not strings")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(Problem(f"the sweep cannot be read: {error}", str(file), fix="another sweep.name")) from error
    return dict(content)


def unfinished(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that are resumed when the sweep is started again."""
    return [trial for trial in trials if not trial.is_over]


def is_complete(folder: SweepFolder, space: SearchSpace, num_samples: int | None) -> bool:
    """Return whether all trials of `num_samples` combinations, or of the grid if None, are over."""
    if unfinished(folder.trials) or len(folder.trials) < space.num_trials(num_samples):
        return False
    known = {combination_key(trial.combination) for trial in folder.trials}
    grid = space.grid() if num_samples is None else ()
    return all(combination_key(seeded) in known for combination in grid for seeded in space.with_seeds(combination))


def pareto_front(trials: Sequence[Trial], objectives: Mapping[str, str]) -> list[Trial]:
    """Return trials that no other trial dominates by being as good in every objective and better in one.

    Trials keep their order. Trials without a finite number for every objective are left out.
    """
    points: list[tuple[Trial, tuple[float, ...]]] = []
    for trial in trials:
        values = [finite_number(trial.result.get(metric)) for metric in objectives]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            gains = zip(known, objectives.values(), strict=True)
            points.append((trial, tuple(value if mode == "max" else -value for value, mode in gains)))
    reached = {point for _, point in points}
    return [trial for trial, point in points if not any(_dominates(other, point) for other in reached)]


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def _find_fault(line: Mapping[str, Any]) -> str | None:
    """Return the fault of a line, or None if it describes a trial. Its number names a folder."""
    number = line.get("number")
    if not _is_count(number):
        return f"its number is {number!r:.60}"
    if line.get("status", "waiting") not in get_args(Status):
        return f"its status is {line['status']!r:.60}"
    for name in ("combination", "changed"):
        values = line.get(name, {})
        if not isinstance(values, Mapping) or not all(
            isinstance(value, (str, int, float)) for value in values.values()
        ):
            return f"its {name} is {values!r:.60}"
    if not isinstance(line.get("result", {}), Mapping):
        return f"its result is {line['result']!r:.60}"
    if not _is_count(line.get("num_failures", 0)) or not isinstance(line.get("reason", ""), str):
        return "its failures are not counted"
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_trials(space: SearchSpace, folder: SweepFolder) -> None:
    """Raise `UntrustedError` for untrusted values that are not searched, and for symbolic links."""
    requirements = []
    for trial in folder.trials:
        for key, value in trial.values.items() if trial.number in folder.foreign else ():
            if not space.holds(key, value):
                requirements.append(TrustRequirement("sets", f"trial {trial.number}: {key}", show_value(value)))
    reasons = [reason for reason in (folder.origin, *folder.foreign.values()) if reason is not None]
    requirements += find_links(folder.path) if reasons else []
    if requirements:
        reason = reasons[0]
        raise UntrustedError("this sweep", folder.path, reason, requirements)
