"""Checks of where remote env runners and learners are placed: what has no effect, what Ray cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from runner.config.composed import Composed
from runner.config.errors import Problem, show_value
from runner.config.operators import ENV_RUNNERS
from runner.config.plans import needs_of
from runner.config.schemas import DEFAULT_STRATEGY, PACK, ExperimentConfig

_OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")


@dataclass(frozen=True)
class _Role:
    """A kind of remote actors, with the configuration keys that place them.

    Attributes:
        name: of one of them.
        number: key of how many there are.
        custom: key of the custom resources of each.
        strategy: key of their scheduling strategy.
        own_keys: Ray's names of resources that have a key of their own -> that key.
    """

    name: str
    number: str
    custom: str
    strategy: str
    own_keys: Mapping[str, str]


_ROLES = (
    _Role(
        "env runner",
        "env_runners.num_env_runners",
        "env_runners.custom_resources_per_env_runner",
        "env_runners.scheduling_strategy",
        {"CPU": "env_runners.num_cpus_per_env_runner", "GPU": "env_runners.num_gpus_per_env_runner"},
    ),
    _Role(
        "learner",
        "learners.num_learners",
        "learners.custom_resources_per_learner",
        "learners.scheduling_strategy",
        {"CPU": "learners.num_cpus_per_learner", "GPU": "learners.num_gpus_per_learner"},
    ),
)


def find_placement_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with the resources and the places of remote env runners and learners."""
    is_inline = config.engine == "inline"
    for role in _ROLES:
        custom, strategy = attrgetter(role.custom, role.strategy)(config)
        yield from find_resource_problems(role.custom, custom, role.own_keys, composed)
        has_actors = not is_inline and _num_actors(role, config) > 0
        usual: Mapping[str, Any] = {role.custom: {}, role.strategy: DEFAULT_STRATEGY}
        for key, value in ((role.custom, custom), (role.strategy, strategy)):
            if not has_actors and value != usual[key]:
                what = f"{key} has no effect: this run has no remote {role.name}s"
                allowed = f"{show_value(usual[key])}, or {role.number}=1" + (" with engine=ray" if is_inline else "")
                yield Problem(what, composed.where(key), show_value(value), allowed)
        asked = [*custom.values(), *(attrgetter(key)(config) for key in role.own_keys.values())]
        if has_actors and strategy == PACK and not any(asked):
            what = f"{role.strategy} {PACK} reserves what each {role.name} asks for, and it asks for nothing"
            allowed = f"{role.own_keys['CPU']} above 0, or {DEFAULT_STRATEGY}"
            yield Problem(what, composed.where(role.strategy), PACK, allowed)
    yield from _check_gpus(config, composed)


def _num_actors(role: _Role, config: ExperimentConfig) -> int:
    if role.name != "env runner":
        return int(attrgetter(role.number)(config))
    num_training = config.env_runners.max_env_runners if ENV_RUNNERS in needs_of(config) else 0
    return num_training + config.evaluation.evaluation_num_env_runners


def find_resource_problems(
    key: str, custom: Mapping[str, float], own_keys: Mapping[str, str], composed: Composed
) -> Iterator[Problem]:
    """Yield what Ray cannot give of custom resources.

    Args:
        key: of the block that holds them.
        custom: name -> amount.
        own_keys: Ray's names that have a key of their own -> that key.
        composed: says where values come from.
    """
    for name, amount in custom.items():
        where = composed.where(f"{key}.{name}")
        if name in own_keys:
            yield Problem(f"{key} names {name}", where, show_value(amount), f"{own_keys[name]}={amount:g}")
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
