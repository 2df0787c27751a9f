"""Plans that have been read: their steps, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from runner.config.operators import OperatorConfig

KEY = "algorithm.plan"
# Names of items; None: not known.
Items = tuple[str, ...] | None
Where = Callable[[str], str | None]


@dataclass(frozen=True)
class PlanStep:
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


Plan = tuple[PlanStep, ...]


def steps_of(plan: Plan) -> Iterator[PlanStep]:
    """Yield all steps, each before the steps of its plans."""
    for step in plan:
        yield step
        for nested_plan in step.plans:
            yield from steps_of(nested_plan)
