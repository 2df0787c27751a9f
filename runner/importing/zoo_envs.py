"""Environments of RL Baselines3 Zoo: the package that registers each, its newest version, and its wrappers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ATARI_ENTRY = "atari"
_ATARI_WRAPPER = "stable_baselines3.common.atari_wrappers.AtariWrapper"
_ATARI_GAME = re.compile(r"(?:ale_py:)?(?:ALE/)?([A-Za-z0-9]+?)(?:NoFrameskip-v\d+|-v5)")


@dataclass(frozen=True)
class _Package:
    """A package that registers environments when it is imported.

    Attributes:
        ids: pattern of the registered ids.
        module: the module to import.
        install: argument for `pip install`.
    """

    ids: re.Pattern[str]
    module: str
    install: str


_PACKAGES = (
    _Package(re.compile(r"(MiniGrid|BabyAI)-.+"), "minigrid", '-e ".[minigrid]"'),
    _Package(re.compile(r"ALE/.+"), "ale_py", '-e ".[atari]"'),
    _Package(re.compile(r".+Bullet(Duck)?Env-v\d+"), "pybullet_envs_gymnasium", "pybullet_envs_gymnasium"),
    _Package(re.compile(r"(Fetch|Hand|Adroit|PointMaze|AntMaze).+"), "gymnasium_robotics", "gymnasium-robotics"),
    _Package(re.compile(r"Panda.+"), "panda_gym", "panda-gym"),
    _Package(re.compile(r"(highway|merge|roundabout|parking|intersection|racetrack)-.+"), "highway_env", "highway-env"),
    _Package(re.compile(r"donkey-.+"), "gym_donkeycar", "gym-donkeycar"),
)

# Wrappers of gymnasium and MiniGrid, also under paths of older versions, and their current names.
_WRAPPER = re.compile(r"(gym|gymnasium|gym_minigrid|minigrid)\.wrappers\.(?:\w+\.)?(\w+)")
_RENAMED_WRAPPERS = {"GrayScaleObservation": "GrayscaleObservation"}
_NEED_TUPLES = ("ResizeObservation",)  # YAML does not have tuples
# MiniGrid's observations contain a text, which modules do not support; RL Zoo flattens them.
_MINIGRID_WRAPPER = "minigrid.wrappers.FlatObsWrapper"
_AS_FLOATS = {"_target_": "gymnasium.wrappers.DtypeObservation", "dtype": "float32"}


@dataclass(frozen=True)
class ZooEnv:
    """An environment for an experiment.

    Attributes:
        id: value for `env.env`; it names the package that registers it.
        note: information for the reader, or None.
    """

    id: str
    note: str | None = None


def atari_env(env: str) -> str | None:
    """Return the current id of an Atari game, such as `ale_py:ALE/Pong-v5`, or None if `env` is not an Atari game.

    `PongNoFrameskip-v4`, `ALE/Pong-v5` and `ale_py:ALE/Pong-v5` are the same game here.
    """
    match = _ATARI_GAME.fullmatch(env)
    is_game = match is not None and ("NoFrameskip" in env or "ALE/" in env)
    return f"ale_py:ALE/{match[1]}-v5" if match is not None and is_game else None


def find_env(env: str) -> ZooEnv:
    """Return the current environment for an id of the Zoo.

    A version that no longer exists is replaced by the newest one. If no installed package registers an id, it is
    returned unchanged, with a note on what to install.
    """
    if ":" in env:
        return ZooEnv(env)
    package = next((one for one in _PACKAGES if one.ids.fullmatch(env)), None)
    prefix = "" if package is None else f"{package.module}:"
    if package is not None and not _is_imported(package.module):
        return ZooEnv(prefix + env, f"{env} needs a package that is not installed: pip install {package.install}")
    ids = _registered_ids()
    if env in ids:
        return ZooEnv(prefix + env)
    newest = _newest_version(env, ids)
    if newest is not None:
        return ZooEnv(prefix + newest, f"{env} no longer exists, so {newest} is used instead")
    if package is not None:
        return ZooEnv(prefix + env, f"the package {package.module} does not register {env}")
    return ZooEnv(env, f"no installed package is known to register {env}; name its package with --env MODULE:{env}")


def _is_imported(module: str) -> bool:
    """Import a module that registers environments; return whether this succeeds."""
    try:
        if importlib.util.find_spec(module) is None:
            return False
        with contextlib.redirect_stdout(io.StringIO()):  # pygame prints a greeting
            importlib.import_module(module)
    except Exception:
        return False
    return True


def _registered_ids() -> set[str]:
    import gymnasium  # 0.2 s

    # gymnasium registers MuJoCo's versions 2 and 3 as functions that raise errors.
    return {id_ for id_, spec in gymnasium.registry.items() if isinstance(spec.entry_point, str)}


def _newest_version(env: str, ids: set[str]) -> str | None:
    name = env.rpartition("-v")[0]
    versions = [id_ for id_ in ids if name and re.fullmatch(re.escape(name) + r"-v\d+", id_)]
    return max(versions, key=lambda id_: int(id_.rpartition("-v")[2]), default=None)


# -- wrappers --------------------------------------------------------------------------------------------------------


def is_atari_wrapper(wrappers: Any) -> bool:
    """Return whether an entry contains exactly the Atari preprocessing of Stable-Baselines3."""
    return [name for name, _ in _listed(wrappers)] == [_ATARI_WRAPPER]


def find_wrappers(wrappers: Any, env: str, is_normalized: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the wrappers of an entry for `env.wrappers`, and the names of wrappers without a counterpart.

    Args:
        wrappers: value of `env_wrapper`.
        env: id of the environment, as in `env.env`.
        is_normalized: whether observations are normalised, which needs floats.
    """
    found: list[dict[str, Any]] = []
    unknown: list[str] = []
    for name, arguments in _listed(wrappers):
        target = _wrapper_path(name)
        if target is None:
            unknown.append(name if not arguments else f"{name} with {dict(arguments)!r}")
        else:
            found.append({"_target_": target, **arguments})
    if env.startswith("minigrid:"):
        found = found or [{"_target_": _MINIGRID_WRAPPER}]
        found += [_AS_FLOATS] if is_normalized else []
    return found, unknown


def _wrapper_path(name: str) -> str | None:
    match = _WRAPPER.fullmatch(name)
    if match is None:
        return None
    class_name = _RENAMED_WRAPPERS.get(match[2], match[2])
    if "minigrid" in match[1]:
        return f"minigrid.wrappers.{class_name}"
    import gymnasium.wrappers  # 0.2 s

    is_known = class_name in gymnasium.wrappers.__all__ and class_name not in _NEED_TUPLES
    return f"gymnasium.wrappers.{class_name}" if is_known else None


def _listed(wrappers: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (name, arguments) of each wrapper: names, and tables of a name and its arguments, single or in a list."""
    if isinstance(wrappers, Mapping):
        return [(str(name), {} if not arguments else dict(arguments)) for name, arguments in wrappers.items()]
    if isinstance(wrappers, Sequence) and not isinstance(wrappers, str):
        return [pair for one in wrappers for pair in _listed(one)]
    return [] if wrappers is None else [(str(wrappers), {})]
