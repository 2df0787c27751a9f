"""Tune's schedulers for `sweep.scheduler`, including population-based training.

Population-based training (Jaderberg et al., 2017, https://arxiv.org/abs/1711.09846) changes values by a fifth or draws
new ones. PB2 (Parker-Holder et al., 2020, https://arxiv.org/abs/2002.02518) chooses them with a Gaussian process.
"""

from __future__ import annotations

import logging
import math
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2

from runner.checkpoints import read_manifest
from runner.checkpoints.files import CheckpointError
from runner.checkpoints.folder import list_checkpoints
from runner.compat.ray_tune import ChosenTakeovers, rename_in_rungs
from runner.config.documents import parse_json
from runner.config.errors import Problem, UserError
from runner.config.schemas import ExperimentConfig
from runner.config.signatures import foreign_reason, signed
from runner.config.sweep import POPULATIONS
from runner.sweep.space import SEED, Choices, Combination, Domain, Interval, SearchSpace, Value
from runner.sweep.trial_settings import OBJECTIVE, RUN, TIME, Earlier, TrialSettings, clone_folder
from runner.sweep.trials import SweepFolder, Trial, unfinished
from runner.tracking.progress_log import ProgressLog, write_result


def coordinates(config: ExperimentConfig, space: SearchSpace, values: Combination) -> dict[str, Value]:
    """Return the values of a trial as coordinates for Tune's scheduler; empty if trials are not a population."""
    if config.perturbation_interval is None:
        return {}
    return to_coordinates({domain.key: domain for domain in space.mutable}, values, config.sweep.scheduler == "pb2")


def to_coordinates(domains: Mapping[str, Domain], values: Combination, are_logarithms: bool) -> dict[str, Value]:
    """Return a coordinate for each domain; `are_logarithms` is set for PB2."""
    return {key: to_coordinate(domain, values[key], are_logarithms) for key, domain in domains.items()}


def to_coordinate(domain: Domain, value: Value, are_logarithms: bool) -> Value:
    """Return numbers of intervals as floats; PB2 uses logarithms for logarithmic domains (`are_logarithms`)."""
    if isinstance(domain, Choices):
        return value
    return math.log(float(value)) if are_logarithms and domain.is_log else float(value)


def from_coordinate(domain: Domain, coordinate: Value, before: Value, are_logarithms: bool) -> Value:
    """Return a value of the domain; an integer that changes, changes by at least 1."""
    if isinstance(domain, Choices):
        return coordinate
    number = float(coordinate)
    number = math.exp(number) if are_logarithms and domain.is_log else number
    change = number - float(before)
    if domain.is_integer and 1e-6 < abs(change) < 1:
        number = float(before) + math.copysign(1, change)
    return domain.clipped(number)


_log = logging.getLogger(__name__)

_MUTATION_FILE, _MUTATION_KIND = "mutation.json", "staged mutation"
Report = Callable[[Trial, Mapping[str, Any]], None]


