"""Execution plans as data: reading `algorithm.plan`, and checking that its operators fit together."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.config.checks import check_value, convert, find_unknown_keys
from runner.config.edits import describe_fault
from runner.config.errors import ConfigError, Problem, nearest_match, show_value
from runner.config.operators import (
    ASYNC,
    ENV_RUNNERS,
    ITEMS,
    LEARNERS,
    OPERATORS,
    RECORDED_BATCHES,
    RECORDED_DATA,
    AsyncGradientsConfig,
    BranchesConfig,
    ConcurrentlyConfig,
    DequeueConfig,
    DuplicateConfig,
    EnqueueConfig,
    OperatorConfig,
    ParallelRolloutsConfig,
    ReadRecordedConfig,
    SelectExperiencesConfig,
    StandardMetricsReportingConfig,
)
from runner.config.schemas import ExperimentConfig
from runner.config.source_definitions import constant_of, find_ancestors, is_function
from runner.config.targets import Given, find_target_fault

KEY = "algorithm.plan"
_FORMS = "a list of operators: Name, {Name: {option: value}}, or {_target_: package.Operator, argument: value}"
_GIVEN = Given(num_positional=1)  # resources

# Names of items; None: not known.
Items = tuple[str, ...] | None
Where = Callable[[str], str | None]


@dataclass(frozen=True)
class Step:
    """One operator of a plan.

    Attributes:
        name: of the class, or the dotted path of an operator or function of one's own.
        key: dotted key in the configuration.
        config: options; None for an operator or function of one's own.
        arguments: of an operator or function of one's own.
        takes, gives, needs: see `OperatorConfig`; `takes` is None where it is not known.
        plans: of an operator that runs several.
        base: options of the operator of runner that an operator of one's own is made from.
        is_function: whether a function of one's own makes the whole plan.
        is_known: whether the source says what an operator or function of one's own is.
    """

    name: str
    key: str
    config: OperatorConfig | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    takes: Items = None
    gives: Items = None
    needs: tuple[str, ...] = ()
    plans: tuple[Plan, ...] = ()
    base: type[OperatorConfig] | None = None
    is_function: bool = False
    is_known: bool = True

    @property
    def begins(self) -> bool:
        """Whether the operator takes no items."""
        return self.takes == ()


Plan = tuple[Step, ...]


def read_plan(values: Sequence[Any], key: str = KEY) -> Plan:
    """Read a plan that has been checked."""
    return _Reader(lambda name: None).read(values, key)


def read_options(name: str, options: dict[str, Any]) -> OperatorConfig:
    """Read the options of an operator that is made in Python.

    Raises:
        ConfigError: an option is unknown or wrong.
    """
    reader = _Reader(lambda key: None)
    config = reader.read_options(OPERATORS[name], options, name)
    if reader.problems:
        raise ConfigError(reader.problems)
    return config


def find_plan_problems(values: Sequence[Any], where: Where) -> list[Problem]:
    """Find what is wrong in a plan, and with how its operators fit together."""
    reader = _Reader(where)
    plan = reader.read(values, KEY)
    return reader.problems or list(dict.fromkeys(_Check(where).problems_of(plan)))


def find_asynchrony_problems(config: ExperimentConfig, where: Where) -> Iterator[Problem]:
    """Yield requests that would be in flight to simulators, for which a checkpoint would have to wait."""
    for step in steps_of(read_plan(config.algorithm.plan)):
        is_async = isinstance(step.config, ParallelRolloutsConfig) and step.config.mode == ASYNC
        if config.env.is_external and (is_async or isinstance(step.config, AsyncGradientsConfig)):
            what = f"{step.key}: simulators that connect (env.port) sample in rounds"
            allowed = "ParallelRollouts with mode bulk_sync or raw; simulators go on while the learner updates"
            yield Problem(what, where(step.key), step.name, allowed)


def items_after(plan: Plan) -> dict[str, Items]:
    """Return the items that each step of a checked plan gives, by the key of the step."""
    check = _Check(lambda name: None)
    check.problems_of(plan)
    return check.given


def steps_of(plan: Plan) -> Iterator[Step]:
    """Yield all steps, each before the steps of its plans."""
    for step in plan:
        yield step
        for nested_plan in step.plans:
            yield from steps_of(nested_plan)


def needs_of(config: ExperimentConfig) -> frozenset[str]:
    """Return the resources that the plan of an experiment works with.

    A function of one's own may use env runners, learners and, where `offline` names some, recorded data.
    """
    steps = list(steps_of(read_plan(config.algorithm.plan)))
    needs = {need for step in steps for need in step.needs}
    if any(step.config is None for step in steps):
        needs |= {ENV_RUNNERS, LEARNERS} if any(step.is_function for step in steps) else set()
        needs |= {RECORDED_DATA} if names_recorded_data(config) else set()
    return frozenset(needs)


def names_recorded_data(config: ExperimentConfig) -> bool:
    """Whether the `offline` block names data to learn from."""
    return config.offline.input_ is not None or config.offline.offline_data_class is not None


class _Reader:
    """A reader of lists into steps, which goes on after a problem."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self.problems: list[Problem] = []

    def read(self, values: Any, key: str) -> Plan:
        if not isinstance(values, list) or not values:
            self._add(f"{key} is no plan", key, show_value(values), _FORMS)
            return ()
        steps = [self._read_step(value, f"{key}.{index}") for index, value in enumerate(values)]
        if len(values) == 1 and steps[0] is not None and not steps[0].is_known:
            steps = [dataclasses.replace(steps[0], is_function=True)]
        functions = [step for step in steps if step is not None and step.is_function]
        if functions and (len(steps) > 1 or key != KEY):
            what = f"{functions[0].name} is a function that makes a whole plan, it cannot be one step of a plan"
            self._add(what, key, allowed=f"{KEY}: {{_target_: {functions[0].name}}}, or an operator class")
        return tuple(step for step in steps if step is not None)

    def _read_step(self, value: Any, key: str) -> Step | None:
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
            self._add(f"{key} is no operator", key, show_value(value), _FORMS)
            return None
        schema = OPERATORS.get(name)
        if schema is None:
            what = f"{key}: there is no operator {name}"
            self._add(what, key, str(name), ", ".join(OPERATORS), nearest_match(str(name), list(OPERATORS)))
            return None
        if not isinstance(options, dict):
            names = ", ".join(one.name for one in dataclasses.fields(schema)) or "no options"
            self._add(f"{key}: the options of {name} are no block", key, show_value(options), names)
            return None
        config = self.read_options(schema, options, f"{key}.{name}")
        plans: tuple[Plan, ...] = ()
        if isinstance(config, BranchesConfig):
            if not config.plans:
                self._add(
                    f"{key}: {name} has no plans", key, allowed="plans: a list of plans, each a list of operators"
                )
            plans = tuple(self.read(one, f"{key}.{name}.plans.{index}") for index, one in enumerate(config.plans))
        return Step(name, key, config, {}, schema.takes, schema.gives, schema.needs, plans)

    def read_options(self, schema: type[OperatorConfig], options: dict[str, Any], key: str) -> OperatorConfig:
        for name, allowed, nearest in find_unknown_keys(schema, options, f"{key}."):
            got = show_value(options[name.removeprefix(f"{key}.")])
            self._add(f"unknown option {name}", name, got, allowed or "no options", nearest)
        annotations = typing.get_type_hints(schema)
        read = {}
        for one in dataclasses.fields(schema):
            if one.name not in options:
                continue
            name, annotation, value = f"{key}.{one.name}", annotations[one.name], options[one.name]
            problem = check_value(name, value, annotation, one.metadata["option"], self._where(name))
            if problem is None:
                read[one.name] = convert(value, annotation)
            else:
                self.problems.append(problem)
        return schema(**read)

    def _read_target(self, value: dict[str, Any], key: str) -> Step | None:
        arguments = dict(value)
        path = arguments.pop("_target_")
        if not isinstance(path, str):
            self._add(f"{key}._target_ is no dotted path", key, show_value(path), "package.module.Name")
            return None
        fault = find_target_fault(path, list(arguments), given=_GIVEN)
        if fault is not None:
            self.problems.append(describe_fault(f"{key}._target_", fault, self._where(key), path))
            return None
        base = _operator_of(path)
        declared = {name: constant_of(path, name) for name in ("takes", "gives", "needs")}
        takes, gives, needs = (
            getattr(base, name) if base is not None and value in (None, ()) else value
            for name, value in declared.items()
        )
        return Step(
            path,
            key,
            None,
            arguments,
            None if takes is None else tuple(takes),
            None if gives is None else tuple(gives),
            tuple(needs or ()),
            base=base,
            is_function=is_function(path) is True,
            is_known=is_function(path) is not None,
        )

    def _add(
        self, what: str, key: str, got: str | None = None, allowed: str | None = None, nearest: str | None = None
    ) -> None:
        self.problems.append(Problem(what, self._where(key), got, allowed, nearest))


