"""Recorded env episodes of several agents, read without an experiment: whole, or each agent by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.env_episode_format import EPS_ID, LENGTH, MODULE_ID, EnvEpisodes, agent_prefix, agent_rows
from runner.offline.codecs.episode_format import TASK, read_flags, read_tasks
from runner.offline.codecs.layout import Layout, Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataLocation, data_error
from runner.offline.files.input_files import InputFiles
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.formats.env_episodes import EnvEpisodeFormat, layouts_of
from runner.offline.formats.module_agents import ModuleAgents
from runner.offline.formats.native import decode_by_module
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import open_raw_data, open_source

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
