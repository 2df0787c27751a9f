"""Open recorded data: find the files, detect the format and check it; also for multi-agent env episodes."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from runner.config.errors import Problem
from runner.config.offline import OfflineConfig
from runner.config.schemas import ExperimentConfig
from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.env_episode_format import EPS_ID, LENGTH, MODULE_ID, EnvEpisodes, agent_prefix, agent_rows
from runner.offline.codecs.episode_format import TASK, read_flags, read_tasks
from runner.offline.codecs.layout import Layout, Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files import input_files
from runner.offline.files.data_error import DataError, DataLocation, data_error
from runner.offline.files.input_files import CSV, JSON, PARQUET, InputFiles, find_files, named_inputs
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.raw_rows import RawReader
from runner.offline.files.ray_data import (
    OWN_OPTIONS,
    RAY_OPTIONS,
    check_option_names,
    check_ray_options,
    find_read_function,
)
from runner.offline.files.text_readers import TEXT_OPTIONS
from runner.offline.formats.env_episodes import EnvEpisodeFormat, layouts_of
from runner.offline.formats.native import decode_by_module
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat, Row
from runner.offline.formats.registry import file_kinds, find_format
from runner.offline.formats.selection import ModuleAgents, Selection
from runner.offline.formats.stream import StreamFormat
from runner.offline.reading.recorded_source import RecordedSource, nothing_passes
from runner.tracking.run_info import Context, DataSet, sized

_KIND_OF_METHOD = {f"read_{kind.name}": kind for kind in (PARQUET, JSON, CSV)}


def open_source(
    config: OfflineConfig,
    spaces: Spaces | None = None,
    columns: Sequence[str] | None = None,
    with_infos: bool = True,
    of_module: ModuleAgents | None = None,
) -> RecordedSource:
    """Find and check recorded data before training starts.

    Args:
        config: the `offline` block.
        spaces: spaces of the environment, which the data must fit. None skips the comparison.
        columns: extra model outputs to read in addition to `obs`, `actions` and `rewards`, or None for all. If given,
            `rewards` may be missing unless it is named. `input_read_method_kwargs.columns` narrows further.
        with_infos: whether to read infos.
        of_module: agents whose episodes are read, in multi-agent experiments.

    Raises:
        DataError: a path is missing, a folder does not contain data, files are damaged, formats are mixed, columns are
            missing, or the first rows are damaged or do not fit the spaces.
        ConfigError: options are inconsistent, or a file system or function does not exist.
    """
    data = _open_raw_data(config)
    if of_module is not None:
        data = data.of_module(of_module)
    return _source_of(data, replace(Selection.of(config).narrowed(columns, with_infos), of_module=of_module), spaces)


def open_with_all_agents(config: OfflineConfig, spaces: Spaces | None = None) -> RecordedSource | RecordedEnvEpisodes:
    """Open multi-agent env episodes with the episodes of all agents, and other data like `open_source`.

    Raises:
        DataError, ConfigError: see `open_source`.
    """
    data = _open_raw_data(config)
    if data.files is None or data.files.kind not in EnvEpisodeFormat.kinds or not EnvEpisodeFormat.recognises(data):
        return _source_of(data, Selection.of(config), spaces)
    assert isinstance(data.reader, ParquetReader)
    return RecordedEnvEpisodes(config, data.files, data.reader, layouts_of(data))


def _open_raw_data(config: OfflineConfig) -> RawData:
    """Find the files of recorded data without detecting their format. Raises the errors of `open_source`."""
    _check_options(config)
    input_files.set_unpacked_ratio(config.input_max_unpacked_ratio)
    is_stream = isinstance(config.input_, Mapping)
    data = RawData(config, None if is_stream or is_read_by_ray(config) else _find_files(config))
    if data.files is None and not is_stream:
        check_ray_options(config)
    return data


def is_read_by_ray(config: OfflineConfig) -> bool:
    """Return whether a `ray.data` function reads the data, which needs a cluster."""
    return config.input_read_method not in ("auto", *_KIND_OF_METHOD)


def _find_files(config: OfflineConfig) -> InputFiles:
    files = find_files(config, file_kinds(), _KIND_OF_METHOD.get(config.input_read_method))
    known = [*OWN_OPTIONS, *RAY_OPTIONS, *TEXT_OPTIONS.get(files.kind, ())]
    check_option_names(config, f"reading {files.kind.name}", known)
    return files


def _source_of(data: RawData, selection: Selection, spaces: Spaces | None) -> RecordedSource:
    """Detect the format, and check the recorded metadata and the first rows."""
    format_class = StreamFormat if isinstance(data.config.input_, Mapping) else find_format(data)
    reader = format_class.reader_of(data)
    _check_filter(data.config, format_class, reader)
    _check_flags(data.config, format_class, data.where)
    found = format_class.open(data, selection, spaces or Spaces())
    source = RecordedSource(data.config, found, data.files, reader)
    source.first_block()
    if spaces is not None:
        source.check_spaces(spaces.observation, spaces.action)
    return source


def _check_options(config: OfflineConfig) -> None:
    """Reject options that contradict each other."""
    if config.input_read_episodes and config.input_read_sample_batches:
        what = "rows are either episodes or SampleBatches, not both"
        fix = "set one of input_read_episodes and input_read_sample_batches to false"
        raise DataError([Problem(what, "offline.input_read_sample_batches", "true", fix=fix)])


def _check_flags(config: OfflineConfig, found: type[RecordedFormat], where: str) -> None:
    """Reject options that contradict the format of the data."""
    problem: tuple[str, str, str] | None = None
    if config.input_read_sample_batches and found.row is not Row.BATCH:
        problem = ("input_read_sample_batches", "true", "these data are not SampleBatches")
    elif config.input_read_episodes is True and found.row in (Row.STEP, Row.BATCH):
        problem = ("input_read_episodes", "true", "the rows of these data are not episodes")
    elif config.input_read_episodes is False and found.row is Row.EPISODE:
        problem = ("input_read_episodes", "false", "the rows of these data are episodes")
    mapping = {name: column for name, column in config.input_read_schema.items() if name != column}
    if mapping and found.row is not Row.STEP:
        what = f"columns of the format {found.name} cannot be renamed: {where}"
        raise DataError([Problem(what, "offline.input_read_schema", str(mapping), "{}")])
    if problem is not None:
        name, got, what = problem
        fix = f"remove this option: the format is detected from the files ({found.name})"
        raise DataError([Problem(f"{what}: {where}", f"offline.{name}", got, fix=fix)])


def _check_filter(config: OfflineConfig, found: type[RecordedFormat], reader: RawReader | None) -> None:
    """Reject a row filter that cannot be applied."""
    is_filtered = reader is not None and reader.row_filter is not None
    if config.input_read_method_kwargs.get("filter") is not None and not is_filtered:
        where = "offline.input_read_method_kwargs.filter"
        raise DataError([Problem(f"a filter is not supported for data of the format {found.name}", where)])


# The episodes and steps of larger data, and of data on other machines, are not counted.
_MAX_COUNTED_BYTES = 2**30

_log = logging.getLogger(__name__)


def data_set_of(source: RecordedSource, context: Context) -> DataSet:
    """Describe a source for the record of a run, with counts if they are cheap to compute."""
    described, files = source.description(), source.files
    profile: dict[str, str | int] = {"format": described.format}
    if files is not None:
        profile |= {"num_files": len(files.paths), "num_bytes": described.num_bytes} | _counts(source)
    kind, place = _place(source.config)
    return DataSet(described.name, described.digest, context, kind, place, described.schema, profile)


def data_set_of_config(offline: OfflineConfig, context: Context) -> DataSet:
    """Describe the data by the configuration alone, if the user's code reads them."""
    kind, place = _place(offline)
    return DataSet(_name(offline), hashlib.sha256(repr(place).encode()).hexdigest()[:16], context, kind, place)


