"""Rules of the `env` block: the environment, its library, its arguments, and its wrappers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runner.config.blocks import EnvConfig, EnvRunnersConfig
from runner.config.callables import arguments_of
from runner.config.env_ids import GROUP, env_option
from runner.config.errors import Problem, list_names, nearest_match, show_value
from runner.config.paths import list_options
from runner.config.source_modules import MissingNameError, UnknowableError, is_path_into_package, open_module
from runner.config.targets import (
    ENVIRONMENTS,
    VECTOR_ENV,
    Given,
    describe_fault,
    find_target_fault,
    is_subclass,
    with_positional,
)

_MAKE_ARGUMENTS = ("max_episode_steps", "disable_env_checker", "render_mode", "apply_api_compatibility")
_ALE_GIVEN = ("game", "num_envs", "batch_size", "autoreset_mode")
_NUM_ENVS = Given(names=("num_envs",))
_WRAPPED_ENV = Given(num_positional=1)


def env_override(name: str, dirs: Sequence[Path]) -> str:
    """Return the override that chooses an environment.

    Args:
        name: an option of `env`, a Gymnasium id or a dotted path.
        dirs: search path of configuration files.
    """
    if name in list_options(dirs, GROUP) or env_option(name) is not None:
        return f"{GROUP}={name}"
    is_path = "." in name and ":" not in name and "/" not in name
    return f"env._target_={name}" if is_path else f"env.env={name}"


def find_env_problems(env: EnvConfig, env_runners: EnvRunnersConfig, resets_apart: bool) -> Iterator[Problem]:
    """Yield the problems of the environment, according to its source."""
    expected = "env.env: a gymnasium id, or env._target_: the dotted path of a class"
    yield from _check_wrappers(env)
    if env.backend != "gymnasium":
        yield from _check_backend(env, env_runners.gym_env_vectorize_mode)
    if env.env is None and env._target_ is None:
        if not (env.is_external and (env.observation_space or env.agents)):
            yield Problem("no environment is chosen", "env", None, f"env=cartpole, or {expected}")
    elif env.env is not None and env._target_ is not None:
        got = f"{env.env} and {env._target_}"
        yield Problem("env.env and env._target_ are both set", "env._target_", got, f"only one: {expected}")
    else:
        yield from _check_made("env.env_config", env.env_config, env, env_runners, resets_apart)


def find_task_problems(
    key: str, env_config: Mapping[str, Any], env: EnvConfig, env_runners: EnvRunnersConfig
) -> Iterator[Problem]:
    """Yield the problems of a task's environment, whose arguments at `key` override arguments of the `env` block."""
    if any(_check_made("env.env_config", env.env_config, env, env_runners, True)):
        return  # `find_env_problems` reports them
    for problem in _check_made(key, {**env.env_config, **env_config}, env, env_runners, True):
        yield replace(problem, got=show_value(env_config))


def _check_made(
    key: str,
    arguments: Mapping[str, Any],
    env: EnvConfig,
    env_runners: EnvRunnersConfig,
    resets_apart: bool,
) -> Iterator[Problem]:
    """Check the environment of the `env` block and its arguments at `key`."""
    if env._target_ is not None:
        yield from _check_call("env._target_", key, env._target_, arguments, _NUM_ENVS)
    elif env.backend == "ale":
        others = {name: value for name, value in arguments.items() if name not in DECIDED}
        yield from _check_call("env.env", key, ALE_CLASS, others, Given(names=_ALE_GIVEN))
    elif env.env is not None and env.backend == "gymnasium":
        yield from _check_env_id(env.env, key, arguments, partial(_is_batched, env, env_runners, resets_apart))


def _check_call(
    path_key: str, arguments_key: str, target: str, arguments: Mapping[str, Any], given: Given
) -> Iterator[Problem]:
    """Check a class or factory of environments and the arguments of its call."""
    fault = find_target_fault(target, [str(name) for name in arguments], kinds=ENVIRONMENTS, given=given)
    if fault is None:
        return
    if fault.where is not None:
        key = f"{arguments_key}.{fault.where}" if fault.where in arguments else arguments_key
        yield describe_fault(arguments_key, fault, show_value(arguments), key if arguments else path_key)
    else:
        yield describe_fault(path_key, fault, target)


def _check_wrappers(env: EnvConfig) -> Iterator[Problem]:
    for index, wrapper in enumerate(env.wrappers):
        key, target = f"env.wrappers.{index}", wrapper.get("_target_")
        if not isinstance(target, str):
            expected = "{_target_: package.module.Wrapper, argument: value, ...}"
            yield Problem(f"{key} must be a wrapper with a _target_", key, show_value(wrapper), expected)
            continue
        given = with_positional(_WRAPPED_ENV, wrapper)
        yield from _check_call(f"{key}._target_", key, target, arguments_of(wrapper), given)


def _check_env_id(
    env: str, key: str, arguments: Mapping[str, Any], is_batched: Callable[[Any], bool]
) -> Iterator[Problem]:
    if ":" in env:  # gymnasium imports the module before the colon, which registers the id
        yield from _check_registering_module(env)
        return
    import gymnasium  # 0.2 s

    spec = gymnasium.registry.get(env)
    if spec is None:
        yield _describe_unregistered(env, list(gymnasium.registry))
        return
    entry_point = spec.vector_entry_point if is_batched(spec) else spec.entry_point
    if isinstance(entry_point, str):
        target = entry_point.replace(":", ".")
        others = {name: value for name, value in arguments.items() if name not in _MAKE_ARGUMENTS}
        if find_target_fault(target) is None:  # the path of a plugin may be unknown until its import
            given = Given(names=("num_envs", *spec.kwargs))
            yield from _check_call("env.env", key, target, others, given)


