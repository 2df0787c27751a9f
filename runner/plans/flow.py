"""Operators and the flows of items between them. A flow is lazy: nothing is done before its next item is asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from runner.config.errors import Problem, RunFailure
from runner.config.operators import OPERATORS
from runner.config.piece_reports import Reports
from runner.config.plans import read_options
from runner.config.user_code import is_user_defined, place_of
from runner.pipelines.piece_metrics import PieceMetrics
from runner.plans.items import Item

if TYPE_CHECKING:
    from runner.plans.resources import Resources


_OPERATORS = "runner.plans.operators."


class Waiting(Enum):
    """Given in the place of an item that is not ready, so that other plans can go on."""

    FOR_RUNNERS = "an env runner has to answer"
    FOR_QUEUE = "another plan has to fill or empty a queue"
    FOR_END = "the run is to end, and this iteration takes long: the rest is for a resumed run"


class Flow(Iterator[Any]):
    """Items that operators give.

    Args:
        items: may hold `Waiting`; iteration over the flow waits instead.
        resources: that the operators work with.
    """

    def __init__(self, items: Iterable[Any], resources: Resources) -> None:
        self.items = iter(items)
        self.resources = resources

    def __next__(self) -> Any:
        for item in self.items:
            if not isinstance(item, Waiting):
                return item
            self.resources.wait(item)
        raise StopIteration

    def for_each(self, operator: Operator | Callable[[Any], Any]) -> Flow:
        """Return the flow of what an operator gives for these items, or a function returns for each of them."""
        if isinstance(operator, Operator):
            return operator(self)
        return Flow((item if isinstance(item, Waiting) else operator(item) for item in self.items), self.resources)

    def combine(self, operator: Operator | Callable[[Any], Iterable[Any]]) -> Flow:
        """Return the flow of what an operator gives for these items, or of all items that a function returns."""
        return operator(self) if isinstance(operator, Operator) else _Combined(self.resources, operator)(self)


class Operator:
    """One step of a plan. A subclass overrides `transform`; called with items, it gives the flow of what it makes.

    Subclasses of one's own name the items that they take and give, and the resources that they need; they are made
    with the resources and their arguments in the plan. `metrics.report(name, value, weight=1.0)` counts a value of a
    metric that `reports` declares; it is `plan/<class>/<name>` in the run, of the second operator of a class
    `plan/<class>_2/<name>`.

    Args:
        resources: that it works with.
        options: of `runner.config.operators`.

    Attributes:
        takes, gives, needs: see `runner.config.operators.OperatorConfig`.
        is_counted: whether the metrics of the run count the items that it gives.
        reports: metric -> (reduction, meaning), as for connector pieces, over an iteration.
        metrics: that it reports to.
        rest: what `transform` made of the newest item and nobody has taken; it is in checkpoints, too.
        held: an item that was taken, and that `transform` gets in a resumed run only; in checkpoints, too.
    """

    takes: ClassVar[tuple[str, ...] | None] = None
    gives: ClassVar[tuple[str, ...] | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    is_counted: ClassVar[bool] = False
    reports: ClassVar[Reports] = {}

    options: Any
    metrics: PieceMetrics
    held: Item | None = None

    def __init__(self, resources: Resources, **options: Any) -> None:
        self.resources = resources
        self.rest: deque[Any] = deque()
        name = self._name_of_options()
        self.options = None if name is None else read_options(name, options)
        resources.add_operator(self)

    @classmethod
    def _name_of_options(cls) -> str | None:
        """Return the name of the operator of runner that this class is, or is made from; None if of none."""
        names = [one.__name__ for one in cls.__mro__ if one.__module__.startswith(_OPERATORS)]
        return next((name for name in names if name in OPERATORS), None)

    @property
    def needed(self) -> tuple[str, ...]:
        """Resources that it works with: of its options, or as its class says."""
        needs: tuple[str, ...] = self.needs if self.options is None else self.options.needs
        return needs

    def __call__(self, items: Iterable[Any]) -> Flow:
        """Return the flow of what this operator makes of the items."""
        return Flow(self._counted(self.flow(items.items if isinstance(items, Flow) else items)), self.resources)

    def flow(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield what is made of each item; `Waiting` passes."""
        while self.rest:  # of the item before a checkpoint
            yield self.rest.popleft()
        proper = self.transform
        transform = self._first_transform if is_user_defined(type(self)) else proper
        for item in chain(self._take_held(), items):
            if isinstance(item, Waiting):
                yield item
                continue
            while self.resources.breaks_off(item):
                self.held = item
                yield Waiting.FOR_END
            self.held = None
            self.rest.extend(transform(item))
            transform = proper
            while self.rest:
                yield self.rest.popleft()

    def _take_held(self) -> Iterator[Item]:
        if self.held is not None:
            yield self.held

    def transform(self, item: Any) -> Iterable[Any]:
        """Return the items that are made of an item: none, one or several.

        What is kept for later items belongs into `get_state`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no transform")

    def _first_transform(self, item: Any) -> list[Any]:
        """Return what is made of the first item, checked.

        Raises:
            RunFailure: it is no list of items, or one of another kind than `gives` names.
        """
        name, where = type(self).__name__, place_of(type(self), "transform")
        try:
            made = self.transform(item)
        except NotImplementedError as error:
            raise RunFailure(Problem(str(error), where)) from error
        if not isinstance(made, Iterable):
            got = "None" if made is None else type(made).__name__
            allowed = "a list of items, or a generator: return [item], or yield item; return [] for none"
            raise RunFailure(Problem(f"{name}.transform returns no items", where, got, allowed))
        items = list(made)
        for one in items:
            kinds = [kind.__name__ for kind in type(one).__mro__]
            if self.gives is not None and not isinstance(one, Waiting) and not set(kinds) & set(self.gives):
                what = f"{name}.transform gives another item than its `gives` names"
                got = f"{type(one).__name__} for {type(item).__name__}"
                raise RunFailure(Problem(what, where, got, ", ".join(self.gives) or "none"))
        return items

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        if not self.is_counted:
            return iter(items)
        return self._while_counting(items)

    def _while_counting(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            if isinstance(item, Item):
                self.resources.metrics.count(item)
            yield item

    def get_state(self) -> dict[str, Any]:
        """Return what the next items depend on, as plain values and arrays; empty if nothing is kept."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""


class _Combined(Operator):
    """Gives all items that a function makes of each item."""

    def __init__(self, resources: Resources, function: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(resources)
        self._function = function

    def transform(self, item: Any) -> Iterable[Any]:
        """Call the function."""
        return self._function(item)


class Source(Operator, Flow):
    """An operator that takes no items: itself a flow. A subclass overrides `make_items`."""

    takes = ()

    def __init__(self, resources: Resources, **options: Any) -> None:
        Operator.__init__(self, resources, **options)
        Flow.__init__(self, self._counted(self.make_items()), resources)

    def make_items(self) -> Iterator[Any]:
        """Yield items, and `Waiting` where none is ready."""
        raise NotImplementedError(f"{type(self).__name__} has no make_items")
