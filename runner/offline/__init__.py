"""Read, write, convert and inspect recorded data, and learn from it.

`open_source` reads data of `runner` and other libraries, `EpisodeWriter` records, `OfflineData` makes train batches.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.offline.codecs.episode_format import episodes_to_table, table_to_block
    from runner.offline.codecs.layout import Layout, Spaces
    from runner.offline.codecs.table_format import block_to_steps
    from runner.offline.files.data_error import DataError
    from runner.offline.reading.inspection import Inspection, inspect_data
    from runner.offline.reading.recorded_source import Description, RecordedSource
    from runner.offline.reading.source import open_source
    from runner.offline.training.offline_data import OfflineData
    from runner.offline.training.prelearner import OfflinePreLearner
    from runner.offline.writing.conversion import ConversionReport, convert
    from runner.offline.writing.writer import EpisodeWriter, WriteFailed, WriteReport, prepare_output

# Public name -> submodule, imported on first use because only training needs torch.
_EXPORTS: dict[str, str] = {
    "ConversionReport": "writing.conversion",
    "DataError": "files.data_error",
    "Description": "reading.recorded_source",
    "EpisodeWriter": "writing.writer",
    "Inspection": "reading.inspection",
    "Layout": "codecs.layout",
    "OfflineData": "training.offline_data",
    "OfflinePreLearner": "training.prelearner",
    "RecordedSource": "reading.recorded_source",
    "Spaces": "codecs.layout",
    "WriteFailed": "writing.writer",
    "WriteReport": "writing.writer",
    "block_to_steps": "codecs.table_format",
    "convert": "writing.conversion",
    "episodes_to_table": "codecs.episode_format",
    "inspect_data": "reading.inspection",
    "open_source": "reading.source",
    "prepare_output": "writing.writer",
    "table_to_block": "codecs.episode_format",
}

__all__ = [
    "ConversionReport",
    "DataError",
    "Description",
    "EpisodeWriter",
    "Inspection",
    "Layout",
    "OfflineData",
    "OfflinePreLearner",
    "RecordedSource",
    "Spaces",
    "WriteFailed",
    "WriteReport",
    "block_to_steps",
    "convert",
    "episodes_to_table",
    "inspect_data",
    "open_source",
    "prepare_output",
    "table_to_block",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
