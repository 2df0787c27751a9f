"""Checks of the `multi_agent` block: the mapping, and the fields that modules override."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from runner.config.checks import check_value, find_unknown_keys
from runner.config.compose import Composed
from runner.config.edit_lists import added_up
from runner.config.edits import describe_fault, find_edit_problems
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.fields import option_of
from runner.config.kinds import AGENT_MAPPINGS, LOSSES, MODULES
from runner.config.metrics import DEFAULT_MODULE_ID, declared_module_ids
from runner.config.schemas import ExperimentConfig, MultiAgentConfig
from runner.config.targets import Kinds, find_target_fault

# Fields that hold dotted paths, and fields of the algorithm that all modules of a run share.
_PATHS = {"_target_": MODULES, "loss": LOSSES}
_SHARED = ("schema", "dataflow", "train_batch_size_per_learner")


def find_multi_agent_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield the problems of the block."""
    block = config.multi_agent
    if block == type(block)():
        return
    if config.env.env is not None:
        what = f"multi_agent is set, but {config.env.env} has a single agent"
        yield Problem(what, composed.where("multi_agent"), None, "env._target_: a MultiAgentEnv class")
    yield from _check_mapping(block.agent_to_module, composed)
    if "_target_" not in block.agent_to_module:
        yield from _check_module_ids(block, composed)
    for name, overrides, target in (
        ("modules", block.modules, config.module),
        ("algorithm_config_overrides_per_module", block.algorithm_config_overrides_per_module, config.algorithm),
    ):
        for module_id, values in overrides.items():
            yield from _check_overrides(f"multi_agent.{name}.{module_id}", values, type(target), composed)
    if block.modules_to_train == []:
        where = composed.where("multi_agent.modules_to_train")
        allowed = f"null for all, or some of {', '.join(declared_module_ids(config)) or 'the modules'}"
        yield Problem("multi_agent.modules_to_train is empty: nothing would be trained", where, "[]", allowed)


def _check_mapping(mapping: Mapping[str, Any], composed: Composed) -> Iterator[Problem]:
    key = "multi_agent.agent_to_module"
    if "_target_" in mapping:
        path = str(mapping["_target_"])
        arguments = [str(name) for name in mapping if name != "_target_"]
        yield from _check_path(f"{key}._target_", path, composed, AGENT_MAPPINGS, arguments)
        return
    for pattern, module_id in mapping.items():
        if not isinstance(module_id, str) or not module_id:
            what = f"{key}.{pattern} is no module id"
            yield Problem(what, composed.where(f"{key}.{pattern}"), show_value(module_id), "text, for example p0")


def _check_module_ids(block: MultiAgentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield modules that no entry of the mapping leads to; only the environment tells whether an entry fits."""
    known = list(dict.fromkeys(map(str, block.agent_to_module.values()))) or [DEFAULT_MODULE_ID]
    patterns = [module_id.replace("{agent}", "*") for module_id in known]
    for name in ("modules", "modules_to_train", "algorithm_config_overrides_per_module"):
        for module_id in getattr(block, name) or ():
            if not any(fnmatchcase(module_id, pattern) for pattern in patterns):
                what = f"multi_agent.{name} names {module_id}, a module that acts for no agent"
                where = composed.where(f"multi_agent.{name}.{module_id}") or composed.where(f"multi_agent.{name}")
                yield Problem(what, where, module_id, ", ".join(known), nearest_match(module_id, known))


def _check_overrides(key: str, values: Mapping[str, Any], schema: type, composed: Composed) -> Iterator[Problem]:
    for name, allowed, nearest in find_unknown_keys(schema, dict(values), f"{key}."):
        yield Problem(f"unknown key {name}", composed.where(name), None, allowed, nearest)
    annotations = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if field.name in values:
            name = f"{key}.{field.name}"
            if field.name in _SHARED:
                allowed = f"algorithm.{field.name}"
                yield Problem(f"{name}: all modules share this field", composed.where(name), None, allowed)
                continue
            problem = check_value(
                name, values[field.name], annotations[field.name], option_of(field), composed.where(name)
            )
            if problem is not None:
                yield problem
            elif field.name in _PATHS:
                yield from _check_path(name, str(values[field.name]), composed, _PATHS[field.name])
            elif field.name == "learner_pipeline":
                yield from find_edit_problems(name, added_up((), values[field.name]), composed.where)


def _check_path(
    key: str, path: str, composed: Composed, kinds: Kinds, arguments: typing.Iterable[str] | None = None
) -> Iterator[Problem]:
    fault = find_target_fault(path, arguments, kinds=kinds)
    if fault is not None:
        yield describe_fault(key, fault, composed.where(key), path)
