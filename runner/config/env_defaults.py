"""The options of `env_defaults` and `connectors` that follow from the spaces and the horizon of an environment."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from runner.config.callables import made_arguments
from runner.config.env_ids import GROUP, env_option, id_table
from runner.config.imports import import_target
from runner.config.mujoco_warnings import log_mujoco_warnings
from runner.config.paths import conf_dir, list_options
from runner.config.yaml_files import read_yaml

_NONE, _DEFAULT = "none", "default"
_SMALLEST_IMAGE = 32  # pixels; smaller pictures are grids of cells


def env_defaults_of(algorithm: str, env: str, dirs: Sequence[Path]) -> str:
    """Return the option of `env_defaults` for the algorithm and the kind of environment, or `none`.

    Args:
        algorithm: option of `algorithm`.
        env: option of `env`; files in `conf/env` use `none`.
        dirs: search path of configuration files.
    """
    options = list_options(dirs, "env_defaults")
    if env in list_options(dirs, GROUP) or not any(name.startswith(f"{algorithm}_") for name in options):
        return _NONE
    names = (f"{algorithm}_{kind}" for kind in (name_of(env), *env_kinds(env)))
    return next((name for name in names if name in options), _NONE)


def connectors_of(algorithm: str, env: str, dirs: Sequence[Path]) -> str:
    """Return the option of `connectors` for the kind of environment; see `env_defaults_of`."""
    if env_defaults_of(algorithm, env, dirs) == _NONE:
        return _DEFAULT
    table = id_table()["connectors"]
    options = (table.get(f"{algorithm}_{kind}") for kind in env_kinds(env))
    return next((str(option) for option in options if option is not None), _DEFAULT)


def name_of(env: str) -> str:
    """Return the id of an environment without module, namespace and version: `Swimmer`."""
    return re.sub(r"-v\d+$", "", re.split("[:/]", env)[-1])


@lru_cache(maxsize=64)
def env_kinds(env: str) -> tuple[str, ...]:
    """Return the kinds of an environment, the most specific first; empty if it cannot be made.

    The run makes it again, and reports why it cannot be made.
    """
    content = env_option(env)
    if content is None:
        return ()
    with contextlib.suppress(Exception), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        made = _make(content)
        try:
            return kinds_of(made.observation_space, made.action_space, _has_limit(made))
        finally:
            made.close()
    return ()


def _make(content: Mapping[str, Any]) -> Any:
    """Make the environment of an option, with the wrappers of the file that it builds on."""
    import gymnasium

    files = [base.removesuffix("@_here_").strip("/") for base in content.get("defaults", ())]
    bases = [read_yaml(conf_dir() / f"{name}.yaml") for name in files]
    block: dict[str, Any] = {key: value for part in (*bases, content) for key, value in part.items()}
    arguments = block.get("env_config", {})
    if "_target_" in block:
        made = import_target(block["_target_"], "env._target_", or_function=True)(**arguments)
    else:
        log_mujoco_warnings(block["env"])
        made = gymnasium.make(block["env"], disable_env_checker=True, **arguments)
    for index, wrapper in enumerate(block.get("wrappers", ())):
        where = f"env.wrappers.{index}"
        positional, named = made_arguments(dict(wrapper), where)
        made = import_target(wrapper["_target_"], where, or_function=True)(made, *positional, **named)
    return made


def _has_limit(env: Any) -> bool:
    """Return whether the length of episodes is limited, as far as known."""
    return env.spec is None or env.spec.max_episode_steps is not None


def kinds_of(observation_space: Any, action_space: Any, has_limit: bool) -> tuple[str, ...]:
    """Return the kinds of an environment with these spaces, the most specific first.

    Args:
        observation_space, action_space: spaces of Gymnasium.
        has_limit: whether the length of episodes is limited.
    """
    from gymnasium.spaces import Box

    if isinstance(action_space, Box):
        return ("continuous",)
    kind = _kind_of_observations(observation_space)
    return (kind,) if has_limit else (f"{kind}_endless", kind)


def _kind_of_observations(space: Any) -> str:
    from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

    if isinstance(space, (Dict, Tuple)):
        parts = space.values() if isinstance(space, Dict) else space
        return "table" if {_kind_of_observations(part) for part in parts} == {"table"} else "vector"
    if isinstance(space, (Discrete, MultiDiscrete)):
        return "table"
    if isinstance(space, Box) and len(space.shape) >= 2 and (len(space.shape) == 3 or space.dtype == np.uint8):
        return "image" if min(space.shape[:2]) >= _SMALLEST_IMAGE else "grid"
    return "vector"
