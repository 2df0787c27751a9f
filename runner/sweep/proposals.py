"""Which combinations are tried: all, some at random, or what Optuna proposes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from runner.config.sweep import SweepConfig
from runner.sweep.space import Choices, Combination, SearchSpace, Value


class Proposals(Protocol):
    """Combinations without their seeds."""

    def propose(self) -> Combination | None:
        """Return the next one; None when there are no more."""

    def tell(self, combination: Combination, value: float) -> None:
        """Learn what a combination reached, also one of an earlier start."""


def make_proposals(space: SearchSpace, config: SweepConfig, mode: str, num_known: int) -> Proposals:
    """Return the proposals of `sweep.search`; random and tpe propose without end.

    Args:
        space: what is searched.
        config: the `sweep` block.
        mode: whether `max` or `min` is better.
        num_known: combinations of earlier starts.
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
        """Ignore it."""


class OptunaProposals:
    """A tree-structured Parzen estimator over what was told (https://optuna.readthedocs.io, `TPESampler`).

    Args:
        space: what is searched.
        seed: of the sampler; another one in a later start, or it would propose the same again.
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
            return  # `sweep.on_change=extend` has taken it out of the search space
        self._study.add_trial(told)

    def _value(self, key: str, param: int | float | str) -> Value:
        domain = self._domains[key]
        return domain.values[int(param)] if isinstance(domain, Choices) and domain.is_ordered else param

    def _param(self, key: str, value: Value) -> Value:
        domain = self._domains[key]
        return domain.values.index(str(value)) if isinstance(domain, Choices) and domain.is_ordered else value
