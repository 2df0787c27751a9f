"""Declarative reinforcement-learning experiments on Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.experiment.env_runner_builder import make_env_runner
    from runner.experiment.fit import fit
    from runner.experiment.trainable import as_trainable
    from runner.experiment.trainer import Trainer
    from runner.pages.run_record import RunRecord, read_run

__all__ = ["RunRecord", "Trainer", "as_trainable", "fit", "make_env_runner", "read_run"]

_EXPORTS = {  # they import torch or numpy, which `runner validate` must not import
    "RunRecord": "runner.pages.run_record",
    "Trainer": "runner.experiment.trainer",
    "as_trainable": "runner.experiment.trainable",
    "fit": "runner.experiment.fit",
    "make_env_runner": "runner.experiment.env_runner_builder",
    "read_run": "runner.pages.run_record",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
