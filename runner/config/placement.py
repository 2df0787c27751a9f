"""Rules for remote env runners and learners: placement, elastic numbers, and prefetched batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.config.blocks import DEFAULT_STRATEGY, PACK, SPREAD
from runner.config.checks import find_resource_problems
from runner.config.errors import Problem, show_value, unknown_name
from runner.config.operators import (
    ENV_RUNNERS,
    ApplyGradientsConfig,
    AsyncRequestsConfig,
    ComputeGradientsConfig,
    TrainOneStepConfig,
    UpdatePrioritiesConfig,
    UpdateTargetNetworkConfig,
)
from runner.config.plans.needs import learns_from_replay_only, needs_of, samples_asynchronously
from runner.config.plans.steps import Plan, PlanStep, read_plan, steps_of
from runner.config.schemas import ExperimentConfig

# Kind of remote actors -> its block, and the ending of the keys of its resources.
_ROLES = {"env runner": ("env_runners", "env_runner"), "learner": ("learners", "learner")}


def find_placement_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield problems of the resources and placement of remote env runners and learners."""
    is_inline = config.engine == "inline"
    num_actors = {"env runner": _num_env_runners(config), "learner": config.learners.num_learners}
    for role, (name, ending) in _ROLES.items():
        block: Any = getattr(config, name)
        custom_key, strategy_key = f"{name}.custom_resources_per_{ending}", f"{name}.scheduling_strategy"
        custom, strategy = getattr(block, f"custom_resources_per_{ending}"), block.scheduling_strategy
        own_keys = {"CPU": f"{name}.num_cpus_per_{ending}", "GPU": f"{name}.num_gpus_per_{ending}"}
        yield from find_resource_problems(custom_key, custom, own_keys)
        has_actors = not is_inline and num_actors[role] > 0
        for key, value, usual in ((custom_key, custom, {}), (strategy_key, strategy, DEFAULT_STRATEGY)):
            if not has_actors and value != usual:
                what = f"{key} has no effect without remote {role}s"
                expected = f"{show_value(usual)}, or {name}.num_{name}=1" + (" with engine=ray" if is_inline else "")
                yield Problem(what, key, show_value(value), expected)
        if has_actors and strategy == PACK and not any(getattr(block, f"resources_per_{ending}").values()):
            what = f"{strategy_key}={PACK} reserves the resources of each {role}, but none are requested"
            yield Problem(what, strategy_key, PACK, f"{own_keys['CPU']} above 0, or {DEFAULT_STRATEGY}")
    yield from _check_gpus(config)


def _num_env_runners(config: ExperimentConfig) -> int:
    num_training = config.env_runners.max_env_runners if ENV_RUNNERS in needs_of(config) else 0
    return num_training + config.evaluation.evaluation_num_env_runners


def _check_gpus(config: ExperimentConfig) -> Iterator[Problem]:
    learners = config.learners
    key, num_gpus = "learners.num_gpus_per_learner", learners.num_gpus_per_learner
    if num_gpus > 1:
        num_learners = max(1, learners.num_learners) * max(2, round(num_gpus))
        what = f"{key} is at most 1: a learner uses one GPU"
        fix = f"learners.num_learners={num_learners} {key}=1"
        yield Problem(what, key, f"{num_gpus:g}", "at most 1", fix=fix)


_NUMBER = "env_runners.num_env_runners"
_BOUNDS = ("min", "max")


