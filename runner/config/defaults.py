"""The defaults of the dataclasses as plain values, and as the base of `conf/config.yaml`."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import typing
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import nearest_match
from runner.config.fields import option_of
from runner.config.imports import describe_exit
from runner.config.paths import conf_dir, list_options
from runner.config.schemas import ExperimentConfig
from runner.config.yaml_files import YAMLError, file_version, read_yaml


class SchemaError(Exception):
    """`algorithm.schema` is not a valid dataclass; the message gives the reason."""


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or `dataclasses.MISSING`."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return copy.deepcopy(field.default)


def default_values(schema: type) -> dict[str, Any]:
    """Return field -> default as nested dicts, without required fields."""
    defaults = {field.name: default_of(field) for field in dataclasses.fields(schema) if field.init}
    return {name: _plain(value) for name, value in defaults.items() if value is not dataclasses.MISSING}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return list(value)
    return value


@cache
def known_keys() -> frozenset[str]:
    """Return the dotted keys of all fields except the algorithm's, whose dataclass depends on the experiment."""
    keys = set()
    for field in dataclasses.fields(ExperimentConfig):
        if option_of(field) is not None:
            keys.add(field.name)
        elif field.name != "algorithm":
            keys |= {f"{field.name}.{name}" for name in default_values(ExperimentConfig)[field.name]}
    return frozenset(keys)


@cache
def core_groups() -> Mapping[str, str]:
    """Return group -> option chosen by `conf/config.yaml`."""
    config = read_yaml(conf_dir() / "config.yaml")
    groups: dict[str, str] = {}
    for entry in config["defaults"]:
        if isinstance(entry, dict):
            groups |= {name: option for name, option in entry.items() if " " not in name}
    groups |= {"env_defaults": "none", "connectors": "default"}  # of `env: none`
    return groups | {"module": module_of(groups["algorithm"], [conf_dir()])}


def module_of(algorithm: str, dirs: Sequence[Path]) -> str:
    """Return the default option of `module` for an algorithm.

    This is the option with the name of the algorithm, or else of the algorithm that its file builds on.
    """
    modules, algorithms = list_options(dirs, "module"), list_options(dirs, "algorithm")
    seen: set[str] = set()
    while algorithm in algorithms and algorithm not in modules and algorithm not in seen:
        seen.add(algorithm)
        algorithm = _built_on(algorithms[algorithm], file_version(algorithms[algorithm]))
    return algorithm if algorithm in modules else "mlp"


def load_schema(dotted_path: str) -> type[AlgorithmConfig]:
    """Return the dataclass of the algorithm block; raises `SchemaError`."""
    module_name, _, class_name = dotted_path.rpartition(".")
    if not module_name:
        raise SchemaError("it is missing, or not a dotted path such as my_module.MyConfig")
    try:
        module = importlib.import_module(module_name)
        schema = getattr(module, class_name, None)
        if isinstance(schema, type):
            _resolve_hints(schema)
    except SystemExit as error:
        raise SchemaError(f"{module_name} cannot be imported: {describe_exit(error)}") from error
    except Exception as error:
        raise SchemaError(f"{type(error).__name__}: {error}") from error
    if schema is None:
        there = nearest_match(class_name, [name for name, value in vars(module).items() if isinstance(value, type)])
        hint = f"; did you mean {there}?" if there else ""
        raise SchemaError(f"module {module_name} does not define {class_name}{hint}")
    if not (isinstance(schema, type) and dataclasses.is_dataclass(schema) and issubclass(schema, AlgorithmConfig)):
        raise SchemaError(f"{dotted_path} is not a dataclass that inherits runner.config.algorithms.AlgorithmConfig")
    return schema


@cache
def _resolve_hints(schema: type) -> None:
    typing.get_type_hints(schema)


@cache
def register_defaults() -> None:
    """Put the defaults of all blocks but `algorithm` into Hydra's ConfigStore."""
    values = default_values(ExperimentConfig)
    del values["algorithm"]  # its dataclass depends on the experiment
    ConfigStore.instance().store(group="schema", name="experiment", node=values)


@lru_cache(maxsize=256)
def _built_on(path: Path, _version: tuple[int, ...]) -> str:
    """Return the first option in the `defaults` of a file; empty if there is none, or the file cannot be read."""
    try:
        defaults = read_yaml(path).get("defaults")
    except (YAMLError, AttributeError, OSError):
        return ""
    names = [one for one in defaults if isinstance(one, str)] if isinstance(defaults, list) else []
    return next((name for name in names if name != "_self_"), "")
