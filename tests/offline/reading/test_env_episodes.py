"""Files of env episodes of several agents: inspected, converted, filtered, read for a module; and damaged ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.config.offline import OfflineConfig
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.offline.files.data_error import DataError, DataLocation
from runner.offline.formats.selection import ModuleAgents
from runner.offline.reading.inspection import AgentsInspection, inspect_data
from runner.offline.reading.inspection_report import plain_report
from runner.offline.reading.source import open_source
from runner.offline.writing.conversion import convert
from runner.offline.writing.writer import EpisodeWriter
from tests.conftest import ROOT, Run

RECORDED = ROOT / "tests" / "data" / "env_episodes"
TABLE = pq.read_table(RECORDED)
AGENTS = ("agent_0", "agent_1")
CONVERTED: list[dict[str, Any]] = [{"output_write_episodes": False}, {"output_episode_format": "rllib"}]


def rows_of(path: Path | str, agent: str, **options: Any) -> ColumnBlock:
    others = tuple(other for other in AGENTS if other != agent)
    module = ModuleAgents(f"p{agent[-1]}", (agent,), others)
    return concat_blocks(list(open_source(OfflineConfig(input_=str(path), **options), of_module=module).blocks()))


def assert_same_rows(got: ColumnBlock, expected: ColumnBlock) -> None:
    """The same episodes, in any order."""
    assert got.agents is not None
    assert expected.agents is not None
    theirs = {episode.id_: episode for episode in expected}
    assert sorted(got.episode_ids) == sorted(theirs)
    for episode in got:
        own = theirs[episode.id_]
        assert (episode.is_terminated, episode.is_truncated) == (own.is_terminated, own.is_truncated)
        assert (episode.agent_id, episode.multi_agent_episode_id) == (own.agent_id, own.multi_agent_episode_id)
        assert nested.equal(episode.get_observations(), own.get_observations())
        assert nested.equal(episode.get_actions(), own.get_actions())
        assert nested.equal(episode.get_rewards(), own.get_rewards())
        for name in own.extra_model_outputs:
            assert nested.equal(episode.get_extra_model_outputs(name), own.get_extra_model_outputs(name))


def test_an_inspection_tells_of_env_episodes_and_of_each_agent() -> None:
    found = inspect_data(OfflineConfig(input_=str(RECORDED)))
    assert isinstance(found, AgentsInspection)
    lengths, returns = TABLE["length"].to_numpy(), TABLE["episode_return"].to_numpy()
    assert (found.episodes, found.steps) == (len(lengths), int(lengths.sum()))
    assert found.terminated + found.truncated == found.episodes
    assert found.terminated == sum(TABLE["terminated"].to_pylist())
    assert (found.returns.mean, found.lengths.maximum) == (returns.mean(), lengths.max())
    assert found.modules == {"agent_0": ["p0"], "agent_1": ["p1"]}
    for agent, of_agent in found.agents.items():
        rewards = TABLE[f"agents/{agent}/rewards"].to_pylist()
        assert (of_agent.episodes, of_agent.steps) == (len(rewards), sum(map(len, rewards)))
        assert of_agent.returns.mean == np.mean([sum(own) for own in rewards])
        assert of_agent.has_action_logp
    report = plain_report(found, 80)
    name = "runner.environments.MultiAgentCartPole"
    for line in ("agents       agent_0, agent_1", "agent_1, module p1", f"environment  {name}"):
        assert line in report
    assert json.loads(json.dumps(asdict(found), default=str))["agents"]["agent_0"]["episodes"] == found.episodes


def test_env_episodes_are_converted_to_env_episodes(run_main: Run, tmp_path: Path) -> None:
    given = [str(RECORDED), "out", "offline.output_max_rows_per_file=20"]
    outcome = run_main("convert", *given)
    assert outcome.code == 0, outcome.err
    assert "(env_episodes, 1 file, 68 rows)" in outcome.out
    files = sorted((tmp_path / "out").iterdir())
    assert [pq.read_metadata(path).num_rows for path in files] == [20, 20, 20, 8]
    assert pa.concat_tables([pq.read_table(path) for path in files]).equals(TABLE)
    for agent in AGENTS:
        assert_same_rows(rows_of(tmp_path / "out", agent), rows_of(RECORDED, agent))


@pytest.mark.parametrize("options", CONVERTED)
def test_agents_are_converted_to_rows_of_their_own(tmp_path: Path, options: dict[str, Any]) -> None:
    report = convert(OfflineConfig(input_=str(RECORDED), output=str(tmp_path), **options))
    assert (report.num_rows, report.written.episodes) == (68, 136)
    assert report.written.steps == sum(rows_of(RECORDED, agent).num_rows for agent in AGENTS)
    for agent, path in zip(AGENTS, sorted(tmp_path.iterdir()), strict=True):
        assert f"-p{agent[-1]}-" in path.name
        assert_same_rows(rows_of(path, agent), rows_of(RECORDED, agent))


@pytest.mark.parametrize("options", CONVERTED)
def test_what_several_modules_are_converted_to_is_read_for_each_of_them(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of env episodes, and of rows that are converted once more."""
    convert(OfflineConfig(input_=str(RECORDED), output=str(tmp_path / "once"), **options))
    convert(OfflineConfig(input_=str(tmp_path / "once"), output=str(tmp_path / "twice")))
    for folder in ("once", "twice"):
        found = inspect_data(OfflineConfig(input_=str(tmp_path / folder)))
        assert (found.episodes, found.steps) == (136, 2543)
        blocks = open_source(OfflineConfig(input_=str(tmp_path / folder))).blocks()
        assert [block.module_id for block in blocks] == ["p0", "p1"]
        for agent in AGENTS:
            assert_same_rows(rows_of(tmp_path / folder, agent), rows_of(RECORDED, agent))
        source = open_source(OfflineConfig(input_=str(tmp_path / folder)), of_module=ModuleAgents("both", AGENTS))
        assert sum(block.num_rows for block in source.blocks()) == 2543
        assert {block.module_id for block in source.blocks()} == {"both"}


