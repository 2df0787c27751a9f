"""Reading: formats told apart, streams that agree with what was recorded, pruning and filters, and every mistake."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
import pytest

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock, ListedInfos, concat_blocks
from runner.offline.codecs.episode_format import episodes_to_table
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.table_format import block_to_steps
from runner.offline.files.data_error import DataError
from runner.offline.reading.source import open_source
from tests.offline.blocks import assert_same, flat_block
from tests.offline.problems import (
    config_error,
    data_error,
    does_not_fit,
    episode_columns,
    mixed_columns,
    mixed_episodes,
    no_column,
    not_finite,
    unknown_filesystem,
)
from tests.offline.recorded import CARTPOLE, read, record, source_of, through_ray
from tests.support.problems import assert_error

DATA = Path(__file__).parents[2] / "data"
PARTS = [flat_block([5, 3, 8], prefix="a"), flat_block([1, 7], prefix="b", seed=1)]
WHOLE = concat_blocks(PARTS)


@pytest.mark.parametrize("rows_per_file", [None, 2])
def test_episodes(tmp_path: Path, rows_per_file: int | None) -> None:
    record(tmp_path, *PARTS, output_max_rows_per_file=rows_per_file)
    source = source_of(tmp_path)
    assert source.format.name == "episodes"
    assert source.format.has_trajectories
    assert source.env_name == "CartPole-v1"
    assert source.spaces == CARTPOLE
    assert_same(concat_blocks(list(source.blocks())), WHOLE)
    assert_same(concat_blocks([source.decode(table) for table in source.tables()]), WHOLE)
    copy = pickle.loads(pickle.dumps(source))
    assert_same(concat_blocks(list(copy.blocks())), WHOLE)


@pytest.mark.parametrize(
    ("method", "kwargs"),
    [("write_parquet", {}), ("write_json", {}), ("write_json", {"compression": "gzip"}), ("write_csv", {})],
)
def test_tables_straddle_files(tmp_path: Path, method: str, kwargs: dict[str, str]) -> None:
    record(
        tmp_path,
        *PARTS,
        output_write_episodes=False,
        output_max_rows_per_file=4,
        output_write_method=method,
        output_write_method_kwargs=kwargs,
    )
    assert len(list(tmp_path.iterdir())) == 6
    source = open_source(OfflineConfig(input_=str(tmp_path)), CARTPOLE)
    assert (source.format.name, source.format.has_trajectories) == ("table", True)
    found = concat_blocks(list(source.blocks()))
    if method == "write_parquet":
        assert_same(found, WHOLE)
        return
    assert list(found.episode_ids) == WHOLE.episode_ids
    np.testing.assert_array_equal(found.lengths, WHOLE.lengths)
    np.testing.assert_array_equal(found.is_terminated, WHOLE.is_terminated)
    for name in ("obs", "actions", "rewards", "action_logp"):
        np.testing.assert_array_equal(found.columns[name].astype(np.float32), WHOLE.columns[name].astype(np.float32))
    assert found.columns["obs"].dtype == np.float32
    assert found.columns["actions"].dtype == np.int64


def test_nested_columns_through_text(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    obs = {"position": rng.normal(size=(7, 2)), "pair": (rng.normal(size=7), rng.integers(0, 9, (7, 2, 2)))}
    block = replace(flat_block([3, 2]), columns={**flat_block([3, 2]).columns, "obs": obs})
    for method in ("write_json", "write_csv", "write_parquet"):
        record(tmp_path / method, block, output_write_episodes=False, output_write_method=method)
        found = read(tmp_path / method).columns["obs"]
        np.testing.assert_array_equal(found["position"], obs["position"])
        assert isinstance(found["pair"], tuple)
        np.testing.assert_array_equal(found["pair"][1], obs["pair"][1])


def test_patterns_lists_and_order(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        table = episodes_to_table(flat_block([number], prefix=f"file{number}-"))
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    (tmp_path / "_metadata").write_text("not data")
    (tmp_path / ".hidden.parquet").write_text("not data")
    (tmp_path / "notes.txt").write_text("not data")
    assert read(tmp_path).lengths.tolist() == [1, 2, 10]
    assert read(f"{tmp_path}/part-*.parquet").lengths.tolist() == [1, 2, 10]
    assert read(f"{tmp_path}/part-1*.parquet").lengths.tolist() == [1, 10]
    names = [str(tmp_path / f"part-{number}.parquet") for number in (10, 1)]
    assert concat_blocks(list(source_of(names).blocks())).lengths.tolist() == [10, 1]
    assert read(f"file://{tmp_path}").lengths.tolist() == [1, 2, 10]


def test_paths_of_several_file_systems(tmp_path: Path) -> None:
    record(tmp_path, *PARTS)
    with pytest.raises(DataError, match="paths of several file systems are mixed") as caught:
        source_of([str(tmp_path), "memory://bucket/data"])
    (problem,) = caught.value.problems
    assert problem.got == f"{tmp_path}, memory://bucket/data"


def test_patterns_in_other_file_systems() -> None:
    import fsspec

    record("memory://bucket/source", *PARTS, output_max_rows_per_file=1)
    assert read("memory://bucket/*/episodes-0-00000[01].parquet").lengths.tolist() == [5, 3]
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_columns_are_pruned_and_rows_filtered(tmp_path: Path) -> None:
    record(tmp_path, *PARTS)
    returns = [float(episode.get_return()) for episode in WHOLE]
    limit = float(np.median(returns))
    options = {"filter": [["episode_return", ">=", limit]], "columns": ["obs", "actions", "rewards"]}
    source = source_of(tmp_path, input_read_method_kwargs=options)
    table = next(source.tables())
    assert "action_logp" not in table.column_names
    found = concat_blocks(list(source.blocks()))
    assert set(found.columns) == {"obs", "actions", "rewards"}
    assert len(found) == 3
    assert sorted(float(e.get_return()) for e in found) == pytest.approx(sorted(r for r in returns if r >= limit))


def test_demonstrations_without_rewards(tmp_path: Path) -> None:
    table = block_to_steps(flat_block([3])).replace_schema_metadata(None)
    pq.write_table(table.select(["obs", "actions", "terminateds"]), tmp_path / "demo.parquet")
    source = open_source(OfflineConfig(input_=str(tmp_path)), columns=[])
    assert next(source.blocks()).columns["rewards"].tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="there is no column rewards"):
        source_of(tmp_path)


def test_ungrouped_tables(tmp_path: Path) -> None:
    table = block_to_steps(flat_block([3])).replace_schema_metadata(None)
    pq.write_table(table.select(["obs", "actions", "rewards"]), tmp_path / "rows.parquet")
    source = source_of(tmp_path)
    assert not source.format.has_trajectories
    assert not source.format.has_final_obs
    assert next(source.blocks()).lengths.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("rllib_cartpole_episodes", "rllib_episodes"),
        ("rllib_cartpole_table", "table"),
        ("sample_batches/plain.json", "sample_batches"),
        ("rllib_sample_batches/cartpole_lz4.json", "sample_batches"),
    ],
)
def test_recordings_of_rllib(name: str, format_: str) -> None:
    source = open_source(OfflineConfig(input_=str(DATA / name)), CARTPOLE)
    assert source.format.name == format_
    blocks = list(source.blocks())
    assert all(block.columns["obs"].shape[1:] == (4,) for block in blocks)
    if format_ == "table":
        rows = sum(pq.read_metadata(path).num_rows for path in (DATA / name).iterdir())
        dropped = source.counts.final_steps_dropped
        assert sum(block.num_rows for block in blocks) + dropped == rows
        assert max(int(block.lengths.max()) for block in blocks) > 20


def test_what_a_run_records_about_its_data(tmp_path: Path) -> None:
    record(tmp_path / "expert", *PARTS)
    one = source_of(tmp_path / "expert").description()
    assert (one.name, one.format, len(one.files)) == ("expert", "episodes", 1)
    assert one.num_bytes == Path(one.files[0]).stat().st_size
    assert one.schema["length"] == "int64"
    assert source_of(tmp_path / "expert").description() == one
    record(tmp_path / "other", PARTS[0])
    assert source_of(tmp_path / "other").description().digest != one.digest


# --- mistakes -------------------------------------------------------------------------------------


def damage_rewards(block: ColumnBlock) -> ColumnBlock:
    rewards = block.columns["rewards"].copy()
    rewards[6] = np.nan
    return replace(block, columns={**block.columns, "rewards": rewards})


def _nan_episodes(folder: Path) -> dict[str, object]:
    record(folder, PARTS[0], damage_rewards(PARTS[1]), output_max_rows_per_file=3)
    return {}


def _mixed_kinds(folder: Path) -> dict[str, object]:
    record(folder, *PARTS)
    (folder / "more.json").write_text("{}")
    return {}


def _mixed_formats(folder: Path) -> dict[str, object]:
    record(folder, *PARTS)
    record(folder, *PARTS, output_write_episodes=False)
    return {}


def _mixed_columns(folder: Path) -> dict[str, object]:
    record(folder, *PARTS)
    block = replace(PARTS[0], columns={k: PARTS[0].columns[k] for k in ("obs", "actions", "rewards")})
    record(folder, block)
    return {}


def _tables_differ(folder: Path) -> dict[str, object]:
    folder.mkdir()
    table = block_to_steps(PARTS[0]).replace_schema_metadata(None)
    pq.write_table(table, folder / "a.parquet")
    pq.write_table(table.rename_columns({"actions": "action"}), folder / "b.parquet")
    return {}


def _no_match(folder: Path) -> dict[str, object]:
    record(folder, *PARTS)
    return {"input_": f"{folder}/*.csv"}


def _flags(**options: object) -> Callable[[Path], dict[str, object]]:
    def make(folder: Path) -> dict[str, object]:
        record(folder, *PARTS)
        return options

    return make


def _no_episodes(folder: Path) -> dict[str, object]:
    record(folder, *PARTS, output_write_episodes=False)
    return {"input_read_episodes": True}


def _newer(folder: Path) -> dict[str, object]:
    folder.mkdir()
    table = episodes_to_table(PARTS[0])
    pq.write_table(table.replace_schema_metadata({b"runner.episodes": b'{"version": 9}'}), folder / "a.parquet")
    return {}


_FILE = "TMP/data/episodes-0-000000.parquet"


def other_rows(what: str, where: str, got: str, seen: str) -> Problem:
    return Problem(what, where, got, fix=f"remove this option: the format is detected from the files ({seen})")


MISTAKES: Mapping[str, tuple[Callable[[Path], dict[str, object]], ConfigError]] = {
    "input_mixed_kinds": (
        _mixed_kinds,
        data_error(
            Problem(
                "files of several kinds are mixed",
                "offline.input_",
                "json: TMP/data/more.json; parquet: TMP/data/episodes-0-000000.parquet",
                fix="name files of one kind, for example with a pattern",
            )
        ),
    ),
    "input_mixed_formats": (
        _mixed_formats,
        data_error(mixed_episodes("episodes", _FILE, "TMP/data/steps-0-000000.parquet")),
    ),
    "input_mixed_columns": (_mixed_columns, data_error(mixed_columns("only some have action_logp"))),
    "input_tables_differ": (
        _tables_differ,
        data_error(
            Problem(
                "the files do not have the same columns: action, actions",
                "TMP/data/b.parquet",
                expected=(
                    "as in TMP/data/a.parquet: action_logp, actions, agent_id, eps_id, module_id, "
                    "multi_agent_episode_id, new_obs, obs, rewards, t, terminateds, truncateds"
                ),
            )
        ),
    ),
    "input_no_match": (
        _no_match,
        data_error(Problem("no file matches this pattern", "offline.input_", "TMP/data/*.csv")),
    ),
    "input_not_episodes": (
        _no_episodes,
        data_error(
            other_rows(
                "the rows of these data are not episodes: TMP/data/steps-0-000000.parquet",
                "offline.input_read_episodes",
                "true",
                "table",
            )
        ),
    ),
    "input_not_steps": (
        _flags(input_read_episodes=False),
        data_error(
            other_rows(
                "the rows of these data are episodes: TMP/data/episodes-0-000000.parquet",
                "offline.input_read_episodes",
                "false",
                "episodes",
            )
        ),
    ),
    "input_not_batches": (
        _flags(input_read_sample_batches=True),
        data_error(
            other_rows(
                "these data are not SampleBatches: TMP/data/episodes-0-000000.parquet",
                "offline.input_read_sample_batches",
                "true",
                "episodes",
            )
        ),
    ),
    "input_both": (
        _flags(input_read_sample_batches=True, input_read_episodes=True),
        data_error(
            Problem(
                "rows are either episodes or SampleBatches, not both",
                "offline.input_read_sample_batches",
                "true",
                fix="set one of input_read_episodes and input_read_sample_batches to false",
            )
        ),
    ),
    "input_filter_column": (
        _flags(input_read_method_kwargs={"filter": [["episode_retrun", ">", 1]]}),
        data_error(
            no_column(
                "episode_retrun",
                "offline.input_read_method_kwargs.filter",
                episode_columns(),
                got="[['episode_retrun', '>', 1]]",
                nearest="episode_return",
            )
        ),
    ),
    "input_filter_form": (
        _flags(input_read_method_kwargs={"filter": "episode_return >"}),
        data_error(
            Problem(
                "the filter cannot be read: invalid syntax",
                "offline.input_read_method_kwargs.filter",
                "episode_return >",
                (
                    "'column >= value and ...'; or [[column, operator, value], ...] (all must hold); or a list of "
                    "such lists (at least one must hold)"
                ),
            )
        ),
    ),
    "input_filter_operator": (
        _flags(input_read_method_kwargs={"filter": [["episode_return", "=>", 1]]}),
        data_error(
            Problem(
                "unknown operator",
                "offline.input_read_method_kwargs.filter",
                "['episode_return', '=>', 1]",
                "=, ==, !=, <, >, <=, >=, in, not in",
            )
        ),
    ),
    "input_columns": (
        _flags(input_read_method_kwargs={"columns": ["obs", "action_lgp"]}),
        data_error(no_column("action_lgp", _FILE, "action_logp, actions, obs, rewards", nearest="action_logp")),
    ),
    "input_filesystem": (_flags(input_filesystem="s4"), config_error(unknown_filesystem("offline.input_filesystem"))),
    "input_none": (
        _flags(input_=None),
        config_error(
            Problem("no input data is specified", "offline.input_", "null", "a file, a folder, a pattern or a URI")
        ),
    ),
    "input_newer_version": (
        _newer,
        data_error(
            Problem(
                "the metadata of this file is damaged: written by a newer version of runner (format 9, this one "
                "reads 1)",
                "TMP/data/a.parquet",
            )
        ),
    ),
}


@pytest.mark.parametrize(("make", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_before_anything_is_trained(
    tmp_path: Path, make: Callable[[Path], dict[str, object]], expected: ConfigError
) -> None:
    folder = tmp_path / "data"
    options = make(folder)
    with pytest.raises(ConfigError) as error:
        source_of(**{"path": folder, **options})  # type: ignore[arg-type]
    assert_error(error.value, expected, tmp_path)


def test_a_reward_that_is_not_finite_in_a_later_file(tmp_path: Path) -> None:
    source = source_of(tmp_path / "data", **_nan_episodes(tmp_path / "data"))  # type: ignore[arg-type]
    with pytest.raises(DataError) as error:
        list(source.blocks())
    expected = data_error(not_finite("b1", 5, "TMP/data/episodes-0-000001.parquet, row 1, column rewards"))
    assert_error(error.value, expected, tmp_path)


WRONG_SPACES: Mapping[str, tuple[Spaces, ConfigError]] = {
    "spaces_shape": (
        Spaces(gym.spaces.Box(-1, 1, (3,)), CARTPOLE.action),
        data_error(does_not_fit("obs", _FILE, "float32[4]", "Box(-1, 1, [3], float32)")),
    ),
    "spaces_both": (
        Spaces(gym.spaces.Dict(x=CARTPOLE.observation), gym.spaces.Box(-1, 1, (2,))),
        data_error(
            does_not_fit("obs", _FILE, "float32[4]", "keys x"),
            does_not_fit("actions", _FILE, "int64", "Box(-1, 1, [2], float32)"),
        ),
    ),
    "spaces_too_few_actions": (
        Spaces(CARTPOLE.observation, gym.spaces.Discrete(1)),
        data_error(does_not_fit("actions", _FILE, "the value 1", "Discrete(1)")),
    ),
    "spaces_start": (
        Spaces(CARTPOLE.observation, gym.spaces.Discrete(2, start=1)),
        data_error(does_not_fit("actions", _FILE, "the value 0", "Discrete(2, start=1)")),
    ),
    "spaces_of_integers": (
        Spaces(gym.spaces.MultiDiscrete([3, 3, 3, 3]), CARTPOLE.action),
        data_error(does_not_fit("obs", _FILE, "float32[4]", "MultiDiscrete([3 3 3 3])")),
    ),
}


@pytest.mark.parametrize(("spaces", "expected"), WRONG_SPACES.values(), ids=WRONG_SPACES)
def test_spaces_that_do_not_fit(tmp_path: Path, spaces: Spaces, expected: ConfigError) -> None:
    record(tmp_path / "data", *PARTS)
    with pytest.raises(DataError) as error:
        open_source(OfflineConfig(input_=str(tmp_path / "data")), spaces)
    assert_error(error.value, expected, tmp_path)


# --- Ray Data -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_infos", [0, 1])
def test_ray_data_reads_infos_that_only_some_files_have(ray_cluster: None, tmp_path: Path, with_infos: int) -> None:
    parts = [flat_block([2], prefix="a"), flat_block([2], prefix="b")]
    parts[with_infos] = replace(parts[with_infos], infos=ListedInfos([[{}, {"x": 1}, {}]]))
    for part in parts:
        record(tmp_path, part)
    assert_same(through_ray(source_of(tmp_path)), concat_blocks(parts))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_ray_data_gives_whole_trajectories(ray_cluster: None, tmp_path: Path) -> None:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    record(tmp_path / "episodes", *PARTS, output_max_rows_per_file=2)
    record(tmp_path / "steps", *PARTS, output_write_episodes=False, output_max_rows_per_file=4)
    assert_same(through_ray(source_of(tmp_path / "steps")), WHOLE)
    options = {"filter": [["length", ">", 4]], "columns": ["obs", "actions", "rewards"]}
    found = through_ray(source_of(tmp_path / "episodes", input_read_method_kwargs=options))
    assert found.lengths.tolist() == [5, 8, 7]
    assert "action_logp" not in found.columns
