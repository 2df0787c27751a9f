"""Open recorded data: `open_source` finds, recognises and checks them; whole env episodes of several agents."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

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
from runner.offline.formats.recorded_format import RecordedFormat, Row, completed
from runner.offline.formats.registry import file_kinds, find_format
from runner.offline.formats.selection import ModuleAgents, Selection
from runner.offline.formats.stream import StreamFormat
from runner.offline.reading.recorded_source import RecordedSource
from runner.tracking.run_info import Context, DataSet, sized

_KIND_OF_METHOD = {f"read_{kind.name}": kind for kind in (PARQUET, JSON, CSV)}


def open_source(
    config: OfflineConfig,
    spaces: Spaces | None = None,
    columns: Sequence[str] | None = None,
    with_infos: bool = True,
    of_module: ModuleAgents | None = None,
) -> RecordedSource:
    """Find and check recorded data; nothing is trained before.

    Args:
        config: the `offline` block.
        spaces: of the environment, which the data must fit; None: they are not compared.
        columns: the extra model outputs that are needed beside `obs`, `actions` and `rewards` (the latter is then
            needed only if it is named); None: all. `input_read_method_kwargs.columns` narrows further.
        with_infos: whether infos are read.
        of_module: whose episodes are read, in experiments with several agents.

    Raises:
        DataError: a path is missing, a folder has no data, files are damaged, formats are mixed, columns are missing,
            rewards are not finite, spaces do not fit.
        ConfigError: options that do not go together, an unknown file system or function.
    """
    data = open_raw_data(config)
    if of_module is not None:
        data = data.of_module(of_module)
    selection = replace(Selection.of(config).narrowed(columns, with_infos), of_module=of_module)
    source = _source_of(data, selection, spaces or Spaces())
    source.first_block()
    if spaces is not None:
        source.check_spaces(spaces.observation, spaces.action)
        source.spaces = completed(spaces, source.spaces)
    if isinstance(source.reader, ParquetReader):
        source.format.check_rewards(source.reader)
    return source


def open_raw_data(config: OfflineConfig) -> RawData:
    """Find the files of recorded data, before anybody knows their format; raises as `open_source` does."""
    _check_options(config)
    input_files.allow(config.input_max_unpacked_ratio)
    is_stream = isinstance(config.input_, Mapping)
    data = RawData(config, None if is_stream or is_read_by_ray(config) else _find_files(config))
    if data.files is None and not is_stream:
        check_ray_options(config)
    return data


def is_read_by_ray(config: OfflineConfig) -> bool:
    """Return whether a `ray.data` function of the user's choice reads the data, which takes a cluster."""
    return config.input_read_method not in ("auto", *_KIND_OF_METHOD)


def _find_files(config: OfflineConfig) -> InputFiles:
    files = find_files(config, file_kinds(), _KIND_OF_METHOD.get(config.input_read_method))
    known = [*OWN_OPTIONS, *RAY_OPTIONS, *TEXT_OPTIONS.get(files.kind, ())]
    check_option_names(config, f"reading {files.kind.name}", known)
    return files


def _source_of(data: RawData, selection: Selection, spaces: Spaces) -> RecordedSource:
    """Tell the format and take what the data say about themselves."""
    format_class = StreamFormat if isinstance(data.config.input_, Mapping) else find_format(data)
    reader = format_class.reader_of(data)
    _check_filter(data.config, format_class, reader)
    _check_flags(data.config, format_class, data.where)
    found = format_class.open(data, selection, spaces)
    return RecordedSource(data.config, found, data.files, reader, found.spaces)


def _check_options(config: OfflineConfig) -> None:
    """Refuse options that contradict each other."""
    if config.input_read_episodes and config.input_read_sample_batches:
        what = "rows are either episodes or SampleBatches"
        raise DataError([Problem(what, "offline.input_read_sample_batches", "true", "one of both is false")])


