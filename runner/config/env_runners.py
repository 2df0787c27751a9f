"""Rules of the `env_runners` block: a custom class, read from its source, and settings of sub-environments."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.blocks import ASYNC, EnvConfig, EnvRunnersConfig
from runner.config.errors import Problem, show_value
from runner.config.source_definitions import attributes_of
from runner.config.targets import MULTI_AGENT_ENVS, VECTOR_ENV, describe_fault, find_target_fault, is_subclass

_KEY = "env_runners.env_runner_class"
_PROTOCOL = "runner.env_runners.protocol.EnvRunner"
_OF_SINGLE = "runner.env_runners.env_runner.SingleAgentEnvRunner"
_OF_SEVERAL = "runner.env_runners.multi_agent_env_runner.MultiAgentEnvRunner"


def find_env_runner_problems(env_runners: EnvRunnersConfig, env: EnvConfig) -> Iterator[Problem]:
    """Yield the problems of the `env_runners` block."""
    yield from _check_class(env_runners.env_runner_class, env)
    yield from _check_sub_environments(env_runners, env)


def _check_class(path: str | None, env: EnvConfig) -> Iterator[Problem]:
    if path is None:
        return
    fault = find_target_fault(path)
    if fault is not None:
        yield describe_fault(_KEY, fault, path)
        return
    if env.is_external:
        what = f"{_KEY} has no effect on external simulators (env.port)"
        yield Problem(what, _KEY, path, "null, or env.port=null")
    asked, other = (_OF_SEVERAL, _OF_SINGLE) if _has_several_agents(env) else (_OF_SINGLE, _OF_SEVERAL)
    attributes, methods = attributes_of(path), attributes_of(_PROTOCOL) or ()
    missing = [name for name in methods if attributes is not None and name not in attributes]
    if missing:
        what = f"{_KEY}: {path} is not an env runner: it does not define {', '.join(missing)}"
        yield Problem(what, _KEY, path, f"a subclass of {asked}, or a class with the methods of {_PROTOCOL}")
    elif is_subclass(path, other):
        agents = "several agents" if asked == _OF_SEVERAL else "a single agent"
        what = f"{_KEY}: {path} is a {other.rpartition('.')[2]}, but {env.name} has {agents}"
        yield Problem(what, _KEY, path, f"a subclass of {asked}")


def _check_sub_environments(runners: EnvRunnersConfig, env: EnvConfig) -> Iterator[Problem]:
    """Find settings that need separate sub-environments."""
    mode, timeout_s = runners.gym_env_vectorize_mode, runners.env_step_timeout_s
    for name in separate_settings(runners):
        key, got = f"env_runners.{name}", show_value(getattr(runners, name))
        named = f"{key}={ASYNC}" if name == "gym_env_vectorize_mode" else key
        off = show_value(getattr(EnvRunnersConfig, name))
        if env.is_external:
            yield Problem(f"{named} has no effect on external simulators (env.port)", key, got, off)
        elif _has_several_agents(env):
            yield Problem(f"{named} needs an environment with a single agent; {env.name} has several", key, got, off)
        elif env._target_ is not None and is_subclass(env._target_, VECTOR_ENV):
            what = f"{named} needs separate sub-environments, but {env.name} steps all of them together"
            yield Problem(what, key, got, f"{off}, or a gymnasium.Env")
    if runners.restart_failed_sub_environments and mode == "vector_entry_point":
        key = "env_runners.gym_env_vectorize_mode"
        what = f"{key}={mode} steps all sub-environments together, so a single one cannot be restarted"
        yield Problem(what, key, mode, "sync or async, or restart_failed_sub_environments=false")
    if timeout_s is None:
        return
    key = "env_runners.env_step_timeout_s"
    if mode != ASYNC:
        what = f"{key} needs sub-environments in separate processes"
        yield Problem(what, key, f"{timeout_s:g}, gym_env_vectorize_mode={mode}", "gym_env_vectorize_mode=async")
    elif runners.max_env_runners and timeout_s >= runners.sample_timeout_s:
        what = f"{key} has no effect: an env runner counts as failed after env_runners.sample_timeout_s"
        yield Problem(what, key, f"{timeout_s:g}", f"less than {runners.sample_timeout_s:g}")


def separate_settings(runners: EnvRunnersConfig) -> list[str]:
    """Return the active settings that need separate sub-environments."""
    names = ["restart_failed_sub_environments"] if runners.restart_failed_sub_environments else []
    names += ["env_step_timeout_s"] if runners.env_step_timeout_s is not None else []
    return names + (["gym_env_vectorize_mode"] if runners.gym_env_vectorize_mode == ASYNC else [])


def _has_several_agents(env: EnvConfig) -> bool:
    return env._target_ is not None and any(is_subclass(env._target_, base) for base in MULTI_AGENT_ENVS)
