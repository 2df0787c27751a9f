"""Make environments of the `env` block: a gymnasium id, a class or a function that makes one, and wrappers."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym

from runner.config.blocks import ASYNC
from runner.config.callables import made_arguments, with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.mujoco_warnings import log_mujoco_warnings
from runner.config.schemas import EnvConfig
from runner.config.user_code import USER_ERRORS, problem_of
from runner.env_runners.env_closing import close_environments
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.native.making import make_native
from runner.env_runners.petting_zoo import as_multi_agent, is_petting_zoo, petting_zoo_kinds
from runner.env_runners.replayed_actions import MAX_REPLAYED_STEPS
from runner.env_runners.separate_envs import local_environments, process_environments
from runner.env_runners.vector_envs import BatchedEnvironments, SubEnvironments, SyncEnvironments

# A newly made environment, or several that are stepped together.
Environment = Any
_KINDS = (gym.Env, gym.vector.VectorEnv, MultiAgentEnv)
_KIND_NAMES = "a gymnasium.Env, a gymnasium.vector.VectorEnv, a MultiAgentEnv, or PettingZoo's ParallelEnv or AECEnv"


def make_environment(config: EnvConfig, num_envs: int = 1, mode: str = "auto") -> Environment:
    """Make the environment with its wrappers: a `MultiAgentEnv`, a `gymnasium.Env`, or a `VectorEnv` of `num_envs`.

    Args:
        config: the `env` block.
        num_envs: number of sub-environments, if they are stepped together.
        mode: `env_runners.gym_env_vectorize_mode`: auto, sync, async (as sync) or vector_entry_point.

    Raises:
        ConfigError: the environment or a wrapper cannot be created.
    """
    own = copy.deepcopy(config.env_config)  # an environment may change its configuration
    config = replace(config, env_config=with_callables(own, "env.env_config"))
    wrappers = [_import_wrapper(index, block) for index, block in enumerate(config.wrappers)]
    with _errors_named(config):
        env = _make_bare(config, num_envs, mode, wrappers)
    check_made(env, num_envs, config.name, "env._target_" if config._target_ else "env.env", str(config.env_config))
    for index, (wrapper, block) in enumerate(zip(wrappers, config.wrappers, strict=True)):
        if not _wraps_petting_zoo(wrapper):
            env = _adapted(env, config)
        env = _wrapped(env, wrapper, index, block)
        check_made(env, num_envs, block["_target_"], f"env.wrappers.{index}", str(block))
    return _adapted(env, config)


def _adapted(env: Environment, config: EnvConfig) -> Environment:
    with _errors_named(config):
        return as_multi_agent(env)


def make_vector_env(
    config: EnvConfig, num_envs: int, mode: str, seed: int, restarts: bool = False, timeout_s: float | None = None
) -> SubEnvironments:
    """Make N sub-environments with a single agent.

    Args:
        config: the `env` block.
        num_envs: N.
        mode: `env_runners.gym_env_vectorize_mode`; with `restarts`, auto means sync.
        seed: seed of the run.
        restarts, timeout_s: `restart_failed_sub_environments` and `env_step_timeout_s` of `env_runners`.

    Raises:
        ConfigError: they cannot be created, or have several agents.
    """
    if restarts and mode == "auto":
        mode = "sync"
    make = partial(make_environment, config, num_envs, mode)
    env = make()
    if isinstance(env, MultiAgentEnv):
        raise ConfigError(
            [Problem(f"{config.name} has several agents", "env", expected="an environment with one agent")]
        )
    if not restarts and mode != ASYNC:
        return sub_environments(env, make, num_envs, seed, config.max_replayed_steps)
    _check_is_apart(env, config, mode)
    close_environments([env])  # it was only needed for its spaces
    spaces = env.observation_space, env.action_space
    if mode == ASYNC:
        return process_environments(config, spaces, num_envs, seed, restarts, timeout_s)
    return local_environments(make, spaces, num_envs, seed, config.max_replayed_steps)


def _check_is_apart(env: Environment, config: EnvConfig, mode: str) -> None:
    """Reject sub-environments that only step together, if they must be ended or re-created individually."""
    if isinstance(env, gym.vector.VectorEnv):
        where, why = "env_runners.restart_failed_sub_environments", "single ones cannot be re-created"
        if mode == ASYNC:
            where, why = "env_runners.gym_env_vectorize_mode", "they cannot run in separate processes"
        what = f"{config.name} steps all sub-environments together, so {why}"
        raise ConfigError([Problem(what, where, type(env).__name__, "a gymnasium.Env, which steps a single one")])


def sub_environments(
    env: Environment,
    make_another: Callable[[], Environment],
    num_envs: int,
    seed: int,
    max_replayed_steps: int = MAX_REPLAYED_STEPS,
) -> SubEnvironments:
    """Return N sub-environments; `env` is the first of them, or all together."""
    if isinstance(env, gym.vector.VectorEnv):
        return BatchedEnvironments(env, seed)
    envs = itertools.chain([env], iter(make_another, None))
    return SyncEnvironments(lambda: next(envs), num_envs, seed, max_replayed_steps=max_replayed_steps)


def make_multi_agent_env(config: EnvConfig) -> MultiAgentEnv:
    """Make an environment with several agents.

    Raises:
        ConfigError: it cannot be created, or has a single agent.
    """
    env = make_environment(config)
    if not isinstance(env, MultiAgentEnv):
        what = f"{config.name} made an environment with a single agent, but an earlier one had several agents"
        raise ConfigError([Problem(what, "env", type(env).__name__, "a MultiAgentEnv each time")])
    return env


def _make_bare(config: EnvConfig, num_envs: int, mode: str, wrappers: list[Any]) -> Environment:
    if config.backend != "gymnasium":
        return make_native(config, num_envs)
    arguments = dict(config.env_config)
    if config._target_ is not None:
        target = _import_environment(config._target_, "env._target_")
        return target(**({"num_envs": num_envs} if makes_all_at_once(target) else {}) | arguments)
    name = config.env or ""
    # A single sub-environment is faster without batching.
    is_batched = num_envs > 1 and all(map(makes_all_at_once, wrappers)) and has_batched_implementation(name)
    if mode == "vector_entry_point" or (mode == "auto" and is_batched):
        return gym.make_vec(name, num_envs, **{"vectorization_mode": "vector_entry_point", **arguments})
    log_mujoco_warnings(name)
    return gym.make(name, disable_env_checker=True, **arguments)


def makes_all_at_once(target: Any) -> bool:
    """Return whether one call makes all sub-environments: a vector class, or a function with `num_envs`."""
    if inspect.isclass(target):
        return issubclass(target, gym.vector.VectorEnv)
    return "num_envs" in inspect.signature(target).parameters


def has_batched_implementation(name: str) -> bool:
    """Return whether a registered Gymnasium environment can step several sub-environments together."""
    spec = gym.envs.registry.get(name)
    return spec is not None and spec.vector_entry_point is not None


def _import_wrapper(index: int, block: Mapping[str, Any]) -> Any:
    return _import_environment(str(block["_target_"]), f"env.wrappers.{index}._target_")


def _import_environment(path: str, where: str) -> Any:
    """Return the class or function at a path."""
    return import_target(path, where, *_KINDS, or_function=True, later_bases=petting_zoo_kinds)


def _wraps_petting_zoo(wrapper: Any) -> bool:
    return inspect.isclass(wrapper) and issubclass(wrapper, petting_zoo_kinds())


def _wrapped(env: Environment, wrapper: Any, index: int, block: Mapping[str, Any]) -> Environment:
    where = f"env.wrappers.{index}"
    positional, arguments = made_arguments(copy.deepcopy(dict(block)), where)
    try:
        return wrapper(env, *positional, **arguments)
    except USER_ERRORS as error:
        problem = problem_of(error, where)
        what = f"{block['_target_']} cannot wrap {_class_name(env)}: {problem.what}"
        expected = _hint(env, wrapper) or problem.expected
        raise ConfigError([replace(problem, what=what, got=str(arguments), expected=expected)]) from error


def _hint(env: Environment, wrapper: Any) -> str | None:
    """Return a hint if an environment and a wrapper step different numbers of sub-environments."""
    steps_all = isinstance(env, gym.vector.VectorEnv)
    if not inspect.isclass(wrapper) or steps_all == makes_all_at_once(wrapper) or isinstance(env, MultiAgentEnv):
        return None
    if steps_all:
        return "a gymnasium.vector.VectorWrapper around sub-environments that are stepped together"
    return "a gymnasium.Wrapper around sub-environments that are stepped one by one"


@contextmanager
def _errors_named(config: EnvConfig) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except USER_ERRORS as error:
        problem = problem_of(error, "env._target_" if config._target_ else "env.env")
        if isinstance(error, gym.error.UnregisteredEnv):
            problem = replace(problem, expected="a gymnasium id, or the path of a class such as my_module.MyEnv")
        what = f"the environment {config.name} cannot be created: {problem.what}"
        got = f"{config.name} with env_config {dict(config.env_config)}"
        raise ConfigError([replace(problem, what=what, got=got)]) from error


def check_made(env: Environment, num_envs: int, name: str, where: str, got: str) -> None:
    """Check the result of a function, or of a class other than the environment's."""
    if not (isinstance(env, _KINDS) or is_petting_zoo(env)):
        what = f"{name} made {type(env).__name__}, which is not an environment"
        raise ConfigError([Problem(what, where, got, _KIND_NAMES)])
    if isinstance(env, gym.vector.VectorEnv) and env.num_envs != num_envs:
        what = f"{name} made {env.num_envs} sub-environments that are stepped together, expected {num_envs}"
        fix = "make the number of environments that the function gets as num_envs"
        raise ConfigError([Problem(what, where, got, fix=fix)])


def _class_name(env: Environment) -> str:
    return type(env.unwrapped if hasattr(env, "unwrapped") else env).__name__
