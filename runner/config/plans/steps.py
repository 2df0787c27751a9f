"""Reading of plans from `algorithm.plan` into steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.config.checks import find_block_problems, valid_fields
from runner.config.errors import ConfigError, Problem, show_value, unknown_name
from runner.config.operators import OPERATORS, BranchesConfig, OperatorConfig
from runner.config.source_definitions import declared_attribute, find_ancestors, is_function
from runner.config.targets import OPERATOR, Given, describe_fault, find_target_fault

KEY = "algorithm.plan"
# Names of item types; None: unknown.
Items = tuple[str, ...] | None


@dataclass(frozen=True)
class PlanStep:
    """One operator of a plan.

    Attributes:
        name: name of the class, or dotted path of a custom operator or function.
        key: dotted key in the configuration.
        config: options; None for a custom operator or function.
        arguments: arguments of a custom operator or function.
        takes, gives, needs: see `OperatorConfig`; `takes` is None if it is unknown.
        writes: columns that a custom operator adds to experiences.
        plans: nested plans of the operator.
        base: options of the built-in operator that a custom operator inherits.
        is_function: whether a custom function makes the complete plan; None if its source cannot be analysed.
    """

    name: str
    key: str
    config: OperatorConfig | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    takes: Items = None
    gives: Items = None
    needs: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    plans: tuple[Plan, ...] = ()
    base: type[OperatorConfig] | None = None
    is_function: bool | None = False

    @property
    def begins(self) -> bool:
        """Whether the operator takes no items."""
        return self.takes == ()

    @property
    def is_understood(self) -> bool:
        """Whether the operator is, or inherits, a built-in one."""
        return self.config is not None or self.base is not None

    def is_a(self, *kinds: type[OperatorConfig]) -> bool:
        """Return whether the operator is, or inherits, one of these built-in ones."""
        return issubclass(self.base or type(self.config), kinds)


Plan = tuple[PlanStep, ...]


def steps_of(plan: Plan) -> Iterator[PlanStep]:
    """Yield all steps, each before the steps of its plans."""
    for step in plan:
        yield step
        for nested_plan in step.plans:
            yield from steps_of(nested_plan)


_FORMS = "a list of operators: Name, {Name: {option: value}}, or {_target_: package.Operator, argument: value}"
_GIVEN = Given(num_positional=1)  # the context


def read_plan(values: Sequence[Any]) -> Plan:
    """Read a checked plan."""
    return PlanReader().read(values, KEY)


def read_options(name: str, options: dict[str, Any]) -> OperatorConfig:
    """Read the options of an operator that is created in Python.

    Raises:
        ConfigError: an option is unknown or wrong.
    """
    reader = PlanReader()
    config = reader.read_options(OPERATORS[name], options, name)
    if reader.problems:
        raise ConfigError(reader.problems)
    return config


class PlanReader:
    """Reads lists into steps, and collects all problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read(self, values: Any, key: str) -> Plan:
        if not isinstance(values, list) or not values:
            self._add(f"{key} is not a valid plan", key, show_value(values), _FORMS)
            return ()
        steps = [self._read_step(value, f"{key}.{index}") for index, value in enumerate(values)]
        if len(values) == 1 and steps[0] is not None and steps[0].is_function is None:
            steps = [dataclasses.replace(steps[0], is_function=True)]
        functions = [step for step in steps if step is not None and step.is_function]
        if functions and (len(steps) > 1 or key != KEY):
            what = f"{functions[0].name} is a function that makes a complete plan, so it cannot be a step of a plan"
            self._add(what, key, expected=f"{KEY}: {{_target_: {functions[0].name}}}, or an operator class")
        return tuple(step for step in steps if step is not None)

    def _read_step(self, value: Any, key: str) -> PlanStep | None:
        if isinstance(value, dict) and "_target_" in value:
            return self._read_target(value, key)
        name: Any = value
        options: Any = None
        if isinstance(value, str):
            options = {}
        elif isinstance(value, dict) and len(value) == 1:
            ((name, options),) = value.items()
            options = {} if options is None else options
        else:
            self._add(f"{key} is not a valid operator", key, show_value(value), _FORMS)
            return None
        schema = OPERATORS.get(name)
        if schema is None:
            what = f"{key}: unknown operator {name}"
            self.problems.append(unknown_name(what, key, str(name), OPERATORS))
            return None
        if not isinstance(options, dict):
            names = ", ".join(one.name for one in dataclasses.fields(schema)) or "no options"
            self._add(f"{key}: the options of {name} must be a block", key, show_value(options), names)
            return None
        config = self.read_options(schema, options, f"{key}.{name}")
        plans: tuple[Plan, ...] = ()
        if isinstance(config, BranchesConfig):
            if not config.plans:
                self._add(
                    f"{key}: {name} needs plans", key, expected="plans: a list of branches, each a list of operators"
                )
            plans = tuple(self.read(one, f"{key}.{name}.plans.{index}") for index, one in enumerate(config.plans))
        return PlanStep(name, key, config, {}, schema.takes, schema.gives, schema.needs, plans=plans)

    def read_options(self, schema: type[OperatorConfig], options: dict[str, Any], key: str) -> OperatorConfig:
        self.problems += find_block_problems(schema, options, key)
        return schema(**valid_fields(schema, options))

    def _read_target(self, value: dict[str, Any], key: str) -> PlanStep | None:
        arguments = dict(value)
        path = arguments.pop("_target_")
        if not isinstance(path, str):
            self._add(f"{key}._target_ is not a dotted path", key, show_value(path), "package.module.Name")
            return None
        fault = find_target_fault(path, list(arguments), given=_GIVEN)
        if fault is not None:
            self.problems.append(describe_fault(f"{key}._target_", fault, path))
            return None
        base = _operator_of(path)
        declared = {name: declared_attribute(path, name, OPERATOR) for name in ("takes", "gives", "needs")}
        takes, gives, needs = (
            getattr(base, name) if base is not None and value in (None, ()) else value
            for name, value in declared.items()
        )
        return PlanStep(
            path,
            key,
            None,
            arguments,
            None if takes is None else tuple(takes),
            None if gives is None else tuple(gives),
            tuple(needs or ()),
            tuple(declared_attribute(path, "writes", OPERATOR) or ()),
            base=base,
            is_function=is_function(path),
        )

    def _add(self, what: str, key: str, got: str | None = None, expected: str | None = None) -> None:
        self.problems.append(Problem(what, key, got, expected))


def _operator_of(path: str) -> type[OperatorConfig] | None:
    """Return the options of the built-in operator that a class is or inherits; None for other classes."""
    names = [one.rpartition(".")[2] for one in find_ancestors(path) if one.startswith("runner.plans.operators.")]
    return next((OPERATORS[name] for name in names if name in OPERATORS), None)
