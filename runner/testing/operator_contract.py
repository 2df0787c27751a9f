"""Contract of operators of plans, built-in and user-defined."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from runner.callbacks import Callbacks
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.operators import EXPERIENCES, ITEMS, LEARNERS, TRAIN_RESULT
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.episodes.columns import DEFAULT_MODULE_ID, ColumnBlock, Rollout
from runner.episodes.made_blocks import MADE
from runner.experiment.learner_builder import build_learner_group
from runner.module_building import build_modules
from runner.plans import (
    Experiences,
    Item,
    Operator,
    Origin,
    PlanContext,
    PlanEnded,
    RunMetrics,
    Source,
    TrainResult,
)
from runner.plans.episode_metrics import Result
from runner.plans.item_state import item_to_state
from runner.plans.plan import Plan
from runner.plans.run_parts import RunParts
from runner.testing.rules import Rule, are_equal, check_rules, find_difference, through_checkpoint

Make = Callable[[PlanContext], Operator]
# No module has acted in these items, so the check of its outputs is disabled.
_SMALL = (
    *("+experiment=a2c_cartpole", "module.fcnet_hiddens=[4]", "evaluation=none", "tracking=none"),
    "learners.check_on_policy_outputs=false",
)


def check_operator(
    make: Make, items: Sequence[Item] | None = None, context: Callable[[], PlanContext] | None = None
) -> None:
    """Check an operator on artificial items.

    Args:
        make: the class of the operator, or a function that makes it from its context.
        items: input items, or None for experiences of two runners or train results. A `Source` takes none.
        context: makes the context of the operator; by default of A2C on CartPole, without env runners.

    Raises:
        BrokenContract: the operator breaks rules; the message lists all of them.
        ConfigError: `items` are missing but needed, or the declared metrics are not valid.
    """
    contract = _OperatorContract(make, items, context or small_context)
    check_rules(contract.name, contract.rules())


def small_context() -> PlanContext:
    """Return the context of A2C on CartPole with learners and without env runners."""
    config = _small_config()
    learners = build_learner_group(config, build_modules(config))
    return PlanContext(config, RunParts(learners, RunMetrics(10), Callbacks()))


@cache
def _small_config() -> ExperimentConfig:
    return build_experiment_config(compose_experiment(_SMALL))


def small_items(kind: str) -> list[Item]:
    """Return some items of a class, `Experiences` or `TrainResult`."""
    if kind == TRAIN_RESULT:
        return [TrainResult([{DEFAULT_MODULE_ID: {"total_loss": float(n)}}], 10 + n) for n in range(6)]
    return [_experiences(n, lengths) for n, lengths in enumerate([(3, 5), (8,), (2, 2, 4), (7,), (1, 6), (4,)])]


def _experiences(number: int, lengths: Sequence[int]) -> Experiences:
    """Return terminated episodes of these lengths, as sampled by a runner in CartPole."""
    num_rows, stream = sum(lengths), np.random.default_rng(number)
    logits = stream.normal(size=(num_rows, 2)).astype(np.float32)
    block = ColumnBlock(
        columns={
            "obs": stream.normal(size=(num_rows + len(lengths), 4)).astype(np.float32),
            "actions": np.arange(num_rows, dtype=np.int64) % 2,
            "rewards": stream.normal(size=num_rows).astype(np.float32),
            "action_dist_inputs": logits,
            "action_logp": logits[:, 0] - np.logaddexp(logits[:, 0], logits[:, 1]),
        },
        lengths=np.array(lengths, np.int64),
        is_terminated=np.ones(len(lengths), np.bool_),
        is_truncated=np.zeros(len(lengths), np.bool_),
        t_started=np.zeros(len(lengths), np.int64),
        episode_ids=[f"{number}-{chunk}" for chunk in range(len(lengths))],
        module_id=DEFAULT_MODULE_ID,
    )
    return Experiences(Rollout({DEFAULT_MODULE_ID: block}, num_rows), (Origin(number % 2, 1, num_rows),))


class _Given(Source):
    """Yields these items, and counts how many were requested."""

    def __init__(self, context: PlanContext, items: Iterable[Any]) -> None:
        super().__init__(context)
        self._given, self.num_asked = list(items), 0

    def poll(self) -> Any:
        """Return the next item."""
        if self.num_asked == len(self._given):
            raise PlanEnded
        self.num_asked += 1
        return self._given[self.num_asked - 1]


class _OperatorContract:
    def __init__(self, make: Make, items: Sequence[Item] | None, make_context: Callable[[], PlanContext]) -> None:
        self._make, self._make_context = make, make_context
        context = make_context()
        self._others = set(context.reported_metrics)  # metrics of a trainer's plan
        operator = make(context)
        self.name, self._is_source = type(operator).__name__, isinstance(operator, Source)
        takes = operator.takes if operator.options is None else operator.options.takes
        self._takes: tuple[str, ...] = (EXPERIENCES,) if not isinstance(takes, tuple) else takes
        self._given = items
        if items is None and self._takes and not self._is_source and not set(self._takes) & {EXPERIENCES, TRAIN_RESULT}:
            what = f"{self.name} takes items that check_operator cannot make"
            raise ConfigError([Problem(what, "items", ", ".join(self._takes), fix="pass items=[...]")])

    @property
    def _items(self) -> list[Item]:
        """Make new, unchanged items."""
        if self._given is not None:
            return copy.deepcopy(list(self._given))
        return small_items(EXPERIENCES if EXPERIENCES in self._takes else TRAIN_RESULT)

    def rules(self) -> Iterator[Rule]:
        """Yield the rules; for a source, which takes no items, only declarations and state are checked."""
        yield self.declares_items
        yield self.has_a_plain_state
        if not self._is_source:
            yield from (self.gives_what_it_declares, self.leaves_items_alone, self.repeats_itself)
            yield from (self.reports_what_it_declares, self.continues_from_its_state)

    def _run(self, items: Iterable[Any], context: PlanContext | None = None) -> tuple[_Given, Plan]:
        context = context or self._make_context()
        source = _Given(context, items)
        return source, Plan(self._make(context)(source), context)

    def _all(self, items: Iterable[Any]) -> list[Any]:
        """Return all items that it returns."""
        return list(self._run(items)[1])

    def declares_items(self) -> Iterator[Problem]:
        """Check that `takes` and `gives` are tuples of names of items; a source takes none."""
        operator = self._make(self._make_context())
        if operator.options is not None:  # built in, or derived from a built-in operator
            return
        for attribute in ("takes", "gives"):
            names = getattr(operator, attribute)
            if names is None and not (attribute == "gives" and self._is_source):
                continue
            if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
                yield Problem(f"{attribute} is not a tuple of names", attribute, repr(names), f'("{EXPERIENCES}",)')
                continue
            for name in [name for name in names if name not in ITEMS]:
                yield Problem(f"{attribute} names an unknown item", attribute, name, ", ".join(ITEMS))
        if operator.takes == () and not self._is_source:
            what = "an operator that takes no items must be a Source"
            yield Problem(what, "takes", fix="derive it from runner.plans.Source, and override poll")

    def has_a_plain_state(self) -> Iterator[Problem]:
        """Check that its state is plain, and that a new operator with this state returns the same state."""
        first, second = (self._make(self._make_context()) for _ in range(2))
        state = through_checkpoint(first.get_state(), self.name)
        if state:
            second.set_state(copy.deepcopy(state))
        if not are_equal(second.get_state(), state):
            what = "get_state after set_state returns a different state"
            yield Problem(what, "set_state", str(second.get_state()), str(state))

    def gives_what_it_declares(self) -> Iterator[Problem]:
        """Check that items belong to the classes in `gives`, by default to the classes of its inputs."""
        operator = self._make(self._make_context())
        gives = operator.gives if operator.options is None else operator.options.gives
        expected = gives if isinstance(gives, tuple) else tuple({type(item).__name__ for item in self._items})
        for kind in sorted({type(item).__name__ for item in self._all(self._items)} - set(expected)):
            yield Problem(
                f"the operator returns {kind}, which its `gives` does not name", "gives", kind, ", ".join(expected)
            )

    def leaves_items_alone(self) -> Iterator[Problem]:
        """Check that it does not change its inputs, because other branches may hold them."""
        items = self._items
        kept = [copy.deepcopy(_comparable_fields(item)) for item in items]
        self._all(items)
        for number, (item, before) in enumerate(zip(items, kept, strict=True)):
            key = find_difference(_comparable_fields(item), before)
            if key is not None:
                what = f"the operator changes its input items: {key} of item {number} is different afterwards"
                yield Problem(what, "transform", fix="make new items with dataclasses.replace")

    def repeats_itself(self) -> Iterator[Problem]:
        """Check that a new operator returns the same items for the same inputs."""
        first, second = ([_comparable_fields(item) for item in self._all(self._items)] for _ in range(2))
        if not are_equal(first, second):
            what = "two new operators return different items for the same inputs"
            yield Problem(what, "transform", fix="draw random numbers from runner.streams.random_stream(seed, name)")

    def reports_what_it_declares(self) -> Iterator[Problem]:
        """Check that it reports each declared metric with a finite number."""
        for metric, value in self._straight()[1].items():
            if value is None:
                yield Problem(
                    f"{metric} is declared but not reported", "reports", fix="pass items for which it is reported"
                )
            elif not np.isfinite(value):
                yield Problem(f"{metric} is not finite", "metrics.report", str(value))

    def _straight(self) -> tuple[list[dict[str, Any]], Result]:
        """Return its items and reported metrics without a checkpoint."""
        source, plan = self._run(self._items)
        return [_comparable_fields(item) for item in plan], self._reported_to(source.context)

    def _reported_to(self, context: PlanContext) -> Result:
        """Return the values of the operator's metrics."""
        reported = context.metrics.reported
        return {metric: reported[metric] for metric in context.reported_metrics if metric not in self._others}

    def continues_from_its_state(self) -> Iterator[Problem]:
        """Check that a new operator continues from its state after each item, with the same items and metrics."""
        expected, expected_metrics = self._straight()
        for number in range(1, len(expected)):
            items = self._items
            source, plan = self._run(items)
            given = [_comparable_fields(next(plan)) for _ in range(number)]
            state = through_checkpoint(_state_of(source.context, plan), self.name)
            context = self._make_context()
            _, resumed = self._run(items[source.num_asked :], context)
            _restore(context, resumed, state)
            given += [_comparable_fields(item) for item in resumed]
            if not are_equal(given, expected):
                what = f"an operator with the state after item {number} continues differently from the original"
                fix = "return everything that later items depend on from get_state, such as counters and random streams"
                yield Problem(what, "get_state, set_state", f"{len(given)} items", f"{len(expected)} items", fix=fix)
                return
            reported = self._reported_to(context)
            if not are_equal(reported, expected_metrics):
                what = f"an operator with the state after item {number} reports different values than the original"
                fix = "return everything that later values depend on from get_state"
                yield Problem(what, "get_state, set_state", str(reported), str(expected_metrics), fix=fix)
                return


def _state_of(context: PlanContext, plan: Plan) -> dict[str, Any]:
    """Return the state within an iteration, including the metrics reported so far."""
    context.metrics.stop_midway()
    return {"plan": plan.get_state(), LEARNERS: context.learners.get_state(), "metrics": context.metrics.get_state()}


def _restore(context: PlanContext, plan: Plan, state: Mapping[str, Any]) -> None:
    context.learners.set_state(state[LEARNERS])
    context.metrics.set_state(state["metrics"])
    plan.set_state(state["plan"])


def _comparable_fields(item: Any) -> dict[str, Any]:
    """Return the fields of an item that do not differ by chance; for other classes, the type and text."""
    if not isinstance(item, Item):
        return {"kind": type(item).__name__, "value": str(item)}
    fields: dict[str, Any] = _comparable(item_to_state(item))
    return fields


def _comparable(value: Any) -> Any:
    """Remove seconds, and the numbers of rollouts that `Experiences.from_columns` made in this process."""
    if isinstance(value, dict):
        return {key: _comparable(one) for key, one in value.items() if not str(key).endswith("_s")}
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return MADE if isinstance(value, str) and value.startswith(MADE) else value
