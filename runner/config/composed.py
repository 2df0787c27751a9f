"""The result of a composition: plain values, their sources, and all problems. Does not import Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.config.errors import Problem

DEFAULT_SOURCE = "default"
CHECKPOINT_SOURCE = "checkpoint"


@dataclass(frozen=True)
class Composed:
    """A composed configuration, not yet checked.

    `sources`: dotted key of a value, block or removed key -> `file:line`, `override key=value` or `default`.
    `unread`: groups whose chosen file is missing or cannot be read, so that their keys cannot be checked.
    `unresolved`: the values with their interpolations, for a checkpoint.
    `run_dir`: `hydra.run.dir`; None for stored values or after a problem.
    `run_url`: `hydra.run.dir` if it is a URL; then `run_dir` is the folder of the local copy.
    `is_run_dir_named`: false if `hydra.run.dir` contains the time, as it does by default.
    `notes`: notes for the user, one per renamed key.
    `sweep_dir`: `hydra.sweep.dir`; None as for `run_dir`.
    `references`: dotted key -> text, for values of resolvers such as `oc.env`: the text is stored and printed.
    """

    values: dict[str, Any]
    sources: dict[str, str]
    overrides: tuple[str, ...]
    experiment: str | None
    problems: tuple[Problem, ...] = ()
    unread: frozenset[str] = frozenset()
    config_dir: Path | None = None
    unresolved: Mapping[str, Any] = field(default_factory=dict)
    run_dir: str | None = None
    run_url: str | None = None
    is_run_dir_named: bool = True
    references: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sweep_dir: str | None = None

    def where(self, key: str) -> str | None:
        """Return the source of the value at `key`, else of a value inside or around it; None for a default."""
        source = self.sources.get(key)
        if source in (None, DEFAULT_SOURCE):
            inside = (self.sources[name] for name in self.sources if name.startswith(f"{key}."))
            source = next(inside, source)
        if source is None and "." in key:
            return self.where(key.rpartition(".")[0])
        return None if source == DEFAULT_SOURCE else source

    def located(self, problem: Problem) -> Problem:
        """Return the problem of a key with the source of its value as `where`.

        For a default, `where` is the key, or None if the text names the key.
        """
        key = problem.where
        if key is None:
            return problem
        return replace(problem, where=self.where(key) or (None if key in problem.what else key))


def leaf_values(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value of all leaves; empty blocks and lists are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        leaves |= leaf_values(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return leaves
