"""The `metrics` block (metrics from the infos of environments), its checks, and its metric names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from runner.config.declared_metrics import find_reduction_fault
from runner.config.errors import Problem, show_value, unknown_name

if TYPE_CHECKING:
    from runner.config.schemas import ExperimentConfig

PREFIX = "env_runners/"
# How the infos of an episode's steps become one number.
OF_EPISODE = {
    "episode_end": "from the info of the last step",
    "episode_sum": "sum over the steps",
    "episode_mean": "mean over the steps",
    "episode_min": "minimum over the steps",
    "episode_max": "maximum over the steps",
}
REDUCTIONS = ("mean", "median", "std", "min", "max", "sum")
_GROUP = re.compile(r"[\w-]+", re.ASCII)
_NAME = re.compile(r"env_runners/\w+(/\w+)*", re.ASCII)
_KEYS = ("info", "at", "reduce", "by", "histogram")
_FORM = "{info: key, at: episode_end, reduce: mean}"
_BY_ID = ("agent", "module")
# Types of values that group episodes.
_Value = str | int | float | bool


@dataclass(frozen=True)
class InfoMetric:
    """A metric from infos: one number per finished episode, and the reduction over episodes.

    Attributes:
        name: name of the metric, `env_runners/...`.
        path: keys of the number in nested infos.
        at: key of `OF_EPISODE`.
        reduce: one of `REDUCTIONS`, or a percentile `p1` to `p99`.
        group: keys of another info, and the value that it must have at the end of an episode; None: all episodes.
        bin: (low, high): the metric is the share of episodes with a number in [low, high); None: use `reduce`.
        owner: ("agent" or "module", id) whose episodes count; None: all.
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
        """Whether this is an additional metric of an entry, such as a bin or a group."""
        return self.group is not None or self.bin is not None or self.owner is not None

    def counts(self, agent: str, module_id: str) -> bool:
        """Return whether the episodes of this agent count."""
        return self.owner is None or self.owner[1] == (agent if self.owner[0] == "agent" else module_id)

    @property
    def meaning(self) -> str:
        """Description of the metric."""
        of_group = "" if self.group is None else f" with {'/'.join(self.group[0])} {self.group[1]}"
        of_owner = "" if self.owner is None else f" of {self.owner[0]} {self.owner[1]}"
        reduced = self.reduce if self.bin is None else f"share in [{self.bin[0]}, {self.bin[1]})"
        episodes = f"finished episodes{of_group}{of_owner}"
        return f"{'/'.join(self.path)} of infos, {OF_EPISODE[self.at]}; {reduced} of {episodes}"


def read_info_metrics(
    config: ExperimentConfig, agents_by_module: Mapping[str, Sequence[str]] | None = None
) -> list[InfoMetric]:
    """Return the metrics of a valid block, including their groups, agents and modules."""
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
    """Yield the bins below the first edge, between two edges, and above the last edge."""
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
    """Return the name of the metric of one agent or module, in the form of its returns."""
    return f"{PREFIX}{kind}_{name.removeprefix(PREFIX)}/{id_}"


def info_metrics(
    config: ExperimentConfig, prefixes: list[str], agents_by_module: Mapping[str, Sequence[str]] | None = None
) -> dict[str, str]:
    """Return metric -> meaning, under each of `prefixes` (`env_runners`, `evaluation/env_runners`)."""
    found = read_info_metrics(replace(config, metrics=_named_blocks(config)), agents_by_module)
    return {f"{prefix}/{metric.name.removeprefix(PREFIX)}": metric.meaning for prefix in prefixes for metric in found}


def _named_blocks(config: ExperimentConfig) -> dict[str, dict[str, Any]]:
    """Return the entries with valid names; invalid blocks are replaced, so that `stop` may still use their names."""
    named = {name: block for name, block in config.metrics.items() if _NAME.fullmatch(str(name))}
    return {name: {"info": "any"} if _fault(name, block) else block for name, block in named.items()}


def may_be_of_agent(name: str, config: ExperimentConfig) -> bool:
    """Return whether `env_runners/...` may be the metric of an agent or module that only the environment knows."""
    starts = (_owned(metric, kind, "") for metric in info_metrics(config, ["env_runners"]) for kind in _BY_ID)
    return name.startswith(tuple(starts))


def find_info_metric_problems(config: ExperimentConfig, taken: set[str]) -> Iterator[Problem]:
    """Yield the problems of the `metrics` block.

    Args:
        config: configuration of the run.
        taken: names of the built-in metrics.
    """
    for name, block in config.metrics.items():
        key = f"metrics.{name}"
        if name in taken:
            yield Problem(f"{key} is the name of a built-in metric", key, name, "another name")
        elif fault := _fault(name, block):
            yield replace(fault, what=f"{key}: {fault.what}", where=key)
    declared = [metric.name for metric in read_info_metrics(replace(config, metrics=_named_blocks(config)))]
    for name in dict.fromkeys(name for name in declared if declared.count(name) > 1):
        what = f"metrics declares {name} twice (entries, bins and groups share the names)"
        yield Problem(what, "metrics", name, "other names or values")
    if config.metrics and config.env.is_external:
        what = "metrics from infos do not work with external simulators (env.port)"
        yield Problem(what, "metrics", "env.port", fix="remove the block metrics, or set env.port=null")


def _fault(name: str, block: Any) -> Problem | None:
    if not _NAME.fullmatch(str(name)):
        what = "the name of a metric from infos must begin with env_runners/"
        return Problem(what, None, str(name), "for example env_runners/is_success")
    if not isinstance(block, dict):
        return Problem("a metric from infos must be a block", None, show_value(block), _FORM)
    unknown = next((str(key) for key in block if key not in _KEYS), None)
    if unknown is not None:
        return unknown_name(f"{unknown} is not a known key", None, unknown, _KEYS)
    if not isinstance(block.get("info"), str) or not block["info"]:
        what = "info must be the key of a number in infos, with slashes for nested infos"
        return Problem(what, None, show_value(block), _FORM)
    at, reduce = str(block.get("at", "episode_end")), str(block.get("reduce", "mean"))
    if at not in OF_EPISODE:
        return unknown_name("at is not one of its choices", None, at, OF_EPISODE)
    return (
        find_reduction_fault("reduce is not one of its choices", reduce, REDUCTIONS)
        or _fault_of_edges(block.get("histogram", []))
        or _fault_of_groups(block.get("by", {}))
    )


def _fault_of_edges(edges: Any) -> Problem | None:
    are_numbers = isinstance(edges, list) and all(type(edge) in (int, float) and math.isfinite(edge) for edge in edges)
    if are_numbers and all(low < high for low, high in pairwise(edges)):
        return None
    return Problem(
        "histogram must be a list of bin edges", None, show_value(edges), "ascending numbers, for example [0, 10, 100]"
    )


def _fault_of_groups(by: Any) -> Problem | None:
    what = "by must map the key of an info to a list of values"
    expected = "for example {task: [easy, hard]}; values are strings (letters, digits, - and _), numbers, true or false"
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
    return None if twice is None else Problem(f"by contains {twice} twice", None, show_value(by), expected)


def _is_value(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and bool(_GROUP.fullmatch(value)))
