"""A data class with a custom `sample`, which chooses the rows of each update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.offline import OfflineData


class EqualActions(OfflineData):
    """Draws the rows of each update so that all actions are equally frequent, however rare they are in the data."""

    num_sampled = 0

    def sample(self, num_samples: int) -> Mapping[str, Any]:
        """Draw the pipeline's number of rows, with replacement. Only the seed matters, so runs can be resumed."""
        rows = super().sample(num_samples)
        self.num_sampled += 1
        generator = np.random.default_rng([self.config.seed, self.num_sampled])
        _, action, counts = np.unique(rows["actions"], return_inverse=True, return_counts=True)
        chances = 1 / counts[action]
        drawn = generator.choice(len(action), len(action), p=chances / chances.sum())
        return {name: np.asarray(column)[drawn] for name, column in rows.items()}