def _check_flags(config: OfflineConfig, found: type[RecordedFormat], where: str) -> None:
    """Refuse a configuration that says the rows are something else than they are."""
    problem: tuple[str, str, str] | None = None
    if config.input_read_sample_batches and found.row is not Row.BATCH:
        problem = ("input_read_sample_batches", "true", "these data are no SampleBatches")
    elif config.input_read_episodes is True and found.row in (Row.STEP, Row.BATCH):
        problem = ("input_read_episodes", "true", "the rows of these data are no episodes")
    elif config.input_read_episodes is False and found.row is Row.EPISODE:
        problem = ("input_read_episodes", "false", "the rows of these data are episodes")
    mapping = {name: column for name, column in config.input_read_schema.items() if name != column}
    if mapping and found.row is not Row.STEP:
        what = f"data of the format {found.name} have no columns to be named: {where}"
        raise DataError([Problem(what, "offline.input_read_schema", str(mapping), "{}")])
    if problem is not None:
        name, got, what = problem
        expected = f"leave it out: it is seen from the files ({found.name})"
        raise DataError([Problem(f"{what}: {where}", f"offline.{name}", got, expected)])


def _check_filter(config: OfflineConfig, found: type[RecordedFormat], reader: RawReader | None) -> None:
    """Refuse a row filter where none can be applied."""
    is_filtered = reader is not None and reader.row_filter is not None
    if config.input_read_method_kwargs.get("filter") is not None and not is_filtered:
        where = "offline.input_read_method_kwargs.filter"
        raise DataError([Problem(f"data of the format {found.name} are read without a filter", where)])


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


_OF_ENV = (EPS_ID, LENGTH, "terminated", "truncated")


@dataclass(frozen=True)
class RecordedEnvEpisodes:
    """Files of env episodes.

    Attributes:
        config: the `offline` block.
        files, reader: what is read.
        layouts: agent -> the layout of its columns.
    """

    config: OfflineConfig
    files: InputFiles
    reader: ParquetReader
    layouts: Mapping[str, Layout]

    @property
    def env_name(self) -> str | None:
        """The recorded environment, where it is known."""
        return next((layout.env_name for layout in self.layouts.values()), None)

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Agent -> its spaces, as recorded."""
        return {agent: layout.spaces for agent, layout in self.layouts.items()}

    def source_of(self, agent: str) -> RecordedSource:
        """Return the episodes of one agent; raises `DataError` as `open_source` does."""
        others = tuple(other for other in self.layouts if other != agent)
        return open_source(self.config, of_module=ModuleAgents(agent, (agent,), others))

    def ends(self) -> Iterator[EnvEpisodes]:
        """Yield the env episodes without their agents."""
        for table, place in self.reader.tables([*_OF_ENV, TASK]):
            yield _env_episodes(table, [], place)

    def episodes(self, counts: ReadCounts) -> Iterator[EnvEpisodes]:
        """Yield the env episodes, in blocks of bounded size; raises `DataError` for damaged data."""
        for table, place in self.reader.tables():
            blocks = [
                block
                for agent, layout in self.layouts.items()
                for block in decode_by_module(agent_rows(table, agent), layout, place.of(f"agent {agent}"), counts)
            ]
            yield _env_episodes(table, blocks, place)

    def returns(self) -> Iterator[pa.ChunkedArray]:
        """Yield the sums of the rewards of all agents in each env episode."""
        for table, _ in self.reader.tables(["episode_return"]):
            yield table["episode_return"]

    def modules_of(self, agent: str) -> list[str]:
        """Return the modules that have acted for an agent, in the order of their first episodes."""
        name = f"{agent_prefix(agent)}{MODULE_ID}"
        found: dict[str, None] = {}
        for table, _ in self.reader.tables([name]):
            if name in table.column_names:
                found |= dict.fromkeys(table[name].drop_null().unique().to_pylist())
        return list(found)


def open_env_episodes(config: OfflineConfig) -> RecordedEnvEpisodes | None:
    """Open `offline.input_` if it has env episodes of several agents; None: it has others.

    Raises:
        DataError, ConfigError: see `open_source`.
    """
    data = open_raw_data(config)
    if data.files is None or data.files.kind not in EnvEpisodeFormat.kinds or not EnvEpisodeFormat.recognises(data):
        return None
    assert isinstance(data.reader, ParquetReader)
    return RecordedEnvEpisodes(config, data.files, data.reader, layouts_of(data))


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