class Population:
    """Records the mutations of a population's trials on disk and in the sweep's folder, and reports them.

    Args:
        space: search space, whose `mutable` keys change.
        folder: folder of the sweep.
        time_attr: metric that measures time.
        report: called with each changed trial and its row of `mutations.jsonl`.
    """

    def __init__(self, space: SearchSpace, folder: SweepFolder, time_attr: str, report: Report) -> None:
        self._time_attr = time_attr
        self._space = space
        self.domains = {domain.key: domain for domain in space.mutable}
        self._folder = folder
        self._report = report

    def take_over(
        self, settings: TrialSettings, donor: TrialSettings, mutated: Combination, until: float
    ) -> TrialSettings:
        """Make a trial continue from the state of a donor, with the donor's values, `mutated` ones and its own seed.

        Args:
            settings: settings of the trial.
            donor: trial to copy the state from; without a checkpoint of the donor, nothing changes.
            mutated: values that differ from the donor's.
            until: largest `sweep.time_attr` of the donor's state that may be copied.

        Returns:
            The new settings of the trial.
        """
        values = {**donor.values, **mutated}
        if SEED in settings.values:
            values[SEED] = settings.values[SEED]
        run_dir = Path(settings.run_dir)
        manifest = self._stage_clone(Path(donor.run_dir), run_dir, until)
        if manifest is None:
            _log.warning(
                "trial %d continues unchanged: trial %d does not have a checkpoint", settings.number, donor.number
            )
            return settings
        result = manifest["result"]
        at = {"num_env_steps": result["num_env_steps_sampled_lifetime"], "iteration": result["training_iteration"]}
        mutation = signed({"donor": donor.number, "values": dict(values), "at": at}, _MUTATION_KIND)
        write_result(_staged(run_dir) / _MUTATION_FILE, mutation)
        shutil.rmtree(clone_folder(run_dir), ignore_errors=True)
        _staged(run_dir).rename(clone_folder(run_dir))  # from now on the trial continues from it, also after a kill
        self._record(self._folder.trial(settings.number))
        return replace(settings, values=values)

    def recover(self) -> None:
        """Record takeovers that were completed right before a kill."""
        for trial in unfinished(self._folder.trials):
            self._record(trial)

    def _record(self, trial: Trial) -> None:
        file = clone_folder(self._folder.run_dir(trial)) / _MUTATION_FILE
        mutation = self._read_mutation(file) if file.exists() else {}
        if mutation and mutation["values"] != trial.values:
            row = self._folder.mutate(trial, mutation["donor"], mutation["values"], mutation["at"])
            self._report(trial, row)

    def _read_mutation(self, file: Path) -> dict[str, Any]:
        """Return the mutation written by a killed process; an untrusted one may only set searched values.

        Raises:
            UserError: the file is damaged, or sets other values.
        """
        try:
            mutation = parse_json(file.read_bytes())
            is_foreign = not self._folder.is_trusted and foreign_reason(mutation, _MUTATION_KIND) is not None
            odd = [key for key, value in mutation["values"].items() if is_foreign and not self._space.holds(key, value)]
            mutation["donor"], mutation["at"]["num_env_steps"], mutation["at"]["iteration"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(Problem(f"this is not a mutation: {error!s:.200}", str(file))) from error
        if odd:
            what = "an untrusted mutation sets keys that this sweep does not search"
            problem = Problem(what, str(file), ", ".join(odd), fix="pass --trust if you trust its author")
            raise UserError(problem)
        return dict(mutation)

    def _stage_clone(self, donor_dir: Path, run_dir: Path, until: float) -> dict[str, Any] | None:
        """Copy the donor's checkpoint next to the trial's checkpoints; return its manifest."""
        staged = _staged(run_dir)
        for _ in range(3):  # the donor keeps training and drops old checkpoints meanwhile
            with suppress(FileNotFoundError, shutil.Error, CheckpointError):
                manifests = {path: read_manifest(path) for path in list_checkpoints(donor_dir / "checkpoints")}
                in_time = [path for path, read in manifests.items() if read["result"].get(self._time_attr, 0) <= until]
                chosen = in_time[-1] if in_time else next(iter(manifests), None)
                if chosen is None:
                    break
                shutil.rmtree(staged, ignore_errors=True)
                shutil.copytree(chosen, staged / chosen.name)
                return manifests[chosen]
        return None


def _staged(run_dir: Path) -> Path:
    return run_dir / ".clone.tmp"


class _Takeover(ChosenTakeovers):
    """Changes that both schedulers make to Tune's classes, which follow in the method resolution order.

    Trials come from a searcher, state is copied through run dirs, and reports of an earlier start are used.
    """

    _are_logarithms: bool

    def __init__(self, population: Population, earlier: Earlier, **settings: Any) -> None:
        super().__init__(**settings)
        self._population = population
        self._earlier = dict(earlier)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial with its reports from an earlier start."""
        super().on_trial_add(tune_controller, trial)
        reports = self._earlier.pop(trial.config[RUN].number, ())  # only once, even if Tune tries a trial again
        self.restore_reports(trial, map(dict, reports), TIME)

    def take_over(self, trial: Any, donor: Any, proposed: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Return coordinates and settings of a trial that takes over the state of another trial."""
        domains, are_logarithms = self._population.domains, self._are_logarithms
        donor_values = donor.config[RUN].values
        mutated = {
            key: from_coordinate(domain, proposed[key], donor_values[key], are_logarithms)
            for key, domain in domains.items()
        }
        settings = self._population.take_over(trial.config[RUN], donor.config[RUN], mutated, until)
        return {**to_coordinates(domains, settings.values, are_logarithms), RUN: settings}


class _PBT(_Takeover, PopulationBasedTraining):
    _are_logarithms = False


class _PB2(_Takeover, PB2):
    _are_logarithms = True


def make_population(config: ExperimentConfig, population: Population, earlier: Earlier) -> TrialScheduler:
    """Return the scheduler for `sweep.scheduler` pbt or pb2; the search space must have been checked before."""
    sweep, domains = config.sweep, population.domains
    common: dict[str, Any] = {
        "time_attr": TIME,
        "metric": OBJECTIVE,
        "mode": next(iter(config.objectives.values())),
        "perturbation_interval": config.perturbation_interval,
        "quantile_fraction": sweep.quantile_fraction,
        "synch": sweep.synch,
        "log_config": False,
        "require_attrs": False,  # the first iterations may end before any episode
    }
    random.seed(sweep.seed)  # Tune draws donors and factors from it
    np.random.seed(sweep.seed % 2**32)  # PB2 draws from this one, which takes 32 bits
    if sweep.scheduler == "pb2":
        intervals = {key: domain for key, domain in domains.items() if isinstance(domain, Interval)}
        ends = {key: [to_coordinate(one, end, True) for end in one.examples] for key, one in intervals.items()}
        return _PB2(population, earlier, hyperparam_bounds=ends, **common)
    generator = np.random.default_rng([sweep.seed, 2])
    mutations = {key: _mutation(domain, generator) for key, domain in domains.items()}
    probability = sweep.resample_probability
    return _PBT(population, earlier, hyperparam_mutations=mutations, resample_probability=probability, **common)


def _mutation(domain: Domain, generator: np.random.Generator) -> Any:
    """Return Tune's kind of mutation: a list for steps to neighbours, or a function that draws a new value."""
    return list(domain.values) if isinstance(domain, Choices) else lambda: domain.sample(generator)


def make_scheduler(config: ExperimentConfig, earlier: Earlier, population: Population) -> TrialScheduler:
    """Return the scheduler of `sweep.scheduler`.

    Args:
        config: configuration of one of the trials.
        earlier: reports of trials from an earlier start.
        population: handles takeovers, if the scheduler is population-based.
    """
    sweep = config.sweep
    if sweep.scheduler in POPULATIONS:
        return make_population(config, population, earlier)
    if sweep.scheduler == "asha":
        end = sweep.max_t or config.stop[sweep.time_attr]
        grace_period = sweep.grace_period or end / sweep.reduction_factor**2
        mode = next(iter(config.objectives.values()))
        return ResumableASHA(earlier, mode, end, grace_period, sweep.reduction_factor)
    return FIFOScheduler()  # type: ignore[no-untyped-call]


def read_earlier(config: ExperimentConfig, folder: SweepFolder) -> Earlier:
    """Return the reports of trials from an earlier start that have their current values."""
    last_mutation = {row["trial"]: row["iteration"] for row in folder.mutations()}
    metric = next(iter(config.objectives))
    return {
        trial.number: _reports(
            ProgressLog(folder.run_dir(trial) / "progress.jsonl").read(),
            metric,
            config.sweep.time_attr,
            last_mutation.get(trial.number, 0),
        )
        for trial in folder.trials
    }


class ResumableASHA(AsyncHyperBandScheduler):
    """Asynchronous successive halving that knows the progress of trials from an earlier start.

    A trial that was killed before its last report could stop it, stops when it reports that time, or a later one.

    Args:
        earlier: reports of these trials, by number.
        mode, max_t, grace_period, reduction_factor: see Tune's class.
    """

    def __init__(
        self,
        earlier: Earlier,
        mode: str,
        max_t: float,
        grace_period: float,
        reduction_factor: float,
    ) -> None:
        super().__init__(TIME, OBJECTIVE, mode, max_t, grace_period, reduction_factor)  # type: ignore[arg-type]
        self._ends: dict[int, float] = {}  # number of a trial -> time at which its last report should have stopped it
        for number, results in earlier.items():
            trial: Any = SimpleNamespace(trial_id=_earlier_id(number))
            super().on_trial_add(None, trial)  # type: ignore[arg-type]
            for result in results:
                action = super().on_trial_result(None, trial, dict(result))  # type: ignore[arg-type]
                self._ends[number] = result[TIME] if action == self.STOP else math.inf

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Restore the rungs of a resumed trial."""
        super().on_trial_add(tune_controller, trial)
        rename_in_rungs(self, _earlier_id(trial.config[RUN].number), trial.trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return whether the trial continues."""
        action = super().on_trial_result(tune_controller, trial, result)
        is_over = TIME in result and result[TIME] >= self._ends.get(trial.config[RUN].number, math.inf)
        return self.STOP if is_over else action


def _reports(
    results: Iterable[Mapping[str, Any]], metric: str, time_attr: str, after_iteration: int
) -> list[dict[str, Any]]:
    """Return the reports of a trial that contain these metrics."""
    reports: list[dict[str, Any]] = []
    value = None
    for result in results:
        value = value if result.get(metric) is None else result[metric]
        is_new = result.get("training_iteration", 0) > after_iteration
        if is_new and value is not None and result.get(time_attr) is not None:
            reports.append({OBJECTIVE: value, TIME: result[time_attr]})
    return reports


def _earlier_id(number: int) -> str:
    return f"earlier-{number}"
