"""Conversion: exact there and back, counts that agree, whatever the cuts; and the verb."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.config.errors import RunFailure
from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.offline.codecs.table_format import block_to_steps
from runner.offline.writing.conversion import ConversionReport, convert
from runner.offline.writing.writer import EpisodeWriter
from tests.conftest import Run
from tests.offline.blocks import assert_same, blocks, flat_block, part_of
from tests.offline.problems import config_error, data_error, does_not_fit, has_data
from tests.offline.recorded import read, source_of
from tests.support.problems import assert_error

DATA = Path(__file__).parents[2] / "data"


def sorted_by_id(block: ColumnBlock) -> ColumnBlock:
    ids = list(block.episode_ids)
    return concat_blocks([part_of(block, i, i + 1) for i in sorted(range(len(block)), key=ids.__getitem__)])


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_there_and_back_is_exact(tmp_path: Path, data: st.DataObject) -> None:
    """Episodes -> table -> episodes -> table, with files cut anywhere."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    block = data.draw(blocks(simple=True))
    limits = st.none() | st.integers(1, 9)
    first = OfflineConfig(output=str(folder / "0"), output_max_rows_per_file=data.draw(limits))
    with EpisodeWriter(first) as writer:
        writer.add(block)
    reports: list[ConversionReport] = []
    for number, to_episodes in enumerate((False, True, False)):
        config = OfflineConfig(
            input_=str(folder / str(number)),
            output=str(folder / str(number + 1)),
            output_write_episodes=to_episodes,
            output_max_rows_per_file=data.draw(limits),
        )
        reports.append(convert(config))
    for report in reports:
        assert (report.written.episodes, report.written.steps) == (len(block), block.num_rows)
    for number in range(4):
        assert_same(sorted_by_id(read(folder / str(number))), sorted_by_id(block))
    tables = [_table_in(folder / n) for n in ("1", "3")]
    order = [("eps_id", "ascending"), ("t", "ascending")]
    assert _rows(tables[0].sort_by(order)) == _rows(tables[1].sort_by(order))


def _table_in(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())], promote_options="default")


def _rows(table: pa.Table) -> list[str]:
    return [repr(sorted(row.items())) for row in table.to_pylist()]  # repr: NaN is NaN


@pytest.mark.parametrize(
    ("name", "least_steps"),
    [
        ("rllib_cartpole_episodes", 1000),
        ("rllib_cartpole_table", 3500),
        ("rllib_sample_batches/cartpole_lz4.json", 1400),
        ("sample_batches/plain.json", 90),
    ],
)
def test_from_rllib(tmp_path: Path, name: str, least_steps: int) -> None:
    report = convert(OfflineConfig(input_=str(DATA / name), output=str(tmp_path / "episodes")))
    assert report.written.steps > least_steps
    source = read(DATA / name)
    found = read(tmp_path / "episodes")
    assert list(found.episode_ids) == list(source.episode_ids)
    for column, values in source.columns.items():
        np.testing.assert_array_equal(found.columns[column], values)


def test_rows_that_vanish_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EpisodeWriter(OfflineConfig(output=str(tmp_path / "a"))) as writer:
        writer.add(flat_block([3, 2]))
    counted = EpisodeWriter._count
    monkeypatch.setattr(EpisodeWriter, "_count", lambda self, episodes, steps: counted(self, episodes - 1, steps))
    with pytest.raises(RunFailure, match="2 rows are on disk, but 1 were recorded"):
        convert(OfflineConfig(input_=str(tmp_path / "a"), output=str(tmp_path / "b")))


# --- the verb -------------------------------------------------------------------------------------


def test_convert_on_the_command_line(run_main: Run, tmp_path: Path) -> None:
    block = flat_block([5, 3, 8, 2])
    table = block_to_steps(block).replace_schema_metadata(None).drop_columns(["new_obs", "action_logp"])
    names = {"obs": "o_t", "actions": "a_t", "rewards": "r_t", "terminateds": "d_t"}
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    (tmp_path / "table").mkdir()
    pq.write_table(table, tmp_path / "table" / "rows.parquet")
    schema = [f"offline.input_read_schema.{name}={column}" for name, column in names.items()]
    outcome = run_main("convert", "table/", "episodes/", *schema, "env=cartpole")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "read   4 episodes, 16 steps (table, 1 file, 18 rows)"
    assert lines[1].startswith("wrote  4 episodes, 16 steps (episodes, 1 file, ")
    assert lines[-2:] == [
        "  2 trajectories terminated without a final observation; the previous one is repeated",
        "  2 trajectories ended without a final observation; truncated one step earlier",
    ]
    found = read(tmp_path / "episodes")
    assert found.lengths.tolist() == [5, 2, 8, 1]
    assert source_of(tmp_path / "episodes").env_name == "CartPole-v1"
    again = run_main("convert", "table/", "episodes/", *schema)
    assert again.code == 2
    assert_error(again.err, config_error(has_data("episodes-0-000000.parquet", "TMP/episodes")), tmp_path)
    for words, missing in (([], "IN"), (["table/"], "OUT")):
        outcome = run_main("convert", *words)
        assert outcome.code == 2
        assert outcome.err.splitlines()[0] == f"{missing} is missing"
        assert "fix           runner convert [IN] [OUT]" in outcome.err
    twice = run_main("convert", "table/", "x", "offline.input_=table/")
    assert twice.code == 2
    assert twice.err.startswith("IN and OUT are arguments of convert, so offline.input_ must not be set\n")
    assert not (tmp_path / "x").exists()
    unknown = run_main("convert", "table/", "x", "offline.inputs=table/")
    assert unknown.code == 2
    assert "did you mean  input_" in unknown.err
    wrong = run_main("convert", "episodes/", "y", "env=pendulum")
    assert wrong.code == 2
    file = "TMP/episodes/episodes-0-000000.parquet"
    problems = [
        does_not_fit("obs", file, "float32[4]", "Box([3], float32)"),
        does_not_fit("actions", file, "int64", "Box(-2, 2, [1], float32)"),
    ]
    assert_error(wrong.err, data_error(*problems), tmp_path)
    assert not (tmp_path / "y").exists()


def test_convert_with_keys_instead_of_arguments(run_main: Run, tmp_path: Path) -> None:
    """This spelling still works, and prints the new one."""
    (tmp_path / "table").mkdir()
    pq.write_table(block_to_steps(flat_block([5, 3])), tmp_path / "table" / "rows.parquet")
    outcome = run_main("convert", "offline.input_=table/", "offline.output=episodes/")
    assert outcome.code == 0, outcome.err
    assert outcome.err == "note: offline.input_=IN offline.output=OUT is now `runner convert IN OUT`\n"
    assert read(tmp_path / "episodes").lengths.tolist() == [5, 3]
