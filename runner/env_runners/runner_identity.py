"""The identity of an env runner: its role, number and seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from runner.pipelines.pipeline import ConnectorPipeline
from runner.streams import random_stream


@dataclass(frozen=True)
class RunnerIdentity:
    """Names the random streams and the episodes of an env runner.

    Attributes:
        role: `env_runner` or `evaluation`.
        index: number of the env runner within its role, from 0.
        generation: number of times it was replaced; each replacement has other seeds.
        seed: seed of the run.
    """

    role: str
    index: int
    generation: int
    seed: int

    @property
    def seed_name(self) -> tuple[str, int, int]:
        """The name of its seeds within the run's seed."""
        return self.role, self.index, self.generation

    @property
    def id_prefix(self) -> str:
        """The beginning of the ids of its episodes."""
        prefix = f"{self.seed}-{self.role}-{self.index}"
        return f"{prefix}.{self.generation}" if self.generation else prefix

    def give_streams(self, pipelines: Iterable[ConnectorPipeline], module_id: str | None = None) -> None:
        """Give pipelines their random streams.

        Args:
            pipelines: the pipelines around one module.
            module_id: id of the module, or None in a runner with a single agent, whose streams do not name it.
        """
        owner = self.role if module_id is None else f"{self.role}/{module_id}"

        def stream(name: str, position: int) -> np.random.Generator:
            return random_stream(self.seed, f"{owner}/{name}", self.index, self.generation, position)

        for pipeline in pipelines:
            pipeline.give_streams(stream)
