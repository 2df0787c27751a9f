"""Rules of the items of a plan: between steps, in branches and in queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.operators import (
    ASYNC,
    AUTO,
    ITEMS,
    OPERATORS,
    RECORDED_BATCHES,
    ROUND_ROBIN,
    ApplyGradientsConfig,
    AsyncGradientsConfig,
    BranchesConfig,
    ConcurrentlyConfig,
    DequeueConfig,
    DuplicateConfig,
    EnqueueConfig,
    ParallelRolloutsConfig,
    ReadRecordedConfig,
    ReplayConfig,
    SelectExperiencesConfig,
    TrainOneStepConfig,
)
from runner.config.plans.steps import Items, Plan, PlanStep, read_plan, steps_of


def check_items(plan: Plan) -> tuple[dict[str, Items], list[Problem]]:
    """Follow the items of a plan, whose steps are valid one by one.

    Returns:
        Key of the step -> types of its items (empty if it never gives one), and the problems between steps.
    """
    check = _ItemCheck()
    known: dict[str, tuple[str, ...]] | None = None
    while known != check.queues:  # items of one queue may be put into another
        known = dict(check.queues)
        check.problems.clear()
        check.follow(plan, None, begins=True)
    return check.given, check.problems


class _ItemCheck:
    """Follows items from step to step; a later pass over a plan knows the items that earlier passes put into queues."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.queues: dict[str, tuple[str, ...]] = {}  # queue that items reach -> their known types
        self.given: dict[str, Items] = {}

    def follow(self, plan: Plan, items: Items, begins: bool, before: str | None = None) -> Items:
        """Check the steps of a plan in order, and return the types of its items.

        Args:
            plan: plan of the configuration or of an operator with several branches.
            items: types of the items that enter the plan; None: unknown.
            begins: whether no items enter the plan.
            before: name of the operator that gives these items.
        """
        for step in plan:
            if step.takes is not None:
                self._check_place(step, items, begins, before)
            items = self.given[step.key] = self._given_by(step, items)
            begins, before = False, step.name
        return items

    def _check_place(self, step: PlanStep, items: Items, begins: bool, before: str | None) -> None:
        if begins and not step.begins:
            sources = [name for name, schema in OPERATORS.items() if not schema.takes]
            what = f"{step.key}: {step.name} needs an operator before it that gives items"
            self._add(what, step, step.name, f"a plan that begins with {', '.join(sources)}")
        elif not begins and step.begins:
            what = f"{step.key}: {step.name} is a source and must be the first operator of a plan"
            self._add(what, step, f"{before} -> {step.name}", "Concurrently with several branches")
        elif items is not None:
            misfits = [item for item in items if item not in (step.takes or ())]
            if misfits:
                what = f"{step.key}: {before} gives {', '.join(misfits)}, but {step.name} takes {_named(step.takes)}"
                fitting = [name for name, one in OPERATORS.items() if set(items) <= set(one.takes)]
                special = [name for name in fitting if OPERATORS[name].takes != ITEMS]
                expected = f"after {before}: {', '.join(special or fitting) or 'a custom operator'}"
                self._add(what, step, f"{before} -> {step.name}", expected)

    def _given_by(self, step: PlanStep, items: Items) -> Items:
        if isinstance(step.config, DequeueConfig):
            types = self.queues.get(step.config.queue)
            return () if types is None else types or None
        if isinstance(step.config, EnqueueConfig) and items != ():
            known = self.queues.get(step.config.queue, ())
            self.queues[step.config.queue] = tuple(dict.fromkeys((*known, *(items or ()))))
        if isinstance(step.config, (DuplicateConfig, EnqueueConfig)) and RECORDED_BATCHES in (items or ()):
            what = f"{step.key}: {step.name} cannot store recorded batches, which are in the processes of the learners"
            self._add(what, step, f"ReadRecorded -> {step.name}", "ReadRecorded -> TrainOneStep")
        if isinstance(step.config, SelectExperiencesConfig) and not step.config.modules:
            what = f"{step.key}: SelectExperiences without modules drops every item"
            self._add(what, step, "[]", "modules: ids of the modules to keep")
        if isinstance(step.config, TrainOneStepConfig) and step.config.modules is not None:
            self._check_trained(step, step.config.modules, items)
        if isinstance(step.config, BranchesConfig):
            return self._given_by_branches(step, step.config, items)
        if items == ():
            return ()
        return (items if step.takes is not None else None) if step.gives is None else step.gives

    def _check_trained(self, step: PlanStep, modules: Sequence[str], items: Items) -> None:
        if not modules:
            self._add(f"{step.key}: TrainOneStep without modules trains nothing", step, "[]", "null, or module ids")
        if RECORDED_BATCHES in (items or ()):
            what = f"{step.key}: recorded batches train all modules, so `modules` has no effect"
            self._add(what, step, f"modules: {show_value(list(modules))}", "null")

    def _given_by_branches(self, step: PlanStep, config: BranchesConfig, items: Items) -> Items:
        begins = not isinstance(config, DuplicateConfig)
        given = [self.follow(plan, None if begins else items, begins, step.name) for plan in step.plans]
        self.problems += find_branch_problems(step, config)
        chosen = range(len(given)) if config.output_indexes is None else config.output_indexes
        outputs = [given[index] for index in chosen if index < len(given)]
        if any(one is None for one in outputs):
            return None
        return tuple(dict.fromkeys(item for one in outputs for item in one or ()))

    def _add(self, what: str, step: PlanStep, got: str | None = None, expected: str | None = None) -> None:
        self.problems.append(Problem(what, step.key, got, expected))


