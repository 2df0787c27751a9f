"""Every key of `offline` that says what is read and what is written: its effect can be seen, or it is refused."""

from __future__ import annotations

import base64
import gzip
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.episodes.columns import concat_blocks
from runner.offline.files.filesystems import locate
from runner.offline.reading.source import open_source
from tests.offline.blocks import assert_same, flat_block
from tests.offline.formats.recordings import MAKERS, RLLIB_EPISODES
from tests.offline.problems import (
    config_error,
    data_error,
    no_column_to_compress,
    no_path,
    pickles_allowed,
    unknown_compression,
)
from tests.offline.recorded import BLOCK, CARTPOLE, PLAIN, read, record, source_of, through_ray
from tests.support.problems import assert_error

# --- reading --------------------------------------------------------------------------------------


def test_input_read_method_whatever_files_are_called(tmp_path: Path) -> None:
    for kind in ("parquet", "json", "csv"):
        folder = tmp_path / kind
        record(folder, output_write_episodes=False, output_write_method=f"write_{kind}")
        (path,) = folder.iterdir()
        path.rename(folder / "data.001")
        found = read(folder, input_read_method=f"read_{kind}")
        assert found.lengths.tolist() == [5, 3, 8]
        np.testing.assert_allclose(found.columns["obs"], BLOCK.columns["obs"])
    record(tmp_path / "mixed", output_write_episodes=False)
    record(tmp_path / "mixed", output_write_episodes=False, output_write_method="write_csv")
    assert source_of(tmp_path / "mixed", input_read_method="read_csv").files.kind.name == "csv"  # type: ignore[union-attr]
    assert source_of(tmp_path / "mixed", input_read_method="read_parquet").files.kind.name == "parquet"  # type: ignore[union-attr]


FILTERS = {
    "text": "length > 4 and not terminated == false",
    "rules": [["length", ">", 4], ["terminated", "=", True]],
    "groups": [[["length", "==", 5]], [["length", "in", [8, 9]]]],
}


@pytest.mark.parametrize("form", FILTERS)
def test_filter_of_episodes(tmp_path: Path, form: str) -> None:
    record(tmp_path / "data")
    assert read(tmp_path / "data", input_read_method_kwargs={"filter": FILTERS[form]}).lengths.tolist() == [5, 8]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_filter_and_columns_of_tables(tmp_path: Path, kind: str) -> None:
    record(tmp_path, output_write_episodes=False, output_write_method=f"write_{kind}")
    options = {"filter": "eps_id in ['e0', 'e2'] and t <= 5", "columns": ["obs", "actions", "rewards"]}
    source = source_of(tmp_path, input_read_method_kwargs=options)
    found = concat_blocks(list(source.blocks()))
    assert list(found.columns) == ["obs", "actions", "rewards"]
    assert found.lengths.tolist() == [5, 6]
    assert all("action_logp" not in table.column_names for table in source.tables())
    with pytest.raises(ConfigError, match="there is no column action_lgp"):
        source_of(tmp_path, input_read_method_kwargs={"columns": ["obs", "action_lgp"]})


def test_options_of_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("# recorded by hand\n1,0;0,5;1\n2,0;1,5;0\n")
    kwargs = {"delimiter": ";", "decimal_point": ",", "skip_rows": 1, "column_names": ["obs", "rewards", "actions"]}
    found = read(tmp_path, input_read_method_kwargs=kwargs)
    assert found.columns["rewards"].tolist() == [0.5, 1.5]
    assert found.columns["actions"].tolist() == [1, 0]


def test_block_size_of_json(tmp_path: Path) -> None:
    record(tmp_path, output_write_episodes=False, output_write_method="write_json")
    source = source_of(tmp_path, input_read_method_kwargs={"block_size": 1000})
    assert len(list(source.tables())) > 3
    assert concat_blocks(list(source.blocks())).lengths.tolist() == [5, 3, 8]


def test_input_read_schema(tmp_path: Path) -> None:
    pq.write_table(PLAIN.rename_columns(["id", "step", "o", "a", "r", "d"]), tmp_path / "a.parquet")
    mapping = {"eps_id": "id", "t": "step", "obs": "o", "actions": "a", "rewards": "r", "terminateds": "d"}
    assert sorted(read(tmp_path, input_read_schema=mapping).lengths.tolist()) == [2, 5, 8]
    record(tmp_path / "episodes")
    with pytest.raises(ConfigError, match="cannot be renamed"):
        source_of(tmp_path / "episodes", input_read_schema={"obs": "o"})