@pytest.mark.parametrize("options", CONVERTED)
def test_rows_of_several_agents_are_refused_for_a_single_one(
    run_main: Run, tmp_path: Path, options: dict[str, Any]
) -> None:
    convert(OfflineConfig(input_=str(RECORDED), output=str(tmp_path / "data"), **options))
    outcome = run_main("+experiment=bc_cartpole", "tracking=none", "hydra.run.dir=run", "offline.input_=data")
    assert outcome.code == 2
    assert "these data come from several agents, but the experiment has one" in outcome.err


@pytest.mark.parametrize("options", [*CONVERTED, {}])
def test_modules_may_have_other_observations(tmp_path: Path, options: dict[str, Any]) -> None:
    """Files of other modules are not read for a module."""
    blocks = {agent: rows_of(RECORDED, agent) for agent in AGENTS}
    narrow = blocks["agent_1"]
    blocks["agent_1"] = narrow.with_columns({"obs": {"x": narrow.columns["obs"][:, :3]}})
    with EpisodeWriter(OfflineConfig(output=str(tmp_path), **options)) as writer:
        for block in blocks.values():
            writer.add(block)
    for agent in AGENTS:
        assert_same_rows(rows_of(tmp_path, agent), blocks[agent])
    with pytest.raises(DataError, match="agent agent_1 of the data does not exist in the experiment"):
        list(open_source(OfflineConfig(input_=str(tmp_path)), of_module=ModuleAgents("m", ("agent_0",))).blocks())
    with pytest.raises(DataError, match="no rows for module m: the data do not contain steps of agent_2"):
        open_source(OfflineConfig(input_=str(tmp_path)), of_module=ModuleAgents("m", ("agent_2",), AGENTS))


def test_rows_of_several_modules_in_one_table_are_read_for_each_of_them(tmp_path: Path) -> None:
    """As Ray Data puts the rows of small files together."""
    convert(OfflineConfig(input_=str(RECORDED), output=str(tmp_path), output_episode_format="rllib"))
    rows = pq.read_table(tmp_path)
    for agent, other in (AGENTS, AGENTS[::-1]):
        module = ModuleAgents("m", (agent,), (other,))
        source = open_source(OfflineConfig(input_=str(tmp_path)), of_module=module)
        assert_same_rows(source.decode(rows), rows_of(RECORDED, agent))
    with pytest.raises(DataError, match="expected the rows of one module, got rows of 2"):
        open_source(OfflineConfig(input_=str(tmp_path))).decode(rows)
    blocks = {agent: rows_of(RECORDED, agent) for agent in AGENTS}
    narrow = blocks["agent_1"].with_columns({"obs": blocks["agent_1"].columns["obs"][:, :3]})
    both = ModuleAgents("both", AGENTS)
    assert len(both.joined(list(blocks.values()), DataLocation())) == 136
    for odd in (narrow, blocks["agent_1"].with_columns({"value": np.zeros(narrow.num_rows)})):
        with pytest.raises(DataError, match="the agents agent_0, agent_1 share a module but their columns differ"):
            both.joined([blocks["agent_0"], odd], DataLocation())


def test_a_table_of_several_agents_is_read_for_one_of_them(tmp_path: Path) -> None:
    both = open_source(OfflineConfig(input_=str(RECORDED)), of_module=ModuleAgents("both", AGENTS))
    with EpisodeWriter(OfflineConfig(output=str(tmp_path), output_write_episodes=False)) as writer:
        for block in both.blocks():
            writer.add(block)
    for agent in AGENTS:
        found = rows_of(tmp_path, agent)
        assert found.module_id == f"p{agent[-1]}"
        assert_same_rows(found, rows_of(RECORDED, agent))


