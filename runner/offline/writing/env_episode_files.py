"""Files of env episodes of several agents."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from runner.config.offline import OfflineConfig
from runner.offline.codecs.env_episode_format import (
    EnvEpisodes,
    agent_layouts,
    env_episodes_to_table,
    merged_layouts,
)
from runner.offline.codecs.layout import Layout, Spaces
from runner.offline.files.filesystems import Location
from runner.offline.writing.file_list import FileList
from runner.offline.writing.output_formats import check_columns
from runner.offline.writing.rolling_files import RollingFiles


class EnvEpisodeFiles(RollingFiles):
    """As `RollingFiles`, of env episodes; an agent that comes late begins the next file, which has its columns, too.

    Args:
        spaces: agent -> its spaces.
        others: as of `RollingFiles`.
    """

    def __init__(
        self,
        config: OfflineConfig,
        location: Location | None,
        writer_id: str,
        writer_number: int,
        spaces: Mapping[str, Spaces],
        env_name: str | None,
        file_list: FileList | None = None,
    ) -> None:
        super().__init__(config, location, writer_id, writer_number, None, None, env_name, file_list)
        self._agent_spaces = spaces
        self._layouts: Mapping[str, Layout] = {}
        self._fields: dict[str, pa.Field] = {}  # of all columns so far

    def add_env_episodes(self, episodes: EnvEpisodes) -> None:
        """Take env episodes, see `add`."""
        found = agent_layouts(episodes, self._agent_spaces, self._env_name)
        if not self._layouts:
            for layout in found.values():
                check_columns(self._config, layout)
        self._layouts = merged_layouts(self._layouts, found)
        self._add_rows(env_episodes_to_table(episodes, self._layouts))

    def _completed(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of all agents so far."""
        self._fields |= {field.name: field for field in rows.schema if field.name not in self._fields}
        for name, field in self._fields.items():
            if name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(list(self._fields))
