"""Recorded data that are no good, through the commands: one message, exit code 2, nothing trained, nothing written."""

from __future__ import annotations

import base64
import gzip
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import lz4.frame
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.config.errors import ConfigError, Problem
from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.episode_format import episodes_to_table
from tests.conftest import Outcome, Run, checkpoints_of
from tests.offline.blocks import flat_block
from tests.offline.problems import (
    OTHER_SHAPE,
    config_error,
    damaged_parquet,
    data_error,
    does_not_fit,
    episode_columns,
    has_data,
    mixed_columns,
    no_column,
    no_complete_step,
    no_data_files,
    no_json,
    no_path,
    no_trajectories,
    not_finite,
    not_writable,
    of_a_single_agent,
    other_shape,
    output_is_a_file,
    pickles_allowed,
    step_twice,
    unknown_option_of_parquet,
    unknown_write_method,
    unnamed_column,
    unreadable,
    value_missing,
)
from tests.offline.recorded import BLOCK, PLAIN, record
from tests.support.problems import assert_error


def changed(block: ColumnBlock, **columns: object) -> ColumnBlock:
    return replace(block, columns={**block.columns, **columns})


def with_column(name: str, values: object) -> pa.Table:
    return PLAIN.set_column(PLAIN.column_names.index(name), name, pa.array(values))


def as_text(folder: Path, kind: str) -> bytes:
    record(folder / "text", output_write_episodes=False, output_write_method=f"write_{kind}")
    (path,) = (folder / "text").iterdir()
    content = path.read_bytes()
    path.unlink()
    (folder / "text").rmdir()
    return content


def table(folder: Path, content: pa.Table, name: str = "a.parquet") -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(content, folder / name)


def file(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)


