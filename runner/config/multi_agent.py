"""Rules of the `multi_agent` block and of `connectors.modules`: the mapping, and overrides of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from runner.config.algorithms import AlgorithmConfig
from runner.config.blocks import DEFAULT_MODULE_ID, ConnectorsConfig, EnvConfig, ModuleConfig, MultiAgentConfig
from runner.config.checks import check_field, find_unknown_keys, typed_fields
from runner.config.connectors import find_edit_problems
from runner.config.errors import Problem, show_value, unknown_name
from runner.config.list_patches import OF_ALGORITHM, OF_MODULES, PIPELINES, added_up, module_algorithm_key
from runner.config.optimizer import OptimizerConfig, find_optimizer_problems, with_overrides
from runner.config.targets import (
    AGENT_MAPPINGS,
    LOSSES,
    MODULES,
    MULTI_MODULES,
    Given,
    find_target_block_problems,
    find_target_problems,
)

# Fields with dotted paths, and fields of the algorithm that all modules of a run share.
_PATHS = {"_target_": MODULES, "loss": LOSSES}
_SHARED = ("schema", *AlgorithmConfig.of_run)
_MODULES_GIVEN = Given(num_positional=1)  # the modules


def find_multi_agent_problems(
    multi_agent: MultiAgentConfig,
    env: EnvConfig,
    module: ModuleConfig,
    algorithms: Mapping[str, AlgorithmConfig],
) -> Iterator[Problem]:
    """Yield the problems of the block."""
    block = multi_agent
    if block == type(block)():
        return
    if env.env is not None and needs_several_agents(block):
        what = f"multi_agent is set, but {env.env} has a single agent"
        yield Problem(what, "multi_agent", fix=fix_of_single_agent(block))
    yield from _check_mapping(block.agent_to_module)
    yield from _check_auxiliary_modules(block)
    if block.multi_rl_module is not None:
        yield from _check_multi_rl_module(block, block.multi_rl_module, env, algorithms)
    for name in ("modules", "modules_to_train", "algorithm_config_overrides_per_module"):
        yield from find_unmapped_modules(f"multi_agent.{name}", getattr(block, name) or (), block)
    for module_id in block.modules:
        values = block.module_fields(module_id)
        yield from _check_overrides(f"multi_agent.modules.{module_id}", values, module)
    for module_id, values in block.algorithm_config_overrides_per_module.items():
        key = f"multi_agent.algorithm_config_overrides_per_module.{module_id}"
        yield from _check_overrides(key, values, _algorithm_of(module_id, algorithms))
    if block.modules_to_train == []:
        key = "multi_agent.modules_to_train"
        expected = f"null for all, or a list of {', '.join(block.declared_module_ids) or 'module ids'}"
        yield Problem(f"{key} is empty", key, "[]", expected)


def needs_several_agents(multi_agent: MultiAgentConfig) -> bool:
    """Return whether the block does more than add auxiliary modules, which environments with one agent also support."""
    auxiliary, overrides = multi_agent.auxiliary_modules, multi_agent.algorithm_config_overrides_per_module
    others = replace(
        multi_agent,
        modules={id_: fields for id_, fields in multi_agent.modules.items() if id_ not in auxiliary},
        algorithm_config_overrides_per_module={id_: one for id_, one in overrides.items() if id_ not in auxiliary},
        modules_to_train=None if auxiliary else multi_agent.modules_to_train,
    )
    return others != MultiAgentConfig()


def fix_of_single_agent(multi_agent: MultiAgentConfig) -> str:
    """Return what to do if the block names agents or modules, and the environment has one agent."""
    others = [module_id for module_id in multi_agent.modules if module_id not in multi_agent.auxiliary_modules]
    several = "set env._target_ to a MultiAgentEnv class"
    if not others or multi_agent.agent_to_module:
        return several
    if others[0] == DEFAULT_MODULE_ID:
        return f"{several}, or set the keys of {DEFAULT_MODULE_ID} under `module`"
    key = f"multi_agent.modules.{others[0]}.trains_on={DEFAULT_MODULE_ID}"
    return f"{several}, or {key} if {others[0]} does not choose actions"


def _check_auxiliary_modules(multi_agent: MultiAgentConfig) -> Iterator[Problem]:
    """Find auxiliary modules that also act, or whose source module does not have experiences."""
    auxiliary, acting = multi_agent.auxiliary_modules, multi_agent.declared_module_ids
    for module_id, source in auxiliary.items():
        key = f"multi_agent.modules.{module_id}.trains_on"
        if module_id in (acting or [DEFAULT_MODULE_ID]):
            what = f"{key}: {module_id} already acts for agents; an auxiliary module needs another id"
            yield Problem(what, key, source)
        elif source in auxiliary:
            what = f"{key}: {source} is an auxiliary module and does not have experiences"
            yield Problem(what, key, source, ", ".join(acting) or DEFAULT_MODULE_ID)
        else:
            of_agents = replace(multi_agent, modules={})
            yield from find_unmapped_modules(key, [source], of_agents, "{key}: module {module_id} does not exist")


def _algorithm_of(module_id: str, algorithms: Mapping[str, AlgorithmConfig]) -> AlgorithmConfig:
    return algorithms.get(module_algorithm_key(module_id), algorithms["algorithm"])


def _check_multi_rl_module(
    multi_agent: MultiAgentConfig,
    block: Mapping[str, Any],
    env: EnvConfig,
    algorithms: Mapping[str, AlgorithmConfig],
) -> Iterator[Problem]:
    key = "multi_agent.multi_rl_module"
    if not isinstance(block.get("_target_"), str):
        expected = "{_target_: package.module.MyModules, argument: value, ...}"
        yield Problem(f"{key} must have a _target_", key, show_value(dict(block)), expected)
        return
    yield from find_target_block_problems(key, block, MULTI_MODULES, _MODULES_GIVEN)
    if env.is_external:
        what = f"{key} does not work with external simulators (env.port)"
        yield Problem(what, key, str(block["_target_"]), "null, or env.port=null")
    apart = {"algorithm", *map(module_algorithm_key, multi_agent.auxiliary_modules)}
    for name in [name for name in algorithms if name not in apart]:
        what = f"{name} has no effect, because one optimiser updates all modules of {key}"
        yield Problem(what, name, show_value(algorithms[name].schema), fix=f"remove {name}")
    stepped = ("optimizer", "grad_clip", "reset_interval", *algorithms["algorithm"].optimizers.values())
    for module_id, fields in multi_agent.algorithm_config_overrides_per_module.items():
        for name in fields:
            if name in stepped and module_id not in multi_agent.auxiliary_modules:
                override = f"multi_agent.algorithm_config_overrides_per_module.{module_id}.{name}"
                what = f"{override} has no effect, because one optimiser updates all modules of {key}"
                yield Problem(what, override, show_value(fields[name]), f"algorithm.{name}")


def find_module_edit_problems(connectors: ConnectorsConfig, multi_agent: MultiAgentConfig) -> Iterator[Problem]:
    """Yield the problems of `connectors.modules`."""
    of_modules = connectors.modules
    yield from find_unmapped_modules(OF_MODULES, of_modules, multi_agent)
    for module_id, by_pipeline in of_modules.items():
        for pipeline, edits in by_pipeline.items():
            key = f"{OF_MODULES}.{module_id}.{pipeline}"
            yield from find_edit_problems(key, edits)
            if pipeline in PIPELINES[:2] and module_id in multi_agent.auxiliary_modules:
                what = f"{key} has no effect, because {module_id} does not choose actions"
                yield Problem(what, key, pipeline, "learner")
            if pipeline not in PIPELINES:
                yield unknown_name(f"{key} is not a pipeline", key, pipeline, PIPELINES)


def _check_mapping(mapping: Mapping[str, Any]) -> Iterator[Problem]:
    key = "multi_agent.agent_to_module"
    if "_target_" in mapping:
        yield from find_target_block_problems(key, mapping, AGENT_MAPPINGS)
        return
    for pattern, module_id in mapping.items():
        if not isinstance(module_id, str) or not module_id:
            what = f"{key}.{pattern} is not a valid module id"
            yield Problem(what, f"{key}.{pattern}", show_value(module_id), "text, for example p0")


def find_unmapped_modules(
    key: str,
    module_ids: Iterable[str],
    multi_agent: MultiAgentConfig,
    what: str = "{key} contains {module_id}, but no agent uses this module",
) -> Iterator[Problem]:
    """Yield modules without an entry in the mapping; only the environment shows whether entries match agents."""
    mapping = multi_agent.agent_to_module
    if "_target_" in mapping:
        return
    known = [*(dict.fromkeys(map(str, mapping.values())) or [DEFAULT_MODULE_ID]), *multi_agent.auxiliary_modules]
    patterns = [module_id.replace("{agent}", "*") for module_id in known]
    for module_id in module_ids:
        if not any(fnmatchcase(module_id, pattern) for pattern in patterns):
            yield unknown_name(what.format(key=key, module_id=module_id), f"{key}.{module_id}", module_id, known)


def _check_overrides(key: str, values: Mapping[str, Any], block: Any) -> Iterator[Problem]:
    schema = type(block)
    shared = [field for field in typed_fields(schema) if field in _SHARED]
    fields = [field for field in typed_fields(schema) if field not in _SHARED]
    others = {field: value for field, value in values.items() if field not in shared}
    yield from find_unknown_keys(schema, others, key, fields)
    for field in [field for field in shared if field in values]:
        name = f"{key}.{field}"
        yield Problem(f"{name} cannot be set per module", name, fix=f"set algorithm.{field}")
    for field in [field for field in fields if field in others]:
        name, value = f"{key}.{field}", others[field]
        if field == "optimizer" and isinstance(value, Mapping):
            yield from _check_optimizer(name, value, block.optimizer)
        elif (problem := check_field(schema, field, value, name)) is not None:
            yield problem
        elif field in _PATHS and schema is not OptimizerConfig:  # another check handles its class
            yield from find_target_problems(name, str(value), kinds=_PATHS[field])
        elif field in OF_ALGORITHM.values():
            yield from find_edit_problems(name, added_up((), value))


def _check_optimizer(key: str, values: Mapping[str, Any], of_all: OptimizerConfig) -> Iterator[Problem]:
    problems = list(_check_overrides(key, values, of_all))
    merged = with_overrides(of_all, values)
    yield from problems or find_optimizer_problems(OptimizerConfig(**merged), key)
