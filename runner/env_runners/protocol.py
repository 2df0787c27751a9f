"""What runs need of the sources of their fragments: env runners, custom ones too, and servers of simulators."""

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
    """Returns what the modules' newest weights have done in environments, stepped here or by simulators.

    Arguments that are None leave a runner with what it had: weights of an earlier call or its first ones.
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
        """Step until at least `num_env_steps` env steps are made; running episodes are cut and go on next time.

        Args:
            num_env_steps: at most one less than the number of sub-environments more are made.
            explore: sample actions; false: the distribution's mode.
            weights: module id -> (P,) parameters to act with.
            shared_state: by module id, the merged state of connectors that runners share.
            weights_seq_no: number of the weights, which is recorded with the steps.
            num_env_steps_sampled: by all runners so far, for exploration that changes with time.

        Raises:
            RunFailure: an environment failed, or returned what does not fit its spaces.
            Interrupted: an end was asked for while simulators were waited for.
        """

    def set_weights(self, weights: Weights) -> None:
        """Act with these parameters (module id -> vector) from now on."""

    def receive(self, receiver: str, *announced: Any) -> None:
        """Take what a part of the run announces to env runners, before the next episodes."""

    def address(self) -> str | None:
        """Return `host:port` where simulators connect; None where environments are stepped here."""

    def pipelines_of(self, module_id: str) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
        """Return the pipelines around a module."""

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next `sample` depends on, except the weights."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""

    def close(self) -> None:
        """Close the environments; recorded episodes that are in no whole file are dropped."""


@runtime_checkable
class EnvRunner(FragmentSource, Protocol):
    """Steps environments, so that it can also evaluate and record."""

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
        """Run exactly `duration` whole episodes, or env steps, from fresh resets, always with the same seeds.

        Every sub-environment runs a quota of its own. A quota of episodes is run to their ends, so that short ones are
        not preferred; of a quota of env steps the episodes are returned that end within it.

        Args:
            duration: of all sub-environments together, in `unit`.
            unit: `episodes`, or `env_steps`; only the latter is passed, so that a custom runner that
                does not know units evaluates episodes.
            explore, weights, shared_state, weights_seq_no, num_env_steps_sampled: see `sample`.

        Raises:
            RunFailure: an environment failed, or simulators would have to be asked to evaluate.
        """

    def finish_recording(self) -> Recorded:
        """Finish the files of recorded episodes."""
