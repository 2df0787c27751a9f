"""Paths in a configuration become absolute when it is read, because user code may change the working directory."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any

from runner.config.fields import option_of
from runner.config.offline import names_files
from runner.config.schemas import ExperimentConfig

_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:/")  # s3://, dbfs:/; a Windows drive is one letter
_SQLITE, _FILE = "sqlite:///", "file:"
_REFERENCES = ("${", "$ {")  # the second form is masked
_NAMES_OF_MLFLOW = ("databricks", "databricks-uc")


def absolute_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration with absolute local paths; URLs and references are unchanged."""
    keys = _path_keys() - _other_places(values.get("offline"))
    made = {name: _absolute_fields(block, name, keys) for name, block in values.items()}
    agents = values.get("multi_agent")
    if isinstance(agents, Mapping) and isinstance(agents.get("modules"), Mapping):
        modules = {id_: _absolute_fields(block, "module", keys) for id_, block in agents["modules"].items()}
        made["multi_agent"] = {**agents, "modules": modules}
    return made


@cache
def _path_keys() -> frozenset[str]:
    """Return the dotted keys of fields with paths."""
    blocks = {name: kind for name, kind in typing.get_type_hints(ExperimentConfig).items() if isinstance(kind, type)}
    return frozenset(
        f"{name}.{field.name}"
        for name, kind in blocks.items()
        for field in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
        if (found := option_of(field)) and found.is_path
    )


def _other_places(offline: Any) -> set[str]:
    """Return the keys of recorded data that are not local files."""
    keys = {"input": {"offline.input_", "evaluation.offline_evaluation_input_"}, "output": {"offline.output"}}
    others = [direction for direction in keys if isinstance(offline, Mapping) and not names_files(offline, direction)]
    return {key for direction in others for key in keys[direction]}


def _absolute_fields(block: Any, name: str, keys: Set[str]) -> Any:
    if not isinstance(block, Mapping):
        return block
    return {field: _absolute(value) if f"{name}.{field}" in keys else value for field, value in block.items()}


def _absolute(value: Any) -> Any:
    """Return a path, the paths of a list, or the paths of a block without a class, as absolute paths."""
    if isinstance(value, str):
        return _absolute_path(value)
    if isinstance(value, list):
        return [_absolute(item) for item in value]
    if isinstance(value, Mapping) and "_target_" not in value:
        return {name: _absolute(item) for name, item in value.items()}
    return value


def _absolute_path(text: str) -> str:
    if not text or text in _NAMES_OF_MLFLOW or any(mark in text for mark in _REFERENCES):
        return text
    if text.startswith(_SQLITE):
        path, mark, query = text.removeprefix(_SQLITE).partition("?")
        return f"{_SQLITE}{os.path.abspath(path)}{mark}{query}"
    if text.startswith(_FILE) and not text.startswith((f"{_FILE}/", f"{_FILE}\\")):
        return Path(os.path.abspath(text.removeprefix(_FILE))).as_uri()
    return text if _SCHEME.match(text) else os.path.abspath(os.path.expanduser(text))