class _Check:
    """A check of a plan whose steps are valid one by one: items, queues, and whether an iteration ends."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._problems: list[Problem] = []
        self._queues: dict[str, tuple[str, ...]] = {}
        self.given: dict[str, Items] = {}

    def problems_of(self, plan: Plan) -> list[Problem]:
        known: dict[str, tuple[str, ...]] | None = None
        while known != self._queues:  # what is put into one queue may come out of another
            known = dict(self._queues)
            self._problems.clear()
            self._follow(plan, None, begins=True)
        queues = (*self._find_queue_problems(plan), *self._find_capacity_problems(plan))
        return [*self._problems, *queues, *self._find_early_ends(plan), *self._find_shared_reading(plan)]

    def _follow(self, plan: Plan, items: Items, begins: bool, before: str | None = None) -> Items:
        """Check the steps of a plan in turn; returns the items that it gives.

        Args:
            plan: of the configuration, or of an operator that runs several.
            items: that come into the plan; None: not known.
            begins: nothing comes into the plan.
            before: name of the operator that gives these items.
        """
        for step in plan:
            if step.takes is not None:
                self._check_place(step, items, begins, before)
            items = self.given[step.key] = self._given_by(step, items)
            begins, before = False, step.name
        return items

    def _check_place(self, step: Step, items: Items, begins: bool, before: str | None) -> None:
        if begins and not step.begins:
            sources = [name for name, schema in OPERATORS.items() if not schema.takes]
            what = f"{step.key}: {step.name} takes items, and no operator before it gives any"
            self._add(what, step, step.name, f"a plan that begins with {', '.join(sources)}")
        elif not begins and step.begins:
            what = f"{step.key}: {step.name} takes no items, it can only begin a plan"
            self._add(what, step, f"{before} -> {step.name}", "Concurrently, to run several plans in turn")
        elif items is not None:
            misfits = [item for item in items if item not in (step.takes or ())]
            if misfits:
                what = f"{step.key}: {before} gives {', '.join(misfits)}, {step.name} takes {_named(step.takes)}"
                fitting = [name for name, one in OPERATORS.items() if set(items) <= set(one.takes)]
                special = [name for name in fitting if OPERATORS[name].takes != ITEMS]
                allowed = f"after {before}: {', '.join(special or fitting) or 'no operator of runner'}"
                self._add(what, step, f"{before} -> {step.name}", allowed)

    def _given_by(self, step: Step, items: Items) -> Items:
        if isinstance(step.config, DequeueConfig):
            return self._queues.get(step.config.queue)
        if isinstance(step.config, EnqueueConfig) and items is not None:
            known = self._queues.get(step.config.queue, ())
            self._queues[step.config.queue] = tuple(dict.fromkeys((*known, *items)))
        if isinstance(step.config, (DuplicateConfig, EnqueueConfig)) and RECORDED_BATCHES in (items or ()):
            what = f"{step.key}: batches of recorded data are where the learners are, {step.name} cannot keep them"
            self._add(what, step, f"ReadRecorded -> {step.name}", "ReadRecorded -> TrainOneStep")
        if isinstance(step.config, SelectExperiencesConfig) and not step.config.modules:
            what = f"{step.key}: SelectExperiences keeps no module, so no item would ever pass"
            self._add(what, step, "[]", "modules: ids of the modules to keep")
        if isinstance(step.config, BranchesConfig):
            return self._given_by_branches(step, step.config, items)
        return (items if step.takes is not None else None) if step.gives is None else step.gives

    def _given_by_branches(self, step: Step, config: BranchesConfig, items: Items) -> Items:
        begins = not isinstance(config, DuplicateConfig)
        given = [self._follow(plan, None if begins else items, begins, step.name) for plan in step.plans]
        self._check_branches(step, config, len(given))
        chosen = range(len(given)) if config.output_indexes is None else config.output_indexes
        outputs = [given[index] for index in chosen if index < len(given)]
        if any(one is None for one in outputs):
            return None
        return tuple(dict.fromkeys(item for one in outputs for item in one or ()))

    def _check_branches(self, step: Step, config: BranchesConfig, num_plans: int) -> None:
        indexes, weights = config.output_indexes, config.round_robin_weights
        if indexes is not None and not indexes:
            what = f"{step.key}: {step.name} gives no items on, so no iteration would ever end"
            self._add(what, step, "output_indexes: []", f"indexes from 0 to {num_plans - 1}, or null for all")
        outside = [index for index in indexes or () if index >= num_plans]
        if outside:
            what = f"{step.key}: output_indexes name plan {outside[0]}, and the last plan is {num_plans - 1}"
            self._add(what, step, str(indexes), f"indexes from 0 to {num_plans - 1}")
        if weights is None:
            return
        if config.mode == ASYNC:
            what = f"{step.key}: round_robin_weights have no effect with mode async"
            self._add(what, step, show_value(weights), "mode: round_robin")
        if isinstance(config, DuplicateConfig) and "*" in weights:
            what = f"{step.key}: the weight '*' is for plans that wait for others, copies have their items at once"
            self._add(what, step, show_value(weights), "null, or numbers")
            return
        endless = [
            index for index, weight in enumerate(weights[:num_plans]) if weight == "*" and not _waits(step, index)
        ]
        if endless:
            what = f"{step.key}: plan {endless[0]} never waits, so its turn with the weight '*' would never end"
            self._add(what, step, show_value(weights), "a number; or a plan that begins with Dequeue or samples async")
        wrong = [weight for weight in weights if weight != "*" and not (isinstance(weight, int) and weight >= 1)]
        if wrong or len(weights) != num_plans:
            what = f"{step.key}: round_robin_weights are not one weight for each of {num_plans} plans"
            self._add(what, step, show_value(weights), "integers of 1 or more, or '*'")

    def _find_early_ends(self, plan: Plan) -> Iterator[Problem]:
        for step in steps_of(plan):
            if isinstance(step.config, StandardMetricsReportingConfig) and step is not plan[-1]:
                what = f"{step.key}: StandardMetricsReporting ends an iteration of the whole plan"
                yield Problem(what, self._where(step.key), allowed=f"the last operator of {KEY}, or left out")

    def _find_shared_reading(self, plan: Plan) -> Iterator[Problem]:
        """Find a second reader of the recorded data: their batches are where the learners are, and come once."""
        readers = [step for step in steps_of(plan) if isinstance(step.config, ReadRecordedConfig)]
        for step in readers[1:]:
            what = f"{step.key}: the recorded data are read by {readers[0].key} already"
            yield Problem(what, self._where(step.key), allowed="one ReadRecorded in a plan")

    def _find_queue_problems(self, plan: Plan) -> Iterator[Problem]:
        chains = list(_chains(plan))
        filled = [(step, chain) for chain in chains for step in chain if isinstance(step.config, EnqueueConfig)]
        emptied = [step for step in steps_of(plan) if isinstance(step.config, DequeueConfig)]
        names = [step.config.queue for step, _ in filled if isinstance(step.config, EnqueueConfig)]
        reached = _queues_with_items(plan)
        for step in emptied:
            queue = step.config.queue  # type: ignore[union-attr]
            if not any(name == queue and chain[0] is not step for name, (_, chain) in zip(names, filled, strict=True)):
                what = f"{step.key}: no other plan fills the queue {queue}, so Dequeue would never give an item"
                allowed = f"{{Enqueue: {{queue: {queue}}}}} in a plan that Concurrently runs beside it"
                others = [name for name in names if name != queue]
                yield Problem(what, self._where(step.key), queue, allowed, nearest_match(queue, others))
            elif queue not in reached:
                what = f"{step.key}: the queue {queue} is filled from queues that wait for it, so no item ever comes"
                allowed = f"{{Enqueue: {{queue: {queue}}}}} in a plan that samples or reads recorded data"
                yield Problem(what, self._where(step.key), queue, allowed)
        read = [step.config.queue for step in emptied]  # type: ignore[union-attr]
        for name, (step, _) in zip(names, filled, strict=True):
            if name not in read:
                what = f"{step.key}: no plan empties the queue {name}, so Enqueue would wait for ever once it is full"
                allowed = f"{{Dequeue: {{queue: {name}}}}} at the beginning of a plan"
                yield Problem(what, self._where(step.key), name, allowed, nearest_match(name, read))

    def _find_capacity_problems(self, plan: Plan) -> Iterator[Problem]:
        """Find queues that are filled in several places, with different capacities."""
        first: dict[str, tuple[str, int]] = {}
        for step in steps_of(plan):
            if isinstance(step.config, EnqueueConfig):
                name, capacity = step.config.queue, step.config.capacity
                key, other = first.setdefault(name, (step.key, capacity))
                if capacity != other:
                    what = f"{step.key}: the queue {name} has another capacity in {key}"
                    yield Problem(what, self._where(step.key), f"{capacity}, and {other} there", "one capacity")

    def _add(self, what: str, step: Step, got: str | None = None, allowed: str | None = None) -> None:
        self._problems.append(Problem(what, self._where(step.key), got, allowed))


def _operator_of(path: str) -> type[OperatorConfig] | None:
    """Return the options of the operator of runner that a class is or inherits; None for other classes."""
    names = [one.rpartition(".")[2] for one in find_ancestors(path) if one.startswith("runner.plans.operators.")]
    return next((OPERATORS[name] for name in names if name in OPERATORS), None)


def _waits(step: Step, index: int) -> bool:
    """Whether a plan of an operator gives no item while it has none ready."""
    if not step.plans[index]:
        return True
    if any(isinstance(inner.config, EnqueueConfig) for inner in steps_of(step.plans[index])):
        return True  # while the queue is full
    begin = step.plans[index][0]
    if isinstance(begin.config, ParallelRolloutsConfig):
        return begin.config.mode == ASYNC
    if isinstance(begin.config, ConcurrentlyConfig):
        return all(_waits(begin, inner) for inner in range(len(begin.plans)))
    return not isinstance(begin.config, ReadRecordedConfig)


def _queues_with_items(plan: Plan) -> set[str]:
    """Return the names of queues that items reach, directly or through other queues."""
    reached: set[str] = set()
    num_before = -1
    while num_before < len(reached):
        num_before = len(reached)
        _gives_items(plan, reached)
    return reached


def _gives_items(plan: Plan, reached: set[str], gives: bool | None = None) -> bool:
    """Return whether a plan can give an item, and add the queues that it can fill to `reached`.

    Args:
        plan: of the configuration, or of an operator that runs several.
        reached: names of queues that can have items.
        gives: whether items come into the plan; None: it begins by itself.
    """
    for step in plan:
        if isinstance(step.config, DequeueConfig):
            gives = step.config.queue in reached
        elif isinstance(step.config, EnqueueConfig):
            reached |= {step.config.queue} if gives else set()
        elif isinstance(step.config, BranchesConfig):
            into = gives if isinstance(step.config, DuplicateConfig) else None
            given = [_gives_items(one, reached, into) for one in step.plans]
            chosen = step.config.output_indexes
            gives = any(one for index, one in enumerate(given) if chosen is None or index in chosen)
        elif gives is None:
            gives = True
    return bool(gives)


def _chains(plan: Plan) -> Iterator[Plan]:
    """Yield this plan and all plans within it, each as a chain of its own steps."""
    if plan:
        yield plan
    for step in plan:
        for nested_plan in step.plans:
            yield from _chains(nested_plan)


def _named(items: Iterable[str] | None) -> str:
    return " or ".join(items or ())
