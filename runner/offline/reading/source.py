"""Where recorded data come from: `open_source` finds files, tells their format and checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.config.errors import Problem
from runner.config.offline import OfflineConfig
from runner.offline.codecs.layout import Spaces
from runner.offline.files import unpacking
from runner.offline.files.data_error import DataError
from runner.offline.files.file_kinds import CSV, JSON, PARQUET
from runner.offline.files.input_files import InputFiles, find_files
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.raw_rows import RawReader
from runner.offline.files.ray_functions import OWN_OPTIONS, check_option_names, check_ray_options
from runner.offline.files.ray_reader import RAY_OPTIONS
from runner.offline.files.text_readers import TEXT_OPTIONS
from runner.offline.formats.module_agents import ModuleAgents
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat, Row, completed
from runner.offline.formats.registry import file_kinds, find_format
from runner.offline.formats.selection import Selection
from runner.offline.formats.stream import StreamFormat
from runner.offline.reading.recorded_source import RecordedSource

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
    unpacking.allow(config.input_max_unpacked_ratio)
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
        allowed = f"leave it out: it is seen from the files ({found.name})"
        raise DataError([Problem(f"{what}: {where}", f"offline.{name}", got, allowed)])


def _check_filter(config: OfflineConfig, found: type[RecordedFormat], reader: RawReader | None) -> None:
    """Refuse a row filter where none can be applied."""
    is_filtered = reader is not None and reader.row_filter is not None
    if config.input_read_method_kwargs.get("filter") is not None and not is_filtered:
        where = "offline.input_read_method_kwargs.filter"
        raise DataError([Problem(f"data of the format {found.name} are read without a filter", where)])
