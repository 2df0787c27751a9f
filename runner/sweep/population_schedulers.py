"""Tune's schedulers of populations: who goes on from whose state, with which values.

Jaderberg et al. 2017 (https://arxiv.org/abs/1711.09846) change values by a fifth or draw them anew; PB2, Parker-Holder
et al. 2020 (https://arxiv.org/abs/2002.02518), lets a Gaussian process choose them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2

from runner.compat.ray_tune import ChosenTakeovers
from runner.config.schemas import ExperimentConfig
from runner.sweep.coordinates import from_coordinate, to_coordinate, to_coordinates
from runner.sweep.population import Population
from runner.sweep.space import Choices, Domain, Interval
from runner.sweep.trial_settings import OBJECTIVE, RUN, TIME, Earlier


class _Takeover(ChosenTakeovers):
    """What both schedulers do differently from Tune's classes, whose methods come next in the order of classes.

    Trials come from a searcher, state is taken over through run dirs, and an earlier start is remembered.
    """

    _are_logarithms: bool

    def __init__(self, population: Population, earlier: Earlier, **settings: Any) -> None:
        super().__init__(**settings)
        self._population = population
        self._earlier = dict(earlier)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial with its reports of an earlier start."""
        super().on_trial_add(tune_controller, trial)
        reports = self._earlier.pop(trial.config[RUN].number, ())  # not again if Tune tries a trial again
        self.restore_reports(trial, map(dict, reports), TIME)

    def take_over(self, trial: Any, donor: Any, proposed: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Return coordinates and settings of a trial that takes over another one's state."""
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
    """Return the scheduler of `sweep.scheduler` pbt or pb2; its search space has passed the checks of the command
    line."""
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
        ends = {key: [to_coordinate(one, end, True) for end in one.examples] for key, one in intervals.items()}
        return _PB2(population, earlier, hyperparam_bounds=ends, **common)
    generator = np.random.default_rng([sweep.seed, 2])
    mutations = {key: _mutation(domain, generator) for key, domain in domains.items()}
    probability = sweep.resample_probability
    return _PBT(population, earlier, hyperparam_mutations=mutations, resample_probability=probability, **common)


def _mutation(domain: Domain, generator: np.random.Generator) -> Any:
    """Return how Tune mutates: it walks to the neighbours in a list, a function draws anew."""
    return list(domain.values) if isinstance(domain, Choices) else lambda: domain.sample(generator)
