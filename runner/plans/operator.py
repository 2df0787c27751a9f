"""Operators of plans, and the nodes that pass items through them, one at a time.

All state is in operators, or in lists of items between two operators. So a run can stop, save and resume exactly
between any two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Self

from runner.config.declared_metrics import Reports
from runner.config.errors import Problem, RunFailure
from runner.config.first_call import FirstCall
from runner.config.operators import OPERATORS
from runner.config.plans.steps import read_options
from runner.config.user_code import is_user_defined
from runner.interrupts import Interrupted, PartialIteration
from runner.pipelines.custom_metrics import CustomMetrics
from runner.plans.async_requests import AsyncRequests
from runner.plans.context import NotReady, PlanContext
from runner.plans.items import Item
from runner.plans.operator_checks import Transform, listed, operator_contract
from runner.state import DeclaredState

_OPERATORS = "runner.plans.operators."
_ENDED = Problem("the plan has ended: its source is exhausted", "algorithm.plan")
Pending = Mapping[str, Sequence[Any]]

WORKED: Final = object()  # returned by a step that did some work but has not produced an item


class PlanEnded(RunFailure):
    """A source is exhausted."""

    def __init__(self, problem: Problem = _ENDED) -> None:
        super().__init__(problem)


class Node:
    """A producer of items: a source, or a branch of operators behind one.

    Iterating over a node waits whenever a step returns `NotReady`.

    Args:
        context: context of the plan.
        key: name of the produced items in checkpoints.
    """

    def __init__(self, context: PlanContext, key: str) -> None:
        self.context, self.key = context, key

    def step(self) -> Any:
        """Work until there is an item, or until an operator has taken one without returning any.

        Returns:
            An item, `WORKED` if some work was done but there is no item yet, or `NotReady` if nothing could be done.

        Raises:
            PlanEnded: there are no more items.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement step")

    def pending(self) -> dict[str, list[Any]]:
        """Return the waiting items, by the name of their producer."""
        return {}

    def set_pending(self, pending: Pending) -> None:
        """Replace the waiting items."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                found = self.step()
            except PlanEnded:
                raise StopIteration from None
            if isinstance(found, NotReady):
                self.context.wait(found)
            elif found is not WORKED:
                return found

    def for_each(self, operator: Operator | Callable[[Any], Any]) -> Node:
        """Return a node with the outputs of an operator for each item, or with a function's result for each item."""
        return operator(self) if isinstance(operator, Operator) else FunctionOperator(self.context, operator)(self)

    def combine(self, operator: Operator | Callable[[Any], Iterable[Any]]) -> Node:
        """Return a node with the outputs of an operator for each item, or with all items that a function returns."""
        if isinstance(operator, Operator):
            return operator(self)
        return FunctionOperator(self.context, operator, returns_many=True)(self)


@dataclass(slots=True)
class _Stage:
    """An operator of a branch, with the items before and after it."""

    operator: Operator
    inputs: deque[Any]
    outputs: deque[Any]
    transform: Transform = field(init=False)

    def __post_init__(self) -> None:
        self.transform = self.operator.transform
        if is_user_defined(type(self.operator)):
            contract = operator_contract(type(self.operator), self.operator.gives)
            self.transform = FirstCall(partial(listed, self.operator.transform), contract)


class Branch(Node):
    """A source and the operators behind it.

    Args:
        source: source of the items.
        operators: operators that the items pass, in order.
        reader: key of the operator that gets the source's items; by default the first one of `operators`, if any.
    """

    def __init__(self, source: Node, operators: Sequence[Operator], reader: str = "") -> None:
        first = f"{source.key}>{operators[0].key if operators else reader}"
        super().__init__(source.context, operators[-1].key if operators else first)
        self.source, self.operators = source, list(operators)
        lists: list[deque[Any]] = [deque() for _ in range(len(self.operators) + 1)]
        self._lists = dict(zip([first, *(operator.key for operator in self.operators)], lists, strict=True))
        self._first, self._outputs = lists[0], lists[-1]
        stages = [_Stage(operator, lists[at], lists[at + 1]) for at, operator in enumerate(self.operators)]
        self._stages = stages[::-1]  # the last operator comes first, because the most advanced item is handled first

    def step(self) -> Any:
        """Pass the most advanced item on until there is an output; without an item, take one from the source."""
        while not self._outputs:
            for stage in self._stages:
                if stage.inputs:
                    break
            else:
                return self._take()
            operator = stage.operator
            if not operator.accepts(stage.inputs[0]):
                return NotReady.FOR_QUEUE
            try:
                made = stage.transform(stage.inputs.popleft())
                stage.outputs.extend(operator.counted(made) if operator.is_counted else made)
            except StopIteration as error:  # it would silently end a loop over the plan
                raise RuntimeError(f"{type(operator).__name__}.transform raised StopIteration") from error
            if not stage.outputs:
                return WORKED
        return self._outputs.popleft()

    def _take(self) -> Any:
        """Take an item from the source; it is passed on in the next step, so that a run can stop in between."""
        found = self.source.step()
        if found is WORKED or isinstance(found, NotReady):
            return found
        self._first.append(found)
        return WORKED

    @property
    def is_waiting(self) -> bool:
        """Whether items wait between the operators."""
        return any(self._lists.values())

    def pending(self) -> dict[str, list[Any]]:
        """Return the items between the operators."""
        return self.source.pending() | {name: list(items) for name, items in self._lists.items() if items}

    def set_pending(self, pending: Pending) -> None:
        """Replace the items between the operators."""
        self.source.set_pending(pending)
        for name, items in self._lists.items():
            items.clear()
            items.extend(pending.get(name, ()))


