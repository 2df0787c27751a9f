"""The search space of a sweep, read from overrides in Hydra's sweep grammar, for every kind of search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep

from runner.config.errors import ConfigError, Problem, show_value
from runner.config.overrides import OverrideLine, parse_overrides
from runner.config.paths import list_options

SEED = "seed"
_MOST_VALUES = 10_000
_KINDS_OF_ALGORITHM = ("algorithm.schema", "algorithm.loss")
_LOG = "log"
_NAMES_OF_TAGS = {"interval": (_LOG,), "choice": (), "range": ()}


Value = str | int | float  # text after the `=` of an override, or a number of an interval
Combination = Mapping[str, Value]


def value_text(value: Value) -> str:
    """Return a value as text for display; see `override_text` for the command line."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def override_text(key: str, value: Value) -> str:
    """Return a value of a combination as an override, as users write it: with the `+` of Hydra for packages only."""
    typed = key if "@" in key else key.lstrip("+")
    return f"{typed}={value if isinstance(value, str) else repr(value)}"


def without_seed(combination: Combination) -> Combination:
    """Return the combination without its seed."""
    return {key: value for key, value in combination.items() if key != SEED}


def combination_key(combination: Combination) -> tuple[tuple[str, str], ...]:
    """Return a key that is equal for equal combinations, regardless of the order of their keys."""
    return tuple(sorted((key, str(value)) for key, value in combination.items()))


@dataclass(frozen=True)
class Choices:
    """A list of values.

    Attributes:
        key: left-hand side of the override, for example `+experiment`.
        values: values on the right-hand side.
        is_ordered: whether the values are a range of numbers, so that neighbours are similar.
    """

    key: str
    values: tuple[str, ...]
    is_ordered: bool = False

    @property
    def examples(self) -> tuple[Value, ...]:
        """Representative values for checking the configuration."""
        return self.values

    def sample(self, generator: np.random.Generator) -> Value:
        """Return a value, drawn uniformly."""
        return self.values[int(generator.integers(len(self.values)))]

    def to_dict(self) -> Any:
        """Return the domain for `sweep.json`."""
        return list(self.values)


@dataclass(frozen=True)
class Interval:
    """All numbers from `start` to `end`, for integers including both ends.

    Attributes:
        key: left-hand side of the override.
        is_integer: whether only integers belong to it.
        is_log: whether to draw uniformly by the logarithm.
    """

    key: str
    start: float
    end: float
    is_integer: bool = False
    is_log: bool = False

    @property
    def examples(self) -> tuple[Value, ...]:
        """The ends of the interval."""
        return self.start, self.end

    @property
    def values(self) -> Sequence[Value] | None:
        """All integers, or None for real numbers."""
        return range(int(self.start), int(self.end) + 1) if self.is_integer else None

    def sample(self, generator: np.random.Generator) -> Value:
        """Return a number, drawn uniformly or, if `is_log`, uniformly by its logarithm."""
        last = self.end + self.is_integer  # an integer represents all numbers up to the next one
        if self.is_log:
            drawn = math.exp(generator.uniform(math.log(self.start), math.log(last)))
        else:
            drawn = float(generator.uniform(self.start, last))
        return self.clipped(math.floor(drawn) if self.is_integer else drawn)

    def clipped(self, value: float) -> Value:
        """Return the nearest number in the interval."""
        nearest = min(max(value, self.start), self.end)
        return round(nearest) if self.is_integer else float(nearest)

    def to_dict(self) -> Any:
        """Return the domain for `sweep.json`."""
        described: dict[str, Any] = {"interval": [self.start, self.end]}
        return described | ({"log": True} if self.is_log else {}) | ({"int": True} if self.is_integer else {})


Domain = Choices | Interval