def packed_table() -> pa.Table:
    def packed(row: object) -> str:
        return base64.b64encode(lz4.frame.compress(pickle.dumps(np.array(row, np.float32)))).decode()

    table = PLAIN.append_column("extra", pa.array([packed([row]) for row in range(16)]))
    obs = pa.array([packed(row) for row in PLAIN["obs"].to_pylist()])
    return table.set_column(table.column_names.index("obs"), "obs", obs)


def test_input_compress_columns(tmp_path: Path) -> None:
    pq.write_table(packed_table(), tmp_path / "a.parquet")
    found = read(tmp_path, input_compress_columns=["obs", "extra"])
    np.testing.assert_array_equal(found.columns["obs"][:5], BLOCK.columns["obs"][:5])
    assert found.columns["extra"].shape == (15, 1)
    with pytest.raises(ConfigError, match="this column is packed by RLlib") as error:
        source_of(tmp_path)
    assert "column extra" in " ".join(str(error.value).split())


FILESYSTEMS: Mapping[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "local": lambda folder: (str(folder), {"filesystem": "local"}),
    "local_uri": lambda folder: (f"file://{folder}", {}),
    "pyarrow_local": lambda folder: (
        str(folder),
        {"filesystem": "pyarrow.fs.LocalFileSystem", "filesystem_kwargs": {"use_mmap": True}},
    ),
    "pyarrow_subtree": lambda folder: (
        folder.name,
        {
            "filesystem": "pyarrow.fs.SubTreeFileSystem",
            "filesystem_kwargs": {
                "base_path": str(folder.parent),
                "base_fs": {"_target_": "pyarrow.fs.LocalFileSystem"},
            },
        },
    ),
    "fsspec_local": lambda folder: (str(folder), {"filesystem": "fsspec.implementations.local.LocalFileSystem"}),
    "fsspec_dir": lambda folder: (
        folder.name,
        {
            "filesystem": "fsspec.implementations.dirfs.DirFileSystem",
            "filesystem_kwargs": {"path": str(folder.parent), "target_protocol": "file"},
        },
    ),
    "fsspec_memory": lambda folder: ("/keys/data", {"filesystem": "fsspec.implementations.memory.MemoryFileSystem"}),
    "memory_uri": lambda folder: ("memory://keys/data", {}),
}


@pytest.mark.parametrize("name", FILESYSTEMS)
@pytest.mark.parametrize("write_episodes", [True, False])
def test_filesystems(tmp_path: Path, name: str, write_episodes: bool) -> None:
    import fsspec

    path, options = FILESYSTEMS[name](tmp_path / "data")
    output = {f"output_{key}": value for key, value in options.items()}
    record(path, output_write_episodes=write_episodes, output_max_rows_per_file=2, **output)
    try:
        if "memory" not in name:
            assert len(list((tmp_path / "data").iterdir())) == (2 if write_episodes else 8)
        assert_same(read(path, **{f"input_{key}": value for key, value in options.items()}), BLOCK)
    finally:
        if "memory" in name:
            fsspec.filesystem("memory").rm("/keys", recursive=True)


@pytest.mark.parametrize(
    ("path", "name", "kwargs", "expected", "inner"),
    [
        ("gs://anonymous@bucket/data", None, {}, fs.GcsFileSystem, "bucket/data"),
        ("s3://bucket/data?region=us-east-1", None, {}, fs.S3FileSystem, "bucket/data"),
        ("s3://bucket/data", "s3", {"region": "us-east-1", "anonymous": True}, fs.S3FileSystem, "bucket/data"),
        ("bucket/data", "gcs", {"anonymous": True}, fs.GcsFileSystem, "bucket/data"),
        ("container/data", "abs", {"account_name": "a"}, fs.AzureFileSystem, "container/data"),
    ],
)
def test_object_stores_are_set_up(
    path: str, name: str | None, kwargs: dict[str, Any], expected: type, inner: str
) -> None:
    location = locate(path, name, kwargs, "offline.input_filesystem")
    assert isinstance(location.filesystem, expected)
    assert location.path == inner


def test_arguments_of_no_file_system(tmp_path: Path) -> None:
    for name in ("input", "output"):
        where = f"offline.{name}_filesystem"
        problem = Problem(
            f"{where}_kwargs has arguments, but {where} does not name a file system",
            f"{where}_kwargs",
            "{'anonymous': True}",
            fix=f"set {where}=NAME, or remove the arguments",
        )
        options: dict[str, Any] = {f"{name}_filesystem_kwargs": {"anonymous": True}}
        with pytest.raises(ConfigError) as error:
            record(tmp_path / "x", **options) if name == "output" else source_of(tmp_path, **options)
        assert_error(error.value, config_error(problem), tmp_path)


