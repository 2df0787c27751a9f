"""The data sets of an experiment, for its record."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from runner.config.offline import OfflineConfig
from runner.config.schemas import ExperimentConfig
from runner.offline.files.input_files import named_inputs
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.ray_functions import find_read_function
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import is_read_by_ray
from runner.tracking.data_set import Context, DataSet, sized

# Larger data, and data on other machines, are not read to count their episodes and steps.
_MAX_COUNTED_BYTES = 2**30

_log = logging.getLogger(__name__)


def data_set_of(source: RecordedSource, context: Context) -> DataSet:
    """Return what a source names, with counts where reading them is cheap."""
    described, files = source.description(), source.files
    profile: dict[str, str | int] = {"format": described.format}
    if files is not None:
        profile |= {"num_files": len(files.paths), "num_bytes": described.num_bytes} | _counts(source)
    kind, place = _place(source.config)
    return DataSet(described.name, described.digest, context, kind, place, described.schema, profile)


def data_set_of_config(offline: OfflineConfig, context: Context) -> DataSet:
    """Return what the configuration alone says, for data that the user's own code reads."""
    kind, place = _place(offline)
    return DataSet(_name(offline), hashlib.sha256(repr(place).encode()).hexdigest()[:16], context, kind, place)


def recorded_data_set(source: RecordedSource | None, offline: OfflineConfig, context: Context) -> DataSet:
    """Return `data_set_of` where there is a source and it can still be read, else `data_set_of_config`."""
    if source is not None:
        try:
            return data_set_of(source, context)
        except Exception:  # for the record only: reading them for training says what is wrong
            _log.exception("the recorded data could not be described")
    return data_set_of_config(offline, context)


def start_text(config: ExperimentConfig, source: RecordedSource | None) -> str:
    """Return what is waited for while a run on recorded data is built."""
    offline, num_runners = config.offline, config.evaluation.evaluation_num_env_runners
    with_runners = num_runners > 0 and config.evaluation.evaluation_interval is not None and config.engine != "inline"
    runners = f"starting {num_runners} evaluation runner{'' if num_runners == 1 else 's'}, " if with_runners else ""
    data = _name(offline)
    if source is not None and source.files is not None:
        data = sized(data, len(source.files.paths), source.num_bytes)
    return f"{runners}reading {data} ..."


def _name(offline: OfflineConfig) -> str:
    paths = named_inputs(offline)
    if not _are_files(offline):
        return paths[0]
    return (Path(paths[0].rstrip("/")).name or paths[0]) if paths else str(offline.offline_data_class)


def _are_files(offline: OfflineConfig) -> bool:
    """Whether `offline.input_` is paths: neither a function, nor what a function takes in their place, such as SQL."""
    if isinstance(offline.input_, Mapping):
        return False
    return not is_read_by_ray(offline) or find_read_function(offline.input_read_method).is_of_files


def _place(offline: OfflineConfig) -> tuple[str, dict[str, Any]]:
    """Return type and address as MLflow has them."""
    paths = named_inputs(offline)
    if not _are_files(offline):
        return "code", {"tags": {"input": paths[0], "input_read_method": offline.input_read_method}}
    if not paths:
        return "code", {"tags": {"class": str(offline.offline_data_class)}}
    kind = offline.input_filesystem or "local"
    if "://" in paths[0]:
        kind = paths[0].partition("://")[0].replace("file", "local")
    elif kind == "local":
        paths = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    place: dict[str, Any] = {"uri": paths[0] if len(paths) == 1 else _common_folder(paths)}
    return kind, place | ({} if len(paths) == 1 else {"paths": paths})


def _common_folder(paths: Sequence[str]) -> str:
    levels = zip(*(path.split("/") for path in paths), strict=False)
    return "/".join(level[0] for level in takewhile(lambda names: len(set(names)) == 1, levels))


def _counts(source: RecordedSource) -> dict[str, str | int]:
    files, reader = source.files, source.reader
    if files is None or not files.is_local or files.num_bytes > _MAX_COUNTED_BYTES:
        return {}
    if not isinstance(reader, ParquetReader) or reader.row_filter is not None:
        return {}
    return dict(source.format.sizes(reader))
