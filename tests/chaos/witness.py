"""A learner connector that writes down what is learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runner.pipelines import Requirements
from runner.pipelines.connector import Batch, Connector


class Witness(Connector):
    """Appends the rewards of each batch to a file, one a line, in the order of the rows.

    Args:
        path: of the file.
    """

    requires = Requirements(belongs_in=("learner",))

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Write the rewards down; the batch stays as it is."""
        rewards = [np.asarray(episode.get_rewards()) for episode in episodes]
        with self._path.open("a") as file:
            np.savetxt(file, np.concatenate(rewards), fmt="%.9g")
        return batch


def witnessed_rewards(path: Path) -> list[float]:
    """Return what a `Witness` has written."""
    return [float(line) for line in path.read_text().splitlines()]