def json_with(line: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        lines = as_text(folder, "json").splitlines(keepends=True)
        file(folder, "a.json", b"".join([*lines[:4], line, *lines[4:]]))

    return make


def text_file(kind: str, name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        file(folder, name, change(as_text(folder, kind)))

    return make


def only(*names: str) -> Callable[[Path], None]:
    """A folder with files that hold nothing; empty without names."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for name in names:
            (folder / name).touch()

    return make


def steps(content: Callable[[], pa.Table] | pa.Table) -> Callable[[Path], None]:
    return lambda folder: table(folder, content if isinstance(content, pa.Table) else content())


def beside(name: str) -> Callable[[Path], None]:
    return lambda folder: record(folder.with_name(name))


def truncated(folder: Path) -> None:
    record(folder, output_max_rows_per_file=1)
    for number in (1, 2):
        path = folder / f"episodes-0-00000{number}.parquet"
        path.write_bytes(path.read_bytes()[:-100])


def nan_reward(**options: object) -> Callable[[Path], None]:
    rewards = np.where(np.arange(16) == 6, np.nan, 1.0).astype(np.float32)
    return lambda folder: record(folder, changed(BLOCK, rewards=rewards), **options)


def mixed_shapes(folder: Path) -> None:
    record(folder)
    record(folder, changed(BLOCK, obs=np.zeros((19, 3), np.float32)))


def mixed_shapes_in_a_table(folder: Path) -> None:
    obs = PLAIN["obs"].to_pylist()
    obs[9] = obs[9][:3]
    table(folder, with_column("obs", pa.array(obs, pa.list_(pa.float32()))))


def mixed_shapes_of_tables(folder: Path) -> None:
    table(folder, PLAIN)
    other = pa.array([row[:3] for row in PLAIN["obs"].to_pylist()], pa.list_(pa.float32()))
    table(
        folder, with_column("eps_id", [f"b{number}" for number in range(16)]).set_column(2, "obs", other), "b.parquet"
    )


class Exploit:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("unpickled",)


def pickled_observations(folder: Path) -> None:
    """As RLlib packs columns, with an array of objects."""
    packed = base64.b64encode(lz4.frame.compress(pickle.dumps(np.array([Exploit()], object)))).decode()
    table(folder, with_column("obs", [packed] * 16))


def pickled_episodes(folder: Path) -> None:
    """As RLlib writes episodes, with an array of objects."""
    objects = {b"nd": True, b"type": b"|O", b"kind": b"O", b"shape": [1], b"data": pickle.dumps(Exploit())}
    state = {
        "observations": {"data": [objects, objects], "lookback": 0},
        "actions": {"data": [0], "lookback": 0},
        "rewards": {"data": [1.0], "lookback": 0},
    }
    table(folder, pa.table({"item": pa.array([msgpack.packb(state)], pa.binary())}))


def pickled_column(folder: Path) -> None:
    """As Ray Data writes columns of Python objects."""
    content = PLAIN.drop_columns(["actions"])
    field = pa.field("actions", pa.large_binary(), metadata={"ARROW:extension:name": "ray.data.arrow_pickled_object"})
    objects = pa.array([pickle.dumps(Exploit())] * 16, pa.large_binary())
    table(folder, content.append_column(field, objects))


def hdf5_of_objects(folder: Path) -> None:
    folder.mkdir()
    with h5py.File(folder / "a.hdf5", "w") as root:
        root["rewards"], root["terminals"] = np.ones(3), np.array([False, False, True])
        root["actions"] = np.zeros(3, np.int64)
        root.create_dataset("observations", (3,), h5py.vlen_dtype(np.uint8))


def no_steps(folder: Path) -> None:
    record(folder)
    content = pq.read_table(folder / "episodes-0-000000.parquet")
    empty = flat_block([0, 0])
    pq.write_table(
        episodes_to_table(empty).replace_schema_metadata(content.schema.metadata), folder / "episodes-0-000000.parquet"
    )


def episodes_without(column: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        table(folder, episodes_to_table(BLOCK).drop_columns([column]))

    return make


def wrong_lengths(folder: Path) -> None:
    content = episodes_to_table(BLOCK)
    index = content.column_names.index("length")
    table(folder, content.set_column(index, content.schema.field("length"), pa.array([5, 4, 8])))


_OWN_NAMES = "act, d, eps_id, observation_vec, rew, t"


def no_object(where: str, got: str) -> Problem:
    return Problem("this line is not a JSON object ({...})", where, got)


def other_file(kind: str, seems: str, where: str) -> Problem:
    return Problem(f"this is not a {kind} file{seems}", where)


BAD: Mapping[str, tuple[Callable[[Path], None], Sequence[str], ConfigError]] = {
    "missing_path": (beside("dats"), (), data_error(no_path("TMP/data", "TMP/dats"))),
    "empty_folder": (only(), (), data_error(no_data_files("nothing"))),
    "no_data_in_the_folder": (only("notes.txt", "image.png"), (), data_error(no_data_files("notes.txt, image.png"))),
    "empty_file": (
        only("a.json"),
        (),
        data_error(unreadable("JSON file", "it does not contain any rows", "TMP/data/a.json")),
    ),
    "wrong_schema": (
        steps(lambda: PLAIN.rename_columns(["eps_id", "t", "observation_vec", "act", "rew", "d"])),
        (),
        data_error(
            unnamed_column("obs", "TMP/data/a.parquet", _OWN_NAMES, "observation_vec"),
            unnamed_column("actions", "TMP/data/a.parquet", _OWN_NAMES, "act"),
            unnamed_column("rewards", "TMP/data/a.parquet", _OWN_NAMES, "rew"),
        ),
    ),
    "mixed_shapes": (mixed_shapes, (), data_error(mixed_columns(OTHER_SHAPE))),
    "mixed_shapes_in_a_table": (
        mixed_shapes_in_a_table,
        (),
        data_error(other_shape("TMP/data/a.parquet, row 9, column obs", "[3]", "[4]")),
    ),
    "mixed_shapes_of_tables": (
        mixed_shapes_of_tables,
        (),
        data_error(
            Problem(
                "rows of a column must have the same shape",
                "TMP/data/b.parquet, row 0, column obs",
                "float32[3]",
                "float32[4], like the first row",
            )
        ),
    ),
    "nan_reward": (
        nan_reward(),
        (),
        data_error(not_finite("e1", 1, "TMP/data/episodes-0-000000.parquet, row 1, column rewards")),
    ),
    "nan_reward_in_json": (
        nan_reward(output_write_episodes=False, output_write_method="write_json"),
        (),
        data_error(not_finite("e1", 1, "TMP/data/steps-0-000000.json, row 6, column rewards")),
    ),
    "truncated_parquet": (
        truncated,
        (),
        data_error(*(damaged_parquet(f"TMP/data/episodes-0-00000{number}.parquet") for number in (1, 2))),
    ),
    "empty_parquet": (steps(PLAIN.slice(0, 0)), (), data_error(no_complete_step())),
    "parquet_that_is_csv": (
        text_file("csv", "a.parquet", lambda content: content),
        (),
        data_error(other_file("Parquet", ", or it is damaged", "TMP/data/a.parquet")),
    ),
    "csv_that_is_json": (
        text_file("json", "a.csv", lambda content: content),
        (),
        data_error(other_file("CSV", ": it starts like JSON", "TMP/data/a.csv")),
    ),
    "json_that_is_csv": (
        text_file("csv", "a.json", lambda content: content),
        (),
        data_error(
            no_object(
                "TMP/data/a.json, line 0",
                '"eps_id","t","obs","actions","rewards","action_logp","new_obs","terminateds","tr...',
            )
        ),
    ),
    "json_that_is_gzip": (
        text_file("json", "a.json", gzip.compress),
        (),
        data_error(other_file("JSON", ": it starts like gzip", "TMP/data/a.json")),
    ),
    "hdf5_that_is_text": (
        text_file("csv", "a.h5", lambda content: content),
        (),
        data_error(other_file("HDF5", ", or it is damaged", "TMP/data/a.h5")),
    ),
    "gzip_cut_off": (
        text_file("json", "a.json.gz", lambda content: gzip.compress(content)[:-50]),
        (),
        data_error(unreadable("file", "Truncated compressed stream", "TMP/data/a.json.gz")),
    ),
    "gzip_of_csv_cut_off": (
        text_file("csv", "a.csv.gz", lambda content: gzip.compress(content)[:-50]),
        (),
        data_error(unreadable("CSV file", "Truncated compressed stream", "TMP/data/a.csv.gz")),
    ),
    "json_null": (json_with(b"null\n"), (), data_error(no_object("TMP/data/a.json, line 4", "null"))),
    "json_nulls_only": (
        lambda folder: file(folder, "a.json", b"null\nnull\n"),
        (),
        data_error(no_object("TMP/data/a.json, line 0", "null")),
    ),
    "json_half_a_line": (
        text_file("json", "a.json", lambda content: content[:-40]),
        (),
        data_error(
            no_json(
                "Expecting ',' delimiter: line 1 column 272 (char 271); the file is truncated",
                "TMP/data/a.json, line 15",
                '{"eps_id":"e2","t":7,"obs":[0.6333526372909546,-2.20350980758667,0.0520289726555...',
            )
        ),
    ),
    "json_half_a_line_inside": (
        json_with(b'{"eps_id":"a","t":0,"ob\n'),
        (),
        data_error(
            no_json(
                "Unterminated string starting at: line 1 column 21 (char 20)",
                "TMP/data/a.json, line 4",
                '{"eps_id":"a","t":0,"ob',
            )
        ),
    ),
    "json_deep": (
        json_with(b'{"obs":' + b"[" * 60_000 + b"]" * 60_000 + b"}\n"),
        (),
        data_error(
            Problem(
                "a line nests deeper than 1000 levels",
                "TMP/data/a.json, line 4",
                '{"obs":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[...',
            )
        ),
    ),
    "json_no_utf8": (
        text_file("json", "a.json", lambda content: content.replace(b'"e1"', b'"\xff\xfe"')),
        (),
        data_error(
            Problem(
                "this line is not valid UTF-8",
                "TMP/data/a.json, line 5",
                '{"eps_id":"\\xff\\xfe","t":0,"obs":[0.9034701585769653,0.0940122976899147,-0.74349...',
            )
        ),
    ),
    "csv_ragged": (
        text_file("csv", "a.csv", lambda content: content + b"1,2\n"),
        (),
        data_error(
            unreadable("CSV file", "CSV parse error: Row #18: Expected 9 columns, got 2: 1,2", "TMP/data/a.csv")
        ),
    ),
    "csv_no_utf8": (
        text_file("csv", "a.csv", lambda content: content.replace(b"e1", b"\xff\xfe")),
        (),
        data_error(Problem("this column is not valid UTF-8 text", "TMP/data/a.csv, column eps_id")),
    ),
    "csv_same_name_twice": (
        text_file("csv", "a.csv", lambda content: content.replace(b'"t"', b'"obs"', 1)),
        (),
        data_error(Problem("several columns have the name obs", "TMP/data/a.csv")),
    ),
    "csv_empty_cell": (
        lambda folder: file(folder, "a.csv", b"obs,actions,rewards\n1,2,3\n1,,3\n"),
        (),
        data_error(value_missing("TMP/data/a.csv, row 1, column actions")),
    ),
    "step_twice": (
        steps(lambda: pa.concat_tables([PLAIN, PLAIN])),
        (),
        data_error(step_twice(0, "e0", "TMP/data/a.parquet")),
    ),
    "step_that_is_negative": (
        steps(lambda: with_column("t", [-1, *range(15)])),
        (),
        data_error(Problem("t must count the steps of an episode from 0", "TMP/data/a.parquet, row 0, column t", "-1")),
    ),
    "step_that_is_missing": (
        steps(lambda: with_column("t", [*range(15), None])),
        (),
        data_error(value_missing("TMP/data/a.parquet, row 15, column t")),
    ),
    "episodes_without_steps": (no_steps, (), data_error(no_complete_step("TMP/data/episodes-0-000000.parquet"))),
    "episodes_without_obs": (
        episodes_without("obs"),
        (),
        data_error(no_column("obs", "TMP/data/a.parquet", episode_columns(without="obs"))),
    ),
    "episodes_without_length": (
        episodes_without("length"),
        (),
        data_error(no_column("length", "TMP/data/a.parquet", episode_columns(without="length"))),
    ),
    "lengths_that_are_wrong": (
        wrong_lengths,
        (),
        data_error(
            Problem(
                "the episodes are damaged: obs has 4 rows in an episode of 4 steps (row 1)", "TMP/data/a.parquet, row 0"
            )
        ),
    ),
    "filter_that_no_row_passes": (
        steps(PLAIN),
        ("offline.input_read_method_kwargs.filter='t > 99'",),
        data_error(
            Problem("no complete step passes the filter", "offline.input_read_method_kwargs.filter", "t > 99"),
        ),
    ),
    "pickled_observations": (
        pickled_observations,
        (),
        data_error(
            Problem(
                (
                    "a packed array cannot be read: arrays of dtype object are not allowed; expected: arrays and "
                    "scalars of numbers, bools and text; dicts, lists and tuples of these"
                ),
                "TMP/data/a.parquet, row 0, column obs",
            )
        ),
    ),
    "pickled_episodes": (
        pickled_episodes,
        (),
        data_error(
            Problem(
                "observations cannot be read: object arrays are not supported, because decoding them runs code "
                "from the file",
                "TMP/data/a.parquet, row 0, column item.observations",
            )
        ),
    ),
    "pickled_column": (
        pickled_column,
        (),
        data_error(
            Problem(
                "columns of pickled objects are not read, because unpickling runs code from the file",
                "TMP/data/a.parquet, column actions",
            )
        ),
    ),
    "hdf5_of_objects": (
        hdf5_of_objects,
        (),
        data_error(
            Problem("expected an array of numbers in this file", "TMP/data/a.hdf5, column observations", "object")
        ),
    ),
    "unknown_option": (
        steps(PLAIN),
        ("+offline.input_read_method_kwargs.colums=[obs]",),
        config_error(
            Problem(
                "reading parquet takes no option colums",
                "offline.input_read_method_kwargs",
                "['obs']",
                "columns, concurrency, filter, memory, num_cpus, num_gpus, override_num_blocks, ray_remote_args",
                "columns",
            )
        ),
    ),
    "pickles_allowed": (
        steps(PLAIN),
        ("+offline.input_read_method_kwargs.allow_pickle=true",),
        config_error(pickles_allowed()),
    ),
}


# Of mistakes that are told in the same way, one goes through all commands.
_INSPECTED_ONLY = {
    *("no_data_in_the_folder", "csv_that_is_json", "json_that_is_csv", "json_that_is_gzip", "hdf5_that_is_text"),
    *("gzip_of_csv_cut_off", "json_deep", "json_half_a_line_inside", "csv_same_name_twice", "csv_empty_cell"),
    *("step_that_is_negative", "step_that_is_missing", "episodes_without_length", "pickled_episodes"),
    *("json_no_utf8", "hdf5_of_objects", "unknown_option", "episodes_without_obs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data(run_main: Run, tmp_path: Path, name: str) -> None:
    make, overrides, expected = BAD[name]
    make(tmp_path / "data")
    inspected = run_main("inspect", "data", *overrides)
    assert_refused(inspected)
    assert_error(inspected.err, expected, tmp_path)
    assert not (tmp_path / "unpickled").exists()
    if name in _INSPECTED_ONLY:
        return
    converted = run_main("convert", "data", "out", *overrides)
    assert_refused(converted)
    assert converted.err == inspected.err
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    trained = train(run_main, "bc_cartpole", *overrides)
    assert_refused(trained)
    assert trained.err == inspected.err
    assert_nothing_trained(tmp_path)
    assert not (tmp_path / "unpickled").exists()


def assert_refused(outcome: Outcome) -> None:
    assert outcome.code == 2, outcome
    assert outcome.err.startswith(("1 problem in", "2 problems in", "3 problems in"))
    assert "Traceback" not in outcome.out + outcome.err


def train(run_main: Run, experiment: str, *overrides: str) -> Outcome:
    data = ("offline.input_=data", "tracking=none", "hydra.run.dir=run")
    return run_main(f"+experiment={experiment}", *data, *overrides)


@pytest.fixture(autouse=True)
def _without_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the data is told before Ray is started, or asked for."""

    def refuse(*args: object) -> None:
        raise AssertionError("Ray was asked for")

    if "ray_cluster" not in request.fixturenames:
        monkeypatch.setattr("runner.experiment.ray_resources.connected", refuse)


def assert_nothing_trained(tmp_path: Path) -> None:
    assert checkpoints_of(tmp_path / "run") == []
    assert not (tmp_path / "run" / "progress.jsonl").exists()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(
            ["env=pendulum"],
            data_error(
                does_not_fit("obs", "TMP/data/episodes-0-000000.parquet", "float32[4]", "Box([3], float32)"),
                does_not_fit("actions", "TMP/data/episodes-0-000000.parquet", "int64", "Box(-2, 2, [1], float32)"),
            ),
            id="other_env",
        ),
        pytest.param(
            ["env=stateless_cartpole"],
            data_error(does_not_fit("obs", "TMP/data/episodes-0-000000.parquet", "float32[4]", "Box([2], float32)")),
            id="other_observations",
        ),
        pytest.param(
            ["env=multi_agent_cartpole"],
            data_error(of_a_single_agent("TMP/data/episodes-0-000000.parquet")),
            id="several_agents",
        ),
    ],
)
def test_data_of_another_environment(
    run_main: Run, tmp_path: Path, overrides: Sequence[str], expected: ConfigError
) -> None:
    record(tmp_path / "data")
    outcome = train(run_main, "bc_cartpole", *overrides)
    assert_refused(outcome)
    assert_error(outcome.err, expected, tmp_path)
    assert_nothing_trained(tmp_path)