def _describe_unregistered(env: str, registered: Sequence[str]) -> Problem:
    what, where = f"the environment {env} is not registered", "env.env"
    if is_path_into_package(env):
        fix = f"env._target_={env} instead of env.env: the dotted path of a class or function"
        return Problem(what, where, env, fix)
    known = registered[::-1]  # the newest version of an environment first
    expected = f"{list_names(known, env, limit=8)}; module:id imports the module that registers the id"
    return Problem(what, where, env, expected, nearest_match(env, known))


def _check_registering_module(env: str) -> Iterator[Problem]:
    try:
        open_module(env.partition(":")[0])
    except MissingNameError as missing:
        yield Problem(f"env.env: {missing}", "env.env", env, fix=missing.fix)
    except UnknowableError:
        return


def _is_batched(env: EnvConfig, env_runners: EnvRunnersConfig, resets_apart: bool, spec: Any) -> bool:
    """Return whether the run uses the environment's batched implementation."""
    mode = env_runners.gym_env_vectorize_mode
    if mode != "auto" or env_runners.restart_failed_sub_environments or resets_apart:
        return mode == "vector_entry_point"
    wrappers = [str(wrapper.get("_target_")) for wrapper in env.wrappers]
    return spec.vector_entry_point is not None and all(is_subclass(path, VECTOR_ENV) for path in wrappers)


ALE_CLASS = "ale_py.vector_env.AtariVectorEnv"
_WRAPPER_OF_ONE = "gymnasium.core.Wrapper"
# Options of the libraries that are not set in `env.env_config` -> why.
DECIDED = {
    "num_envs": "env_runners.num_envs_per_env_runner sets it",
    "seed": "the experiment's seed sets it",
    "env_seed": "the experiment's seed sets it",
    "game": "env.env sets it",
    "task_id": "env.env sets it",
    "batch_size": "every step covers all sub-environments",
    "autoreset_mode": "sub-environments are always reset in the step after the end of an episode",
    "max_num_players": "only environments with one agent are supported",
    "gym_reset_return_info": "it is always true",
    "base_path": "the files of the installed package are used",
    "render_mode": "rendering needs env.backend=gymnasium",
}
# ROMs without a single-player game.
_FOR_SEVERAL_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}


def _check_backend(env: EnvConfig, mode: str) -> Iterator[Problem]:
    """Yield settings that do not work with an `env.backend` other than gymnasium."""
    got = f"env.backend={env.backend}"
    if env.is_external:
        what, expected = "env.backend has no effect on external simulators", "env.backend=gymnasium, or env.port=null"
        yield Problem(what, "env.backend", got, expected)
    if env._target_ is not None:
        what = "env.backend does not work with env._target_"
        expected = "env.backend=gymnasium, or env.env with an id of that library"
        yield Problem(what, "env.backend", got, expected)
    if mode != "auto":
        key = "env_runners.gym_env_vectorize_mode"
        what = f"{key} has no effect with env.backend={env.backend}, which always steps sub-environments together"
        yield Problem(what, key, mode, "auto")
    for index, wrapper in enumerate(env.wrappers):
        target = str(wrapper.get("_target_"))
        if is_subclass(target, _WRAPPER_OF_ONE):
            key = f"env.wrappers.{index}"
            what = f"{key} wraps a single sub-environment, but env.backend={env.backend} steps all of them together"
            yield Problem(what, key, target, "a gymnasium.vector.VectorWrapper, or env.wrappers=[]")
    yield from find_native_problems(env)


def find_native_problems(env: EnvConfig) -> Iterator[Problem]:
    """Yield options that runner sets, and unknown games of ALE, for a backend other than gymnasium."""
    for name, value in env.env_config.items():
        if name in DECIDED:
            key = f"env.env_config.{name}"
            what = f"{key} cannot be set with env.backend={env.backend}: {DECIDED[name]}"
            yield Problem(what, key, show_value(value), fix=f"remove {key}")
    games = ale_games() if env.backend == "ale" else {}
    if games and env.env is not None and env.env.removeprefix("ale_py:") not in games:
        yield unknown_id(env, list(games))


def unknown_id(env: EnvConfig, known: list[str]) -> Problem:
    """Return the problem of an unknown id."""
    name = env.env or ""
    what, expected = f"env.backend={env.backend} does not provide {name}", list_names(known, name, limit=8)
    return Problem(what, "env.env", name, expected, nearest_match(name, known))


def ale_games() -> dict[str, str]:
    """Return gymnasium's id -> ROM name for all Atari games; empty without ale_py."""
    spec = importlib.util.find_spec("ale_py")
    folders = spec.submodule_search_locations if spec else None
    roms = sorted(path.stem for folder in folders or () for path in Path(folder, "roms").glob("*.bin"))
    return {f"ALE/{rom.title().replace('_', '')}-v5": rom for rom in roms if rom not in _FOR_SEVERAL_PLAYERS}
