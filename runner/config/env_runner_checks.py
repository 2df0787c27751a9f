"""Checks of `env_runners.env_runner_class`: an env runner of one's own, read from its source."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.compose import Composed
from runner.config.edits import describe_fault
from runner.config.errors import Problem
from runner.config.schemas import ExperimentConfig
from runner.config.source_definitions import attributes_of
from runner.config.targets import find_target_fault, is_subclass

_KEY = "env_runners.env_runner_class"
_PROTOCOL = "runner.env_runners.protocol.EnvRunner"
_OF_SINGLE = "runner.env_runners.env_runner.SingleAgentEnvRunner"
_OF_SEVERAL = "runner.env_runners.multi_agent_env_runner.MultiAgentEnvRunner"
_MULTI_AGENT_ENV = "runner.env_runners.multi_agent_env.MultiAgentEnv"


def find_env_runner_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with the class, as far as its source tells."""
    path = config.env_runners.env_runner_class
    if path is None:
        return
    where = composed.where(_KEY)
    fault = find_target_fault(path)
    if fault is not None:
        yield describe_fault(_KEY, fault, where, path)
        return
    if config.env.is_external:
        what = f"{_KEY} has no effect on simulators that step themselves (env.port)"
        yield Problem(what, where, path, "null, or env.port=null")
    asked, other = (_OF_SEVERAL, _OF_SINGLE) if _has_several_agents(config) else (_OF_SINGLE, _OF_SEVERAL)
    attributes, methods = attributes_of(path), attributes_of(_PROTOCOL) or ()
    missing = [name for name in methods if attributes is not None and name not in attributes]
    if missing:
        what = f"{_KEY}: {path} is no env runner, it has no {', '.join(missing)}"
        yield Problem(what, where, path, f"a subclass of {asked}, or a class with the methods of {_PROTOCOL}")
    elif is_subclass(path, other):
        agents = "several agents" if asked == _OF_SEVERAL else "a single agent"
        what = f"{_KEY}: {path} is a {other.rpartition('.')[2]}, and {config.env.name} has {agents}"
        yield Problem(what, where, path, f"a subclass of {asked}")


def _has_several_agents(config: ExperimentConfig) -> bool:
    return config.env._target_ is not None and is_subclass(config.env._target_, _MULTI_AGENT_ENV)
