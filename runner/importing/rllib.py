"""Experiments out of the JSON of RLlib's `AlgorithmConfig.to_dict()`, written with `json.dump(..., default=str)`.

The JSON does not name its algorithm. What it leaves out has RLlib's default (2.60). Classes and functions are text in
it, which is never run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import Problem, UserError, nearest_match
from runner.config.schemas import ConnectorsConfig, EnvRunnersConfig, ModuleConfig
from runner.importing.imported import Imported
from runner.importing.rllib_algorithms import ALGORITHMS
from runner.importing.rllib_blocks import take_blocks
from runner.importing.rllib_config import RLlibConfig, own_keys, rename, rllib_defaults
from runner.importing.rllib_names import CONVERTED

# Keys that say nothing that an experiment could: the API stack, how RLlib explored before it, and whether RLlib's
# checkpoints hold replay buffers, which they do here.
_SILENT = (
    *("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2", "_prior_exploration_config"),
    *("_is_online", "store_buffer_in_checkpoints"),
)
_MOST_DIGITS = 19
_HINTS: Mapping[str, str] = {
    "callbacks": "callbacks have RLlib's hook names, see docs/callbacks.md",
    **{key: f"its connectors go into connectors.{name}" for name, key in CONVERTED[ConnectorsConfig].items()},
    CONVERTED[AlgorithmConfig]["loss"]: "a loss of your own goes into algorithm.loss",
    CONVERTED[ModuleConfig]["_target_"]: "a class of your own goes into module._target_, its settings into module",
    CONVERTED[EnvRunnersConfig]["env_runner_class"]: "a runner of your own goes into env_runners.env_runner_class",
    "model": "RLlib ignores it on its new API stack, where model_config counts",
    "clip_rewards": "put the connector ClipRewards into connectors.learner",
    "action_mask_key": "see module.action_mask_key",
    "observation_space": "spaces are the environment's",
    "action_space": "spaces are the environment's",
    "num_gpus": "see learners.num_gpus_per_learner",
    "grad_clip_by": "gradients are clipped by their global norm",
    "offline_evaluation": "name held-out data in evaluation.offline_evaluation_input_",
    "hiddens": "RLlib ignores it on its new API stack; see module.head_fcnet_hiddens",
    "noisy": "RLlib ignores it on its new API stack; see module.noisy",
    "burn_in_len": "an argument of the replay buffer in algorithm.replay_buffers, for modules with memory",
    "batch_mode": "fragments are cut",
    "framework": "modules are torch's",
}


def import_rllib(path: Path, algorithm: str | None = None, env: str | None = None) -> Imported:
    """Read a configuration.

    Args:
        path: of the file.
        algorithm: RLlib's name, for example PPO.
        env: gymnasium id, or dotted path of a class, instead of the configuration's environment.

    Raises:
        UserError: the file cannot be read, no algorithm is named or another one than the file's, or runner lacks it;
            or the file has no environment that can be named.
    """
    given = _read_json(path)
    name = _check_algorithm(algorithm, given, path)
    defaults = rllib_defaults()[name]
    imported = Imported(f"RLlib: {name}, {path.name}")
    config = RLlibConfig(given, {**defaults, **given}, defaults, imported)
    for key in _SILENT:
        config.values.pop(key, None)
    take_blocks(config, name, env, path)
    config.leave_out_others(_HINTS)
    return imported


def _read_json(path: Path) -> dict[str, Any]:
    """Return the values by the names of RLlib 2.60; numbers that no field could hold stay text."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"), parse_constant=str, parse_float=_finite, parse_int=_short)
    except (OSError, ValueError, RecursionError) as error:
        allowed = "JSON, as of json.dump(config.to_dict(), file, default=str)"
        raise UserError(
            Problem(f"the file cannot be read: {error}", str(path), None, allowed).render_alone()
        ) from error
    if not isinstance(given, dict) or not given:
        raise UserError(Problem("the file is no configuration", str(path), None, "a JSON object").render_alone())
    return rename(given)


def _finite(text: str) -> float | str:
    return float(text) if math.isfinite(float(text)) else text


def _short(text: str) -> int | str:
    return int(text) if len(text) < _MOST_DIGITS else text


def _check_algorithm(algorithm: str | None, given: Mapping[str, Any], path: Path) -> str:
    """Return the algorithm's name as RLlib spells it."""
    fitting = _fitting_algorithms(given)
    allowed = f"--algorithm {', '.join(ALGORITHMS)}"
    nearest = f"{' or '.join(fitting)}, as the file's keys tell" if fitting else None
    if algorithm is None:
        what = "RLlib's configuration does not say its algorithm"
        raise UserError(Problem(what, str(path), None, allowed, nearest).render_alone())
    names = {name.lower(): name for name in rllib_defaults() if name != "DefaultModelConfig"}
    name = names.get(algorithm.lower(), algorithm)
    if name not in ALGORITHMS:
        what, near = (
            f"runner has no counterpart of {name}",
            None if name in names.values() else nearest_match(name, ALGORITHMS),
        )
        raise UserError(Problem(what, str(path), f"--algorithm {algorithm}", allowed, near).render_alone())
    if fitting and name not in fitting:
        what = f"the file is no configuration of {name}"
        raise UserError(Problem(what, str(path), f"--algorithm {algorithm}", allowed, nearest).render_alone())
    return name


def _fitting_algorithms(given: Mapping[str, Any]) -> list[str]:
    """Return the algorithms of which a whole configuration has all keys, and no other algorithm has more of these."""
    fitting = {name: own_keys(name) for name in rllib_defaults() if name != "DefaultModelConfig"}
    fitting = {name: own for name, own in fitting.items() if own <= given.keys()}
    most = max(map(len, fitting.values()), default=0)
    return [name for name, own in fitting.items() if len(own) == most]
