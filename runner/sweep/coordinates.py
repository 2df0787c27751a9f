"""The values of a population's trials as Tune's schedulers calculate with them, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.config.schemas import ExperimentConfig
from runner.sweep.space import Choices, Combination, Domain, SearchSpace, Value


def coordinates(config: ExperimentConfig, space: SearchSpace, values: Combination) -> dict[str, Value]:
    """Return what Tune's scheduler gets of the values of a trial; nothing where trials are no population."""
    if config.perturbation_interval is None:
        return {}
    return to_coordinates({domain.key: domain for domain in space.mutable}, values, config.sweep.scheduler == "pb2")


def to_coordinates(domains: Mapping[str, Domain], values: Combination, are_logarithms: bool) -> dict[str, Value]:
    """Return a coordinate for each domain; `are_logarithms` where PB2 calculates."""
    return {key: to_coordinate(domain, values[key], are_logarithms) for key, domain in domains.items()}


def to_coordinate(domain: Domain, value: Value, are_logarithms: bool) -> Value:
    """Return numbers of intervals as real ones; their logarithms where PB2 calculates and the domain is logarithmic."""
    if isinstance(domain, Choices):
        return value
    return math.log(float(value)) if are_logarithms and domain.is_log else float(value)


def from_coordinate(domain: Domain, coordinate: Value, before: Value, are_logarithms: bool) -> Value:
    """Return a value of the domain; a whole number that is to change does so by 1 at least."""
    if isinstance(domain, Choices):
        return coordinate
    number = float(coordinate)
    number = math.exp(number) if are_logarithms and domain.is_log else number
    change = number - float(before)
    if domain.is_integer and 1e-6 < abs(change) < 1:
        number = float(before) + math.copysign(1, change)
    return domain.clipped(number)