# --- writing --------------------------------------------------------------------------------------


def compressions(folder: Path) -> dict[str, str]:
    (path,) = folder.glob("*.parquet")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema.partition(".")[0]: column.compression for column in columns}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"obs": "LZ4", "new_obs": "LZ4", "actions": "ZSTD", "rewards": "ZSTD"}),
        ({"output_compress_columns": ["rewards"]}, {"obs": "ZSTD", "new_obs": "ZSTD", "rewards": "LZ4"}),
        ({"output_compress_columns": []}, {"obs": "ZSTD", "rewards": "ZSTD"}),
        ({"output_write_method_kwargs": {"compression": "gzip"}}, {"obs": "LZ4", "rewards": "GZIP"}),
        ({"output_write_method_kwargs": {"compression": "none"}}, {"obs": "UNCOMPRESSED", "rewards": "UNCOMPRESSED"}),
        ({"output_write_method_kwargs": {"compression": None}}, {"obs": "UNCOMPRESSED", "rewards": "UNCOMPRESSED"}),
        ({"output_write_method_kwargs": {"compression": {"obs": "snappy"}}}, {"obs": "SNAPPY", "rewards": "ZSTD"}),
    ],
)
def test_compression(tmp_path: Path, options: dict[str, Any], expected: dict[str, str]) -> None:
    for write_episodes in (True, False):
        folder = tmp_path / str(write_episodes)
        record(folder, output_write_episodes=write_episodes, **options)
        found = compressions(folder)
        wanted = {name: kind for name, kind in expected.items() if name in found}
        assert found | wanted == found


def test_write_method_kwargs(tmp_path: Path) -> None:
    record(tmp_path / "parquet", output_write_method_kwargs={"row_group_size": 1, "write_statistics": False})
    (path,) = (tmp_path / "parquet").iterdir()
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 3
    assert not metadata.row_group(0).column(0).is_stats_set
    rows: dict[str, Any] = {"output_write_episodes": False}
    record(
        tmp_path / "csv",
        **rows,
        output_write_method="write_csv",
        output_write_method_kwargs={"delimiter": "|", "include_header": False, "compression": "bz2"},
    )
    (path,) = (tmp_path / "csv").iterdir()
    assert path.name.endswith(".csv.bz2")
    table = pa.csv.read_csv(
        path,
        pa.csv.ReadOptions(autogenerate_column_names=True),
        pa.csv.ParseOptions(delimiter="|"),
    )
    assert table.num_rows == 16
    record(
        tmp_path / "json", **rows, output_write_method="write_json", output_write_method_kwargs={"compression": "gzip"}
    )
    (path,) = (tmp_path / "json").iterdir()
    assert len(gzip.decompress(path.read_bytes()).splitlines()) == 16


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_limits_of_files(tmp_path: Path, kind: str) -> None:
    rows: dict[str, Any] = {"output_write_episodes": False, "output_write_method": f"write_{kind}"}
    block = flat_block([50] * 40)
    record(tmp_path / "rows", block, output_max_rows_per_file=300, **rows)
    counts = [table.num_rows for table in source_of(tmp_path / "rows").tables()]
    assert counts == [300] * 6 + [200]
    record(tmp_path / "size", block, output_max_file_size=20_000, **rows)
    assert 1 < len(list((tmp_path / "size").iterdir())) < 60
    record(tmp_path / "one", block, output_max_file_size=None, **rows)
    assert len(list((tmp_path / "one").iterdir())) == 1


def unsuitable_options(method: str, reason: str, got: str) -> Problem:
    return Problem(f"{method} does not work with these options: {reason}", "offline.output_write_method_kwargs", got)


