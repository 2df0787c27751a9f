"""Recorded data of multi-agent experiments, with one pipeline per module for the rows of its agents."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.config.schemas import ExperimentConfig
from runner.learners.train_batch import BatchReader, TrainBatch
from runner.offline.training.offline_data import OfflineData
from runner.pipelines.custom_metrics import ReducedMetrics, merge_metrics


class OfflineDataOfModules(OfflineData):
    """Recorded data of several modules, each with a separate pipeline.

    Args:
        config: the experiment.
        modules: module id -> connected pipeline of its agents' rows.
    """

    def __init__(self, config: ExperimentConfig, modules: Mapping[str, OfflineData]) -> None:
        self.config = config
        self._modules = dict(modules)
        self.source = next(iter(self._modules.values())).source
        self._note_shared_state()

    def readers(self, num_learners: int) -> Sequence[BatchReader]:
        """Return one reader per learner; batches have `train_batch_size_per_learner` rows of each module."""
        by_module = {module_id: data.readers(num_learners) for module_id, data in self._modules.items()}
        return [
            ReaderOfModules({module_id: readers[number] for module_id, readers in by_module.items()})
            for number in range(num_learners or 1)
        ]

    def count(self, num_batches: int, ends_pass: bool) -> bool:
        is_due = super().count(num_batches, ends_pass)
        for data in self._modules.values():
            data.count(num_batches, ends_pass)
        return is_due

    def metrics(self) -> Mapping[str, float | int | None]:
        """Return the metrics summed over the modules, or None if one of them is unknown."""
        every = [data.metrics() for data in self._modules.values()]
        values = {name: [metrics[name] for metrics in every] for name in every[0]}
        return {name: None if None in of_all else sum(filter(None, of_all)) for name, of_all in values.items()}

    @property
    def follows_module(self) -> bool:
        return any(data.follows_module for data in self._modules.values())

    def use_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        for module_id, data in self._modules.items():
            if module_id in shared_state:
                data.use_shared_state({module_id: shared_state[module_id]})
        self._note_shared_state()

    def _note_shared_state(self) -> None:
        self.shared_state = {
            id_: connectors for data in self._modules.values() for id_, connectors in data.shared_state.items()
        }

    def set_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        for data in self._modules.values():
            data.set_weights(weights)

    def get_state(self) -> dict[str, Any]:
        """Return the state of all modules; see `OfflineData`."""
        modules = {module_id: data.get_state() for module_id, data in self._modules.items()}
        return {"num_batches": self.num_batches, "shared": dict(self.shared_state), "modules": modules}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.num_batches = int(state["num_batches"])
        for module_id, data in self._modules.items():
            data.set_state(state["modules"][module_id])

    def close(self) -> None:
        for data in self._modules.values():
            data.close()


@dataclass(frozen=True)
class ReaderOfModules:
    """Train batches of one learner with rows of every module.

    The number of env steps of a batch is the largest one of its modules. A pass ends when the passes of all modules do.

    Attributes:
        readers: module id -> reader of its rows.
    """

    readers: Mapping[str, BatchReader]

    def batches(self, device: torch.device) -> Generator[TrainBatch, None, None]:
        """Yield batches on the device endlessly."""
        streams = {module_id: reader.batches(device) for module_id, reader in self.readers.items()}
        ended: set[str] = set()
        try:
            while True:
                parts = {module_id: next(stream) for module_id, stream in streams.items()}
                ended |= {module_id for module_id, part in parts.items() if part.ends_pass}
                ends_pass = len(ended) == len(streams)
                if ends_pass:
                    ended = set()
                yield _joined(list(parts.values()), ends_pass)
        finally:
            for stream in streams.values():
                stream.close()


def _joined(parts: Sequence[TrainBatch], ends_pass: bool) -> TrainBatch:
    metrics: ReducedMetrics = {}
    for part in parts:
        merge_metrics(metrics, part.connector_metrics)
    columns = {module_id: own for part in parts for module_id, own in part.columns.items()}
    return TrainBatch(columns, max(part.num_env_steps for part in parts), ends_pass, metrics)
