"""Native format of multi-agent env episodes: Parquet with one row per env episode and list columns for each agent.

| column                          | type          | holds                                                              |
|---------------------------------|---------------|--------------------------------------------------------------------|
| eps_id                          | string        | id of the env episode                                              |
| length                          | int64         | env steps                                                          |
| terminated, truncated           | bool          | end flags of the env episode                                       |
| episode_return                  | float64       | sum of the rewards of all agents in this row                       |
| task                            | string        | only if episodes have tasks                                        |
| agents/AGENT/module_id          | string        | module that acted; all columns of AGENT are null without a step    |
| agents/AGENT/env_t              | list of int64 | env time step of each of its observations                          |
| agents/AGENT/obs, actions, ...  | list, ...     | the columns of a single agent's episode (`episode_format`)         |

Each agent's columns are the prefixed columns of `episode_format`. The metadata `runner.env_episodes` of the schema
holds the layout of each agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runner.episodes.columns import ColumnBlock
from runner.episodes.nested import StateError, read_key
from runner.episodes.rollout_parts import take_chunks
from runner.offline.codecs.episode_format import INFOS, KEYS, TASK, episodes_to_table, tasks_to_arrow
from runner.offline.codecs.layout import AGENTS, VERSION, Layout, Spaces, escaped, layout_of, load_metadata

METADATA_KEY = b"runner.env_episodes"
EPS_ID, LENGTH = "eps_id", "length"
_AGENT_ID, _ENV_EPISODE = "agent_id", "multi_agent_episode_id"
MODULE_ID = "module_id"
_ENV_T, _RETURN = "env_t", "episode_return"
# Columns of an agent in addition to the leaves of its layout.
_OF_AGENT = (*KEYS, MODULE_ID, _RETURN, INFOS, _ENV_T)

Layouts = Mapping[str, Layout]


@dataclass(frozen=True)
class EnvEpisodes:
    """E complete env episodes.

    Attributes:
        ids: E ids.
        lengths: (E,) env steps.
        is_terminated, is_truncated: (E,) bool flags of the env episodes.
        blocks: episodes of the agents, one block per acting module and one chunk per agent's episode.
        tasks: E task names, each None if it is unknown; or None without tasks.
    """

    ids: Sequence[str]
    lengths: npt.NDArray[np.int64]
    is_terminated: npt.NDArray[np.bool_]
    is_truncated: npt.NDArray[np.bool_]
    blocks: Sequence[ColumnBlock]
    tasks: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def agent_prefix(agent: str) -> str:
    """Return the prefix of an agent's columns."""
    return f"{AGENTS}/{escaped(agent)}/"


# --- writing --------------------------------------------------------------------------------------


def agent_layouts(episodes: EnvEpisodes, spaces: Mapping[str, Spaces], env_name: str | None) -> dict[str, Layout]:
    """Return agent -> layout of its columns. Raises `ValueError` if an agent's modules have different columns."""
    layouts: dict[str, Layout] = {}
    for block in episodes.blocks:
        assert block.agents is not None
        for agent in dict.fromkeys(block.agents.agent_ids):
            layout = replace(layout_of(block, spaces.get(agent), env_name), module_id=None)
            layouts = merged_layouts(layouts, {agent: layout})
    return layouts


def merged_layouts(layouts: Layouts, others: Layouts) -> dict[str, Layout]:
    """Merge the layouts of each agent. Raises `ValueError` if an agent's columns differ."""
    merged = dict(layouts)
    for agent, layout in others.items():
        try:
            merged[agent] = merged[agent].merged_with(layout) if agent in merged else layout
        except ValueError as error:
            raise ValueError(f"agent {agent}: {error}") from None
    return merged


def env_episodes_to_table(episodes: EnvEpisodes, layouts: Layouts) -> pa.Table:
    """Return the env episodes as a table, one row each.

    Args:
        episodes: E env episodes.
        layouts: agent -> layout that its columns fit, for all agents in the episodes.

    Raises:
        TypeError: a column cannot be recorded (arrays of objects).
        ValueError: a block does not fit its layout.
    """
    row_of = {id_: row for row, id_ in enumerate(episodes.ids)}
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    returns = np.zeros(len(episodes))
    for agent, parts in _parts_by_agent(episodes.blocks).items():
        tables = [episodes_to_table(replace(part, tasks=None), layout=layouts[agent]) for part in parts]
        names = dict.fromkeys(name for table in tables for name in table.column_names)
        table = pa.concat_tables([_plain(table) for table in tables], promote_options="default").select(list(names))
        rows = np.array([row_of[id_] for id_ in table[_ENV_EPISODE].to_pylist()])
        returns[rows] += table[_RETURN].to_numpy()
        table = _spread(table.drop_columns([_AGENT_ID, _ENV_EPISODE]), rows, len(episodes))
        columns |= {f"{agent_prefix(agent)}{name}": table[name] for name in table.column_names}
    of_env = {
        EPS_ID: pa.array(list(episodes.ids), pa.string()),
        LENGTH: pa.array(episodes.lengths, pa.int64()),
        "terminated": pa.array(episodes.is_terminated, pa.bool_()),
        "truncated": pa.array(episodes.is_truncated, pa.bool_()),
        _RETURN: pa.array(returns),
    }
    tasks = tasks_to_arrow(episodes.tasks)
    if tasks is not None:
        of_env[TASK] = tasks
    return pa.table({**of_env, **columns}).replace_schema_metadata({METADATA_KEY: _to_json(layouts)})