class Operator(DeclaredState):
    """One operator of a plan: maps an item to a list of items. Subclasses override `transform`.

    Custom operators declare the classes of items that they take and give, and the parts that they need. They are
    created with the context of the plan and their arguments from it. `metrics.report(name, value, weight=1.0)` reports
    a value of a metric declared in `reports`. Its name in the run is `plan/<class>/<name>`, or `plan/<class>_2/<name>`
    for the second operator of a class.

    Args:
        context: parts of the run that the operator uses.
        options: options of `runner.config.operators`.

    Attributes:
        takes, gives, needs: see `runner.config.operators.OperatorConfig`.
        writes: columns that it adds to experiences, so that losses may read them.
        is_counted: whether the metrics of the run count the items that it returns.
        reports: metric -> (reduction, meaning), as for connectors; values are reduced over an iteration.
        metrics: object that its metrics are reported to.
        key: name of the operator in the plan and in checkpoints.
        requests: requests to env runners that are in flight, or None.
    """

    takes: ClassVar[tuple[str, ...] | None] = None
    gives: ClassVar[tuple[str, ...] | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    is_counted: ClassVar[bool] = False
    reports: ClassVar[Reports] = {}

    options: Any
    metrics: CustomMetrics
    requests: AsyncRequests | None = None

    def __init__(self, context: PlanContext, **options: Any) -> None:
        self.context = context
        name = self._name_of_options()
        self.options = None if name is None else read_options(name, options)
        self.key = context.register(self)

    @classmethod
    def _name_of_options(cls) -> str | None:
        """Return the name of the built-in operator that this class is or derives from."""
        names = [one.__name__ for one in cls.__mro__ if one.__module__.startswith(_OPERATORS)]
        return next((name for name in names if name in OPERATORS), None)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the parts that the operator uses, according to its options or its class."""
        needs: tuple[str, ...] = self.needs if self.options is None else self.options.needs
        return needs

    def __call__(self, items: Iterable[Any]) -> Node:
        """Return a node with the outputs of this operator; no work is done until the node is stepped."""
        node = items if isinstance(items, Node) else IteratorSource(self.context, items)
        if isinstance(node, Branch) and not node.is_waiting:
            return Branch(node.source, [*node.operators, self])
        return Branch(node, [self])

    def accepts(self, item: Any) -> bool:
        """Return whether `transform` can take an item now; if not, the plan offers it again later."""
        return True

    def transform(self, item: Any) -> Iterable[Any]:
        """Return the outputs for one item: none, one or several.

        In `state`, name the attributes that later items depend on, or override `get_state` and `set_state`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement transform")

    def counted(self, items: Iterable[Any]) -> list[Any]:
        """Return the items as a list, after counting them in the metrics of the run."""
        listed = list(items)
        for item in listed:
            if isinstance(item, Item):
                self.context.metrics.count(item)
        return listed


class FunctionOperator(Operator):
    """Calls a function for each item.

    Args:
        context: context of the plan.
        function: function that is called with an item.
        returns_many: whether it returns several items instead of one.
    """

    def __init__(self, context: PlanContext, function: Callable[[Any], Any], returns_many: bool = False) -> None:
        self.context, self.options, self.key = context, None, context.unnamed_key()
        self._function, self._returns_many = function, returns_many

    def transform(self, item: Any) -> Iterable[Any]:
        """Call the function."""
        made: Any = self._function(item)
        return made if self._returns_many else [made]


class Source(Operator, Node):
    """An operator that does not take items. Subclasses override `poll`."""

    takes = ()

    def poll(self) -> Any:
        """Return an item, or `NotReady` if there is none yet.

        Raises:
            PlanEnded: there are no more items.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement poll")

    def step(self) -> Any:
        """Return the next item after counting it, or `NotReady`."""
        try:
            found = self.poll()
        except StopIteration as end:
            raise PlanEnded from end
        if self.is_counted and isinstance(found, Item):
            self.context.metrics.count(found)
        return found


class IteratorSource(Source):
    """Source with the items of an iterator, for example of a generator; checkpoints do not contain it.

    Args:
        context: context of the plan.
        items: items, which may contain `NotReady`.
    """

    def __init__(self, context: PlanContext, items: Iterable[Any]) -> None:
        self.context, self.options, self.key = context, None, context.unnamed_key()
        self._items = iter(items)

    def poll(self) -> Any:
        """Return the next item."""
        try:
            return next(self._items)
        except PartialIteration as stop:  # it has ended a generator, whose items would be missing in a checkpoint
            raise Interrupted from stop
