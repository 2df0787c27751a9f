"""Read, write, convert and inspect recorded data, and learn from it.

`open_source` reads data of `runner` and other libraries, `OfflineData` makes train batches.

A recorded episode has these forms on its way from a file to a learner:

1. Raw rows: Arrow tables with the columns of the files, from a reader in `files`.
2. `ColumnBlock`: trajectories as arrays, decoded by a class in `formats` with functions of `codecs`.
3. Rows of a Ray data set, from `RecordedSource.dataset`: the raw rows if each can be decoded separately, otherwise the
   blocks as tables with one episode per row.
4. Train rows: one flat column per array, from `OfflinePreLearner`, which decodes the rows of the data set to blocks
   again and applies the learner pipeline.
5. `TrainBatch`: nested tensors per module, from `training.batch_readers`.

To follow one format, start at its class: `table.TableFormat` for tables of steps, `native.EpisodeFormat` for episodes
of `runner`, and `other_libraries` for RLlib, D4RL and Minari.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.offline.reading.source import open_source
    from runner.offline.training.offline_data import OfflineData
    from runner.offline.training.prelearner import OfflinePreLearner

# Public name -> submodule, imported on first use because only training needs torch.
_EXPORTS: dict[str, str] = {
    "OfflineData": "training.offline_data",
    "OfflinePreLearner": "training.prelearner",
    "open_source": "reading.source",
}

__all__ = [
    "OfflineData",
    "OfflinePreLearner",
    "open_source",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
