"""Multi-agent env episodes recorded by `runner`, read for the agents of one module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from runner.config.errors import list_names
from runner.episodes.columns import ColumnBlock, concat_blocks, empty_block
from runner.episodes.nested import StateError
from runner.offline.codecs.env_episode_format import (
    EPS_ID,
    LENGTH,
    agent_columns,
    agent_rows,
    common_columns,
    is_env_episodes,
    merged_layouts,
    missing_columns,
    read_layouts,
)
from runner.offline.codecs.episode_format import TASK
from runner.offline.codecs.layout import Layout, Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataLocation, data_error
from runner.offline.files.input_files import PARQUET
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.formats.native import decode_episodes
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat, Row, completed
from runner.offline.formats.selection import ALWAYS_READ, Selection, several_agents


@dataclass(frozen=True)
class EnvEpisodeFormat(RecordedFormat):
    """Env episodes of several agents.

    Attributes:
        agents: agent that is read -> layout of its columns.
        are_files_alike: whether all files have the same agents. If not, Ray would only read the first file's agents.
    """

    name = "env_episodes"
    kinds = (PARQUET,)
    row = Row.EPISODE
    reads_one_module = True

    agents: Mapping[str, Layout] = field(default_factory=dict)
    are_files_alike: bool = True

    @classmethod
    def recognises(cls, data: RawData) -> bool:
        return data.all_files_are("multi-agent episodes", is_env_episodes)

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        every = layouts_of(data)
        if selection.of_module is None:
            raise several_agents(every, DataLocation(data.where))
        module, place = selection.of_module, DataLocation(data.where)
        module.check_known(every, place)
        agents = {agent: every[agent] for agent in module.agents if agent in every}
        if not agents:
            raise module.no_rows(every, place)
        layout = _common(agents, place)
        selection.check_columns(layout, data.where)
        layout = selection.layout(layout)
        for path, schema in zip(data.paths, data.schemas, strict=True):
            _check_complete(agents, layout, schema, path)
        recorded = next(iter(agents.values()))
        return cls(
            selection,
            completed(spaces, recorded.spaces),
            recorded.env_name,
            layout,
            agents=agents,
            are_files_alike=all(agents.keys() <= read_layouts(schema).keys() for schema in data.schemas),
        )

    def decode(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> list[ColumnBlock]:
        """Return the episodes of the module's agents in one block, grouped by agent."""
        assert self.layout is not None
        assert self.selection.of_module is not None
        blocks = []
        for agent, own in self.agents.items():
            rows = agent_rows(table, agent)
            if rows.num_rows:
                columns = own.selected(set(self.layout.columns))
                blocks.append(decode_episodes(rows, columns, replace(place, column=f"agent {agent}"), counts))
        if not blocks:
            return [empty_block(self.layout.columns)]
        return [replace(concat_blocks(blocks), module_id=self.selection.of_module.module_id)]

    def file_columns(self, schema: pa.Schema) -> list[str] | None:
        assert self.layout is not None
        with_infos = self.selection.with_infos
        names = [name for agent in self.agents for name in agent_columns(agent, self.layout, schema, with_infos)]
        return [EPS_ID, *([TASK] if with_infos and TASK in schema.names else []), *names]

    @property
    def has_complete_rows(self) -> bool:
        return self.are_files_alike

    def sizes(self, reader: ParquetReader) -> Mapping[str, int]:
        """Return the number of env episodes and env steps."""
        lengths = [table[LENGTH] for table, _ in reader.tables([LENGTH])]
        return {"num_episodes": sum(map(len, lengths)), "num_steps": sum(pc.sum(one).as_py() or 0 for one in lengths)}


def layouts_of(data: RawData) -> dict[str, Layout]:
    """Return agent -> layout of its columns in all files. Raises `DataError` if the files differ."""
    layouts: dict[str, Layout] = {}
    for path, schema in zip(data.paths, data.schemas, strict=True):
        try:
            layouts = merged_layouts(layouts, read_layouts(schema))
        except StateError as error:
            raise data_error(f"the metadata of this file is damaged: {error}", DataLocation(path)) from None
        except ValueError as error:
            what = f"the files have different columns: {error}"
            raise data_error(what, DataLocation(path), expected=f"the columns of {data.where}") from None
    return layouts


def _common(agents: Mapping[str, Layout], place: DataLocation) -> Layout:
    try:
        return common_columns(list(agents.values()))
    except ValueError as error:
        what = f"the agents {', '.join(agents)} share a module but their columns differ: {error}"
        expected, fix = "agents with equal spaces", "give the other agents a separate module"
        raise data_error(what, place, expected=expected, fix=fix) from None


def _check_complete(agents: Mapping[str, Layout], layout: Layout, schema: pa.Schema, path: str) -> None:
    """Reject a file from which another tool has removed columns that every reader needs."""
    in_file = read_layouts(schema)
    missing = [
        name for agent in agents if agent in in_file for name in missing_columns(agent, layout, schema, ALWAYS_READ)
    ]
    if EPS_ID not in schema.names:
        missing.append(EPS_ID)
    if missing:
        raise data_error(
            f"there is no column {', '.join(missing)}", DataLocation(path), expected=list_names(schema.names)
        )
