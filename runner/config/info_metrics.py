"""Metrics out of the infos of environments: the block `metrics`, its checks, and the names that it declares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from runner.config.composed import Composed
from runner.config.declared_metrics import find_reduction_fault
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
_GROUP = re.compile(r"[\w-]+", re.ASCII)
_NAME = re.compile(r"env_runners/\w+(/\w+)*", re.ASCII)
_KEYS = ("info", "at", "reduce", "by", "histogram")
_FORM = "{info: key, at: episode_end, reduce: mean}"
_BY_ID = ("agent", "module")
# Values that infos may be grouped by.
_Value = str | int | float | bool


@dataclass(frozen=True)
class InfoMetric:
    """A number of each finished episode, out of the infos of its steps, and how numbers of episodes become one.

    Attributes:
        name: `env_runners/...`, of the metric.
        path: keys that lead through nested infos.
        at: of `OF_EPISODE`.
        reduce: of `REDUCTIONS`, or `p1` to `p99`: a percentile.
        group: keys that lead to another info and its value at an episode's end: only such episodes count; None: all.
        bin: it is the share of episodes with a number in [low, high), in the place of `reduce`; None: no share.
        owner: "agent" or "module", and the id of the one whose episodes count; None: all.
    """

    name: str
    path: tuple[str, ...]
    at: str = "episode_end"
    reduce: str = "mean"
    group: tuple[tuple[str, ...], _Value] | None = None
    bin: tuple[float, float] | None = None
    owner: tuple[str, str] | None = None

    @property
    def is_part(self) -> bool:
        """Whether it is one of several metrics that an entry of the block declares, and not the first."""
        return self.group is not None or self.bin is not None or self.owner is not None

    def counts(self, agent: str, module_id: str) -> bool:
        """Return whether episodes of this agent count."""
        return self.owner is None or self.owner[1] == (agent if self.owner[0] == "agent" else module_id)

    @property
    def meaning(self) -> str:
        """What the metric says."""
        of_group = "" if self.group is None else f" with {'/'.join(self.group[0])} {self.group[1]}"
        of_owner = "" if self.owner is None else f" of {self.owner[0]} {self.owner[1]}"
        reduced = self.reduce if self.bin is None else f"share in [{self.bin[0]}, {self.bin[1]})"
        episodes = f"finished episodes{of_group}{of_owner}"
        return f"{'/'.join(self.path)} of infos, {OF_EPISODE[self.at]}; {reduced} of {episodes}"


def read_info_metrics(
    config: ExperimentConfig, agents_by_module: Mapping[str, Sequence[str]] | None = None
) -> list[InfoMetric]:
    """Return the metrics of a block without faults, each with its groups, and with each of these agents and modules."""
    found = []
    for name, block in config.metrics.items():
        every = _read(name, block)
        found += [every, *_bins(every, block.get("histogram", []))]
        found += [grouped for path, values in _groups(block) for grouped in _by_group(every, path, values)]
    for metric in list(found):
        found += [replace(metric, name=_owned(metric.name, *owner), owner=owner) for owner in _owners(agents_by_module)]
    return found


def _read(name: str, block: Mapping[str, Any]) -> InfoMetric:
    given = {key: block[key] for key in ("at", "reduce") if key in block}
    return InfoMetric(name, tuple(block["info"].split("/")), **given)


def _bins(metric: InfoMetric, edges: Sequence[float]) -> Iterator[InfoMetric]:
    """Yield the share below the first edge, between each two, and from the last one on."""
    bounds = [-math.inf, *edges, math.inf] if edges else []
    for low, high in pairwise(bounds):
        name = f"{low}_to_{high}"
        if low == -math.inf:
            name = f"below_{high}"
        if high == math.inf:
            name = f"from_{low}"
        yield replace(metric, name=f"{metric.name}/{name}", bin=(low, high))


def _groups(block: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], list[_Value]]]:
    for path, values in block.get("by", {}).items():
        yield tuple(str(path).split("/")), list(values)


def _by_group(metric: InfoMetric, path: tuple[str, ...], values: Sequence[_Value]) -> list[InfoMetric]:
    return [replace(metric, name=f"{metric.name}/{value}", group=(path, value)) for value in values]


def _owners(agents_by_module: Mapping[str, Sequence[str]] | None) -> Iterator[tuple[str, str]]:
    for module_id, agents in (agents_by_module or {}).items():
        yield "module", module_id
        for agent in agents:
            yield "agent", agent


def _owned(name: str, kind: str, id_: str) -> str:
    """Return the name of the metric of one agent or module, as its returns have it."""
    return f"{PREFIX}{kind}_{name.removeprefix(PREFIX)}/{id_}"


def info_metrics(
    config: ExperimentConfig, prefixes: list[str], agents_by_module: Mapping[str, Sequence[str]] | None = None
) -> dict[str, str]:
    """Return metric -> meaning, under each of `prefixes` (`env_runners`, `evaluation/env_runners`)."""
    found = read_info_metrics(replace(config, metrics=_told(config)), agents_by_module)
    return {f"{prefix}/{metric.name.removeprefix(PREFIX)}": metric.meaning for prefix in prefixes for metric in found}


def _told(config: ExperimentConfig) -> dict[str, dict[str, Any]]:
    """Return the block without faults; a faulty entry counts by its name: to ask for it is no second problem."""
    named = {name: block for name, block in config.metrics.items() if _NAME.fullmatch(str(name))}
    return {name: {"info": "any"} if _fault(name, block) else block for name, block in named.items()}


def may_be_of_agent(name: str, config: ExperimentConfig) -> bool:
    """Return whether `env_runners/...` may be a metric of one agent or module, which only the environment knows."""
    starts = (_owned(metric, kind, "") for metric in info_metrics(config, ["env_runners"]) for kind in _BY_ID)
    return name.startswith(tuple(starts))


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
    declared = [metric.name for metric in read_info_metrics(replace(config, metrics=_told(config)))]
    for name in dict.fromkeys(name for name in declared if declared.count(name) > 1):
        what = f"metrics declares {name} twice: an entry, a bin and a group have names of their own"
        yield Problem(what, composed.where("metrics"), name, "other names or values")
    if config.metrics and config.env.is_external:
        what = "metrics are made of infos of environments that are stepped here"
        yield Problem(what, composed.where("metrics"), "simulators that connect", "no metrics")


def _fault(name: str, block: Any) -> Problem | None:
    """Return what is wrong with a metric; None: nothing."""
    if not _NAME.fullmatch(str(name)):
        what = "the name of a metric out of infos begins with env_runners/"
        return Problem(what, None, str(name), "env_runners/is_success and its like")
    if not isinstance(block, dict):
        return Problem("a metric out of infos is a block", None, show_value(block), _FORM)
    unknown = next((str(key) for key in block if key not in _KEYS), None)
    if unknown is not None:
        return Problem(f"{unknown} is not known", None, unknown, ", ".join(_KEYS), nearest_match(unknown, _KEYS))
    if not isinstance(block.get("info"), str) or not block["info"]:
        what = "info is the key of the number in infos; slashes lead into nested ones"
        return Problem(what, None, show_value(block), _FORM)
    at, reduce = str(block.get("at", "episode_end")), str(block.get("reduce", "mean"))
    if at not in OF_EPISODE:
        what = "at says what an episode's number is"
        return Problem(what, None, at, ", ".join(OF_EPISODE), nearest_match(at, OF_EPISODE))
    return (
        find_reduction_fault("reduce says how the numbers of episodes become one", reduce, REDUCTIONS)
        or _fault_of_edges(block.get("histogram", []))
        or _fault_of_groups(block.get("by", {}))
    )


def _fault_of_edges(edges: Any) -> Problem | None:
    """Return what is wrong with `histogram`; None: nothing."""
    are_numbers = isinstance(edges, list) and all(type(edge) in (int, float) and math.isfinite(edge) for edge in edges)
    if are_numbers and all(low < high for low, high in pairwise(edges)):
        return None
    return Problem(
        "histogram lists the edges between its bins", None, show_value(edges), "[0, 10, 100]: ascending numbers"
    )


def _fault_of_groups(by: Any) -> Problem | None:
    """Return what is wrong with `by`; None: nothing."""
    what = "by groups episodes by the values that another info has at their ends"
    expected = "{task: [easy, hard]}: texts of letters, digits, - and _, numbers, true or false"
    if not isinstance(by, dict):
        return Problem(what, None, show_value(by), expected)
    for values in by.values():
        if not isinstance(values, list) or not values:
            return Problem(what, None, show_value(by), expected)
        wrong = [value for value in values if not _is_value(value)]
        if wrong:
            return Problem(what, None, show_value(wrong[0]), expected)
    every = [str(value) for values in by.values() for value in values]
    twice = next((value for value in every if every.count(value) > 1), None)
    return None if twice is None else Problem(f"by: {twice} is there twice", None, show_value(by), expected)


def _is_value(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and bool(_GROUP.fullmatch(value)))
