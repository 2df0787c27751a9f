"""Checks of the `env_runners` block: a class of one's own, read from its source, and settings of sub-environments."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.blocks import ASYNC, EnvRunnersConfig
from runner.config.composed import Composed
from runner.config.errors import Problem, show_value
from runner.config.schemas import ExperimentConfig
from runner.config.source_definitions import attributes_of
from runner.config.targets import MULTI_AGENT_ENVS, VECTOR_ENV, describe_fault, find_target_fault, is_subclass

_KEY = "env_runners.env_runner_class"
_PROTOCOL = "runner.env_runners.protocol.EnvRunner"
_OF_SINGLE = "runner.env_runners.env_runner.SingleAgentEnvRunner"
_OF_SEVERAL = "runner.env_runners.multi_agent_env_runner.MultiAgentEnvRunner"


def find_env_runner_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with the block, as far as sources tell."""
    yield from _check_class(config, composed)
    yield from _check_sub_environments(config, composed)


def _check_class(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
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


def _check_sub_environments(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Find settings that need sub-environments which are apart from each other."""
    runners, env = config.env_runners, config.env
    mode, timeout_s = runners.gym_env_vectorize_mode, runners.env_step_timeout_s
    for name in separate_settings(runners):
        key, got = f"env_runners.{name}", show_value(getattr(runners, name))
        named = f"{key}={ASYNC}" if name == "gym_env_vectorize_mode" else key
        where, off = composed.where(key), show_value(getattr(EnvRunnersConfig, name))
        if env.is_external:
            yield Problem(f"{named} has no effect on simulators that step themselves (env.port)", where, got, off)
        elif _has_several_agents(config):
            yield Problem(
                f"{named} is for environments with a single agent, and {env.name} has several", where, got, off
            )
        elif env._target_ is not None and is_subclass(env._target_, VECTOR_ENV):
            what = f"{named} needs sub-environments that are made one by one, and {env.name} steps all of them together"
            yield Problem(what, where, got, f"{off}, or a gymnasium.Env, which steps one")
    if runners.restart_failed_sub_environments and mode == "vector_entry_point":
        key = "env_runners.gym_env_vectorize_mode"
        what = f"{key}={mode} steps all sub-environments together, and none can be made anew alone"
        yield Problem(what, composed.where(key), mode, "sync or async, or restart_failed_sub_environments=false")
    if timeout_s is None:
        return
    key, where = "env_runners.env_step_timeout_s", composed.where("env_runners.env_step_timeout_s")
    if mode != ASYNC:
        what = f"{key} needs sub-environments in processes of their own, which can be ended"
        yield Problem(what, where, f"{timeout_s:g}, gym_env_vectorize_mode={mode}", "gym_env_vectorize_mode=async")
    elif runners.max_env_runners and timeout_s >= runners.sample_timeout_s:
        what = f"{key} is not reached: an env runner counts as lost after env_runners.sample_timeout_s"
        yield Problem(what, where, f"{timeout_s:g}", f"less than {runners.sample_timeout_s:g}")


def separate_settings(runners: EnvRunnersConfig) -> list[str]:
    """Return the settings that are on and need sub-environments which are apart from each other."""
    names = ["restart_failed_sub_environments"] if runners.restart_failed_sub_environments else []
    names += ["env_step_timeout_s"] if runners.env_step_timeout_s is not None else []
    return names + (["gym_env_vectorize_mode"] if runners.gym_env_vectorize_mode == ASYNC else [])


def _has_several_agents(config: ExperimentConfig) -> bool:
    return config.env._target_ is not None and any(is_subclass(config.env._target_, base) for base in MULTI_AGENT_ENVS)
