"""The blocks of features: parts of a run that follow its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FeatureBlock:
    """Base class of the blocks."""

    @property
    def is_used(self) -> bool:
        """Whether the run uses the feature."""
        raise NotImplementedError

    @property
    def resets_apart(self) -> bool:
        """Whether sub-environments are made and reset one by one."""
        return False

    @property
    def env_settings(self) -> dict[str, Any]:
        """Settings that the episodes of env runners depend on, also if the feature is not used."""
        return {}


# Name of each block -> pattern of the keys below which there are arguments of the user's classes.
FEATURE_BLOCKS: Mapping[str, str] = {
    "curriculum": r"curriculum\.tasks\.[^.]+\.(env_config|options)",
    "league": r"league\.fixed\.[^.]+",
}
# Keys whose `env_config` holds arguments of an environment.
OWNERS_OF_ENVS = ("env", r"curriculum\.tasks\.[^.]+")