@pytest.mark.parametrize("options", [{}, {"output_write_episodes": False}], ids=["env_episodes", "steps"])
def test_tasks_are_written_again(tmp_path: Path, options: dict[str, Any]) -> None:
    """In a folder that has files without tasks, too."""
    tasks = [("near", "far", None)[row % 3] for row in range(len(TABLE))]
    (tmp_path / "data").mkdir()
    pq.write_table(TABLE, tmp_path / "data" / "a.parquet")
    pq.write_table(TABLE.append_column("task", pa.array(tasks)), tmp_path / "data" / "b.parquet")
    config = OfflineConfig(input_=str(tmp_path / "data"), output=str(tmp_path / "out"), **options)
    assert inspect_data(config).tasks == {"far": 23, "near": 23}
    convert(config)
    if options:
        steps = pq.read_table(sorted((tmp_path / "out").iterdir())[-1])
        by_episode = dict(zip(*(steps[name].to_pylist() for name in ("multi_agent_episode_id", "task")), strict=True))
        assert by_episode == dict(zip(TABLE["eps_id"].to_pylist(), tasks, strict=True))
    else:
        _, with_tasks = sorted((tmp_path / "out").iterdir())
        near = OfflineConfig(input_=str(with_tasks), input_read_method_kwargs={"filter": "task == 'near'"})
        assert (inspect_data(near).episodes, inspect_data(near).tasks) == (23, {"near": 23})


def test_a_filter_that_keeps_nothing_is_named(tmp_path: Path) -> None:
    config = OfflineConfig(
        input_=str(RECORDED), output=str(tmp_path / "out"), input_read_method_kwargs={"filter": "length > 99999"}
    )
    with pytest.raises(DataError, match="no complete step passes the filter"):
        convert(config)


def test_rows_are_filtered_by_the_return_of_all_agents() -> None:
    kept = rows_of(RECORDED, "agent_0", input_read_method_kwargs={"filter": "episode_return >= 60"})
    assert kept.agents is not None
    totals = zip(*(TABLE[name].to_pylist() for name in ("eps_id", "episode_return")), strict=True)
    good = [id_ for id_, total in totals if total >= 60]
    assert 0 < len(good) < 68
    assert list(kept.agents.multi_agent_episode_ids) == good


def test_only_the_columns_of_a_modules_agents_are_read(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    pq.write_table(TABLE.drop_columns([n for n in TABLE.column_names if n.startswith("agents/agent_1/")]), path)
    assert_same_rows(rows_of(path, "agent_0"), rows_of(RECORDED, "agent_0"))
    with pytest.raises(DataError, match=r"there is no column agents/agent_1/eps_id, [\s\S]*agents/agent_1/obs"):
        rows_of(path, "agent_1")
    columns = {"columns": ["action_logp"]}
    assert set(rows_of(RECORDED, "agent_0", input_read_method_kwargs=columns).columns) == {
        *("obs", "actions", "rewards", "action_logp"),
    }
    with pytest.raises(DataError, match=r"there is no column action_logb[\s\S]*did you mean  action_logp"):
        rows_of(RECORDED, "agent_0", input_read_method_kwargs={"columns": ["action_logb"]})


def test_files_of_which_some_lack_an_agent_are_read_by_us(tmp_path: Path) -> None:
    """Of such files Ray would take the columns of the first one."""
    metadata = dict(TABLE.schema.metadata)
    layouts = json.loads(metadata[b"runner.env_episodes"])
    del layouts["agents"]["agent_1"]
    alone = TABLE.drop_columns([name for name in TABLE.column_names if name.startswith("agents/agent_1/")])
    alone = alone.replace_schema_metadata({b"runner.env_episodes": json.dumps(layouts)})
    pq.write_table(alone.slice(0, 30), tmp_path / "a.parquet")
    pq.write_table(TABLE.slice(30), tmp_path / "b.parquet")
    assert len(rows_of(tmp_path, "agent_0")) == 68
    assert len(rows_of(tmp_path, "agent_1")) == 38
    config = OfflineConfig(input_=str(tmp_path))
    kinds = {
        agent: open_source(config, of_module=ModuleAgents("m", (agent,), AGENTS)).format.has_complete_rows
        for agent in AGENTS
    }
    assert kinds == {"agent_0": True, "agent_1": False}


def test_damaged_rewards_are_told_with_agent_and_episode(tmp_path: Path) -> None:
    rewards = TABLE["agents/agent_1/rewards"].to_pylist()
    rewards[3][2] = float("nan")
    place = TABLE.column_names.index("agents/agent_1/rewards")
    type_ = TABLE.schema.field(place).type
    broken = TABLE.set_column(place, "agents/agent_1/rewards", pa.array(rewards, type_))
    pq.write_table(broken, tmp_path / "broken.parquet")
    rows_of(tmp_path / "broken.parquet", "agent_0")
    with pytest.raises(DataError, match=r"a reward is not finite in episode 0-env_runner-0-0-3-agent_1, step 2"):
        rows_of(tmp_path / "broken.parquet", "agent_1")
