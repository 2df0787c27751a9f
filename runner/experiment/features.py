"""The table of features that a run may use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from runner.config.features import FEATURE_BLOCKS
from runner.config.schemas import ExperimentConfig
from runner.feature import Feature

# Block -> class of its feature, imported only if a run uses it. Listeners are called in this order.
_FEATURES: Mapping[str, str] = {
    "league": "runner.experiment.league_builder.LeagueFeature",
    "curriculum": "runner.curriculum.feature.CurriculumFeature",
}


def features_of(config: ExperimentConfig) -> list[Feature]:
    """Make the features that a run uses."""
    return [_class_at(path)(config) for name, path in _FEATURES.items() if getattr(config, name).is_used]


def _class_at(path: str) -> type[Feature]:
    module, _, name = path.rpartition(".")
    found: type[Feature] = getattr(importlib.import_module(module), name)
    return found


def env_settings_of(config: ExperimentConfig) -> dict[str, object]:
    """Return the settings of all features that affect the episodes of env runners."""
    settings: dict[str, object] = {}
    for name in FEATURE_BLOCKS:
        settings |= getattr(config, name).env_settings
    return settings
