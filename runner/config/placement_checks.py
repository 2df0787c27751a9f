"""Checks of where remote env runners and learners are placed: what has no effect, and what Ray cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.config.composed import Composed
from runner.config.errors import Problem, show_value
from runner.config.operators import ENV_RUNNERS
from runner.config.plans import needs_of
from runner.config.schemas import DEFAULT_STRATEGY, PACK, ExperimentConfig

_OWN_KEYS = {"CPU": "num_cpus_per_{0}", "GPU": "num_gpus_per_{0}"}
_OF_RAY = ("memory", "object_store_memory")


def find_placement_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with the resources and the places of remote env runners and learners."""
    is_inline = config.engine == "inline"
    runners, learners = config.env_runners, config.learners
    num_runners = config.evaluation.evaluation_num_env_runners
    num_runners += runners.max_env_runners if ENV_RUNNERS in needs_of(config) else 0
    groups = (
        ("env_runners", "env_runner", 0 if is_inline else num_runners, runners.resources_per_env_runner),
        ("learners", "learner", 0 if is_inline else learners.num_learners, learners.resources_per_learner),
    )
    for block, one, num_actors, each in groups:
        custom = getattr(getattr(config, block), f"custom_resources_per_{one}")
        strategy = getattr(config, block).scheduling_strategy
        yield from _check_amounts(f"{block}.custom_resources_per_{one}", one, custom, composed)
        settings = {
            f"{block}.custom_resources_per_{one}": (custom, {}),
            f"{block}.scheduling_strategy": (strategy, DEFAULT_STRATEGY),
        }
        changed = {key: (value, usual) for key, (value, usual) in settings.items() if value != usual}
        for key, (value, usual) in changed.items():
            if num_actors == 0:
                what = f"{key} has no effect: this run has no remote {one.replace('_', ' ')}s"
                allowed = f"{show_value(usual)}, or {block}.num_{block}=1" + (" with engine=ray" if is_inline else "")
                yield Problem(what, composed.where(key), show_value(value), allowed)
        if num_actors and strategy == PACK and not any(each.values()):
            key = f"{block}.scheduling_strategy"
            what = f"{key} {PACK} reserves what each {one.replace('_', ' ')} asks for, and it asks for nothing"
            yield Problem(what, composed.where(key), PACK, f"{block}.num_cpus_per_{one} above 0, or {DEFAULT_STRATEGY}")
    yield from _check_gpus(config, composed)


def _check_amounts(key: str, one: str, custom: Mapping[str, float], composed: Composed) -> Iterator[Problem]:
    for name, amount in custom.items():
        where = composed.where(f"{key}.{name}") or composed.where(key)
        if name in _OWN_KEYS:
            yield Problem(f"{key} names {name}", where, show_value(amount), f"{_OWN_KEYS[name].format(one)}={amount:g}")
        elif not name or name in _OF_RAY:
            yield Problem(f"{key} names what Ray keeps for itself", where, name, "a name that nodes were started with")
        elif amount <= 0 or (amount > 1 and amount % 1 != 0):
            yield Problem(f"{key}.{name} is no amount", where, show_value(amount), "a part of 1, or a whole number")


def _check_gpus(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    learners = config.learners
    key, num_gpus = "learners.num_gpus_per_learner", learners.num_gpus_per_learner
    if num_gpus > 1:
        num_learners = max(1, learners.num_learners) * max(2, round(num_gpus))
        what = f"{key}: a learner computes on one GPU; several GPUs are several learners"
        allowed = f"at most 1, for so many GPUs learners.num_learners={num_learners} {key}=1"
        yield Problem(what, composed.where(key), f"{num_gpus:g}", allowed)
