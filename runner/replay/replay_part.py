"""A replay buffer as a part of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.operators import REPLAY_BUFFERS
from runner.parts import Metrics, Part
from runner.replay.replay_buffer import ReplayBuffer


class ReplayPart(Part):
    """A replay buffer with its name and settings.

    Args:
        buffer_name: name of the buffer in `algorithm.replay_buffers`.
        buffer: the buffer.
        settings: its block in the configuration.
        saves_experiences: whether checkpoints contain the experiences.
    """

    def __init__(
        self, buffer_name: str, buffer: ReplayBuffer, settings: Mapping[str, Any], saves_experiences: bool = True
    ) -> None:
        self.name, self.settings_key = f"{REPLAY_BUFFERS}/{buffer_name}", f"algorithm.{REPLAY_BUFFERS}.{buffer_name}"
        self.buffer_name, self.buffer, self._settings = buffer_name, buffer, settings
        self._saves_experiences = saves_experiences

    @property
    def settings(self) -> Mapping[str, Any]:
        """The configuration block of the buffer."""
        return self._settings

    def get_state(self) -> dict[str, Any]:
        """Return the state of the buffer."""
        return self.buffer.get_state(self._saves_experiences)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.buffer.set_state(state)

    def restore_notes(self, old_state: Mapping[str, Any], is_reset: bool) -> list[str]:
        """Return the reason why the buffer does not have the experiences of the checkpoint, if this is so."""
        if is_reset and self._settings.get("recorded"):
            what = "its settings differ from the checkpoint's"
            return [f"replay buffer {self.buffer_name} starts with only the recorded steps: {what}"]
        if is_reset:
            what = "its settings differ from the checkpoint's, and learning waits until it is filled"
            return [f"replay buffer {self.buffer_name} starts empty: {what}"]
        if old_state and not old_state["has_experiences"]:
            what = "the checkpoint does not contain experiences (checkpoint.save_replay_buffers=none)"
            return [f"{what}: learning waits until enough are stored in {self.buffer_name} again"]
        return []

    def metrics(self) -> Metrics:
        """Return the contents of the buffer, as `replay_buffers/<name>/...`."""
        return {f"{self.name}/{metric}": value for metric, value in self.buffer.metrics().items()}

    def close(self) -> None:
        """Close the buffer."""
        self.buffer.close()
