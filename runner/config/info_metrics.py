"""Metrics out of the infos of environments: the block `metrics`, its checks, and the names that it declares."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from runner.config.compose import Composed
from runner.config.errors import Problem, nearest_match, show_value

if TYPE_CHECKING:
    from runner.config.schemas import ExperimentConfig

PREFIX = "env_runners/"
# What an episode's value is, out of the infos of its steps.
OF_EPISODE = {
    "episode_end": "in the info of its last step",
    "episode_sum": "summed over its steps",
    "episode_mean": "averaged over its steps",
    "episode_min": "smallest of its steps",
    "episode_max": "largest of its steps",
}
REDUCTIONS = ("mean", "median", "std", "min", "max", "sum")
_PERCENTILE = re.compile(r"p[1-9]\d?")
_NAME = re.compile(r"env_runners/\w+(/\w+)*", re.ASCII)
_KEYS = ("info", "at", "reduce")


@dataclass(frozen=True)
class InfoMetric:
    """A number of each finished episode, out of the infos of its steps, and how numbers of episodes become one.

    Attributes:
        name: `env_runners/...`, of the metric.
        path: keys that lead through nested infos.
        at: of `OF_EPISODE`.
        reduce: of `REDUCTIONS`, or `p1` to `p99`: a percentile.
    """

    name: str
    path: tuple[str, ...]
    at: str = "episode_end"
    reduce: str = "mean"

    @property
    def meaning(self) -> str:
        """What the metric says."""
        return f"{'/'.join(self.path)} of infos, {OF_EPISODE[self.at]}; {self.reduce} of finished episodes"


def read_info_metrics(config: ExperimentConfig) -> list[InfoMetric]:
    """Return the metrics of a block without faults."""
    return [_read(name, block) for name, block in config.metrics.items()]


def _read(name: str, block: dict[str, Any]) -> InfoMetric:
    others = {key: value for key, value in block.items() if key != "info"}
    return InfoMetric(name, tuple(block["info"].split("/")), **others)


def info_metrics(config: ExperimentConfig, prefixes: list[str]) -> dict[str, str]:
    """Return metric -> meaning, under each of `prefixes` (`env_runners`, `evaluation/env_runners`)."""
    found = [
        metric for name, block in config.metrics.items() if not _fault(name, block) for metric in [_read(name, block)]
    ]
    return {f"{prefix}/{metric.name.removeprefix(PREFIX)}": metric.meaning for prefix in prefixes for metric in found}


def find_info_metric_problems(config: ExperimentConfig, composed: Composed, taken: set[str]) -> Iterator[Problem]:
    """Yield what is wrong with the block `metrics`.

    Args:
        config, composed: of the run.
        taken: names that metrics of the run have anyway.
    """
    for name, block in config.metrics.items():
        key = f"metrics.{name}"
        if name in taken:
            yield Problem(f"{key}: every run has a metric of this name", composed.where(key), name, "another name")
        elif fault := _fault(name, block):
            yield replace(fault, what=f"{key}: {fault.what}", where=composed.where(key))
    if config.metrics and config.env.is_external:
        what = "metrics are made of infos of environments that are stepped here"
        yield Problem(what, composed.where("metrics"), "simulators that connect", "no metrics")


def _fault(name: str, block: dict[str, Any]) -> Problem | None:
    """Return what is wrong with a metric; None: nothing."""
    if not _NAME.fullmatch(str(name)):
        what = "the name of a metric out of infos begins with env_runners/"
        return Problem(what, None, str(name), "env_runners/is_success and its like")
    unknown = next((str(key) for key in block if key not in _KEYS), None)
    if unknown is not None:
        return Problem(f"{unknown} is not known", None, unknown, ", ".join(_KEYS), nearest_match(unknown, _KEYS))
    if not isinstance(block.get("info"), str) or not block["info"]:
        what = "info is the key of the number in infos; slashes lead into nested ones"
        return Problem(what, None, show_value(block), "{info: key, at: episode_end, reduce: mean}")
    at, reduce = str(block.get("at", "episode_end")), str(block.get("reduce", "mean"))
    if at not in OF_EPISODE:
        what = "at says what an episode's number is"
        return Problem(what, None, at, ", ".join(OF_EPISODE), nearest_match(at, OF_EPISODE))
    if reduce not in REDUCTIONS and not _PERCENTILE.fullmatch(reduce):
        what, allowed = "reduce says how the numbers of episodes become one", f"{', '.join(REDUCTIONS)}, p1 to p99"
        return Problem(what, None, reduce, allowed, nearest_match(reduce, REDUCTIONS))
    return None
