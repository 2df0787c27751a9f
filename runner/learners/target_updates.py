"""Updates of target networks."""

from __future__ import annotations

from typing import Any


class TargetUpdates:
    """Schedule of a module's target updates, by rows trained on.

    Args:
        tau: share of the networks in an update of their targets.
        target_network_update_freq: rows trained on between updates; 0: after each gradient step.
    """

    def __init__(self, tau: float, target_network_update_freq: int) -> None:
        self._tau = tau
        self._freq = target_network_update_freq
        self.num_rows = 0  # trained on since the last update

    def after_step(self, module: Any, num_rows: int) -> None:
        """Count the rows of a gradient step, and update the targets when it is time."""
        self.num_rows += num_rows
        if self.num_rows >= self._freq:
            module.update_targets(self._tau)
            self.num_rows = 0
