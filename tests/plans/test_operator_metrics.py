"""Metrics of operators of one's own: reported in results, exact over resumes, and checked at the start."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cli.conditions import check_assertions
from runner.config.errors import ConfigError, RunFailure
from runner.config.metrics import producible_metrics
from runner.config.user_code import line_of
from runner.experiment.trainer import Trainer
from runner.plans import RunMetrics
from tests.plans.hand_made import config_of, context_of
from tests.support import own_plans
from tests.support.configs import config_from

OWN = "tests.support.own_plans"
SHARE, P90 = "plan/EverySecond/given_share", "plan/EverySecond/episodes_p90"
NOTHING = {"plan/EverySecond/num_items": None, SHARE: None, P90: None}
SMALL = (
    "algorithm.train_batch_size_per_learner=40",
    "algorithm.minibatch_size=20",
    "env_runners.num_envs_per_env_runner=2",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
)


def plan_of(*names: str) -> str:
    own = "".join(f"{{_target_: {OWN}.{name}}}," for name in names)
    return f"algorithm.plan=[ParallelRollouts,{own}{{ConcatBatches: {{min_env_steps: 40}}}},TrainOneStep]"


def function(name: str) -> str:
    return f"algorithm.plan=[{{_target_: {OWN}.{name}}}]"


def trainer_of(*overrides: str) -> Trainer:
    return Trainer.from_experiment("ppo_cartpole", [*SMALL, *overrides])


def check(*overrides: str) -> None:
    config_from("+experiment=ppo_cartpole", *SMALL, *overrides)


def of_plan(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name.startswith("plan/")}


def test_each_operator_reports_under_its_own_name() -> None:
    with trainer_of(plan_of("EverySecond", "EverySecond", "Unknown")) as trainer:
        results = [trainer.train() for _ in range(2)]
        assert set(results[0]) == set(producible_metrics(trainer.config))
    # The second one gets what the first one gives on: items 1, 3 and 5, of which it gives 1 and 5.
    of_second = [{name.replace("Second_2", "Second"): value for name, value in of_plan(one).items()} for one in results]
    names = ("plan/EverySecond/num_items", SHARE)
    assert [[one[name] for name in names] for one in results] == [[1, 1.0], [4, 0.5]]
    assert [[one[name] for name in names] for one in of_second] == [[1, 1.0], [2, 0.5]]
    assert results[0][P90] >= 2, "there are two sub-environments"


def test_an_iteration_without_a_value_has_the_name() -> None:
    context = context_of()
    operator = own_plans.EverySecond(context)
    assert of_plan(context.metrics.finish_iteration()) == NOTHING
    context.metrics.begin_iteration()
    operator.metrics.report("given_share", 1.0)
    operator.metrics.report("given_share", 0.0, 3)
    for value in (1, 2, 4):
        operator.metrics.report("episodes_p90", value)
    assert of_plan(context.metrics.finish_iteration()) == {**NOTHING, SHARE: 0.25, P90: pytest.approx(3.6)}
    context.metrics.begin_iteration()
    assert of_plan(context.metrics.finish_iteration()) == NOTHING


def test_an_iteration_that_was_broken_off_keeps_what_was_reported() -> None:
    first, second = context_of(), context_of()
    for context in (first, second):
        operator = own_plans.EverySecond(context)
        if context is second:
            second.metrics.set_state(first.metrics.get_state())
            second.metrics.begin_iteration()
        for value in (3.0, 1.0):
            operator.metrics.report("episodes_p90", value)
        first.metrics.stop_midway()
    assert second.metrics.reported[P90] == pytest.approx(3.0)
    other = RunMetrics(10)
    metrics = other.reporter("EverySecond", "", {"episodes_p90": ("max", "largest")}, "plan/EverySecond/")
    other.set_state(first.metrics.get_state())
    metrics.report("episodes_p90", 2.0)
    assert other.reported[P90] == 2.0, "another reduction than the state's begins anew"


# -- names in `stop` and the like --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        (plan_of("EverySecond"), "+stop.plan.EverySecond.given_share=1", f"checkpoint.metric={P90}"),
        (plan_of("EverySecond", "EverySecond"), "+stop.plan.EverySecond_2.given_share=1", f"sweep.metric={P90}"),
        (plan_of("Computed"), "+stop.plan.Computed.anything=1"),
        (function("two_batches"), "+stop.plan.EverySecond.given_share=1"),
    ],
    ids=["own", "second", "computed", "function"],
)
def test_declared_metrics_may_be_named(overrides: tuple[str, ...]) -> None:
    check(*overrides)


@pytest.mark.parametrize(
    ("plan", "name", "nearest"),
    [
        (plan_of("EverySecond"), "EverySecond/given_shares", SHARE),
        (plan_of("EverySecond"), "EverySecond_2/given_share", SHARE),
        (plan_of("EverySecond", "Computed"), "EverySecond/given_shares", SHARE),
        (plan_of("Unknown"), "Unknown/given_share", None),
    ],
    ids=["misspelt", "no_second_one", "beside_a_computed_one", "reports_nothing"],
)
def test_other_names_are_refused(plan: str, name: str, nearest: str | None) -> None:
    with pytest.raises(ConfigError, match=f"this run does not produce the metric plan/{name}") as caught:
        check(plan, f"+stop.plan.{name.replace('/', '.')}=1")
    assert nearest in (None, caught.value.problems[0].nearest)


def test_assertions() -> None:
    config = config_of(plan_of("EverySecond"))
    check_assertions([f"{SHARE} >= 0.5"], config)
    with pytest.raises(ConfigError) as caught:
        check_assertions(["plan/EverySecond/given >= 0.5"], config)
    assert caught.value.problems[0].nearest == SHARE


@pytest.mark.parametrize("plan", [plan_of("Computed"), function("two_batches")], ids=["computed", "function"])
def test_names_that_the_source_does_not_tell_are_checked_once_operators_are_made(plan: str) -> None:
    operator = "EverySecond" if "two_batches" in plan else "Computed"
    trainer_of(plan, f"+stop.plan.{operator}.given_share=1").close()
    with pytest.raises(ConfigError, match="this run does not produce the metric plan/") as caught:
        trainer_of(plan, f"+stop.plan.{operator}.given_shares=1")
    assert caught.value.problems[0].nearest == f"plan/{operator}/given_share"


def test_a_plan_that_makes_its_operators_late_reports_too() -> None:
    with trainer_of(function("made_late"), "+stop.plan.EverySecond.given_share=1") as trainer:
        assert trainer.train()[SHARE] == 1.0


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_an_undeclared_metric_ends_the_run_with_its_line() -> None:
    with trainer_of(plan_of("Misspelt")) as trainer, pytest.raises(RunFailure) as caught:
        trainer.train()
    problem = caught.value.problem
    assert (problem.what, problem.nearest) == (
        "Misspelt reports num_item, which its `reports` does not declare",
        "num_items",
    )
    place = f"{line_of(own_plans.Misspelt.transform)}, Misspelt.transform"
    assert problem.where == f"algorithm.plan, {place}"


def test_a_reduction_that_there_is_not() -> None:
    with pytest.raises(ConfigError) as caught:
        trainer_of(plan_of("NoReduction"))
    [problem] = caught.value.problems
    assert problem.what == "NoReduction.reports['num_items'] has an unknown reduction"
    assert problem.where == f"algorithm.plan, {line_of(own_plans.NoReduction)}, NoReduction"
    assert (problem.got, problem.nearest) == ("summ", "sum")
    assert problem.expected == "mean, sum, min, max, median, last, p1 to p99"
