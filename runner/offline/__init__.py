"""Read, write, convert and inspect recorded data, and learn from it.

`open_source` reads data of `runner` and other libraries, `OfflineData` makes train batches.
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
