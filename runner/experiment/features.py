"""The table of features that a run may use."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name

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
    return [resolve_name(path)(config) for name, path in _FEATURES.items() if getattr(config, name).is_used]


def env_settings_of(config: ExperimentConfig) -> dict[str, object]:
    """Return the settings of all features that affect the episodes of env runners."""
    settings: dict[str, object] = {}
    for name in FEATURE_BLOCKS:
        settings |= getattr(config, name).env_settings
    return settings
