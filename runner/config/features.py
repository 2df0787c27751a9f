"""Base class of feature blocks, such as `league` and `curriculum`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FeatureBlock:
    """Base class of feature blocks."""

    @property
    def is_used(self) -> bool:
        """Whether the run uses the feature."""
        raise NotImplementedError

    @property
    def resets_apart(self) -> bool:
        """Whether sub-environments must be created and reset one by one."""
        return False

    @property
    def env_settings(self) -> dict[str, Any]:
        """Settings that affect the episodes of env runners, also if the feature is not used."""
        return {}


# Name of the block -> pattern of its keys with arguments of user-defined classes, or None without such keys.
FEATURE_BLOCKS: Mapping[str, str | None] = {
    "curriculum": r"curriculum\.tasks\.[^.]+\.(env_config|options)",
    "league": r"league\.fixed\.[^.]+",
}
# Keys whose `env_config` contains arguments of an environment.
OWNERS_OF_ENVS = ("env", r"curriculum\.tasks\.[^.]+")
