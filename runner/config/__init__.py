"""Configuration: schemas, composition, validation, error messages. Imports neither torch nor ray.

composed = compose_experiment(["+experiment=ppo_cartpole", "seed=7"])
config = build_experiment_config(composed)  # or ConfigError with all problems
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.config.compose import compose_experiment
    from runner.config.composed import Composed
    from runner.config.errors import ConfigError, Problem, RunnerError, UserError
    from runner.config.schemas import ExperimentConfig
    from runner.config.validation import build_experiment_config

# Public name -> submodule; imported on first use, because Hydra costs 0.2 s.
_EXPORTS: dict[str, str] = {
    "Composed": "composed",
    "ConfigError": "errors",
    "ExperimentConfig": "schemas",
    "Problem": "errors",
    "RunnerError": "errors",
    "UserError": "errors",
    "build_experiment_config": "validation",
    "compose_experiment": "compose",
}

__all__ = [
    "Composed",
    "ConfigError",
    "ExperimentConfig",
    "Problem",
    "RunnerError",
    "UserError",
    "build_experiment_config",
    "compose_experiment",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