BAD_OPTIONS: Mapping[str, tuple[dict[str, Any], ConfigError]] = {
    "packed_csv": (
        {
            "output_write_episodes": False,
            "output_write_method": "write_csv",
            "output_compress_columns": ["rewards"],
        },
        config_error(
            Problem(
                "write_csv does not compress single columns",
                "offline.output_compress_columns",
                "['rewards']",
                fix="remove this option",
            )
        ),
    ),
    "packed_and_none": (
        {
            "output_compress_columns": ["rewards"],
            "output_write_method_kwargs": {"compression": "none"},
        },
        config_error(
            Problem(
                "offline.output_write_method_kwargs.compression already sets the compression of all columns",
                "offline.output_compress_columns",
                "['rewards']",
                fix="remove this option",
            )
        ),
    ),
    "compression_of_no_column": (
        {"output_write_method_kwargs": {"compression": {"obbs": "lz4"}}},
        config_error(no_column_to_compress("offline.output_write_method_kwargs.compression", "obbs", "obs")),
    ),
    "compression_of_a_column": (
        {"output_write_method_kwargs": {"compression": {"obs": "lzw"}}},
        config_error(unknown_compression("lzw", "lz4")),
    ),
    "value_of_an_option": (
        {"output_write_method_kwargs": {"compression_level": "high"}},
        config_error(
            unsuitable_options(
                "write_parquet", "'str' object has no attribute 'iteritems'", "{'compression_level': 'high'}"
            )
        ),
    ),
    "delimiter": (
        {
            "output_write_episodes": False,
            "output_write_method": "write_csv",
            "output_write_method_kwargs": {"delimiter": "||"},
        },
        config_error(
            unsuitable_options(
                "write_csv",
                "only single character unicode strings can be converted to Py_UCS4, got length 2",
                "{'delimiter': '||'}",
            )
        ),
    ),
}


