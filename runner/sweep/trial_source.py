"""Source of Tune's trials: first unfinished trials of an earlier start, then new combinations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from ray.tune.search import Searcher

from runner.config.sweep import SweepConfig
from runner.interrupts import reason_to_end
from runner.sweep.space import Choices, Combination, SearchSpace, Value, combination_key, without_seed
from runner.sweep.trial_settings import OBJECTIVE
from runner.sweep.trials import SweepFolder, Trial, unfinished
from runner.tracking.plain_values import finite_number


class Proposals(Protocol):
    """Combinations without their seeds."""

    def propose(self) -> Combination | None:
        """Return the next combination, or None if there are no more."""

    def tell(self, combination: Combination, value: float) -> None:
        """Record the result of a combination, possibly from an earlier start."""


def make_proposals(space: SearchSpace, config: SweepConfig, mode: str, num_known: int) -> Proposals:
    """Return the proposals of `sweep.search`; random and tpe propose indefinitely.

    Args:
        space: the search space.
        config: the `sweep` block.
        mode: whether `max` or `min` is better.
        num_known: number of combinations of earlier starts.
    """
    if config.search == "tpe":
        return OptunaProposals(space, [config.seed, num_known] if num_known else config.seed, mode)
    if config.search == "random":
        return ListedProposals(space.samples(np.random.default_rng(config.seed)))
    return ListedProposals(space.grid())


class ListedProposals:
    """Combinations that are known from the start."""

    def __init__(self, combinations: Iterator[Combination]) -> None:
        self._combinations = combinations

    def propose(self) -> Combination | None:
        return next(self._combinations, None)

    def tell(self, combination: Combination, value: float) -> None:
        """Ignore the result."""


class OptunaProposals:
    """Proposals of a tree-structured Parzen estimator (Optuna's `TPESampler`, https://optuna.readthedocs.io).

    Args:
        space: the search space.
        seed: seed of the sampler; it differs in a later start, so that other combinations are proposed.
        mode: `max` or `min`.
    """

    def __init__(self, space: SearchSpace, seed: int | Sequence[int], mode: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {}
        for domain in space.domains:
            if isinstance(domain, Choices) and domain.is_ordered:
                self._distributions[domain.key] = optuna.distributions.IntDistribution(0, len(domain.values) - 1)
            elif isinstance(domain, Choices):
                self._distributions[domain.key] = optuna.distributions.CategoricalDistribution(domain.values)
            elif domain.is_integer:
                self._distributions[domain.key] = optuna.distributions.IntDistribution(
                    int(domain.start), int(domain.end), log=domain.is_log
                )
            else:
                self._distributions[domain.key] = optuna.distributions.FloatDistribution(
                    domain.start, domain.end, log=domain.is_log
                )
        self._domains = {domain.key: domain for domain in space.domains}
        sampler = optuna.samplers.TPESampler(seed=int(np.random.SeedSequence(seed).generate_state(1)[0]))
        direction = "maximize" if mode == "max" else "minimize"
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._asked: dict[tuple[tuple[str, Value], ...], optuna.trial.Trial] = {}

    def propose(self) -> Combination | None:
        trial = self._study.ask(self._distributions)
        combination = {key: self._value(key, trial.params[key]) for key in self._distributions}
        self._asked[tuple(combination.items())] = trial
        return combination

    def tell(self, combination: Combination, value: float) -> None:
        import optuna

        trial = self._asked.pop(tuple(combination.items()), None)
        if trial is not None:
            self._study.tell(trial, value)
            return
        try:
            params = {key: self._param(key, combination[key]) for key in self._distributions}
            told = optuna.trial.create_trial(params=params, distributions=self._distributions, value=value)
        except (KeyError, ValueError):
            return  # `sweep.on_change=extend` has removed it from the search space
        self._study.add_trial(told)

    def _value(self, key: str, param: int | float | str) -> Value:
        domain = self._domains[key]
        return domain.values[int(param)] if isinstance(domain, Choices) and domain.is_ordered else param

    def _param(self, key: str, value: Value) -> Value:
        domain = self._domains[key]
        return domain.values.index(str(value)) if isinstance(domain, Choices) and domain.is_ordered else value


_MOST_TRIES = 50  # to find a new combination; a random search also proposes all combinations of earlier starts again


class TrialSource(Searcher):
    """Suggests trials to Tune.

    Args:
        space: the search space.
        folder: folder of the sweep, with its trials so far.
        proposals: proposes combinations, and receives their results.
        num_samples: number of combinations including earlier starts, or None for all proposals.
        metric: objective of the trials.
        to_config: returns a trial's configuration for Tune.

    Attributes:
        by_trial_id: suggested trials by Tune's id.
        is_exhausted: whether there are no further trials.
    """

    def __init__(
        self,
        space: SearchSpace,
        folder: SweepFolder,
        proposals: Proposals,
        num_samples: int | None,
        metric: str,
        to_config: Callable[[Trial], dict[str, Any]],
    ) -> None:
        super().__init__(metric=OBJECTIVE, mode="max")  # required by Tune; `proposals` knows the real mode
        self._objective = metric
        self._space = space
        self._folder = folder
        self._proposals = proposals
        self._to_config = to_config
        self._going_on: Iterator[Trial] = iter(unfinished(folder.trials))
        self._known = {combination_key(trial.combination) for trial in folder.trials}
        begun = (without_seed(trial.combination) for trial in folder.trials)
        combinations = {combination_key(combination): combination for combination in begun}.values()
        self._seeds_left = itertools.chain.from_iterable(map(space.with_seeds, combinations))
        self._num_left = None if num_samples is None else max(0, num_samples - len(combinations))
        self._num_tries = _MOST_TRIES + len(combinations)
        self.by_trial_id: dict[str, Trial] = {}
        self.is_exhausted = False
        self._ended = {trial.number for trial in folder.trials if trial.is_over}
        for trial in folder.trials:
            if trial.is_over:
                self._report(trial)

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of the next trial, or Tune's FINISHED if there is none.

        While other trials run, return None instead: after FINISHED Tune would release processes that paused trials need
        again.
        """
        if reason_to_end() is not None:
            return str(Searcher.FINISHED)
        trial = self._next()
        if trial is None:
            self.is_exhausted = True
            is_over = all(trial.status not in ("waiting", "running") for trial in self.by_trial_id.values())
            return str(Searcher.FINISHED) if is_over else None
        trial.status = "waiting"
        self.by_trial_id[trial_id] = trial
        return self._to_config(trial)

    def _next(self) -> Trial | None:
        trial = next(self._going_on, None)
        while trial is None:
            combination = next(self._seeds_left, None)
            if combination is None:
                proposed = self._propose()
                if proposed is None:
                    return None
                self._seeds_left = itertools.chain(self._space.with_seeds(proposed))
            elif combination_key(combination) not in self._known:
                self._known.add(combination_key(combination))
                trial = self._folder.add(combination)
        return trial

    def _propose(self) -> Combination | None:
        if self._num_left == 0:
            return None
        tries = (self._proposals.propose() for _ in range(self._num_tries))
        rest = self._space.grid() if self._space.num_combinations is not None else ()  # if a search repeats itself
        for proposed in itertools.chain(tries, rest):
            if proposed is None:
                return None
            if not any(combination_key(seeded) in self._known for seeded in self._space.with_seeds(proposed)):
                self._num_left = None if self._num_left is None else self._num_left - 1
                return proposed
        return None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report the result of a combination once all of its seeds have run."""
        trial = self.by_trial_id.get(trial_id)
        if trial is not None and not error and reason_to_end() is None:
            self._ended.add(trial.number)
            self._report(trial)

    def _report(self, trial: Trial) -> None:
        combination = without_seed(trial.combination)
        seeds = [trial for trial in self._folder.trials if without_seed(trial.combination) == combination]
        values = [finite_number(trial.result.get(self._objective)) for trial in seeds if trial.number in self._ended]
        numbers = [value for value in values if value is not None]
        if len(numbers) == max(1, len(self._space.seeds)):
            self._proposals.tell(combination, sum(numbers) / len(numbers))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Do nothing: proposals only use finished trials."""

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that is never used."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Write the file that Tune requires; the sweep's folder has the complete state."""
        with open(checkpoint_path, "w"):
            pass

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing."""
