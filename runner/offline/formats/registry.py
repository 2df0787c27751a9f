"""All formats of recorded data, and how to find the format of opened data."""

from __future__ import annotations

from runner.offline.files.data_error import DataLocation, data_error
from runner.offline.files.input_files import FileKind
from runner.offline.formats.env_episodes import EnvEpisodeFormat
from runner.offline.formats.native import EpisodeFormat
from runner.offline.formats.other_libraries import D4RLFormat, MinariFormat, RLlibEpisodeFormat, SampleBatchFormat
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat
from runner.offline.formats.table import TableFormat

# The first format that recognises the data is used.
FORMATS: tuple[type[RecordedFormat], ...] = (
    EnvEpisodeFormat,
    EpisodeFormat,
    RLlibEpisodeFormat,
    SampleBatchFormat,
    TableFormat,
    D4RLFormat,
    MinariFormat,
)


def file_kinds() -> tuple[FileKind, ...]:
    """Return the kinds of files of all formats."""
    return tuple(dict.fromkeys(kind for one in FORMATS for kind in one.kinds))


def find_format(data: RawData) -> type[RecordedFormat]:
    """Return the format of opened data. Ray Data can read every format that has rows.

    Raises:
        DataError: the data are damaged or in an unknown format.
    """
    for one in FORMATS:
        fits = one.row is not None if data.files is None else data.files.kind in one.kinds
        if fits and one.recognises(data):
            return one
    names = ", ".join(one.name for one in FORMATS)
    raise data_error("the format of these data is unknown", DataLocation(data.where), expected=names)