@pytest.mark.parametrize(("options", "expected"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_output_options_without_effect(tmp_path: Path, options: dict[str, Any], expected: ConfigError) -> None:
    with pytest.raises(ConfigError) as error:
        record(tmp_path / "out", **options)
    assert_error(error.value, expected, tmp_path)
    assert not (tmp_path / "out").exists()


# --- what a caller needs --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["episodes", "table", "json", "csv", "hdf5", "sample_batches", "rllib_episodes"])
def test_columns_that_nobody_needs_are_not_read(tmp_path: Path, name: str) -> None:
    kinds = {"episodes": "parquet", "table": "parquet", "json": "json", "csv": "csv"}
    path = RLLIB_EPISODES if name == "rllib_episodes" else tmp_path / "in"
    if name in MAKERS:
        MAKERS[name](path)
    elif name in kinds:
        is_rows = name != "episodes"
        record(path, output_write_episodes=not is_rows, output_write_method=f"write_{kinds[name]}")
    every = {*source_of(path).layout.columns}
    assert "action_logp" in every
    source = open_source(OfflineConfig(input_=str(path)), columns=(), with_infos=False)
    assert {*source.layout.columns} == {"obs", "actions", "rewards"}  # type: ignore[union-attr]
    assert all({*block.columns} == {"obs", "actions", "rewards"} for block in source.blocks())
    assert all("action_logp" not in table.column_names for table in source.tables() if name in kinds)
    some = open_source(OfflineConfig(input_=str(path)), CARTPOLE, columns=("action_logp",))
    assert {*next(some.blocks()).columns} == {"obs", "actions", "rewards", "action_logp"}


def test_bytes_that_are_read_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of columns that are not needed, not even the pages are read."""
    wide = replace(BLOCK, columns={**BLOCK.columns, "features": np.random.rand(16, 5000)})
    record(tmp_path / "data", wide)
    size = next((tmp_path / "data").iterdir()).stat().st_size
    num_read = []
    for columns in (None, ()):
        source = open_source(OfflineConfig(input_=str(tmp_path / "data")), columns=columns)
        before = _bytes_read()
        list(source.blocks())
        num_read.append(_bytes_read() - before)
    assert num_read[0] > 0.9 * size
    assert num_read[1] < 0.15 * size  # footers


def _bytes_read() -> int:
    """Bytes that this process has read from files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


# --- Ray Data -------------------------------------------------------------------------------------


def make_numpy(folder: Path) -> Path:
    folder.mkdir()
    np.save(folder / "rows.npy", np.arange(12.0).reshape(6, 2))
    return folder


def make_text(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.txt").write_text("to be or\nnot to be\n")
    return folder


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_reading_through_ray(ray_cluster: None, tmp_path: Path) -> None:
    """`RecordedSource.dataset()` gives what `blocks()` gives; `input_read_method` may be any reading function."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    for name, options in _RAY_CASES.items():
        folder = tmp_path / name
        if name in MAKERS:
            MAKERS[name](folder)
        else:
            record(folder, **options.get("write", {}))
        source = source_of(folder, **options.get("read", {}))
        expected = concat_blocks(list(source.blocks()))
        found = through_ray(source)
        assert list(found.episode_ids) == list(expected.episode_ids), name
        assert {*found.columns} == {*expected.columns}, name
        np.testing.assert_array_equal(found.columns["obs"], expected.columns["obs"], err_msg=name)
    # Functions of Ray Data that have no reader here.
    from pyarrow import orc

    orc.write_table(PLAIN, str(tmp_path / "a.orc"))
    kwargs = {"columns": ["obs", "actions", "rewards"], "filter": "t < 2", "concurrency": 1}
    found = read(tmp_path / "a.orc", input_read_method="read_orc", input_read_method_kwargs=kwargs)
    assert (
        found.columns["actions"].tolist() == BLOCK.columns["actions"][[0, 5, 8]].tolist()
    )  # the last steps lack new_obs
    with pytest.raises(ConfigError) as error:
        source_of(make_numpy(tmp_path / "numpy"), input_read_method="read_numpy", input_read_schema={"obs": "data"})
    assert "there is no column actions" in str(error.value)
    with pytest.raises(ConfigError, match="there is no column obs"):  # rows for a pre-learner of one's own
        source_of(make_text(tmp_path / "text"), input_read_method="read_text")
    with pytest.raises(ConfigError, match="read_tfrecords needs a package that is not installed"):
        source_of(tmp_path / "a.orc", input_read_method="read_tfrecords")


RAY_MISTAKES: Mapping[str, tuple[str, dict[str, Any], ConfigError]] = {
    "unknown": (
        "read_ocr",
        {},
        config_error(
            Problem(
                "ray.data.read_ocr does not exist",
                "offline.input_read_method",
                "read_ocr",
                (
                    "read_audio, read_avro, read_bigquery, read_binary_files, read_clickhouse, read_csv, read_delta, "
                    "read_hudi, read_iceberg, read_images, read_json, read_kafka, read_lance, read_lerobot, "
                    "read_mcap, read_mongo, read_numpy, read_orc, read_parquet, read_snowflake, read_sql, read_text, "
                    "read_tfrecords, read_videos, ... (4 more); or package.module.function that returns a "
                    "Ray data set"
                ),
                "read_orc",
            )
        ),
    ),
    "no_files": (
        "read_sql",
        {},
        config_error(
            Problem(
                "read_sql needs the argument connection_factory",
                "offline.input_read_method_kwargs",
                fix="add connection_factory: ...",
            )
        ),
    ),
    "option": (
        "read_orc",
        {"concurency": 2},
        config_error(
            Problem(
                "read_orc takes no option concurency",
                "offline.input_read_method_kwargs",
                "2",
                (
                    "accelerator_type, columns, concurrency, fallback_strategy, file_extensions, filter, "
                    "ignore_missing_paths, include_paths, label_selector, max_calls, memory, num_cpus, num_gpus, "
                    "override_num_blocks, parallelism, partition_filter, partitioning, ray_remote_args, resources, "
                    "runtime_env, shuffle"
                ),
                "concurrency",
            )
        ),
    ),
    "pickles": ("read_numpy", {"allow_pickle": True}, config_error(pickles_allowed())),
    "missing": ("read_orc", {}, data_error(no_path("TMP/dta.orc", "TMP/data.orc"))),
}


@pytest.mark.parametrize(("method", "kwargs", "expected"), RAY_MISTAKES.values(), ids=RAY_MISTAKES)
@pytest.mark.filterwarnings("ignore")
def test_mistakes_that_are_seen_before_ray_starts(
    tmp_path: Path, method: str, kwargs: dict[str, Any], expected: ConfigError
) -> None:
    (tmp_path / "data.orc").touch()
    with pytest.raises(ConfigError) as error:
        source_of(tmp_path / "dta.orc", input_read_method=method, input_read_method_kwargs=kwargs)
    assert_error(error.value, expected, tmp_path)


_ROWS = {"output_write_episodes": False}
_RAY_CASES: dict[str, dict[str, Any]] = {
    "episodes": {"read": {"input_read_method_kwargs": {"override_num_blocks": 2, "concurrency": 1}}},
    "filtered": {"read": {"input_read_method_kwargs": {"filter": "length > 4", "columns": ["obs", "actions"]}}},
    "table": {"write": _ROWS},
    "csv": {"write": {**_ROWS, "output_write_method": "write_csv"}, "read": {"input_read_method": "read_csv"}},
    "hdf5": {},
}
