"""Convert recorded data by streaming from a source to a writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.env_episode_format import EnvEpisodes
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError
from runner.offline.files.filesystems import Location
from runner.offline.files.input_files import InputFiles, existing_paths
from runner.offline.formats.recorded_format import Row
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import RecordedEnvEpisodes, open_with_all_agents
from runner.offline.writing.writer import EpisodeWriter, WriteReport, prepare_output


@dataclass(frozen=True)
class ConversionReport:
    """Counts of a conversion.

    Attributes:
        format: format of the input.
        row: content of an input row, or None if the format does not have rows.
        num_files, num_rows: size of the input; rows are episodes, steps or batches, or 0 without rows.
        written: episodes, steps and files that were written.
        counts: corrections made by reading.
        seconds: total duration.
    """

    format: str
    row: Row | None
    num_files: int
    num_rows: int
    written: WriteReport
    counts: ReadCounts
    seconds: float


def convert(
    config: OfflineConfig,
    spaces: Spaces | None = None,
    env_name: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ConversionReport:
    """Read `offline.input_` and write it to `offline.output`.

    Args:
        config: the `offline` block.
        spaces, env_name: spaces and name of the environment. Data must fit the spaces and are cast to their dtypes.
        on_progress: called with the episodes and steps written so far, after each block.

    Raises:
        DataError: the data are damaged or do not fit.
        ConfigError: options or the output folder are invalid.
        RunFailure: data cannot be written, or the number of rows on disk is wrong.
    """
    started = time.perf_counter()
    source = open_with_all_agents(config, spaces)
    _check_apart(source.files, prepare_output(config), config)
    writer = _writer_for(source, config, env_name)
    try:
        for part in _parts(source, config):
            if isinstance(part, EnvEpisodes):
                writer.add_env_episodes(part)
            else:
                writer.add(part)
            if on_progress is not None:
                on_progress(writer.report.episodes, writer.report.steps)
        written = writer.close()
    except BaseException:
        writer.discard()
        raise
    return ConversionReport(
        format=source.format.name,
        row=source.format.row,
        num_files=len(source.files.paths) if source.files is not None else 0,
        num_rows=source.num_rows_read,
        written=written,
        counts=source.counts,
        seconds=time.perf_counter() - started,
    )


def _writer_for(
    source: RecordedSource | RecordedEnvEpisodes, config: OfflineConfig, env_name: str | None
) -> EpisodeWriter:
    name = env_name or source.env_name
    if isinstance(source, RecordedEnvEpisodes):
        return EpisodeWriter(config, env_name=name, agent_spaces=source.spaces)
    return EpisodeWriter(config, source.spaces, name)


def _parts(
    source: RecordedSource | RecordedEnvEpisodes, config: OfflineConfig
) -> Iterator[ColumnBlock] | Iterator[EnvEpisodes]:
    """Yield env episodes if each becomes one row; otherwise the blocks of each module."""
    if isinstance(source, RecordedSource):
        return _complete_blocks(source)
    if config.output_write_episodes and config.output_episode_format == "columns":
        return source.episodes()
    return (block for part in source.episodes() for block in part.blocks)


def _complete_blocks(source: RecordedSource) -> Iterator[ColumnBlock]:
    """Yield the blocks. Raises `DataError` if one lacks columns of the first."""
    names: set[str] | None = None
    for block in source.blocks():
        names = set(block.columns) if names is None else names
        _check_complete(names - set(block.columns), source)
        yield block


def _check_apart(files: InputFiles | None, output: Location | None, config: OfflineConfig) -> None:
    """Reject an output folder that contains the input or is part of it: one of them would hold every episode twice."""
    if files is None or output is None or files.filesystem.type_name != output.filesystem.type_name:
        return
    folders, named = [path.rpartition("/")[0] for path in files.paths], existing_paths(config)[1]
    is_read = any(f"{folder}/".startswith(f"{output.path}/") for folder in folders)
    is_inside = any(output.path.startswith(f"{path.rstrip('/')}/") for path in named)
    if output.path in (*folders, *named) or (config.output_run_folders and is_read) or is_inside:
        what = f"this folder {'is inside' if is_inside else 'contains'} the input data"
        raise ConfigError([Problem(what, "offline.output", output.shown, fix="use another folder")])


def _check_complete(missing: set[str], source: RecordedSource) -> None:
    """Reject columns of which only some rows can be written."""
    problems = [
        Problem(
            f"column {name} can be converted only for some of the rows: {source.counts.columns_left_out.get(name)}",
            where=source.where,
            fix="set offline.input_read_method_kwargs.columns=[NAME, ...] to the extra columns to keep, or to []",
        )
        for name in sorted(missing)
    ]
    if problems:
        raise DataError(problems)
