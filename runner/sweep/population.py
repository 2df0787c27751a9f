"""Population-based training: trials that lag behind go on from the state of the best ones, with other values.

Jaderberg et al. 2017 (https://arxiv.org/abs/1711.09846) change values by a fifth or draw them anew; PB2, Parker-Holder
et al. 2020 (https://arxiv.org/abs/2002.02518), lets a Gaussian process choose them.
"""

from __future__ import annotations

import json
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
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2

from runner.checkpoints import read_manifest
from runner.checkpoints.checkpoint import CheckpointError
from runner.checkpoints.folder import list_checkpoints
from runner.config.schemas import ExperimentConfig
from runner.sweep.space import SEED, Choices, Combination, Domain, Interval, SearchSpace, Value
from runner.sweep.trial_settings import OBJECTIVE, RUN, TIME, TrialSettings, clone_folder
from runner.sweep.trials import SweepFolder, Trial, unfinished
from runner.tracking import write_result

# Lines of progress.jsonl of the trials of an earlier start as `OBJECTIVE` and `TIME`, by trial number.
Earlier = Mapping[int, Iterable[Mapping[str, Any]]]
_log = logging.getLogger(__name__)

_MUTATION_FILE = "mutation.json"
Tell = Callable[[Trial, Mapping[str, Any]], None]
Coordinates = Mapping[str, Value]  # what Tune's schedulers calculate with, by key


class Population:
    """What becomes of the trials of a population: on disk, in the sweep's folder, and for whoever wants to know.

    Args:
        space: what is searched; its `mutable` keys change.
        folder: of the sweep.
        time_attr: the metric that time is counted in.
        tell: called with each trial that has changed and its row of `mutations.jsonl`.
    """

    def __init__(self, space: SearchSpace, folder: SweepFolder, time_attr: str, tell: Tell) -> None:
        self._time_attr = time_attr
        self.domains = {domain.key: domain for domain in space.mutable}
        self._folder = folder
        self._tell = tell

    def take_over(
        self, settings: TrialSettings, donor: TrialSettings, mutated: Combination, until: float
    ) -> TrialSettings:
        """What a trial goes on with: the state of the donor, its values, the `mutated` ones and its own seed.

        Args:
            settings: of the trial.
            donor: the trial that it goes on from; where it has no checkpoint, the trial goes on as it is.
            mutated: values that the donor has not.
            until: the donor's state is its newest one up to here, in `sweep.time_attr`.
        """
        values = {**donor.values, **mutated}
        if SEED in settings.values:
            values[SEED] = settings.values[SEED]
        run_dir = Path(settings.run_dir)
        manifest = self._stage_clone(Path(donor.run_dir), run_dir, until)
        if manifest is None:
            _log.warning("trial %d goes on as it is: trial %d has no checkpoint", settings.number, donor.number)
            return settings
        result = manifest["result"]
        at = {"num_env_steps": result["num_env_steps_sampled_lifetime"], "iteration": result["training_iteration"]}
        write_result(_staged(run_dir) / _MUTATION_FILE, {"donor": donor.number, "values": values, "at": at})
        shutil.rmtree(clone_folder(run_dir), ignore_errors=True)
        _staged(run_dir).rename(clone_folder(run_dir))  # from now on the trial goes on from it, also after a kill
        self._record(self._folder.trial(settings.number))
        return replace(settings, values=values)

    def recover(self) -> None:
        """Record what was taken over right before a kill."""
        for trial in unfinished(self._folder.trials):
            self._record(trial)

    def _record(self, trial: Trial) -> None:
        file = clone_folder(self._folder.run_dir(trial)) / _MUTATION_FILE
        mutation: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if mutation and mutation["values"] != trial.values:
            row = self._folder.mutate(trial, mutation["donor"], mutation["values"], mutation["at"])
            self._tell(trial, row)

    def _stage_clone(self, donor_dir: Path, run_dir: Path, until: float) -> dict[str, Any] | None:
        """Copy the donor's checkpoint beside the trial's own ones; its manifest."""
        staged = _staged(run_dir)
        for _ in range(3):  # the donor trains on and drops old checkpoints meanwhile
            with suppress(FileNotFoundError, shutil.Error, CheckpointError):
                manifests = {own: read_manifest(own) for own in list_checkpoints(donor_dir / "checkpoints")}
                in_time = [own for own, read in manifests.items() if read["result"].get(self._time_attr, 0) <= until]
                chosen = in_time[-1] if in_time else next(iter(manifests), None)
                if chosen is None:
                    break
                shutil.rmtree(staged, ignore_errors=True)
                shutil.copytree(chosen, staged / chosen.name)
                return manifests[chosen]
        return None


def _staged(run_dir: Path) -> Path:
    return run_dir / ".clone.tmp"


