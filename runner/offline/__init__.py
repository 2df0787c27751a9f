"""Recorded data: read, written, converted, inspected; and learning from them.

`open_source` reads what others or we have recorded, `EpisodeWriter` records.
"""

from runner.offline.conversion import ConversionReport, convert
from runner.offline.episode_format import episodes_to_table, table_to_block
from runner.offline.foreign.data_error import DataError
from runner.offline.inspection import Inspection, inspect_data
from runner.offline.layout import Layout, Spaces
from runner.offline.source import open_source
from runner.offline.source_stream import Description, Source
from runner.offline.table_format import block_to_steps
from runner.offline.writer import EpisodeWriter, WriteFailed, WriteReport, prepare_output

__all__ = [
    "ConversionReport",
    "DataError",
    "Description",
    "EpisodeWriter",
    "Inspection",
    "Layout",
    "Source",
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
