"""The configuration that a checkpoint carries, with overrides on top: what `resume` and `evaluate` start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.compose import Composed
from runner.config.errors import Problem, show_value
from runner.config.overrides import OverrideLine, parse_overrides
from runner.config.paths import search_dirs

_CHECKPOINT_SOURCE = "checkpoint"


def compose_stored(
    unresolved: Mapping[str, Any], overrides: Sequence[str], earlier: Sequence[str], experiment: str | None
) -> Composed:
    """Stored values with overrides of single keys; problems are collected, not raised.

    Args:
        unresolved: `Composed.unresolved` of the run, so that an override also reaches what refers to its key.
        overrides: as on the command line, without `hydra.` ones.
        earlier: overrides that the stored values already contain.
        experiment: name of the experiment file.
    """
    lines, problems = parse_overrides(overrides, search_dirs(None))
    config = OmegaConf.create(dict(unresolved))
    sources = dict.fromkeys(_leaves(unresolved), _CHECKPOINT_SOURCE)
    for line in lines:
        problem = _find_unusable(line)
        if problem is not None:
            problems.append(problem)
            continue
        block, _, name = line.key.partition(".")
        # A metric is one key with slashes in it, everything else a dotted path.
        key = f"stop[{name.replace('.', '/')}]" if block == "stop" and name else line.key
        value = None if line.parsed.is_delete() else line.parsed.value()
        try:
            OmegaConf.update(config, key, value, force_add=True)
        except OmegaConfBaseException as error:
            problems.append(Problem(f"this override cannot be applied: {error}", line.where))
        sources[line.key] = line.where
    values = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    values["stop"] = {metric: bound for metric, bound in values.get("stop", {}).items() if bound is not None}
    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))
    texts = (*earlier, *(line.text for line in lines))
    return Composed(values, sources, texts, experiment, tuple(problems), unresolved={**plain, "stop": values["stop"]})


def _find_unusable(line: OverrideLine) -> Problem | None:
    if line.parsed.is_sweep_override():
        return Problem("a stored run takes one value for each key, not a sweep", line.where)
    if line.is_group:
        return Problem("a stored run takes overrides of single keys, not of groups", line.where, allowed="key=value")
    return None


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Dotted key -> (old, new) as text, for every value that differs."""
    old, new = _leaves(before), _leaves(after)
    names = [name for name in {**old, **new} if old.get(name, _MISSING) != new.get(name, _MISSING)]
    return {name: (_text(old.get(name, _MISSING)), _text(new.get(name, _MISSING))) for name in names}


_MISSING = object()


def _text(value: object) -> str:
    return "not set" if value is _MISSING else show_value(value)


def _leaves(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        leaves |= _leaves(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return leaves