def _parts_by_agent(blocks: Sequence[ColumnBlock]) -> dict[str, list[ColumnBlock]]:
    parts: dict[str, list[ColumnBlock]] = {}
    for block in blocks:
        assert block.agents is not None
        chunks: dict[str, list[int]] = {}
        for chunk, agent in enumerate(block.agents.agent_ids):
            chunks.setdefault(agent, []).append(chunk)
        for agent, numbers in chunks.items():
            parts.setdefault(agent, []).append(take_chunks(block, numbers))
    return parts


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with all columns nullable."""
    fields = [pa.field(field.name, field.type) for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def _spread(table: pa.Table, rows: npt.NDArray[np.int64], num_rows: int) -> pa.Table:
    """Return a table of `num_rows` rows with the given rows at the positions `rows` and nulls elsewhere."""
    if np.array_equal(rows, np.arange(num_rows)):
        return table
    places = np.full(num_rows, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return table.take(pa.array(places, mask=places < 0))


def _to_json(layouts: Layouts) -> bytes:
    agents = {agent: json.loads(layout.to_json()) for agent, layout in layouts.items()}
    return json.dumps({"version": VERSION, "agents": agents}, separators=(",", ":")).encode()


# --- reading --------------------------------------------------------------------------------------


def is_env_episodes(schema: pa.Schema) -> bool:
    """Return whether a file with this schema holds env episodes in the native format."""
    return METADATA_KEY in (schema.metadata or {})


def read_layouts(schema: pa.Schema) -> dict[str, Layout]:
    """Return agent -> layout from the metadata of a schema. Raises `StateError` if it cannot be read."""
    content = (schema.metadata or {}).get(METADATA_KEY)
    if content is None:
        raise StateError(f"the schema does not have the metadata {METADATA_KEY.decode()}")
    agents = read_key(load_metadata(content), "agents", (dict,), "layouts")
    return {agent: Layout.from_json(json.dumps(one).encode()) for agent, one in agents.items()}


def agent_columns(agent: str, layout: Layout, schema: pa.Schema, with_infos: bool = True) -> list[str]:
    """Return the file columns that a reader of an agent's layout needs, in addition to `eps_id`."""
    names = [name for name in _OF_AGENT if name not in (_RETURN, *(() if with_infos else (INFOS,)))]
    needed = {f"{agent_prefix(agent)}{name}" for name in (*names, *layout.file_columns())}
    return [name for name in schema.names if name in needed]


def missing_columns(agent: str, layout: Layout, schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """Return the file columns that are missing for the agent's columns `names` and its keys."""
    needed = [*KEYS, *layout.selected(set(names)).file_columns()]
    return [column for name in needed if (column := f"{agent_prefix(agent)}{name}") not in schema.names]


def agent_rows(table: pa.Table, agent: str) -> pa.Table:
    """Return an agent's episodes as rows of `episode_format`, without metadata, with the env episodes' tasks."""
    prefix = agent_prefix(agent)
    names = [name for name in table.column_names if name.startswith(prefix)]
    length = f"{prefix}{LENGTH}"
    if length not in names:
        return pa.table({})
    of_env = {EPS_ID: _ENV_EPISODE} | ({TASK: TASK} if TASK in table.column_names else {})
    part = table.select([*of_env, *names]).replace_schema_metadata(None)
    if part[length].null_count:
        part = part.filter(pc.is_valid(part[length]))
    part = part.rename_columns([*of_env.values(), *(name.removeprefix(prefix) for name in names)])
    return part.append_column(_AGENT_ID, pa.array([agent] * part.num_rows, pa.string()))


def common_columns(layouts: Sequence[Layout]) -> Layout:
    """Return the layout of the columns that all layouts have, with text as wide as the widest.

    Raises:
        ValueError: a column differs; the message names it.
    """
    names = set.intersection(*(set(layout.columns) for layout in layouts))
    common, *others = (layout.selected(names) for layout in layouts)
    for layout in others:
        common = common.merged_with(layout)
    return common