@pytest.mark.parametrize("action", [-1, 2])
def test_a_later_action_of_another_environment(run_main: Run, tmp_path: Path, action: int) -> None:
    table(tmp_path / "data", PLAIN)
    later = with_column("eps_id", ["e3"] * 8 + ["e4"] * 8).set_column(1, "t", pa.array([*range(8)] * 2))
    later = later.set_column(5, "terminateds", pa.array(([False] * 7 + [True]) * 2))
    table(tmp_path / "data", later.set_column(3, "actions", pa.array([0] * 12 + [action] * 4)), "b.parquet")
    outcome = train(run_main, "bc_cartpole")
    assert_refused(outcome)
    expected = does_not_fit("actions", "TMP/data, episode e4", f"the value {action}", "Discrete(2)")
    assert_error(outcome.err, data_error(expected), tmp_path)
    assert_nothing_trained(tmp_path)


UNGROUPED = PLAIN.select(["obs", "actions", "rewards"])


@pytest.mark.parametrize(
    ("experiment", "overrides", "expected"),
    [
        pytest.param(
            "marwil_cartpole",
            [],
            data_error(no_trajectories("GeneralAdvantageEstimation", "TMP/data/a.parquet")),
            id="no_trajectories_for_advantages",
        ),
        pytest.param(
            "bc_cartpole",
            ["module.use_lstm=true"],
            data_error(no_trajectories("the recurrent module ActorCriticModule", "TMP/data/a.parquet")),
            id="no_trajectories_for_a_memory",
        ),
        pytest.param(
            "bc_cartpole",
            [
                "connectors.env_to_module=[{prepend: {_target_: runner.pipelines.FrameStacking, num_frames: 2}}]",
                "connectors.learner=[{prepend: {_target_: runner.pipelines.FrameStacking, num_frames: 2}}]",
            ],
            data_error(no_trajectories("FrameStacking", "TMP/data/a.parquet")),
            id="no_trajectories_for_frames",
        ),
        pytest.param(
            "bc_cartpole",
            ["connectors.learner=[{append: {_target_: runner.pipelines.AddNextObservationsFromEpisodesToTrainBatch}}]"],
            data_error(
                Problem(
                    (
                        "AddNextObservationsFromEpisodesToTrainBatch needs the observation after each step, which "
                        "these rows do not contain"
                    ),
                    "TMP/data/a.parquet",
                    fix="add a column new_obs, or eps_id and t, or end flags",
                )
            ),
            id="no_next_observations",
        ),
    ],
)
def test_single_steps_for_what_needs_more(
    run_main: Run, tmp_path: Path, experiment: str, overrides: Sequence[str], expected: ConfigError
) -> None:
    table(tmp_path / "data", UNGROUPED)
    outcome = train(run_main, experiment, *overrides)
    assert_refused(outcome)
    assert_error(outcome.err, expected, tmp_path)
    assert_nothing_trained(tmp_path)


