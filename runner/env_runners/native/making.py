"""Make the environment of an `env` block with a backend other than gymnasium."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Collection, Iterator
from typing import Any

import gymnasium as gym

from runner.config.env import DECIDED, ale_games, find_native_problems, unknown_id
from runner.config.errors import ConfigError, Problem, list_names, nearest_match, show_value
from runner.config.schemas import EnvConfig
from runner.env_runners.native.ale_env import AleVectorEnv
from runner.env_runners.native.envpool_env import EnvPoolVectorEnv

# Package, and extra of runner, by backend.
_PACKAGES = {"envpool": ("envpool", "envpool"), "ale": ("ale_py", "atari")}
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


def make_native(config: EnvConfig, num_envs: int) -> VectorEnv:
    """Make `num_envs` sub-environments of EnvPool or ALE.

    Raises:
        ConfigError: the library is not installed, the environment or an option is unknown, or there are several agents.
    """
    check_installed(config.backend)
    _raise_any(find_native_problems(config))
    return _make_ale(config, num_envs) if config.backend == "ale" else _make_envpool(config, num_envs)


def check_installed(backend: str) -> None:
    """Raise `ConfigError` if the library of a backend is not installed."""
    package, extra = _PACKAGES[backend]
    if importlib.util.find_spec(package) is None:
        what = f"env.backend={backend} needs the package {package}"
        fix = f'pip install -e ".[{extra}]"'
        raise ConfigError([Problem(what, "env.backend", "it is not installed", fix=fix)])


def _make_ale(config: EnvConfig, num_envs: int) -> VectorEnv:
    from ale_py.vector_env import AtariVectorEnv

    known = list(inspect.signature(AtariVectorEnv).parameters)
    _raise_any(_find_unknown_options(config, known))
    game = ale_games()[(config.env or "").removeprefix("ale_py:")]
    return AleVectorEnv(game, num_envs, **config.env_config)


def _make_envpool(config: EnvConfig, num_envs: int) -> VectorEnv:
    import envpool

    task = config.env or ""
    known_tasks = envpool.list_all_envs()
    if task not in known_tasks:
        raise ConfigError([unknown_id(config, known_tasks)])
    defaults: Any = envpool.make_spec(task).config
    _raise_any(_find_unknown_options(config, defaults._fields))
    if defaults.max_num_players != 1:
        expected = "an environment with one agent, or env._target_: a MultiAgentEnv"
        raise ConfigError(
            [Problem(f"EnvPool's {task} has {defaults.max_num_players} agents", "env.env", task, expected)]
        )
    return EnvPoolVectorEnv(task, num_envs, **config.env_config)


def _find_unknown_options(config: EnvConfig, known: Collection[str]) -> Iterator[Problem]:
    expected = [name for name in known if name not in DECIDED]
    for name, value in config.env_config.items():
        if name not in expected:
            what = f"{name} is not a known option of {config.backend}'s {config.env}"
            key = f"env.env_config.{name}"
            yield Problem(what, key, show_value(value), list_names(expected), nearest_match(name, expected))


def _raise_any(problems: Iterator[Problem]) -> None:
    if found := list(problems):
        raise ConfigError(found)
