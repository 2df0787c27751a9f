"""Checks of the items that flow from step to step of a plan."""

from __future__ import annotations

from collections.abc import Iterable

from runner.config.errors import Problem
from runner.config.operators import (
    ITEMS,
    OPERATORS,
    RECORDED_BATCHES,
    BranchesConfig,
    DequeueConfig,
    DuplicateConfig,
    EnqueueConfig,
    SelectExperiencesConfig,
)
from runner.config.plans.branch_checks import find_branch_problems
from runner.config.plans.steps import Items, Plan, PlanStep, Where


def items_after(plan: Plan) -> dict[str, Items]:
    """Return the items that each step of a checked plan gives, by the key of the step."""
    check = ItemCheck(lambda name: None)
    check.problems_of(plan)
    return check.given


class ItemCheck:
    """A check of the items that flow through a plan whose steps are valid one by one."""

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
        return self._problems

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

    def _check_place(self, step: PlanStep, items: Items, begins: bool, before: str | None) -> None:
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

    def _given_by(self, step: PlanStep, items: Items) -> Items:
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

    def _given_by_branches(self, step: PlanStep, config: BranchesConfig, items: Items) -> Items:
        begins = not isinstance(config, DuplicateConfig)
        given = [self._follow(plan, None if begins else items, begins, step.name) for plan in step.plans]
        self._problems += find_branch_problems(step, config, self._where)
        chosen = range(len(given)) if config.output_indexes is None else config.output_indexes
        outputs = [given[index] for index in chosen if index < len(given)]
        if any(one is None for one in outputs):
            return None
        return tuple(dict.fromkeys(item for one in outputs for item in one or ()))

    def _add(self, what: str, step: PlanStep, got: str | None = None, allowed: str | None = None) -> None:
        self._problems.append(Problem(what, self._where(step.key), got, allowed))


def _named(items: Iterable[str] | None) -> str:
    return " or ".join(items or ())
