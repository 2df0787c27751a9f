"""Dotted paths (`_target_`, `loss`, ...) checked by reading source files, without importing them.

Importing torch takes over a second; parsing the file that defines a class takes milliseconds. If the source cannot be
analysed (C extensions, star imports, decorators, dynamic attributes), nothing is reported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.config.errors import Problem, list_names, nearest_match
from runner.config.list_patches import CONNECTOR_KEY, CONNECTORS_KEY, MODULE_ALGORITHM
from runner.config.source_definitions import Definition, find_ancestors, inherits, resolve, signature_of
from runner.config.source_modules import MissingNameError, SourceModule, UnknowableError


@dataclass(frozen=True)
class Given:
    """Arguments that runner passes: a number by position, and others by name if the target accepts them."""

    num_positional: int = 0
    names: tuple[str, ...] = ()


NOTHING_GIVEN = Given()
# Keys with a meaning for Hydra's `instantiate`.
POSITIONAL = "_args_"
INSTANTIATE_KEYS = ("_target_", POSITIONAL, "_partial_", "_convert_", "_recursive_")


@dataclass(frozen=True)
class Kinds:
    """A kind of class.

    Attributes:
        bases: dotted paths of base classes, one of which the class must inherit.
        asked: description of the bases.
        has_factories: whether a function that returns an instance is also valid.
    """

    bases: tuple[str, ...]
    asked: str
    has_factories: bool = False


VECTOR_ENV = "gymnasium.vector.vector_env.VectorEnv"
PIPELINE = "runner.pipelines.pipeline.ConnectorPipeline"
# Pipeline -> class of its pipelines.
PIPELINE_KINDS = {
    "env_to_module": "runner.pipelines.pipeline.EnvToModulePipeline",
    "module_to_env": "runner.pipelines.pipeline.ModuleToEnvPipeline",
    "learner": "runner.pipelines.pipeline.LearnerConnectorPipeline",
}

# Bases of connectors that receive running episodes.
ENV_CONNECTORS = (
    "runner.pipelines.connector_kinds.EnvToModuleConnector",
    "runner.pipelines.connector_kinds.ModuleToEnvConnector",
)

# Bases of environments with several agents.
MULTI_AGENT_ENVS = (
    "runner.env_runners.multi_agent_env.MultiAgentEnv",
    "pettingzoo.utils.env.ParallelEnv",
    "pettingzoo.utils.env.AECEnv",
)
ENVIRONMENTS = Kinds(
    ("gymnasium.core.Env", VECTOR_ENV, *MULTI_AGENT_ENVS),
    "gymnasium.Env, gymnasium.vector.VectorEnv, MultiAgentEnv, or PettingZoo's ParallelEnv or AECEnv",
    has_factories=True,
)
CONNECTORS = Kinds(("runner.pipelines.connector.Connector",), "runner.pipelines.Connector")
MODULES = Kinds(("runner.modules.rl_module.RLModule",), "runner.modules.RLModule")
MULTI_MODULES = Kinds(("runner.modules.multi_rl_module.MultiRLModule",), "runner.modules.MultiRLModule")
OPTIMIZERS = Kinds(("torch.optim.optimizer.Optimizer",), "torch.optim.Optimizer")
LOSSES = Kinds(("runner.learners.loss.Loss",), "runner.learners.loss.Loss")
REPLAY_BUFFERS = Kinds(("runner.replay.replay_buffer.ReplayBuffer",), "runner.replay.ReplayBuffer")
CALLBACKS = Kinds(("runner.callbacks.callback.Callback",), "runner.callbacks.Callback")
PLAYERS = Kinds(("runner.league.players.Player",), "runner.league.Player")
AGENT_MAPPINGS = Kinds(("runner.env_runners.multi_agent_env.AgentMapping",), "AgentMapping")

# Packages whose classes an untrusted configuration may create.
PACKAGES = ("runner", "gymnasium", "torch")

_SCHEMA = ("runner.config.algorithms.AlgorithmConfig",)
OPERATOR = "runner.plans.operator.Operator"
_ENV_RUNNERS = (
    "runner.env_runners.env_runner.SingleAgentEnvRunner",
    "runner.env_runners.multi_agent_env_runner.MultiAgentEnvRunner",
)
_WRAPPER = ("gymnasium.core.Wrapper", "gymnasium.vector.vector_env.VectorWrapper")
_ALGORITHM = rf"(algorithm|multi_agent\.algorithm_config_overrides_per_module\.[^.]+|{MODULE_ALGORITHM.pattern})"
_EDIT = rf"\d+\.(prepend|append|{CONNECTOR_KEY})(\.{CONNECTORS_KEY}\.\d+)*\._target_"
# Pattern of a dotted key -> base classes, or permitted functions.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"{_ALGORITHM}\.loss", LOSSES.bases),
    (rf"{_ALGORITHM}\.schema", _SCHEMA),
    (r"algorithm\.plan\..*_target_", (OPERATOR,)),
    (r"algorithm\.replay_buffers\.[^.]+\._target_", REPLAY_BUFFERS.bases),
    (r"env_runners\.env_runner_class", _ENV_RUNNERS),
    (rf"{_ALGORITHM}\.optimizer\._target_", OPTIMIZERS.bases),
    (r"(module|multi_agent\.modules\.[^.]+)\._target_", MODULES.bases),
    (r"multi_agent\.multi_rl_module\._target_", MULTI_MODULES.bases),
    (r"env\._target_", ENVIRONMENTS.bases),
    (r"env\.wrappers\.\d+\._target_", _WRAPPER),
    (r"callbacks\.\d+\._target_", CALLBACKS.bases),
    (rf"(connectors\.(modules\.[^.]+\.)?\w+|{_ALGORITHM}\.\w+_pipeline)\.{_EDIT}", CONNECTORS.bases),
    (r"multi_agent\.agent_to_module\._target_", AGENT_MAPPINGS.bases),
    (r"league\.fixed\.[^.]+\._target_", PLAYERS.bases),
    (r"offline\.offline_data_class", ("runner.offline.training.offline_data.OfflineData",)),
    (r"offline\.prelearner_class", ("runner.offline.training.prelearner.OfflinePreLearner",)),
    (r"offline\.prelearner_buffer_class", ("runner.replay.episode_replay_buffer.EpisodeReplayBuffer",)),
)
# Modules of environments that wrap others, take objects, or do more than step an environment.
_NO_ENVIRONMENTS = ("gymnasium.wrappers.", "gymnasium.vector.", "gymnasium.utils.", "gymnasium.experimental.")


def find_target_fault(
    path: str,
    arguments: Iterable[str] | None = None,
    kinds: Kinds | None = None,
    given: Given = NOTHING_GIVEN,
    is_partial: bool = False,
) -> Problem | None:
    """Return the problem of a dotted path to a class or function, or None.

    `where` is the first unknown or missing argument; None if the path is at fault.

    Args:
        path: `package.module.Name`.
        arguments: names of the keyword arguments of the call; None: not checked.
        kinds: valid kinds; None: any class or function.
        given: arguments that runner passes.
        is_partial: whether missing arguments are given later.
    """
    if not all(part.isidentifier() for part in path.split(".")) or "." not in path:
        return Problem(f"{path} is not the dotted path of a class or function", expected="package.module.Name")
    if path.split(".")[0] in sys.stdlib_module_names:
        return Problem(f"{path} is part of Python itself", expected="a class or function of an installed package")
    try:
        found = resolve(path)
    except MissingNameError as missing:
        expected, nearest = list_names(missing.options, missing.name), nearest_match(missing.name, missing.options)
        return Problem(str(missing), expected=expected or None, nearest=nearest, fix=missing.fix)
    except UnknowableError:
        return None
    if isinstance(found, SourceModule):
        return Problem(f"{path} is a module, not a class or function")
    fault = None if kinds is None else _find_kind_fault(path, found, kinds)
    if fault is not None or arguments is None:
        return fault
    return _find_argument_fault(path, found, list(arguments), given, is_partial)


def is_subclass(path: str, base: str) -> bool:
    """Return whether the class at `path` inherits `base`, a dotted path, according to its source."""
    try:
        found = resolve(path)
        return isinstance(found, Definition) and inherits(found, (base,))
    except (MissingNameError, UnknowableError):
        return False


def _find_kind_fault(path: str, found: Definition, kinds: Kinds) -> Problem | None:
    if not found.is_class:
        fault = Problem(f"{path} is a function", expected=f"a subclass of {kinds.asked}")
        return None if kinds.has_factories else fault
    try:
        if inherits(found, kinds.bases):
            return None
    except UnknowableError:
        return None
    return Problem(f"{path} is not a subclass of {kinds.asked}")


def _find_argument_fault(
    path: str, found: Definition, arguments: list[str], given: Given, is_partial: bool
) -> Problem | None:
    try:
        signature = signature_of(found).without_positional(given.num_positional)
    except UnknowableError:
        return None
    name, expected = path.rpartition(".")[2], [key for key in signature.names if key not in given.names]
    unknown = [] if signature.is_open else [key for key in arguments if key not in signature.names]
    listed = list_names(expected, unknown[0] if unknown else "") or "no arguments"
    if unknown:
        what = f"{name} does not take the argument {', '.join(unknown)}"
        return Problem(what, unknown[0], None, listed, nearest_match(unknown[0], expected))
    missing = [key for key in signature.required if key not in (*arguments, *given.names)]
    if missing and not is_partial:
        return Problem(f"{name} needs the argument {', '.join(missing)}", missing[0], None, listed)
    return None


def with_positional(given: Given, block: Mapping[str, Any]) -> Given:
    """Return the positional arguments of a target: from runner, and from the block."""
    positional = block.get(POSITIONAL)
    count = len(positional) if isinstance(positional, list) else 0
    return replace(given, num_positional=given.num_positional + count)


def find_target_problems(
    key: str,
    path: str,
    arguments: Iterable[str] | None = None,
    kinds: Kinds | None = None,
    given: Given = NOTHING_GIVEN,
) -> Iterator[Problem]:
    """Yield the problem of the dotted path at a key, if any; see `find_target_fault`."""
    fault = find_target_fault(path, arguments, kinds=kinds, given=given)
    if fault is not None:
        yield describe_fault(key, fault, path)


def find_target_block_problems(
    key: str, block: Mapping[str, Any], kinds: Kinds, given: Given = NOTHING_GIVEN
) -> Iterator[Problem]:
    """Yield the problem of a block `{_target_: PATH, argument: value, ...}`, if any; see `find_target_fault`."""
    arguments = [str(name) for name in block if name not in INSTANTIATE_KEYS]
    given = with_positional(given, block)
    yield from find_target_problems(f"{key}._target_", str(block["_target_"]), arguments, kinds, given)


def describe_fault(key: str, fault: Problem, got: str, where: str | None = None) -> Problem:
    """Return the problem of a key for a fault of its dotted path; `where` is another place of the problem."""
    return replace(fault, what=f"{key}: {fault.what}", where=where or key, got=got)


def names_code(key: str) -> bool:
    """Return whether the value of a dotted key is a dotted path that is imported and called."""
    return key.rpartition(".")[2] == "_target_" or any(re.fullmatch(pattern, key) for pattern, _ in _KINDS)


def is_part(key: str, is_inside: bool = False) -> bool:
    """Return whether a dotted key is the path of a component of the run, instead of an object among its arguments.

    `is_inside`: whether the block of the key is an argument of another `_target_`.
    """
    is_option = is_inside and key.startswith("algorithm.plan.")
    return not is_option and any(re.fullmatch(pattern, key) for pattern, _ in _KINDS)


def is_known_kind(key: str, path: str) -> bool:
    """Return whether `path` is in one of `PACKAGES` and of the kind that the key needs, according to its source."""
    bases = next((bases for pattern, bases in _KINDS if re.fullmatch(pattern, key)), ())
    lineage = find_ancestors(path) if path.partition(".")[0] in PACKAGES else []
    if not lineage or lineage[0].partition(".")[0] not in PACKAGES:
        return False
    if bases == ENVIRONMENTS.bases and lineage[0].startswith(_NO_ENVIRONMENTS):
        return False
    return any(one in bases for one in lineage)
