"""Base class of losses with delayed policy updates (as in TD3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from runner.learners.loss import Loss
from runner.modules.rl_module import RLModule


class DelayedPolicyLoss(Loss):
    """Base class of losses that draw noise, and update the policy in every `policy_delay`-th gradient step only.

    Attributes:
        delayed: optimisers that skip the other steps.
        num_steps: gradient steps so far.
    """

    delayed: ClassVar[tuple[str, ...]] = ("actor",)
    state = ("num_steps",)

    def __init__(self, policy_delay: int) -> None:
        self._stream = np.random.default_rng(0)
        self._policy_delay = policy_delay
        self._set_num_steps(0)

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw all noise from `stream`."""
        self._stream = stream

    def after_step(self, module: RLModule, num_rows: int) -> None:
        """Count the step."""
        self._set_num_steps(self.num_steps + 1)

    def _set_num_steps(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.frozen_groups = () if (num_steps + 1) % self._policy_delay == 0 else self.delayed

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        super().set_state(state)
        self._set_num_steps(self.num_steps)
