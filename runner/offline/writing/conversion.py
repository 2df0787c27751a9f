"""Convert recorded data by streaming from a source to a writer, and compare the counts of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.offline import OfflineConfig
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError
from runner.offline.files.filesystems import Location
from runner.offline.files.input_files import InputFiles
from runner.offline.formats.env_episodes import EnvEpisodeFormat
from runner.offline.formats.recorded_format import RecordedFormat, Row
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import RecordedEnvEpisodes, open_env_episodes, open_source
from runner.offline.writing.writer import EpisodeWriter, WriteReport, prepare_output


@dataclass(frozen=True)
class ConversionReport:
    """Counts of a conversion.

    Attributes:
        format: format of the input.
        row: content of an input row, or None if the format does not have rows.
        num_files, num_rows: size of the input; rows are episodes, steps or batches, or 0 without rows.
        episodes, steps: decoded episodes and steps.
        written: files that were written.
        counts: corrections made by reading.
        seconds: total duration.
    """

    format: str
    row: Row | None
    num_files: int
    num_rows: int
    episodes: int
    steps: int
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
        RunFailure: data cannot be written, or counts differ.
    """
    recorded = open_env_episodes(config)
    if recorded is not None:
        return _convert_env_episodes(recorded, env_name, on_progress)
    started = time.perf_counter()
    source = open_source(config, spaces)
    _check_apart(source.files, prepare_output(config), config.output_run_folders)
    episodes = steps = 0
    writer = EpisodeWriter(config, source.spaces, env_name or source.env_name, "0")
    with _removing_incomplete(writer):
        names: set[str] | None = None
        for block in source.blocks():
            names = set(block.columns) if names is None else names
            _check_complete(names - set(block.columns), source)
            writer.add(block)
            episodes, steps = episodes + len(block), steps + block.num_rows
            if on_progress is not None:
                on_progress(episodes, steps)
        written = writer.close()
    num_files = len(source.files.paths) if source.files is not None else 0
    seconds = time.perf_counter() - started
    report = ConversionReport(
        format=source.format.name,
        row=source.format.row,
        num_files=num_files,
        num_rows=source.num_rows_read,
        episodes=episodes,
        steps=steps,
        written=written,
        counts=source.counts,
        seconds=seconds,
    )
    _check_counts(report, source.format, str(config.output))
    return report


@contextmanager
def _removing_incomplete(writer: EpisodeWriter) -> Iterator[None]:
    """Remove the files of a writer if an exception ends the block."""
    try:
        yield
    except BaseException:
        writer.discard()
        raise


def _convert_env_episodes(
    recorded: RecordedEnvEpisodes, env_name: str | None, on_progress: Callable[[int, int], None] | None
) -> ConversionReport:
    """Write multi-agent env episodes, either one row per env episode or as episodes of the agents."""
    started, config, counts = time.perf_counter(), recorded.config, ReadCounts()
    _check_apart(recorded.files, prepare_output(config), config.output_run_folders)
    as_rows = config.output_write_episodes and config.output_episode_format == "columns"
    num_rows = episodes = steps = 0
    writer = EpisodeWriter(config, None, env_name or recorded.env_name, "0", agent_spaces=recorded.spaces)
    with _removing_incomplete(writer):
        for part in recorded.episodes(counts):
            num_rows += len(part)
            if as_rows:
                writer.add_env_episodes(part)
                episodes, steps = episodes + len(part), steps + int(part.lengths.sum())
            else:
                for block in part.blocks:
                    writer.add(block)
                    episodes, steps = episodes + len(block), steps + block.num_rows
            if on_progress is not None:
                on_progress(episodes, steps)
        written = writer.close()
    num_files, seconds = len(recorded.files.paths), time.perf_counter() - started
    name, row = EnvEpisodeFormat.name, EnvEpisodeFormat.row
    report = ConversionReport(name, row, num_files, num_rows, episodes, steps, written, counts, seconds)
    _check_written(report, str(config.output))
    return report


def _check_apart(files: InputFiles | None, output: Location | None, has_folders: bool) -> None:
    """Reject an output folder that contains the input, because it would then hold every episode twice."""
    folders = [path.rpartition("/")[0] for path in files.paths] if files is not None else []
    if output is None:
        return
    is_read = any(f"{folder}/".startswith(f"{output.path}/") for folder in folders)
    if output.path in folders or (has_folders and is_read):
        what = "this folder contains the input data"
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


def _check_counts(report: ConversionReport, format_: RecordedFormat, where: str) -> None:
    _check_written(report, where)
    expected = format_.num_rows_of(report.episodes, report.steps, report.counts)
    if expected is not None and report.num_rows != expected:
        raise RunFailure(Problem(f"{report.num_rows} rows were read, but {expected} were decoded", where))


def _check_written(report: ConversionReport, where: str) -> None:
    written = report.written
    if (written.episodes, written.steps) != (report.episodes, report.steps):
        got = f"{written.episodes} episodes, {written.steps} steps"
        what = f"{report.episodes} episodes and {report.steps} steps were read, but not all of them were written"
        raise RunFailure(Problem(what, where, got))
