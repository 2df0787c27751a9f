"""Checks of a manifest's shape: one with the right digest may still be forged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from runner.checkpoints.errors import OddCheckpointError
from runner.config.errors import Problem, show_value

MAX_MANIFEST_BYTES = 2**26
_MOST_LETTERS = 80
# Key of a manifest -> its types, the types of its items, and a description.
_SHAPE: Mapping[str, tuple[tuple[type, ...], tuple[type, ...], str]] = {
    "config": ((dict,), (object,), "a block of keys"),
    "overrides": ((list,), (str,), "a list of texts"),
    "experiment": ((str, NoneType), (object,), "a name"),
    "result": ((dict,), (int, float, NoneType), "metric: number"),
    "files": ((dict,), (str,), "file: digest"),
}


def check_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Check the types of the keys that a manifest has; raises `OddCheckpointError`."""
    problem = next(_find_problems(path, manifest), None)
    if problem is not None:
        raise OddCheckpointError(problem)


def _find_problems(path: Path, manifest: Mapping[str, Any]) -> Iterator[Problem]:
    for name, (kinds, item_kinds, allowed) in _SHAPE.items():
        value = manifest.get(name) if name in manifest else kinds[0]()
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        odd = [value] if not isinstance(value, kinds) else [one for one in items if not isinstance(one, item_kinds)]
        for one in odd[:1]:
            what = f"the manifest's {name} is none that runner writes"
            yield Problem(what, str(path), show_value(one)[:_MOST_LETTERS], allowed)
