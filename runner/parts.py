"""Parts: all objects with state in a run, except operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runner.state import DeclaredState

Metrics = Mapping[str, float | int | None]


class RunView(Protocol):
    """Read access to the run for parts, at the end of an iteration."""

    @property
    def num_env_steps(self) -> int:
        """Env steps sampled so far."""

    @property
    def shared_state(self) -> Mapping[str, Any]:
        """Module id -> merged state of the connectors that env runners share."""

    def get_weights(self) -> Mapping[str, Any]:
        """Return module id -> parameters (P,)."""

    def outcomes(self, name: str) -> Sequence[Any]:
        """Return the values that this iteration's episodes report to the part of this name, in the order of their ends.

        Each outcome is a sequence of plain values; after a resume within an iteration it is a list. Listeners add
        outcomes to `FinishedEpisodes.outcomes`.
        """


class Announces(Protocol):
    """The env runners of training or of evaluation, to which a part announces settings of the next episodes."""

    def announce(self, subject: str, receiver: str, *arguments: Any) -> None:
        """Call a receiver in each env runner before its next call, including env runners that start later.

        Args:
            subject: topic of the call; a later announcement about the same subject replaces it.
            receiver: name of a function in `EpisodeListener.receivers`.
            arguments: arguments of the receiver.
        """

    def has_announced(self, subject: str) -> bool:
        """Return whether there was an announcement about a subject."""


class Part(DeclaredState):
    """Base class of parts: override the methods that the part needs.

    Attributes:
        name: key of the state in checkpoints and of the part's settings; slashes make it nested.
        settings_key: key of the settings in the configuration, so that values from resolvers are not stored.
    """

    name: str = ""
    settings_key: str = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the state depends on. For a checkpoint with others, `reset` is called, not `set_state`."""
        return {}

    def reset(self, old_state: Any) -> None:
        """Reset the part after a checkpoint with other settings, or without a state of this part.

        Args:
            old_state: state in the checkpoint, so that used seeds are not used again; empty if there is none.
        """

    def restore_notes(self, old_state: Any, is_reset: bool) -> list[str]:
        """Return lines for the user about differences from the checkpoint; called after the state was restored.

        Args:
            old_state: state in the checkpoint; empty if there is none.
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
        """Announce settings of the next episodes; called after `begin` and `end_iteration`, and before evaluations."""

    def evaluation_metrics(self, outcomes: Sequence[Any]) -> Metrics:
        """Return metrics of an evaluation from the outcomes of its episodes."""
        return {}

    def write_files(self, run_dir: Path, is_final: bool) -> None:
        """Write files of the run; called before the first iteration, after each one, and at the end (`is_final`)."""

    def summary(self, run_dir: Path) -> list[str]:
        """Return lines for the summary at the end of a run."""
        return []

    def close(self) -> None:
        """Free resources."""
