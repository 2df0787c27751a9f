"""An env runner that computes gradients on its samples, like A3C's workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runner.env_runners.loss_failure import with_rollout
from runner.env_runners.protocol import FragmentSource
from runner.env_runners.sample import Sample, Weights
from runner.learners.gradients import GroupGradients
from runner.learners.learner import Learner
from runner.learners.loss_failure import LossNotFinite


@dataclass(eq=False)
class GradientSample(Sample):
    """A sample without its steps, and the gradients computed on them."""

    gradients: GroupGradients = field(default_factory=GroupGradients)

    def get_state(self) -> dict[str, Any]:
        """Return the sample as nested dicts and lists of arrays and plain values."""
        return {**super().get_state(), "gradients": self.gradients.get_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GradientSample:
        """Invert `get_state`."""
        others = {name: value for name, value in state.items() if name != "gradients"}
        return cls(**vars(Sample.from_state(others)), gradients=GroupGradients.from_state(state["gradients"]))


class GradientRunner:
    """An env runner with learners in its process, which compute gradients without applying them.

    Args:
        runner: samples, and receives all other calls.
        make_learners: makes the learner of the run's modules, with their learner pipelines, before the first gradient.
    """

    def __init__(self, runner: FragmentSource, make_learners: Callable[[], Learner]) -> None:
        self._runner = runner
        self._make_learners = make_learners

    @cached_property
    def _learners(self) -> Learner:
        return self._make_learners()

    def sample_gradients(
        self,
        num_env_steps: int,
        explore: bool,
        weights: Weights,
        shared_state: Mapping[str, Any],
        weights_seq_no: int,
        num_env_steps_sampled: int,
    ) -> GradientSample:
        """Sample, and compute the gradients of the loss at the weights that were used for sampling.

        Args:
            num_env_steps, explore, weights, shared_state, weights_seq_no, num_env_steps_sampled: see
                `FragmentSource.sample`.

        Raises:
            LossNotFinite: a loss is not finite.
        """
        policy = weights, shared_state, weights_seq_no
        sample = self._runner.sample(num_env_steps, explore, *policy, num_env_steps_sampled)
        self._learners.set_weights(weights)
        try:
            gradients = self._learners.gradients(sample.rollout, num_env_steps_sampled)
        except LossNotFinite as failure:
            raise with_rollout(failure, sample.rollout) from failure
        return GradientSample(**vars(sample.without_rollout()), gradients=gradients)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def get_state(self) -> dict[str, Any]:
        """Return the states of runner, learner pipelines and losses; parameters come with each call."""
        state = {"runner": self._runner.get_state()}
        has_learners = "_learners" in vars(self)
        return {**state, "learners": self._learners.get_unshared_state()} if has_learners else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._runner.set_state(state["runner"])
        if "learners" in state:
            self._learners.set_unshared_state(state["learners"])
