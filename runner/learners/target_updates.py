"""Updates of target networks by the learner."""

from __future__ import annotations

from runner.config.algorithms import AlgorithmConfig, TargetNetworksConfig
from runner.modules.rl_module import RLModule


class TargetUpdates:
    """Schedule of a module's target updates, by rows trained on; there are none for an algorithm without targets.

    Args:
        module: whose targets follow.
        config: `tau` is the share of the networks in an update of their targets, `target_network_update_freq` the
            rows between updates.

    Attributes:
        num_rows: trained on since the last update, by all learners of the module together.
    """

    def __init__(self, module: RLModule, config: AlgorithmConfig) -> None:
        self._module = module
        self._tau, self._freq = 1.0, None
        if isinstance(config, TargetNetworksConfig):
            self._tau, self._freq = config.tau, config.target_network_update_freq
        self.num_rows = 0

    def after_step(self, num_rows: int) -> None:
        """Count the rows of a gradient step, and update the targets when it is time."""
        if self._freq is None:
            return
        self.num_rows += num_rows
        if self.num_rows >= self._freq:
            self._module.update_targets(self._tau)
            self.num_rows = 0
