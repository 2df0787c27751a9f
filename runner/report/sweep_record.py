"""What is known of a sweep: its trials with their curves, how long it took, what its population changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.errors import Problem, UserError
from runner.locks import owner_of
from runner.sweep.ranking import Ranking, rank_folder
from runner.sweep.space import SEED, Value
from runner.sweep.trials import SweepFolder, Trial
from runner.tracking.growing_columns import Column
from runner.tracking.headline import TOTAL_S
from runner.tracking.plain_values import finite_number
from runner.tracking.progress_log import ProgressLog
from runner.tracking.series import read_columns

_TRIALS_FILE = "trials.jsonl"


@dataclass(frozen=True)
class Mutation:
    """A trial of a population that went on from another one with other values."""

    trial: int
    donor: int
    num_env_steps: int
    before: Mapping[str, Value]
    after: Mapping[str, Value]


@dataclass(frozen=True)
class SweepRecord:
    """A sweep as it stands.

    Attributes:
        path: its folder.
        experiment, objectives, searched, arguments: as of `SweepFolder`.
        ranking: its trials, best first; unfinished ones have the metrics of their last iteration.
        columns: of each trial by number: the objectives, env steps and iterations.
        keys: what is searched, without the seed.
        duration_s: from the start of the first trial to the last change of one.
        mutations: in their order.
        is_running: whether a process has it.
    """

    path: Path
    experiment: str
    objectives: Mapping[str, str]
    searched: Mapping[str, Any]
    arguments: list[str]
    ranking: Ranking
    columns: Mapping[int, Mapping[str, Column]]
    keys: list[str]
    duration_s: float
    mutations: list[Mutation]
    is_running: bool = False

    def run_dir(self, trial: Trial) -> Path:
        """Return where a trial writes."""
        return self.path / str(trial.number)

    @property
    def metric(self) -> str:
        """The objective that counts."""
        return next(iter(self.objectives))

    @property
    def mode(self) -> str:
        """Whether its highest or lowest value is best: max or min."""
        return self.objectives[self.metric]

    @property
    def trials(self) -> list[Trial]:
        """All trials, best first."""
        return self.ranking.trials

    @property
    def best(self) -> Trial | None:
        """The best trial; None while no trial has a value."""
        return self.ranking.best

    def mutations_of(self, trial: Trial) -> list[Mutation]:
        """Return what it went on with, in order."""
        return [mutation for mutation in self.mutations if mutation.trial == trial.number]


def read_sweep(
    folder: SweepFolder, columns_of: Callable[[Path, Sequence[str]], Mapping[str, Column]] = read_columns
) -> SweepRecord:
    """Return everything that a page of it shows.

    Args:
        folder: of the sweep.
        columns_of: gives `read_columns` of a run dir.
    """
    trials, metrics = folder.trials, [*folder.objectives, TOTAL_S]
    columns = {trial.number: columns_of(folder.run_dir(trial), metrics) for trial in trials}
    keys = dict.fromkeys([*folder.searched["space"], *(key for trial in trials for key in trial.combination)])
    known = (finite_number(line.get("time")) for line in ProgressLog(folder.path / _TRIALS_FILE).read())
    times = [time for time in known if time is not None]
    return SweepRecord(
        path=folder.path,
        experiment=folder.experiment,
        objectives=folder.objectives,
        searched=folder.searched,
        arguments=folder.arguments,
        ranking=rank_folder(folder),
        columns=columns,
        keys=[key for key in keys if key != SEED],
        duration_s=max(times, default=0.0) - min(times, default=0.0),
        mutations=[_mutation(row, folder.path) for row in folder.mutations()],
        is_running=owner_of(folder.path) is not None,
    )


def _mutation(row: Mapping[str, Any], path: Path) -> Mutation:
    try:
        return Mutation(
            trial=int(row["trial"]),
            donor=int(row["donor"]),
            num_env_steps=int(row["num_env_steps"]),
            before=dict(row["before"]),
            after=dict(row["after"]),
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        problem = Problem(f"a line of mutations.jsonl is no mutation: {type(error).__name__} {error!s:.100}", str(path))
        raise UserError(problem.render_alone()) from error


def total(record: SweepRecord, metric: str) -> float:
    """Return the sum over trials; trials that do not know it count nothing."""
    return sum(float(trial.result.get(metric) or 0.0) for trial in record.trials)