def coordinates(config: ExperimentConfig, space: SearchSpace, values: Combination) -> Coordinates:
    """What Tune's scheduler gets of the values of a trial; nothing where trials are no population."""
    if config.perturbation_interval is None:
        return {}
    return _to_coordinates({domain.key: domain for domain in space.mutable}, values, config.sweep.scheduler == "pb2")


def _to_coordinates(domains: Mapping[str, Domain], values: Combination, are_logarithms: bool) -> Coordinates:
    return {key: _coordinate(domain, values[key], are_logarithms) for key, domain in domains.items()}


def _coordinate(domain: Domain, value: Value, are_logarithms: bool) -> Value:
    """Numbers of intervals are real ones for Tune; PB2 calculates with logarithms where the domain does."""
    if isinstance(domain, Choices):
        return value
    return math.log(float(value)) if are_logarithms and domain.is_log else float(value)


def _value(domain: Domain, coordinate: Value, before: Value, are_logarithms: bool) -> Value:
    """A value of the domain; a whole number that is to change does so by 1 at least."""
    if isinstance(domain, Choices):
        return coordinate
    number = float(coordinate)
    number = math.exp(number) if are_logarithms and domain.is_log else number
    change = number - float(before)
    if domain.is_integer and 1e-6 < abs(change) < 1:
        number = float(before) + math.copysign(1, change)
    return domain.clipped(number)


class _Takeover:
    """What both schedulers do differently from Tune's classes, whose methods come next in the order of classes.

    Trials come from a searcher, state is taken over through run dirs, and an earlier start is remembered.
    """

    _are_logarithms: bool
    _trial_state: dict[Any, Any]
    _perturbation_interval: float
    _next_perturbation_sync: float

    def __init__(self, population: Population, earlier: Earlier, **settings: Any) -> None:
        super().__init__(**settings)
        self._population = population
        self._earlier = dict(earlier)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Tune refuses searchers, because its own know nothing of populations."""
        super().on_trial_add(SimpleNamespace(search_alg=None), trial)  # type: ignore[misc]
        state = self._trial_state[trial]
        for report in self._earlier.pop(trial.config[RUN].number, ()):  # not again where Tune tries a trial again
            if report[TIME] - state.last_perturbation_time >= self._perturbation_interval:
                self._save_trial_state(state, report[TIME], dict(report), trial)  # type: ignore[attr-defined]
                state.last_perturbation_time = report[TIME]
        next_sync = state.last_perturbation_time + self._perturbation_interval
        self._next_perturbation_sync = max(self._next_perturbation_sync, next_sync)

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        proposed, operations = super()._get_new_config(trial, trial_to_clone)  # type: ignore[misc]
        domains, are_logarithms = self._population.domains, self._are_logarithms
        donor_values = trial_to_clone.config[RUN].values
        mutated = {
            key: _value(domain, proposed[key], donor_values[key], are_logarithms) for key, domain in domains.items()
        }
        until = self._trial_state[trial_to_clone].last_train_time
        settings = self._population.take_over(trial.config[RUN], trial_to_clone.config[RUN], mutated, until)
        return {**_to_coordinates(domains, settings.values, are_logarithms), RUN: settings}, operations


class _PBT(_Takeover, PopulationBasedTraining):
    _are_logarithms = False


class _PB2(_Takeover, PB2):
    _are_logarithms = True


def make_population(config: ExperimentConfig, population: Population, earlier: Earlier) -> TrialScheduler:
    """The scheduler of `sweep.scheduler` pbt or pb2; its search space has passed the checks of the command line."""
    sweep, domains = config.sweep, population.domains
    common: dict[str, Any] = {
        "time_attr": TIME,
        "metric": OBJECTIVE,
        "mode": next(iter(config.objectives.values())),
        "perturbation_interval": config.perturbation_interval,
        "quantile_fraction": sweep.quantile_fraction,
        "synch": sweep.synch,
        "log_config": False,
        "require_attrs": False,  # no episode may have ended in the first iterations
    }
    random.seed(sweep.seed)  # Tune draws donors and factors from it
    np.random.seed(sweep.seed)  # and PB2 from this one
    if sweep.scheduler == "pb2":
        intervals = {key: domain for key, domain in domains.items() if isinstance(domain, Interval)}
        ends = {key: [_coordinate(one, end, True) for end in one.examples] for key, one in intervals.items()}
        return _PB2(population, earlier, hyperparam_bounds=ends, **common)
    generator = np.random.default_rng([sweep.seed, 2])
    mutations = {key: _mutation(domain, generator) for key, domain in domains.items()}
    probability = sweep.resample_probability
    return _PBT(population, earlier, hyperparam_mutations=mutations, resample_probability=probability, **common)


def _mutation(domain: Domain, generator: np.random.Generator) -> Any:
    """A list is walked to its neighbours, a function draws anew."""
    return list(domain.values) if isinstance(domain, Choices) else lambda: domain.sample(generator)