def find_elastic_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield problems of `{min, max}` env runners."""
    bounds = config.env_runners.num_env_runners
    if not isinstance(bounds, dict):
        return
    got = show_value(bounds)
    for name in bounds:
        if name not in _BOUNDS:
            key = f"{_NUMBER}.{name}"
            yield unknown_name(f"{key} is not a known key", key, name, _BOUNDS)
    missing = [name for name in _BOUNDS if name not in bounds]
    if missing:
        yield Problem(f"{_NUMBER} needs {' and '.join(missing)}", _NUMBER, got, "{min: 2, max: 16}, or an integer")
    elif bounds["min"] < 1:
        key, expected = f"{_NUMBER}.min", "min >= 1, or 0 for the driver's process"
        yield Problem(f"{key} must be at least 1", key, got, expected)
    elif bounds["min"] > bounds["max"]:
        key = f"{_NUMBER}.min"
        yield Problem(f"{key} is greater than max", key, got, "min <= max")
    for what, expected in _why_fixed(config):
        yield Problem(f"an elastic {_NUMBER} {what}", _NUMBER, got, expected)


def _why_fixed(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield the reasons why the number must be fixed, and the expected value."""
    if ENV_RUNNERS not in needs_of(config):
        yield "has no effect, because this run learns from recorded data only", "0"
        return
    if config.env.is_external:
        yield (
            "does not work with external simulators (env.port), which know the addresses of the first env runners",
            "an integer",
        )
    if config.engine == "inline":
        yield "needs Ray, but engine=inline runs in this process", "an integer, or engine=ray"
    if config.env_runners.scheduling_strategy == PACK:
        expected = f"an integer, or scheduling_strategy={DEFAULT_STRATEGY} or {SPREAD}"
        yield f"does not work with scheduling_strategy={PACK}, which reserves all resources at the start", expected
    for step in steps_of(read_plan(config.algorithm.plan)):
        if isinstance(step.config, AsyncRequestsConfig) and step.config.deterministic:
            what = f"makes results differ between runs, but {step.key} has deterministic: true"
            yield what, "an integer, or deterministic: false"


_PREFETCH = "learners.prefetch"
_CHANGE_LEARNERS = (ApplyGradientsConfig, ComputeGradientsConfig, TrainOneStepConfig, UpdateTargetNetworkConfig)


def find_prefetch_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield the reasons why this run cannot send train batches to learners during their updates."""
    if config.learners.prefetch:
        for what, expected in _why_not_ahead(config):
            yield Problem(f"{_PREFETCH}: {what}", _PREFETCH, "true", f"false, or {expected}")


def _why_not_ahead(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield the reasons why `prefetch` cannot work, and the alternatives to false."""
    if config.learners.num_learners == 0:
        what = "the learner runs in the driver's process, which cannot prepare a batch during the update"
        yield what, "learners.num_learners >= 1"
    plan = read_plan(config.algorithm.plan)
    steps = list(steps_of(plan))
    if any(step.is_function for step in steps):
        return  # the function is unknown; learners reject calls that would disturb an update
    if not samples_asynchronously(config):
        what = "the plan does not sample asynchronously"
        yield what, "algorithm=impala or appo"
        return
    trains = [step for step in steps if step.is_a(TrainOneStepConfig)]
    if not trains:
        yield "the plan does not contain TrainOneStep", "algorithm=impala or appo"
        return
    module_ids = config.multi_agent.module_ids()
    if all(learns_from_replay_only(plan, module_id) for module_id in config.multi_agent.trained_modules(module_ids)):
        yield "the learner learns from replayed samples only", "algorithm=impala or appo"
    elif any(step.is_a(UpdatePrioritiesConfig) for step in steps):
        what = "rows would be drawn before UpdatePriorities has stored the priorities of the last update"
        yield what, "a plan without UpdatePriorities"
    in_turn = [step for step in _in_line_with(plan, trains[0]) if step.is_a(UpdateTargetNetworkConfig)]
    others = [step for step in steps if step.is_a(*_CHANGE_LEARNERS) and step not in (trains[0], *in_turn)]
    if others:
        named = ", ".join(f"{step.name} ({step.key})" for step in others)
        yield f"learners cannot run {named} during the update of {trains[0].key}", "a plan without it"


def _in_line_with(plan: Plan, train: PlanStep) -> Plan:
    """Return the steps of the (nested) plan that contains the step."""
    if train in plan:
        return plan
    return next((found for step in plan for branch in step.plans if (found := _in_line_with(branch, train))), ())