def test_a_missing_step_is_told(run_main: Run, tmp_path: Path) -> None:
    """It cuts the trajectory: what is there on both sides of it can be learned from."""
    table(tmp_path / "data", PLAIN.take([0, 1, 3, 4, *range(5, 16)]))
    outcome = run_main("inspect", "data")
    assert outcome.code == 0
    assert "1 cut because a time step is missing" in outcome.out
    outcome = run_main("convert", "data", "out")
    assert outcome.code == 0
    assert "  1 trajectory split where a time step is missing" in outcome.out.splitlines()


def test_an_episode_without_steps_is_left_out(run_main: Run, tmp_path: Path) -> None:
    table(tmp_path / "data", episodes_to_table(flat_block([3, 0, 2])))
    outcome = run_main("convert", "data", "out")
    assert outcome.code == 0, outcome.err
    assert "  1 trajectory left out for lack of a complete step" in outcome.out.splitlines()
    outcome = run_main("inspect", "data")
    assert "episodes  2 (2 terminated, 0 truncated)" in outcome.out


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "output", "overrides", "expected"),
    [
        ("output_has_data", "full", [], config_error(has_data("keep.parquet", "TMP/full"))),
        (
            "output_is_the_input",
            "data",
            ["offline.output_write_method=write_csv"],
            config_error(has_data("episodes-0-000000.parquet", "TMP/data")),
        ),
        (
            "output_is_the_input_to_append",
            "data",
            ["offline.output_append=true"],
            config_error(
                Problem("this folder contains the input data", "offline.output", "TMP/data", fix="use another folder")
            ),
        ),
        (
            "output_is_a_file",
            "full/keep.parquet",
            [],
            config_error(output_is_a_file("TMP/full/keep.parquet")),
        ),
        (
            "output_not_writable",
            "/proc/recorded",
            [],
            config_error(not_writable("No such file or directory", "/proc/recorded")),
        ),
        (
            "output_unknown_method",
            "out",
            ["offline.output_write_method=write_tfrecord"],
            config_error(unknown_write_method("write_tfrecord", "write_tfrecords")),
        ),
        (
            "output_unknown_option",
            "out",
            ["+offline.output_write_method_kwargs.compresion=zstd"],
            config_error(unknown_option_of_parquet("zstd")),
        ),
    ],
)
def test_output_that_cannot_be_used(
    run_main: Run, tmp_path: Path, name: str, output: str, overrides: Sequence[str], expected: ConfigError
) -> None:
    record(tmp_path / "data")
    file(tmp_path / "full", "keep.parquet", b"somebody's data")
    before = contents(tmp_path)
    table_rows = "offline.output_write_episodes=false"
    outcome = run_main("convert", "data", output, table_rows, *overrides)
    assert_refused(outcome)
    assert_error(outcome.err, expected, tmp_path)
    assert contents(tmp_path) == before
    if not name.startswith("output_is_the_input"):
        online = ["+experiment=ppo_cartpole", "tracking=none", "hydra.run.dir=run", table_rows]
        trained = run_main(*online, f"offline.output={output}", *overrides)
        assert_refused(trained)
        assert trained.err == outcome.err
        assert checkpoints_of(tmp_path / "run") == []


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and "run" not in path.parts)
    return {str(path): path.read_bytes() for path in files}


