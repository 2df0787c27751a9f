"""Interfaces of fragment sources: built-in and custom env runners, and servers of simulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from runner.config.blocks import EPISODES
from runner.env_runners.sample import Sample, Weights
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline
from runner.rows.finished_episodes import FinishedEpisodes

if TYPE_CHECKING:
    from runner.offline.writing.recorder import Recorded


class FragmentSource(Protocol):
    """Runs the modules in environments, which it or simulators step, and returns fragments.

    Omitted arguments (None) keep the previous value, for example the weights of an earlier call or the initial ones.
    """

    def sample(
        self,
        num_env_steps: int,
        explore: bool = True,
        weights: Weights | None = None,
        shared_state: Mapping[str, Any] | None = None,
        weights_seq_no: int = 0,
        num_env_steps_sampled: int = 0,
    ) -> Sample:
        """Take at least `num_env_steps` env steps; running episodes are cut and continue in the next call.

        Args:
            num_env_steps: lower bound; fewer additional steps than sub-environments are made.
            explore: whether to sample actions instead of taking the distribution's mode.
            weights: module id -> parameters (P,) to act with.
            shared_state: by module id, the merged state of connectors that runners share.
            weights_seq_no: number of the weights, which is recorded with the steps.
            num_env_steps_sampled: env steps of all runners so far, for exploration that changes with time.

        Raises:
            RunFailure: an environment failed, or its data do not fit its spaces.
            Interrupted: the run was asked to end while it waited for simulators.
        """

    def set_weights(self, weights: Weights) -> None:
        """Use these parameters (module id -> vector) from now on."""

    def receive(self, receiver: str, *announced: Any) -> None:
        """Receive an announcement of a part of the run to env runners, before the next episodes."""

    def address(self) -> str | None:
        """Return `host:port` where simulators connect, or None if environments are stepped here."""

    def pipelines_of(self, module_id: str) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
        """Return the pipelines around a module."""

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next `sample` depends on, except the weights."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""

    def close(self) -> None:
        """Close the environments. Recorded episodes not yet written to a complete file are discarded."""


@runtime_checkable
class EnvRunner(FragmentSource, Protocol):
    """Steps environments, and can also evaluate and record."""

    def evaluate(
        self,
        duration: int,
        explore: bool = False,
        weights: Weights | None = None,
        shared_state: Mapping[str, Any] | None = None,
        weights_seq_no: int = 0,
        num_env_steps_sampled: int = 0,
        unit: str = EPISODES,
    ) -> FinishedEpisodes:
        """Run exactly `duration` complete episodes, or env steps, from fresh resets, always with the same seeds.

        Every sub-environment has a separate quota. A quota of episodes runs to their ends, so that short episodes are
        not preferred. For a quota of env steps, the episodes that end within it are returned.

        Args:
            duration: total of all sub-environments, in `unit`.
            unit: `episodes`, or `env_steps`; only the latter is passed, so that a custom runner that
                does not know units evaluates episodes.
            explore, weights, shared_state, weights_seq_no, num_env_steps_sampled: see `sample`.

        Raises:
            RunFailure: an environment failed, or the runner uses simulators, which cannot evaluate.
        """

    def finish_recording(self) -> Recorded:
        """Finish the files of recorded episodes."""