def _named(items: Iterable[str] | None) -> str:
    return " or ".join(items or ())


_SAMPLES = (ParallelRolloutsConfig, AsyncGradientsConfig)
_TRAINS = (TrainOneStepConfig, ApplyGradientsConfig)


def find_branch_problems(step: PlanStep, config: BranchesConfig) -> Iterator[Problem]:
    """Find invalid output indexes and weights of the branches of an operator."""
    num_branches, here = len(step.plans), step.key
    indexes, weights = config.output_indexes, config.round_robin_weights
    if indexes is not None and not indexes:
        what = f"{step.key}: {step.name} returns no items, so iterations would never end"
        yield Problem(what, here, "output_indexes: []", f"indexes from 0 to {num_branches - 1}, or null for all")
    outside = [index for index in indexes or () if index >= num_branches]
    if outside:
        what = f"{step.key}: output_indexes contains {outside[0]}, but the last branch is {num_branches - 1}"
        yield Problem(what, here, str(indexes), f"indexes from 0 to {num_branches - 1}")
    if weights is None:
        return
    if isinstance(weights, str):
        yield from _find_no_shares(step, config)
        return
    if config.mode == ASYNC:
        what = f"{step.key}: round_robin_weights have no effect with mode async"
        yield Problem(what, here, show_value(weights), "mode: round_robin")
    if isinstance(config, DuplicateConfig) and "*" in weights:
        what = f"{step.key}: the weight '*' needs branches that wait, but the copies of an item are always ready"
        yield Problem(what, here, show_value(weights), "null, or numbers")
        return
    endless = [
        index for index, weight in enumerate(weights[:num_branches]) if weight == "*" and not _waits(step, index)
    ]
    if endless:
        what = f"{step.key}: branch {endless[0]} never waits, so with the weight '*' its turn would never end"
        expected = "a number, or a branch that begins with Dequeue or samples with mode: async"
        yield Problem(what, here, show_value(weights), expected)
    wrong = [weight for weight in weights if weight != "*" and not (isinstance(weight, int) and weight >= 1)]
    if wrong or len(weights) != num_branches:
        what = f"{step.key}: round_robin_weights needs one weight for each of the {num_branches} branches"
        yield Problem(what, here, show_value(weights), "integers >= 1, or '*'")


