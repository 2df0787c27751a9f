"""Write recorded episodes to files, starting a new one when the open file is full.

Files are `<output>/episodes-<writer>-<number>.parquet` (or `steps-...`), see `rolling_files` and `output_files`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from pyarrow import fs

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.env_episode_format import EnvEpisodes
from runner.offline.codecs.layout import Spaces
from runner.offline.files.filesystems import Location, locate
from runner.offline.writing.output_files import Destination, FileList, names_in, reason_of
from runner.offline.writing.output_files import WriteFailed as WriteFailed
from runner.offline.writing.output_formats import check_env_episode_options, check_output_options, write_function
from runner.offline.writing.rolling_files import BlockFiles, EnvEpisodeFiles, RollingFiles

_DATA_SUFFIXES = (".parquet", ".pq", ".json", ".jsonl", ".ndjson", ".csv", ".h5", ".hdf5", ".gz", ".bz2")


@dataclass(frozen=True)
class WriteReport:
    """Files and counts written by one writer. There are no files if it writes to a database."""

    files: tuple[str, ...] = ()
    episodes: int = 0
    steps: int = 0
    num_bytes: int = 0

    @property
    def size_text(self) -> str:
        """Number of files and bytes for a message; empty without files."""
        count = f"{len(self.files):,} file{'' if len(self.files) == 1 else 's'}"
        return f"{count}, {self.num_bytes / 1e6:,.1f} MB" if self.files else ""

    def __add__(self, other: WriteReport) -> WriteReport:
        return WriteReport(
            self.files + other.files,
            self.episodes + other.episodes,
            self.steps + other.steps,
            self.num_bytes + other.num_bytes,
        )


def prepare_output(config: OfflineConfig, files_of_run: Collection[str] = ()) -> Location | None:
    """Check that `offline.output` can be written to, and create the folder. Call it once before writers start.

    Args:
        config: the `output...` options.
        files_of_run: files that the resumed run has already written there.

    Returns:
        The folder, or None if `offline.output` is another destination, such as SQL.

    Raises:
        ConfigError: there is no folder, it contains data and `output_append` is false, it cannot be written to, or
            options are inconsistent.
    """
    if config.output is None:
        raise ConfigError([Problem("the output folder is not set", "offline.output", "null", fix="set a folder")])
    check_output_options(config)
    location = locate_output(config)
    if location is None:
        return None
    info = location.info()
    if info.type == fs.FileType.File:
        raise ConfigError([Problem("this is a file, but recording needs a folder", "offline.output", config.output)])
    if info.type == fs.FileType.Directory and not config.output_append:
        found = names_in(location, is_deep=config.output_run_folders)
        names = [name for name in found if f"{location.path}/{name}" not in files_of_run]
        data = [name for name in names if name.endswith(_DATA_SUFFIXES)]
        if data:
            what = f"the folder already contains data: {', '.join(data[:3])}" + (", ..." if len(data) > 3 else "")
            fix = "use an empty folder, or set offline.output_append=true to add files to these"
            raise ConfigError([Problem(what, "offline.output", config.output, fix=fix)])
    probe = f"{location.path}/.runner-{os.getpid()}.tmp"
    try:
        location.filesystem.create_dir(location.path, recursive=True)
        with location.filesystem.open_output_stream(probe) as stream:
            stream.write(b"")
        location.filesystem.delete_file(probe)
    except OSError as error:
        what = f"the folder cannot be written to: {reason_of(error)}"
        raise ConfigError([Problem(what, "offline.output", config.output)]) from None
    return location


class EpisodeWriter:
    """Writes blocks of episodes to a sequence of files.

    Use it as a context manager: `with EpisodeWriter(...) as writer: writer.add(block)`. An exception inside removes its
    files. Call `prepare_output` once before. Several writers with different ids may then write in parallel.

    Attributes:
        report: episodes and steps added so far; after `close`, also the files.
    """

    def __init__(
        self,
        config: OfflineConfig,
        spaces: Spaces | None = None,
        env_name: str | None = None,
        writer_id: str = "0",
        file_list: FileList | None = None,
        writer_number: int = 1,
        agent_spaces: Mapping[str, Spaces] = MappingProxyType({}),
    ) -> None:
        """Start without a file.

        Args:
            config: the `output...` options.
            spaces, env_name: metadata of the files.
            writer_id: distinguishes the files of writers in one folder.
            file_list: records each file when it is opened.
            writer_number: number of the env runner, from 1, in the names of run folders.
            agent_spaces: agent -> its spaces, stored in files of env episodes.

        Raises:
            ConfigError: options are inconsistent.
        """
        check_output_options(config)
        self._config = config
        self._to = Destination(config, locate_output(config), writer_id, writer_number, env_name, file_list)
        self._spaces, self._agent_spaces = spaces, agent_spaces
        self._files: dict[str | None, BlockFiles] = {}
        self._env_files: EnvEpisodeFiles | None = None
        self.report = WriteReport()
        self._is_closed = False

    def add(self, block: ColumnBlock) -> None:
        """Write the episodes of a block. Its arrays may be reused afterwards.

        Raises:
            WriteFailed: the disk is full, the folder is gone, ...
            ConfigError: an episode cannot be recorded, or does not match earlier episodes.
        """
        if self._is_closed:
            raise ValueError("the writer is closed")
        if len(block) == 0:
            return
        module_id = block.module_id if block.agents is not None else None
        if module_id not in self._files:
            self._files[module_id] = BlockFiles(self._to, self._spaces, module_id)
        with _errors_of_episodes():
            self._files[module_id].add(block)
        self._count(len(block), block.num_rows)

    def add_env_episodes(self, episodes: EnvEpisodes) -> None:
        """Write multi-agent env episodes, one row each. Raises the errors of `add`."""
        if self._is_closed:
            raise ValueError("the writer is closed")
        if self._env_files is None:
            check_env_episode_options(self._config)
            self._env_files = EnvEpisodeFiles(self._to, self._agent_spaces)
        with _errors_of_episodes():
            self._env_files.add(episodes)
        self._count(len(episodes), int(episodes.lengths.sum()))

    def _count(self, episodes: int, steps: int) -> None:
        self.report += WriteReport(episodes=episodes, steps=steps)

    @property
    def _all_files(self) -> list[RollingFiles]:
        return [*self._files.values(), *([] if self._env_files is None else [self._env_files])]

    def close(self) -> WriteReport:
        """Write the remaining rows and finish the open files.

        Raises:
            WriteFailed: see `add`; or the number of rows on disk is wrong.
        """
        if not self._is_closed:
            self._is_closed = True
            self.report = self.put_on_disk()
        return self.report

    def put_on_disk(self) -> WriteReport:
        """Finish the open files, so that all rows are in complete files.

        Raises:
            WriteFailed: see `close`.
            ConfigError: the episodes cannot be written in this format.
        """
        for file in self._all_files:
            with _errors_of_episodes():
                file.close()
        done = [written for file in self._all_files for written in file.written]
        rows = sum(written.rows for written in done)
        expected = self.report.episodes if self._config.output_write_episodes else self.report.steps
        if rows != expected:
            what = f"{rows} rows are on disk, but {expected} were recorded"
            raise WriteFailed(Problem(what, str(self._config.output)))
        files = tuple(written.path for written in done if written.path)
        return self.report + WriteReport(files, num_bytes=sum(written.num_bytes for written in done))

    def abort(self) -> None:
        """Delete the open files; complete files are kept."""
        self._is_closed = True
        for file in self._all_files:
            file.abort()

    def discard(self) -> None:
        """Delete the open files and the files that this writer has finished."""
        self.abort()
        for file in self._all_files:
            file.remove_written()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


@contextmanager
def _errors_of_episodes() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(f"these episodes cannot be recorded: {error}", "offline.output")]) from error


def locate_output(config: OfflineConfig) -> Location | None:
    """Return the folder of `offline.output`; see `prepare_output`.

    Raises:
        ConfigError: the folder cannot be reached, or the write method does not exist.
    """
    function = write_function(config)
    if function is not None and not function.is_of_files:
        return None
    where = "offline.output_filesystem"
    return locate(str(config.output), config.output_filesystem, config.output_filesystem_kwargs, where)