@dataclass(frozen=True)
class SearchSpace:
    """The search space of a sweep.

    Attributes:
        fixed: overrides of all trials.
        domains: searched keys, in the order of the command line.
        seeds: seeds with which every combination is run; empty if the seed is fixed.
    """

    fixed: tuple[str, ...]
    domains: tuple[Domain, ...]
    seeds: tuple[str, ...] = ()

    def grid(self) -> Iterator[Combination]:
        """Return every combination without its seeds; the last key varies fastest.

        Raises:
            ConfigError: an interval of real numbers cannot be enumerated.
        """
        problems = [_describe_no_grid(domain) for domain in self.domains if domain.values is None]
        if problems:
            raise ConfigError(problems)
        return self._product([domain.values or () for domain in self.domains])

    def samples(self, generator: np.random.Generator) -> Iterator[Combination]:
        """Yield random combinations without seeds, indefinitely."""
        while True:
            yield {domain.key: domain.sample(generator) for domain in self.domains}

    def examples(self) -> Iterator[Combination]:
        """Yield combinations of all values and ends of intervals, which must pass all checks before anything runs."""
        for combination in self._product([domain.examples for domain in self.domains]):
            yield from self.with_seeds(combination)

    def _product(self, values: Sequence[Sequence[Value]]) -> Iterator[Combination]:
        keys = [domain.key for domain in self.domains]
        return (dict(zip(keys, combination, strict=True)) for combination in itertools.product(*values))

    def with_seeds(self, combination: Combination) -> Iterator[Combination]:
        """Yield the combination with each seed."""
        yield from ({**combination, SEED: seed} for seed in self.seeds) if self.seeds else [combination]

    @property
    def num_combinations(self) -> int | None:
        """The number of combinations without seeds, or None if it is infinite."""
        values = [domain.values for domain in self.domains]
        return None if None in values else math.prod(len(choices) for choices in values if choices is not None)

    def holds(self, key: str, value: object) -> bool:
        """Return whether a trial or a population may have this value."""
        if key == SEED:
            return value in self.seeds
        domain = next((one for one in self.domains if one.key == key), None)
        if isinstance(domain, Interval):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        return domain is not None and value in domain.values

    def num_trials(self, num_samples: int | None) -> int:
        """Return the number of trials for `num_samples` combinations, or for the grid if None."""
        return (self.num_combinations or 0 if num_samples is None else num_samples) * max(1, len(self.seeds))

    @property
    def mutable(self) -> tuple[Domain, ...]:
        """The domains whose values a population may change during a trial: settings of the algorithm."""
        return tuple(
            domain
            for domain in self.domains
            if domain.key.startswith("algorithm.") and domain.key not in _KINDS_OF_ALGORITHM
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content for `sweep.json`, which must be equal to continue a sweep."""
        described = {domain.key: domain.to_dict() for domain in self.domains}
        if self.seeds:
            described[SEED] = list(self.seeds)
        return {"overrides": sorted(self.fixed), "space": described}


def read_search_space(texts: Sequence[str], dirs: Sequence[Path], generator: np.random.Generator) -> SearchSpace:
    """Return the search space of a command line.

    Args:
        texts: overrides.
        dirs: folders with configuration files, for globs.
        generator: shuffles the values in `shuffle(...)`.

    Raises:
        ConfigError: with a problem for each override that cannot be read or is not a valid search space.
    """
    lines, problems = parse_overrides(texts, dirs)
    fixed: list[str] = []
    domains: list[Domain] = []
    for line in lines:
        if line.parsed.is_hydra_override():
            continue
        if not line.parsed.is_sweep_override():
            fixed.append(line.text)
            continue
        domain, line_problems = _read_domain(line, dirs, generator)
        problems += line_problems
        if domain is not None:
            domains.append(domain)
    keys = [domain.key for domain in domains] + [text.partition("=")[0] for text in fixed]
    for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        problems.append(Problem(f"{key} is given twice", f"override {key}", fix="use one override per key"))
    seeds: tuple[str, ...] = ()
    for domain in domains:
        if domain.key == SEED:
            if isinstance(domain, Choices):
                seeds = domain.values
            else:
                what = "seeds must be listed, so that every combination is run with the same seeds"
                problems.append(
                    Problem(what, f"override {SEED}", "an interval", "a list such as seed=range(10), seed=1,2,3")
                )
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return SearchSpace(tuple(fixed), tuple(domain for domain in domains if domain.key != SEED), seeds)


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two `SearchSpace.to_dict` as lines; empty if they are equal."""
    lines = [f"- {text}" for text in before["overrides"] if text not in now["overrides"]]
    lines += [f"+ {text}" for text in now["overrides"] if text not in before["overrides"]]
    for key in dict.fromkeys((*before["space"], *now["space"])):
        old, new = before["space"].get(key), now["space"].get(key)
        if old != new:
            lines += [
                f"{sign} {key}: {show_value(known)}" for sign, known in (("-", old), ("+", new)) if known is not None
            ]
    return lines


def _read_domain(
    line: OverrideLine, dirs: Sequence[Path], generator: np.random.Generator
) -> tuple[Domain | None, list[Problem]]:
    """Return the domain of an override, or None and its problems."""
    parsed, given = line.parsed, line.text.partition("=")[2]
    key = line.text.partition("=")[0]
    kind = "interval" if parsed.is_interval_sweep() else "range" if parsed.is_range_sweep() else "choice"
    sweep: Any = parsed.value()
    unknown = sorted(set(getattr(sweep, "tags", ())) - set(_NAMES_OF_TAGS[kind]))
    if unknown:
        expected = ", ".join(_NAMES_OF_TAGS[kind]) or f"none for {kind}(...)"
        return None, [Problem(f"{key}: unknown tag {unknown[0]}", line.where, given, expected)]
    if kind == "interval":
        return _read_interval(key, sweep, line)
    texts = list(itertools.islice(_values(parsed, dirs), _MOST_VALUES + 1))
    if not texts:
        return None, [Problem(f"{key} does not have a value to try", line.where, given)]
    if len(texts) > _MOST_VALUES:
        return None, [Problem(f"{key} has more than {_MOST_VALUES} values", line.where, given)]
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        return None, [Problem(f"{key} contains the value {twice} twice", line.where, given)]
    if isinstance(sweep, (ChoiceSweep, RangeSweep)) and sweep.shuffle:
        texts = [texts[place] for place in generator.permutation(len(texts))]
    return Choices(key, tuple(texts), is_ordered=kind == "range" and not sweep.shuffle), []


def _values(parsed: Override, dirs: Sequence[Path]) -> Iterator[str]:
    pattern: Any = parsed.value()
    if isinstance(pattern, Glob):
        return iter(pattern.filter(sorted(list_options(dirs, str(parsed.key_or_group)))))
    if isinstance(pattern, RangeSweep) and pattern.step == 0:
        return iter(())
    copied = Override(**{**vars(parsed), "_value": _without_shuffle(pattern)})
    return copied.sweep_string_iterator()


def _without_shuffle(sweep: Any) -> Any:
    """Remove a shuffle: Hydra shuffles by the clock, but the same command must give the same trials."""
    if isinstance(sweep, ChoiceSweep):
        return ChoiceSweep(sweep.tags, sweep.list, sweep.simple_form)
    if isinstance(sweep, RangeSweep):
        return RangeSweep(sweep.tags, sweep.start, sweep.stop, sweep.step)
    return sweep


def _read_interval(key: str, sweep: Any, line: OverrideLine) -> tuple[Interval | None, list[Problem]]:
    given = line.text.partition("=")[2]
    is_integer = isinstance(sweep.start, int) and isinstance(sweep.end, int)
    interval = Interval(key, sweep.start, sweep.end, is_integer, _LOG in sweep.tags)
    if not sweep.start < sweep.end or not math.isfinite(sweep.start) or not math.isfinite(sweep.end):
        what = f"{key}: an interval must go from a number to a greater one"
        return None, [Problem(what, line.where, given, "interval(1e-5,1e-2), int(interval(1,10))")]
    if interval.is_log and sweep.start <= 0:
        return None, [Problem(f"{key}: logarithms need numbers above 0", line.where, given)]
    return interval, []


def _describe_no_grid(domain: Domain) -> Problem:
    what = f"{domain.key}: a grid cannot try every number of an interval"
    fix = "use a list of values or range(start,stop,step); or set sweep=random, asha or tpe"
    assert isinstance(domain, Interval)
    return Problem(what, f"override {domain.key}", f"{domain.start:g} to {domain.end:g}", fix=fix)
