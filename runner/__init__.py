"""Declarative reinforcement-learning experiments on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.experiment.env_runner_builder import make_env_runner
    from runner.experiment.trainer import Trainer

__all__ = ["Trainer", "make_env_runner"]


def __getattr__(name: str) -> Any:
    if name == "Trainer":  # imports torch; `runner validate` must not
        from runner.experiment.trainer import Trainer

        return Trainer
    if name == "make_env_runner":
        from runner.experiment.env_runner_builder import make_env_runner

        return make_env_runner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