def test_env_episodes_of_several_agents_are_rows(run_main: Run, tmp_path: Path) -> None:
    given = ["tracking=none", "hydra.run.dir=run", "offline.output=o", "offline.output_write_episodes=false"]
    outcome = run_main("+experiment=ppo_multi_agent_cartpole", *given)
    assert_refused(outcome)
    where = "offline.output_write_episodes"
    what = "multi-agent env episodes can only be recorded as one row per episode"
    fix = "record in this format, then use runner convert"
    problem = Problem(what, where, "false", "true", fix=fix)
    assert_error(outcome.err, config_error(problem), tmp_path)
    assert not (tmp_path / "o").exists()


def test_a_conversion_that_fails_leaves_nothing(run_main: Run, tmp_path: Path) -> None:
    """The first files are whole when the last one turns out to be damaged."""
    folder = tmp_path / "data"
    folder.mkdir()
    good = as_text(folder, "json")
    for number in range(3):
        file(folder, f"{number}.json", good.replace(b'"eps_id":"', f'"eps_id":"{number}-'.encode()))
    file(folder, "3.json", good[:-30])
    outcome = run_main("convert", "data", "out", "offline.output_max_rows_per_file=1")
    assert_refused(outcome)
    assert "3.json, line 15" in outcome.err
    assert list((tmp_path / "out").iterdir()) == []
