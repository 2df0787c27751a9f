"""The settings of the peers of `benchmarks/a2c.py`."""

from __future__ import annotations

from dataclasses import dataclass

from peer_cli import Settings


@dataclass(frozen=True)
class A2CSettings(Settings):
    """One run of one peer; the A2C settings are the same for every peer. Each batch is used for one gradient step."""

    lr: float = 7e-4
    entropy_coeff: float = 0.01
    lambda_: float = 1.0
    train_batch_size: int = 40
    updates_per_iteration: int = 100

    @property
    def rows_per_iteration(self) -> int:
        """Rows of all updates of an iteration."""
        return self.updates_per_iteration * self.rows
