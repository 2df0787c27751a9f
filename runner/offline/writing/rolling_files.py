"""Write rows to a sequence of files with large row groups, regardless of the size of the incoming blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.env_episode_format import (
    EnvEpisodes,
    agent_layouts,
    env_episodes_to_table,
    merged_layouts,
)
from runner.offline.codecs.episode_format import episodes_to_table
from runner.offline.codecs.layout import Layout, Spaces, layout_of
from runner.offline.codecs.rllib_episode_states import episodes_to_items
from runner.offline.codecs.table_format import block_to_steps
from runner.offline.files.filesystems import Location
from runner.offline.writing.output_files import (
    Destination,
    OutputFile,
    Written,
    next_place,
    remove_empty_folder,
    safe_name,
    write_failure,
)
from runner.offline.writing.output_formats import check_columns, write_function
from runner.offline.writing.ray_output import RayOutput

_ROW_GROUP_BYTES = 2**22
_MAX_ATTEMPTS = 20


class RollingFiles:
    """Files to which tables are written; at most one of them is open.

    Attributes:
        written: complete files.
    """

    def __init__(self, to: Destination, module_id: str | None = None) -> None:
        """Start without a file.

        Args:
            to: destination of the files.
            module_id: part of the file names; a single agent needs none.
        """
        self.written: list[Written] = []
        self._to, self._config, self._location = to, to.config, to.location
        kind = "episodes" if to.config.output_write_episodes else "steps"
        module = "" if module_id is None else f"-{safe_name(module_id)}"
        self._stem = f"{kind}-{safe_name(to.writer_id)}{module}-"
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._function = write_function(to.config)
        self._open: OutputFile | RayOutput | None = None
        self._folder: Location | None = None  # of the newest file
        self._fields: dict[str, pa.Field] = {}  # all columns so far
        limit = to.config.output_max_file_size
        self._group_bytes = min(_ROW_GROUP_BYTES, limit) if limit else _ROW_GROUP_BYTES

    def add_table(self, table: pa.Table) -> None:
        """Add rows, and write complete row groups. Raises `WriteFailed` if the file system reports an error."""
        limit = self._config.output_max_rows_per_file
        while table.num_rows:
            room = table.num_rows if limit is None else min(table.num_rows, limit - self._rows_of_file())
            rows = max(1, min(room, self._rows_that_fit(table)))
            self._take(table.slice(0, rows))
            table = table.slice(rows)

    def close(self) -> None:
        """Write all pending rows. Raises `WriteFailed`."""
        self._flush()
        self._finish()

    def abort(self) -> None:
        """Delete the open file."""
        if self._open is not None:
            self._open.remove()
            self._open = None
            self._remove_run_folder()

    def remove_written(self) -> None:
        """Delete the complete files."""
        if self._location is not None:
            for written in self.written:
                with contextlib.suppress(OSError):
                    self._location.filesystem.delete_file(written.path)
                self._remove_run_folder(written.path.rpartition("/")[0])
        self.written.clear()

    def _remove_run_folder(self, path: str | None = None) -> None:
        """Remove the empty run folder of a deleted file, by default the newest one; never the output folder."""
        path = path or (None if self._folder is None else self._folder.path)
        if self._location is not None and path is not None and path != self._location.path:
            remove_empty_folder(self._location.filesystem, path)

    # --- rows -----------------------------------------------------------------------------------------------------

    def _rows_that_fit(self, table: pa.Table) -> int:
        per_row = max(1, int(table.nbytes) // int(table.num_rows))
        return max(1, (self._group_bytes - self._waiting_bytes) // per_row + 1)

    def _take(self, rows: pa.Table) -> None:
        rows = self._completed(rows)
        if self._waiting and rows.column_names != self._waiting[0].column_names:
            self._flush()  # first rows with infos, tasks or another agent
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        limit = self._config.output_max_rows_per_file
        is_full = limit is not None and self._rows_of_file() >= limit
        if is_full or self._waiting_bytes >= self._group_bytes:
            self._flush()
        if is_full:
            self._finish()

    def _completed(self, rows: pa.Table) -> pa.Table:
        """Add the columns of earlier rows, such as infos, tasks and columns of other agents, as nulls."""
        self._fields |= {field.name: field for field in rows.schema if field.name not in self._fields}
        for name, field in self._fields.items():
            if name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(list(self._fields))

    def _rows_of_file(self) -> int:
        waiting = sum(int(table.num_rows) for table in self._waiting)
        return waiting + (self._open.rows if self._open else 0)

    # --- files ----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the pending rows as one row group."""
        if not self._waiting:
            return
        table = pa.concat_tables([rows.replace_schema_metadata(None) for rows in self._waiting])
        table = table.replace_schema_metadata(self._waiting[-1].schema.metadata)
        self._waiting, self._waiting_bytes = [], 0
        if self._open is not None and self._open.columns != table.column_names:
            self._finish()  # a file has one schema
        try:
            if self._open is None:
                self._open = self._opened(table.schema)
            size = self._open.write(table)
        except (OSError, pa.ArrowException) as error:
            self._remove_run_folder()
            raise write_failure(error, str(self._config.output)) from error
        limit = self._config.output_max_file_size
        if limit is not None and size >= limit:
            self._finish()

    def _opened(self, schema: pa.Schema) -> OutputFile | RayOutput:
        if self._location is None:
            assert self._function is not None
            return RayOutput(self._config, self._function, None, "", schema)
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(FileExistsError):  # another process has just chosen the same name
                return self._next_file(self._location, schema)
        return self._next_file(self._location, schema)

    def _next_file(self, location: Location, schema: pa.Schema) -> OutputFile | RayOutput:
        folder, name = next_place(self._to, location, self._stem)
        self._folder = folder
        file: OutputFile | RayOutput
        if self._function is not None:
            file = RayOutput(self._config, self._function, folder, name, schema)
        else:
            file = OutputFile(self._config, folder, name, schema)
        if self._to.file_list is not None:
            self._to.file_list.add(f"{folder.path}/{name}")
        return file

    def _finish(self) -> None:
        """Finish the open file and give it its final name."""
        if self._open is None:
            return
        file, self._open = self._open, None
        try:
            self.written.append(file.publish())
        except (OSError, pa.ArrowException) as error:
            raise write_failure(error, str(self._config.output)) from error
        finally:
            self._remove_run_folder()  # has no effect if the folder contains the file