def recorded_data_set(source: RecordedSource | None, offline: OfflineConfig, context: Context) -> DataSet:
    """Return `data_set_of` if the source can still be read, else `data_set_of_config`."""
    if source is not None:
        try:
            return data_set_of(source, context)
        except Exception:  # only for the record: training reports the error
            _log.exception("could not describe the recorded data")
    return data_set_of_config(offline, context)


def start_text(config: ExperimentConfig, source: RecordedSource | None) -> str:
    """Return the progress message shown while a run on recorded data is built."""
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
    """Return whether `offline.input_` holds paths, and not a function or another argument, such as SQL."""
    if isinstance(offline.input_, Mapping):
        return False
    return not is_read_by_ray(offline) or find_read_function(offline.input_read_method).is_of_files


def _place(offline: OfflineConfig) -> tuple[str, dict[str, Any]]:
    """Return type and address in MLflow's terms."""
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


_OF_ENV = (EPS_ID, LENGTH, "terminated", "truncated")


@dataclass
class RecordedEnvEpisodes:
    """Files of multi-agent env episodes.

    Attributes:
        config: the `offline` block.
        files, reader: the files and their reader.
        layouts: agent -> layout of its columns.
        format: format of the rows.
        counts: corrections that reading has made so far.
        num_rows_read: number of env episodes returned by the last stream of `episodes`.
    """

    config: OfflineConfig
    files: InputFiles
    reader: ParquetReader
    layouts: Mapping[str, Layout]
    format: ClassVar[type[RecordedFormat]] = EnvEpisodeFormat
    counts: ReadCounts = field(default_factory=ReadCounts)
    num_rows_read: int = 0

    @property
    def env_name(self) -> str | None:
        """Recorded name of the environment, or None if it is unknown."""
        return next((layout.env_name for layout in self.layouts.values()), None)

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Agent -> its recorded spaces."""
        return {agent: layout.spaces for agent, layout in self.layouts.items()}

    def source_of(self, agent: str) -> RecordedSource:
        """Return the episodes of one agent. Raises the errors of `open_source`."""
        others = tuple(other for other in self.layouts if other != agent)
        return open_source(self.config, of_module=ModuleAgents(agent, (agent,), others))

    def ends(self) -> Iterator[EnvEpisodes]:
        """Yield the env episodes without the agents' episodes."""
        for table, place in self.reader.tables([*_OF_ENV, TASK]):
            yield _env_episodes(table, [], place)

    def episodes(self) -> Iterator[EnvEpisodes]:
        """Yield the env episodes in blocks of bounded size.

        Raises:
            DataError: the data are damaged, or the filter keeps none of them.
        """
        self.num_rows_read = 0
        for table, place in self.reader.tables():
            self.num_rows_read += table.num_rows
            blocks = [
                block
                for agent, layout in self.layouts.items()
                for block in decode_by_module(agent_rows(table, agent), layout, place.of(f"agent {agent}"), self.counts)
            ]
            yield _env_episodes(table, blocks, place)
        if not self.num_rows_read and self.reader.row_filter is not None:
            raise nothing_passes(self.config.input_read_method_kwargs["filter"])

    def returns(self) -> Iterator[pa.ChunkedArray]:
        """Yield the return of each env episode, summed over the agents."""
        for table, _ in self.reader.tables(["episode_return"]):
            yield table["episode_return"]

    def modules_of(self, agent: str) -> list[str]:
        """Return the modules that chose the actions of an agent, in order of first appearance."""
        name = f"{agent_prefix(agent)}{MODULE_ID}"
        found: dict[str, None] = {}
        for table, _ in self.reader.tables([name]):
            if name in table.column_names:
                found |= dict.fromkeys(table[name].drop_null().unique().to_pylist())
        return list(found)


def _env_episodes(table: pa.Table, blocks: list[ColumnBlock], place: DataLocation) -> EnvEpisodes:
    missing = [name for name in _OF_ENV if name not in table.column_names]
    if missing:
        raise data_error(f"there is no column {', '.join(missing)}", place)
    lengths = table[LENGTH].to_numpy().astype(np.int64)
    try:
        flags = read_flags(table, "terminated"), read_flags(table, "truncated")
    except ValueError as error:
        raise data_error(f"the episodes are damaged: {error}", place) from None
    return EnvEpisodes(table[EPS_ID].to_pylist(), lengths, *flags, blocks, read_tasks(table))
