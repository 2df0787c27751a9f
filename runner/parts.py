"""Parts: everything with state that a run consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runner.state import DeclaredState

Metrics = Mapping[str, float | int | None]


class RunView(Protocol):
    """What a part may ask of its run at the end of an iteration."""

    @property
    def num_env_steps(self) -> int:
        """Env steps sampled so far."""

    @property
    def shared_state(self) -> Mapping[str, Any]:
        """Module id -> merged state of the connectors that env runners share."""

    def get_weights(self) -> Mapping[str, Any]:
        """Return module id -> parameters (P,)."""

    def outcomes(self, name: str) -> Sequence[Any]:
        """Return what the episodes of this iteration report to the part of this name, in the order of their ends.

        Each outcome is a sequence of plain values; after a resume within an iteration it is a list. Listeners add
        outcomes to `FinishedEpisodes.outcomes`.
        """


class Announces(Protocol):
    """The env runners of training or of evaluation, to which a part announces what the next episodes use."""

    def announce(self, subject: str, receiver: str, *arguments: Any) -> None:
        """Call a receiver in each env runner before its next call, also in env runners that start later.

        Args:
            subject: what the call is about; a later announcement about the same subject replaces it.
            receiver: name of a function in `EpisodeListener.receivers`.
            arguments: its arguments.
        """

    def has_announced(self, subject: str) -> bool:
        """Return whether there was an announcement about a subject."""


class Part(DeclaredState):
    """Base class of parts: override what the part needs.

    Attributes:
        name: key of the state in checkpoints and of the part's settings; slashes make it nested.
        settings_key: key of the settings in the configuration, so that values which a resolver gives are not stored.
    """

    name: str = ""
    settings_key: str = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the state depends on: if a checkpoint has other settings, `reset` is called instead of `set_state`."""
        return {}

    def reset(self, old_state: Any) -> None:
        """Start afresh after a checkpoint with other settings, or without a state of this part.

        Args:
            old_state: state in the checkpoint, so that seeds which it has used are not used again; empty if none.
        """

    def restore_notes(self, old_state: Any, is_reset: bool) -> list[str]:
        """Return lines for the user about what differs from the checkpoint; called after the state was restored.

        Args:
            old_state: state in the checkpoint; empty if it has none.
            is_reset: whether `reset` was called although the checkpoint has settings of this part.
        """
        return []

    def metrics(self) -> Metrics:
        """Return metrics for the result of an iteration; called once at its end, so counters may be cleared."""
        return {}

    def begin(self, run: RunView) -> None:
        """Called when the weights are known: for a new trainer, and again after each restore."""

    def end_iteration(self, run: RunView) -> Metrics:
        """Called at the end of an iteration, after `metrics` of all parts; returns further metrics."""
        return {}

    def announce_to(self, env_runners: Announces, is_evaluation: bool) -> None:
        """Announce what the next episodes use; called after `begin` and `end_iteration`, and before evaluations."""

    def evaluation_metrics(self, outcomes: Sequence[Any]) -> Metrics:
        """Return metrics of an evaluation from what its episodes report to this part."""
        return {}

    def write_files(self, run_dir: Path, is_final: bool) -> None:
        """Write files of the run; called before the first iteration, after each one, and at the end (`is_final`)."""

    def summary(self, run_dir: Path) -> list[str]:
        """Return lines for the summary at the end of a run."""
        return []

    def close(self) -> None:
        """Free resources."""
