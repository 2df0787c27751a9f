"""A custom callback: why CartPole's episodes end, and how far the pole leans at the end."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from runner.callbacks import Callback

X, ANGLE = 0, 2  # indices in an observation


class Falls(Callback):
    """Reports for each episode whether the pole fell, and its largest angle."""

    reports: ClassVar = {
        "fell": ("mean", "fraction of episodes that end because the pole leans too far"),
        "survived": ("mean", "fraction of episodes in which the pole does not fall"),
        "largest_angle": ("mean", "largest angle of the pole in an episode, in degrees"),
    }

    def __init__(self, limit: float = 12.0) -> None:
        self._limit = np.deg2rad(limit)

    def on_episode_step(self, *, episode: Any, custom_data: dict[str, Any], **kwargs: Any) -> None:
        angle = abs(float(episode.get_observations(-1)[ANGLE]))
        custom_data["largest"] = max(angle, custom_data.get("largest", 0.0))

    def on_episode_end(self, *, episode: Any, custom_data: dict[str, Any], metrics: Any, **kwargs: Any) -> None:
        fell = episode.is_terminated and abs(episode.get_observations(-1)[ANGLE]) > self._limit
        metrics.report("fell", fell)
        metrics.report("survived", not fell)
        metrics.report("largest_angle", np.rad2deg(custom_data["largest"]))
