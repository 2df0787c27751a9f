"""Paths in a configuration become absolute when it is read, because user code may change the working folder."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Mapping
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
    made = {name: _absolute_fields(block, _path_fields().get(name, ())) for name, block in values.items()}
    if isinstance(values.get("offline"), Mapping):
        made = _with_other_places(made, values)
    agents = values.get("multi_agent")
    if isinstance(agents, Mapping) and isinstance(agents.get("modules"), Mapping):
        of_module = _path_fields()["module"]
        modules = {module_id: _absolute_fields(block, of_module) for module_id, block in agents["modules"].items()}
        made["multi_agent"] = {**agents, "modules": modules}
    return made


@cache
def _path_fields() -> dict[str, tuple[str, ...]]:
    """Return block -> fields with paths."""
    blocks = {name: kind for name, kind in typing.get_type_hints(ExperimentConfig).items() if isinstance(kind, type)}
    return {
        name: tuple(one.name for one in dataclasses.fields(kind) if (found := option_of(one)) and found.is_path)
        for name, kind in blocks.items()
        if dataclasses.is_dataclass(kind)
    }


def _with_other_places(made: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, with `offline.input_` and `output` as given if they are not local files."""
    offline = values["offline"]
    given: dict[str, list[str]] = {"offline": [], "evaluation": []}
    if not names_files(offline, "input"):
        given = {"offline": ["input_"], "evaluation": ["offline_evaluation_input_"]}
    if not names_files(offline, "output"):
        given["offline"] = [*given["offline"], "output"]
    for block, names in given.items():
        before = values.get(block)
        if isinstance(before, Mapping):
            made[block] = {**made[block], **{name: before[name] for name in names if name in before}}
    return made


def _absolute_fields(block: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(block, Mapping) or not names:
        return block
    return {name: _absolute(value) if name in names else value for name, value in block.items()}


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
