"""Conversion of plain values into frozen dataclasses, with one report of all problems."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from runner.config.algorithms import AlgorithmConfig
from runner.config.checks import check_value, convert, find_unknown_keys, find_value_problems, typed_fields, wrong_type
from runner.config.composed import Composed
from runner.config.defaults import SchemaError, core_groups, default_of, known_keys, load_schema
from runner.config.errors import ConfigError, Problem, list_names, show_value
from runner.config.fields import option_of
from runner.config.list_patches import module_algorithm_key
from runner.config.references import without_values
from runner.config.rules import RULES, ConfigRule, apply_rules
from runner.config.schemas import ExperimentConfig, Number

UNNAMED_EXPERIMENT = "custom"
_MOST_OTHERS = 3  # keys of other blocks with the name of an unknown key
_ENV_VARIABLE = re.compile(r"\$\{oc\.env:[^{}]+\}")


def build_experiment_config(composed: Composed, rules: Sequence[ConfigRule] = RULES) -> ExperimentConfig:
    """Build the checked configuration; raises `ConfigError` with all problems, also of the composition.

    A missing `experiment_name` becomes the name of the experiment file.

    Args:
        composed: the values.
        rules: checks of several fields. Commands that do not train need fewer.
    """
    reader = _Reader(composed)
    config = reader.read_experiment()
    found = [*reader.problems, *(apply_rules(rules, config, composed) if composed.values else ())]
    problems = [*reader.problems_of_composition(), *map(composed.located, found)]
    if problems:
        raise ConfigError(without_values(dict.fromkeys(problems), composed.values, composed.references))
    if config.experiment_name is None:
        config = dataclasses.replace(config, experiment_name=composed.experiment or UNNAMED_EXPERIMENT)
    return config


class _Reader:
    """Reads blocks into dataclasses; invalid fields keep their defaults, so that all problems are found."""

    def __init__(self, composed: Composed) -> None:
        self.composed = composed
        self.problems: list[Problem] = []
        self.unknown_block: str | None = None  # key of an algorithm whose dataclass does not exist
        self._keys_of_algorithm: frozenset[str] = frozenset()

    def read_experiment(self) -> ExperimentConfig:
        values = self.composed.values
        algorithm = self._read_algorithm(values.get("algorithm"))
        stop = self._read_stop(values.get("stop", {}))
        others = {name: value for name, value in values.items() if name not in ("algorithm", "stop")}
        fields = self._read_fields(ExperimentConfig, others, "", skipped=("algorithm", "stop"))
        config = ExperimentConfig(**fields, algorithm=algorithm, stop=stop)
        modules = {
            module_id: self._with_own_algorithm(module_id, of_module, config.algorithm)
            for module_id, of_module in config.multi_agent.modules.items()
        }
        return dataclasses.replace(config, multi_agent=dataclasses.replace(config.multi_agent, modules=modules))

    def _with_own_algorithm(self, module_id: str, fields: dict[str, Any], of_run: AlgorithmConfig) -> dict[str, Any]:
        """Read the algorithm of a single module, if any; shared fields come from the run."""
        if "algorithm" not in fields:
            return fields
        key = module_algorithm_key(module_id)
        others, values = {name: value for name, value in fields.items() if name != "algorithm"}, fields["algorithm"]
        if not isinstance(values, dict) or "schema" not in values:
            what = f"{key} does not choose an algorithm"
            expected = (
                f"- /algorithm@{key}: dqn in `defaults`, for example; to change options of the run's algorithm, set "
                f"multi_agent.algorithm_config_overrides_per_module.{module_id}"
            )
            self.problems.append(Problem(what, key, show_value(values), expected))
            return others
        for name in (name for name in AlgorithmConfig.of_run if name in values):
            what = f"{key}.{name} cannot be set per module"
            self.problems.append(Problem(what, f"{key}.{name}", show_value(values[name]), f"algorithm.{name}"))
        own = {name: value for name, value in values.items() if name not in AlgorithmConfig.of_run}
        shared = {name: getattr(of_run, name) for name in AlgorithmConfig.of_run}
        return {**others, "algorithm": dataclasses.replace(self._read_algorithm(own, key), **shared)}

    def _read_block(self, schema: type, values: Any, name: str) -> Any:
        if not isinstance(values, dict):
            expected = "keys: " + list_names(field.name for field in dataclasses.fields(schema))
            is_option = isinstance(values, str) and name in core_groups()
            fix = f"`- override /{name}: {values}` in the list `defaults` of the file" if is_option else None
            self.problems.append(Problem(f"{name} must be a block", name, show_value(values), expected, fix=fix))
            values = {}
        return schema(**self._read_fields(schema, values, f"{name}."))

    def _read_fields(
        self, schema: type, values: dict[str, Any], prefix: str, skipped: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        if prefix.rstrip(".") not in self.composed.unread:
            self.problems += self._describe_unknown(schema, values, prefix)
        annotations = typing.get_type_hints(schema)
        read = {}
        for field in dataclasses.fields(schema):
            if field.init and field.name not in skipped:
                name = f"{prefix}{field.name}"
                given = values[field.name] if field.name in values else default_of(field)
                read[field.name] = self._read_field(field, annotations[field.name], given, name)
        return read

    def _read_field(self, field: dataclasses.Field[Any], annotation: Any, value: Any, name: str) -> Any:
        if value is dataclasses.MISSING:
            if name.partition(".")[0] not in self.composed.unread:
                self.problems.append(Problem(f"{name} is required", name))
            return None
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return value
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            return self._read_block(annotation, value, name)
        problems = find_value_problems(name, value, annotation, option_of(field))
        if problems:
            self.problems += [self._with_decoding(problem, name) for problem in problems]
            default = default_of(field)
            return None if default is dataclasses.MISSING else default
        return convert(value, annotation)

    def _with_decoding(self, problem: Problem, name: str) -> Problem:
        """Suggest how to read an environment variable, which is text, as a value of another type."""
        reference = self.composed.references.get(name, "")
        if not (_ENV_VARIABLE.fullmatch(reference) and problem.what == wrong_type(name)):
            return problem
        decoded = f"${{oc.decode:{reference}}}"
        is_override = (self.composed.where(name) or "").startswith("override ")
        fix = f"'{name}=\"{decoded}\"'" if is_override else f"'{decoded}'"
        return dataclasses.replace(problem, fix=f"{fix}, which reads the text as a value")

    def problems_of_composition(self) -> list[Problem]:
        """Return the problems of composing, without consequences of an unknown dataclass."""
        problems = list(self.composed.problems)
        if self.unknown_block is not None:
            missing_key = f"Interpolation key '{self.unknown_block}."
            problems = [problem for problem in problems if missing_key not in problem.what]
        return problems

    def _describe_unknown(self, schema: type, values: dict[str, Any], prefix: str) -> Iterator[Problem]:
        for problem in find_unknown_keys(schema, values, prefix.rstrip(".")):
            others = self._keys_named(problem.what.removeprefix(f"unknown key {prefix}"), prefix)
            if 0 < len(others) <= _MOST_OTHERS:
                problem = dataclasses.replace(problem, nearest=", ".join(others))
            if prefix == "module." and problem.nearest is None:
                expected = f"module.model_config for options of a custom class; {problem.expected}"
                problem = dataclasses.replace(problem, expected=expected)
            yield problem

    def _keys_named(self, name: str, prefix: str) -> list[str]:
        """Return the keys of other blocks with the name of an unknown key at `prefix`."""
        keys = known_keys() if "algorithm." in prefix else known_keys() | self._keys_of_algorithm
        return sorted(key for key in keys if key.rpartition(".")[2] == name)

    def _read_algorithm(self, values: Any, key: str = "algorithm") -> AlgorithmConfig:
        if not isinstance(values, dict) or key in self.composed.unread:
            if key not in self.composed.unread:
                self._read_block(AlgorithmConfig, values, key)
            return ExperimentConfig().algorithm
        path = values.get("schema")
        try:
            schema = load_schema(str(path))
        except SchemaError as error:
            self.unknown_block, name = key, f"{key}.schema"
            self.problems.append(Problem(f"{name} is not a valid dataclass: {error}", name, show_value(path)))
            return ExperimentConfig().algorithm
        if key == "algorithm":
            self._keys_of_algorithm = frozenset(f"{key}.{name}" for name in typed_fields(schema))
        algorithm = self._read_block(schema, values, key)
        assert isinstance(algorithm, AlgorithmConfig)
        return algorithm

    def _read_stop(self, values: Any) -> dict[str, Number]:
        """Read the valid criteria, so that other checks cover them even if one of the others is invalid."""
        if not isinstance(values, dict):
            what = "stop must be a mapping of metrics to values"
            self.problems.append(Problem(what, "stop", show_value(values), "metric: number"))
            return {}
        self.problems += find_value_problems("stop", values, dict[str, Number], None)
        valid = {name: one for name, one in values.items() if check_value(name, one, Number, None) is None}
        return {name: convert(one, Number) for name, one in valid.items()}
