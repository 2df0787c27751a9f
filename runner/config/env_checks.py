"""Checks of the `env` block: which environment it names, its arguments, and the wrappers around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.config.callables import arguments_of
from runner.config.composed import Composed
from runner.config.curriculum import task_names
from runner.config.env_backends import ALE_CLASS, DECIDED, find_backend_problems
from runner.config.errors import Problem, list_names, nearest_match, show_value
from runner.config.external_checks import find_external_problems
from runner.config.kinds import ENVIRONMENTS, VECTOR_ENV
from runner.config.list_patch_checks import describe_fault, with_positional
from runner.config.schemas import ExperimentConfig
from runner.config.source_modules import MissingNameError, UnknowableError, is_path_into_package, open_module
from runner.config.targets import Given, find_target_fault, is_subclass

_MAKE_ARGUMENTS = ("max_episode_steps", "disable_env_checker", "render_mode", "apply_api_compatibility")
_ALE_GIVEN = ("game", "num_envs", "batch_size", "autoreset_mode")
_NUM_ENVS = Given(names=("num_envs",))
_WRAPPED_ENV = Given(num_positional=1)


def find_env_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield the problems of the environment that its source file reveals."""
    env, target = config.env.env, config.env._target_
    allowed = "env.env: a gymnasium id, or env._target_: your own class"
    yield from find_external_problems(config, composed)
    yield from _check_wrappers(config, composed)
    if config.env.backend != "gymnasium":
        yield from find_backend_problems(config, composed)
    has_spaces = config.env.is_external and (config.env.observation_space or config.env.agents)
    if env is None and target is None and has_spaces:
        return
    if env is None and target is None:
        yield Problem("no environment is chosen", composed.where("env"), None, f"env=cartpole, or {allowed}")
    elif env is not None and target is not None:
        where = composed.where("env._target_")
        yield Problem("env.env and env._target_ are both set", where, f"{env} and {target}", f"only one: {allowed}")
    else:
        yield from _check_made("env.env_config", config.env.env_config, config, composed)


def find_task_problems(
    key: str, env_config: Mapping[str, Any], config: ExperimentConfig, composed: Composed
) -> Iterator[Problem]:
    """Yield the problems of a task's own environment, whose arguments at `key` replace ones of the `env` block."""
    of_env = config.env.env_config
    if not any(_check_made("env.env_config", of_env, config, composed)):  # which are told by themselves
        for problem in _check_made(key, {**of_env, **env_config}, config, composed):
            yield replace(problem, got=show_value(env_config))


def _check_made(
    key: str, arguments: Mapping[str, Any], config: ExperimentConfig, composed: Composed
) -> Iterator[Problem]:
    """Check the environment of the `env` block and the arguments at `key` that it is made with."""
    env, target = config.env.env, config.env._target_
    if target is not None:
        yield from _check_call("env._target_", key, target, arguments, composed, _NUM_ENVS)
    elif config.env.backend == "ale":
        others = {name: value for name, value in arguments.items() if name not in DECIDED}
        yield from _check_call("env.env", key, ALE_CLASS, others, composed, Given(names=_ALE_GIVEN))
    elif env is not None and config.env.backend == "gymnasium":
        yield from _check_env_id(env, key, arguments, config, composed)


def _check_call(
    path_key: str,
    arguments_key: str,
    target: str,
    arguments: Mapping[str, Any],
    composed: Composed,
    given: Given,
) -> Iterator[Problem]:
    """Check a class or factory of environments and the arguments of its call."""
    fault = find_target_fault(target, [str(name) for name in arguments], kinds=ENVIRONMENTS, given=given)
    if fault is None:
        return
    if fault.arguments:
        key = next((f"{arguments_key}.{name}" for name in fault.arguments if name in arguments), arguments_key)
        where = composed.where(key) or composed.where(path_key)
        yield describe_fault(arguments_key, fault, where, show_value(arguments))
    else:
        yield describe_fault(path_key, fault, composed.where(path_key), target)


def _check_wrappers(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    for index, wrapper in enumerate(config.env.wrappers):
        key, target = f"env.wrappers.{index}", wrapper.get("_target_")
        if not isinstance(target, str):
            allowed = "{_target_: package.module.Wrapper, argument: value, ...}"
            yield Problem(f"{key} must be a wrapper with a _target_", composed.where(key), show_value(wrapper), allowed)
            continue
        given = with_positional(_WRAPPED_ENV, wrapper)
        yield from _check_call(f"{key}._target_", key, target, arguments_of(wrapper), composed, given)


def _check_env_id(
    env: str, key: str, arguments: Mapping[str, Any], config: ExperimentConfig, composed: Composed
) -> Iterator[Problem]:
    if ":" in env:  # gymnasium imports the module before the colon, which registers the id
        yield from _check_registering_module(env, composed)
        return
    import gymnasium  # 0.2 s

    spec = gymnasium.registry.get(env)
    if spec is None:
        yield _describe_unregistered(env, list(gymnasium.registry), composed.where("env.env"))
        return
    entry_point = spec.vector_entry_point if _is_batched(config, spec) else spec.entry_point
    if isinstance(entry_point, str):
        target = entry_point.replace(":", ".")
        others = {name: value for name, value in arguments.items() if name not in _MAKE_ARGUMENTS}
        if find_target_fault(target) is None:  # a plugin's path may lead nowhere until it is imported
            given = Given(names=("num_envs", *spec.kwargs))
            yield from _check_call("env.env", key, target, others, composed, given)


def _describe_unregistered(env: str, registered: Sequence[str], where: str | None) -> Problem:
    what = f"no environment {env} is registered"
    if is_path_into_package(env):
        fix = f"env._target_={env} instead of env.env: the dotted path of a class or function"
        return Problem(what, where, env, fix)
    known = registered[::-1]  # the newest version of an environment first
    allowed = f"{list_names(known, env, limit=8)}; module:id imports the module that registers the id"
    return Problem(what, where, env, allowed, nearest_match(env, known))


def _check_registering_module(env: str, composed: Composed) -> Iterator[Problem]:
    try:
        open_module(env.partition(":")[0])
    except MissingNameError as missing:
        yield Problem(f"env.env: {missing}", composed.where("env.env"), env)
    except UnknowableError:
        return


def _is_batched(config: ExperimentConfig, spec: Any) -> bool:
    """Return whether the run steps the environment's own batched implementation."""
    mode = config.env_runners.gym_env_vectorize_mode
    if mode != "auto" or config.env_runners.restart_failed_sub_environments or task_names(config.curriculum):
        return mode == "vector_entry_point"
    wrappers = [str(wrapper.get("_target_")) for wrapper in config.env.wrappers]
    return spec.vector_entry_point is not None and all(is_subclass(path, VECTOR_ENV) for path in wrappers)
