"""JSON Schema of experiment files, for completion, descriptions and checks in editors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.config.blocks import EvaluationConfig
from runner.config.defaults import SchemaError, core_groups, load_schema
from runner.config.env_ids import GROUP, USUAL_ID
from runner.config.json_types import Schema, schema_of_class
from runner.config.metrics import producible_metrics
from runner.config.operators import OPERATORS, OperatorConfig
from runner.config.paths import list_groups, list_options
from runner.config.schemas import ExperimentConfig
from runner.config.yaml_files import YAMLError, read_yaml

FILE_NAME = "runner.schema.json"
_DIALECT = "http://json-schema.org/draft-07/schema#"
_EXPERIMENT, _ALGORITHM, _SELF = "experiment", "algorithm", "_self_"
_OVERRIDE = f"override /{_ALGORITHM}"
_PLAN_REFERENCE = {"$ref": "#/definitions/plan"}


def experiment_schema(dirs: Sequence[Path]) -> Schema:
    """Return the JSON Schema (draft 7) of experiment files and of complete configurations.

    The keys of `algorithm` are the fields of the algorithm that `defaults` or `algorithm.schema` chooses.

    Args:
        dirs: search path of configuration files; the schema contains their experiments, groups and algorithms.
    """
    algorithms = _Algorithms(dirs)
    return {
        "$schema": _DIALECT,
        "title": "experiment of runner",
        "type": "object",
        "properties": {"defaults": _defaults(dirs), **_blocks(), "hydra": {"type": "object"}},
        "additionalProperties": False,
        "allOf": algorithms.branches(),
        "definitions": {"plan": _plan(), **algorithms.definitions()},
    }


def _blocks() -> Schema:
    properties = dict(schema_of_class(ExperimentConfig)["properties"])
    properties[_ALGORITHM] = {"description": "The algorithm: its loss, its training loop and their options."}
    metrics = producible_metrics(ExperimentConfig(evaluation=EvaluationConfig(evaluation_interval=1)))
    bound = properties["stop"]["additionalProperties"]
    bound = {**bound, "type": [*bound["type"], "null"]}  # null removes a condition of the experiment underneath
    properties["stop"]["properties"] = {name: {**bound, "description": meaning} for name, meaning in metrics.items()}
    properties["stop"]["additionalProperties"] = {**bound, "type": [*bound["type"], "object"]}  # env_runners: {...}
    return properties


def _defaults(dirs: Sequence[Path]) -> Schema:
    """Return the schema of the list `defaults`: other experiments, and options of groups."""
    names: Schema = {}
    for group in list_groups(dirs):
        if group != _EXPERIMENT:
            option = _option(group, list_options(dirs, group))
            starts = (f"override /{group}",) if group in core_groups() else (f"/{group}", f"override /{group}")
            names |= dict.fromkeys(starts, option)
    chosen = {
        "type": "object",
        "properties": names,
        "patternProperties": {"@": {"type": "string"}},
        "additionalProperties": False,
    }
    experiments = {"enum": [*list_options(dirs, _EXPERIMENT), _SELF]}
    meaning = "Experiments that this one builds on, and options of groups, such as `override /env: cartpole`."
    return {"type": "array", "description": meaning, "items": {"anyOf": [experiments, chosen]}}


def _option(group: str, names: Iterable[str]) -> Schema:
    listed = {"enum": [*names]}
    either = {"anyOf": [listed, {"type": "string", "pattern": USUAL_ID}]} if group == GROUP else listed
    return {**either, "description": f"option of the group {group}"}


def _plan() -> Schema:
    built_in = {
        "type": "object",
        "properties": {name: _operator(config) for name, config in OPERATORS.items()},
        "additionalProperties": False,
    }
    return {"type": "array", "items": {"anyOf": [{"enum": list(OPERATORS)}, built_in, _has_key("_target_")]}}


def _operator(config: type[OperatorConfig]) -> Schema:
    schema = schema_of_class(config)
    if "plans" in schema["properties"]:
        schema["properties"]["plans"]["items"] = _PLAN_REFERENCE
    return schema


class _Algorithms:
    """The algorithms of a search path, and what in a file chooses each of them."""

    def __init__(self, dirs: Sequence[Path]) -> None:
        self._files = {group: list_options(dirs, group) for group in (_ALGORITHM, _EXPERIMENT)}
        self._names: dict[str, list[str]] = {}  # dotted path of a dataclass -> options of `algorithm` that use it
        for name in self._files[_ALGORITHM]:
            self._names.setdefault(self._dotted_path(name), []).append(name)

    def definitions(self) -> Schema:
        """Return dotted path -> schema of the block."""
        return {path: _algorithm_block(path) for path in self._names}

    def branches(self) -> list[Schema]:
        """Return one condition for each dataclass, with the schema that it implies."""
        return [
            {
                "if": {"anyOf": [*self._conditions(path)]},
                "then": {"properties": {_ALGORITHM: {"allOf": [{"$ref": f"#/definitions/{path}"}]}}},
            }
            for path in self._names
        ]

    def _conditions(self, path: str) -> Iterator[Schema]:
        """Yield the ways in which a file chooses a dataclass; each excludes the others."""
        named = {"required": [_ALGORITHM], "properties": {_ALGORITHM: {"required": ["schema"]}}}
        overridden, inherited = _contains(_has_key(_OVERRIDE)), _contains({"enum": [*self._files[_EXPERIMENT]]})
        yield {**named, "properties": {_ALGORITHM: {**_has_key("schema"), "properties": {"schema": {"const": path}}}}}
        names, bases = self._names[path], self._experiments_with(self._names[path])
        override = {**_has_key(_OVERRIDE), "properties": {_OVERRIDE: {"enum": names}}}
        yield {"allOf": [{"not": named}, _contains(override)]}
        if bases:
            yield {"allOf": [{"not": named}, {"not": overridden}, _contains({"enum": bases})]}
        if core_groups()[_ALGORITHM] in names:
            yield {"allOf": [{"not": named}, {"not": overridden}, {"not": inherited}]}

    def _experiments_with(self, algorithms: Sequence[str]) -> list[str]:
        return [name for name in self._files[_EXPERIMENT] if self._algorithm_of(name) in algorithms]

    def _dotted_path(self, name: str, seen: tuple[str, ...] = ()) -> str:
        """Return the dotted path of an algorithm's dataclass, from its file or the file that it builds on."""
        values = _read(self._files[_ALGORITHM].get(name))
        bases = [base for base in _bases_in(values) if base not in (name, *seen)]
        if "schema" in values or not bases:
            return str(values.get("schema"))
        return self._dotted_path(bases[0], (name, *seen))

    def _algorithm_of(self, experiment: str, seen: tuple[str, ...] = ()) -> str:
        """Return the algorithm that an experiment chooses, itself or through the experiments it builds on."""
        values = _read(self._files[_EXPERIMENT].get(experiment))
        chosen = [each[_OVERRIDE] for each in _entries(values) if isinstance(each, dict) and _OVERRIDE in each]
        seen = (experiment, *seen)  # files may build on each other
        inherited = [self._algorithm_of(base, seen) for base in _bases_in(values) if base not in seen]
        return str([core_groups()[_ALGORITHM], *inherited, *chosen][-1])


def _algorithm_block(path: str) -> Schema:
    """Return the schema of a dataclass; of one that cannot be imported, a schema that accepts every key."""
    try:
        schema = schema_of_class(load_schema(path))
    except SchemaError as error:
        return {"type": "object", "description": f"{path} cannot be read: {error}"}
    schema["properties"]["plan"] = {**schema["properties"]["plan"], **_PLAN_REFERENCE}
    return schema


def _has_key(key: str) -> Schema:
    return {"type": "object", "required": [key]}


def _contains(entry: Schema) -> Schema:
    """Return the condition that `defaults` has such an entry."""
    return {"required": ["defaults"], "properties": {"defaults": {"contains": entry}}}


def _read(file: Path | None) -> Mapping[str, Any]:
    try:
        values = {} if file is None else read_yaml(file)
    except (YAMLError, OSError):
        values = {}
    return values if isinstance(values, dict) else {}


def _entries(values: Mapping[str, Any]) -> list[Any]:
    defaults = values.get("defaults")
    return defaults if isinstance(defaults, list) else []


def _bases_in(values: Mapping[str, Any]) -> list[str]:
    return [entry for entry in _entries(values) if isinstance(entry, str) and entry != _SELF]