def _find_no_shares(step: PlanStep, config: BranchesConfig) -> Iterator[Problem]:
    """Find operators with `round_robin_weights: auto` that lack a sampling or a training branch."""
    samples, trains = (
        [any(inner.is_a(*kinds) for inner in steps_of(plan)) for plan in step.plans] for kinds in (_SAMPLES, _TRAINS)
    )
    if (samples, trains) == ([True, False], [False, True]) and config.mode == ROUND_ROBIN:
        return
    what = f"{step.key}: round_robin_weights: auto needs a sampling and a training branch"
    expected = "mode: round_robin, and two branches: the first samples, the second trains"
    yield Problem(what, step.key, f"mode: {config.mode}, {len(step.plans)} branches", expected)


def find_useless_intensity(algorithm: AlgorithmConfig) -> Iterator[Problem]:
    """Find a training intensity that the plan does not use."""
    plan = read_plan(algorithm.plan)
    if algorithm.training_intensity is None or any(step.is_function for step in plan):
        return
    branching = [step.config for step in steps_of(plan) if isinstance(step.config, BranchesConfig)]
    if not any(config.round_robin_weights == AUTO for config in branching):
        what = "algorithm.training_intensity has no effect in this plan"
        expected = "null; or a plan with Concurrently and round_robin_weights: auto"
        yield Problem(what, "algorithm.training_intensity", str(algorithm.training_intensity), expected)


def _waits(step: PlanStep, index: int) -> bool:
    """Return whether a branch may wait for items."""
    if not step.plans[index]:
        return True
    if any(isinstance(inner.config, EnqueueConfig) for inner in steps_of(step.plans[index])):
        return True  # while the queue is full
    begin = step.plans[index][0]
    if isinstance(begin.config, ParallelRolloutsConfig):
        return begin.config.mode == ASYNC
    if isinstance(begin.config, ConcurrentlyConfig):
        return all(_waits(begin, inner) for inner in range(len(begin.plans)))
    return not isinstance(begin.config, (ReadRecordedConfig, ReplayConfig))


def find_queue_problems(plan: Plan, given: Mapping[str, Items]) -> Iterator[Problem]:
    """Find queues that are never filled or emptied, and queues with contradicting capacities.

    Args:
        plan: plan of the configuration.
        given: key of the step -> types of its items; empty if it never gives one.
    """
    filled = [(step, step.config.queue) for step in steps_of(plan) if isinstance(step.config, EnqueueConfig)]
    emptied = [(step, step.config.queue) for step in steps_of(plan) if isinstance(step.config, DequeueConfig)]
    names, read = [name for _, name in filled], [name for _, name in emptied]
    for step, name in emptied:
        if name not in names:
            what = f"{step.key}: no other branch fills the queue {name}, so Dequeue would wait forever"
            expected = f"{{Enqueue: {{queue: {name}}}}} in another branch of Concurrently"
            yield Problem(what, step.key, name, expected, nearest_match(name, names))
        elif given[step.key] == ():
            what = f"{step.key}: the queue {name} is only filled from queues that wait for it, so it stays empty"
            expected = f"{{Enqueue: {{queue: {name}}}}} in a branch that samples or reads recorded data"
            yield Problem(what, step.key, name, expected)
    for step, name in filled:
        if name not in read:
            what = f"{step.key}: no branch empties the queue {name}, so Enqueue would wait forever when it is full"
            expected = f"{{Dequeue: {{queue: {name}}}}} at the beginning of a branch"
            yield Problem(what, step.key, name, expected, nearest_match(name, read))
    yield from _find_capacity_problems(plan)


def _find_capacity_problems(plan: Plan) -> Iterator[Problem]:
    first: dict[str, tuple[str, int]] = {}
    for step in steps_of(plan):
        if isinstance(step.config, EnqueueConfig):
            name, capacity = step.config.queue, step.config.capacity
            key, other = first.setdefault(name, (step.key, capacity))
            if capacity != other:
                what = f"{step.key}: the queue {name} has another capacity in {key}"
                yield Problem(what, step.key, f"{capacity}, and {other} there", "equal capacities")