class BlockFiles(RollingFiles):
    """`RollingFiles` of one module's episodes or steps.

    Args:
        to: destination of the files.
        spaces: recorded spaces of the environment.
        module_id: see `RollingFiles`.
    """

    def __init__(self, to: Destination, spaces: Spaces | None, module_id: str | None) -> None:
        super().__init__(to, module_id)
        self._spaces = spaces
        self._layout: Layout | None = None

    def add(self, block: ColumnBlock) -> None:
        """Copy the block's rows, and write complete row groups.

        Raises:
            WriteFailed: the file system reports an error.
            TypeError, ValueError: the block cannot be recorded, or does not match earlier blocks.
            ConfigError: columns to compress do not exist.
        """
        layout = layout_of(block, self._spaces, self._to.env_name)
        if self._layout is None:
            check_columns(self._config, layout)
        self._layout = layout if self._layout is None else self._layout.merged_with(layout)
        copied = replace(
            block,
            columns={name: nested.map_leaves(np.copy, column) for name, column in block.columns.items()},
            lengths=block.lengths.copy(),
            is_terminated=block.is_terminated.copy(),
            is_truncated=block.is_truncated.copy(),
            t_started=block.t_started.copy(),
            lookback=None,
            last_lookback=None,
        )
        if self._config.output_episode_format == "rllib":
            self.add_table(episodes_to_items(copied, self._layout))
        elif self._config.output_write_episodes:
            self.add_table(episodes_to_table(copied, self._layout))
        else:
            self.add_table(block_to_steps(copied, self._layout))


class EnvEpisodeFiles(RollingFiles):
    """`RollingFiles` of multi-agent env episodes. A new agent starts another file, which includes its columns.

    Args:
        to: destination of the files.
        spaces: agent -> its recorded spaces.
    """

    def __init__(self, to: Destination, spaces: Mapping[str, Spaces]) -> None:
        super().__init__(to)
        self._agent_spaces = spaces
        self._layouts: Mapping[str, Layout] = {}

    def add(self, episodes: EnvEpisodes) -> None:
        """Write env episodes. Raises the errors of `BlockFiles.add`."""
        found = agent_layouts(episodes, self._agent_spaces, self._to.env_name)
        if not self._layouts:
            for layout in found.values():
                check_columns(self._config, layout)
        self._layouts = merged_layouts(self._layouts, found)
        self.add_table(env_episodes_to_table(episodes, self._layouts))
