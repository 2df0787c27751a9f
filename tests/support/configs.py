"""The configuration of an experiment from its overrides."""

from __future__ import annotations

from pathlib import Path

from runner.config.compose import compose_experiment
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config


def config_from(*overrides: str, config_dir: Path | None = None) -> ExperimentConfig:
    """Compose and validate a configuration, as the command line does."""
    return build_experiment_config(compose_experiment(overrides, config_dir))
