"""What is recorded is on disk: counts, rolling files, other file systems, and everything that is refused."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.episodes.columns import Agents, ColumnBlock, concat_blocks
from runner.offline.codecs.episode_format import table_to_block
from runner.offline.writing.writer import EpisodeWriter, WriteFailed, WriteReport, prepare_output
from tests.offline.blocks import ListedInfos, assert_same, blocks, flat_block
from tests.offline.problems import (
    OTHER_SHAPE,
    config_error,
    has_data,
    no_column_to_compress,
    unknown_compression,
    unknown_filesystem,
)
from tests.support.problems import assert_error


def write(config: OfflineConfig, parts: Sequence[ColumnBlock], writer_id: str = "0") -> WriteReport:
    with EpisodeWriter(config, env_name="CartPole-v1", writer_id=writer_id) as writer:
        for block in parts:
            writer.add(block)
    return writer.close()


def read_back(report: WriteReport) -> ColumnBlock:
    return concat_blocks([table_to_block(pq.read_table(path)) for path in report.files])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_record_and_read_is_exact(tmp_path: Path, data: st.DataObject) -> None:
    block = data.draw(blocks())
    config = OfflineConfig(
        output=str(tmp_path / str(len(list(tmp_path.iterdir())))),
        output_max_rows_per_file=data.draw(st.none() | st.integers(1, 3)),
        output_max_file_size=data.draw(st.sampled_from([None, 1, 10_000])),
    )
    prepare_output(config)
    report = write(config, [block])
    assert (report.episodes, report.steps) == (len(block), block.num_rows)
    assert_same(read_back(report), block)


def test_arrays_may_be_reused_after_they_were_added(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path))
    block, kept = flat_block([3, 2]), flat_block([3, 2])
    with EpisodeWriter(config) as writer:
        writer.add(block)
        for column in block.columns.values():
            column[...] = 0
    assert_same(read_back(writer.close()), kept)


@pytest.mark.parametrize("write_episodes", [True, False])
def test_files_roll_over_by_rows(tmp_path: Path, write_episodes: bool) -> None:
    config = OfflineConfig(output=str(tmp_path), output_max_rows_per_file=25, output_write_episodes=write_episodes)
    parts = [flat_block([4] * 10, prefix=f"part{i}-") for i in range(7)]
    report = write(config, parts)
    rows = [pq.read_metadata(path).num_rows for path in report.files]
    total = 70 if write_episodes else 280
    assert rows == [25] * (total // 25) + [total % 25]
    assert (report.episodes, report.steps) == (70, 280)
    assert [Path(path).name for path in report.files][:2] == [
        f"{'episodes' if write_episodes else 'steps'}-0-{i:06d}.parquet" for i in range(2)
    ]
    assert report.num_bytes == sum(os.path.getsize(path) for path in report.files)


def test_files_roll_over_by_size_and_are_not_confetti(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path), output_max_file_size=200_000)
    parts = [flat_block([100] * 10, prefix=f"part{i}-", seed=i) for i in range(60)]  # 28 KB a part
    report = write(config, parts)
    sizes = [os.path.getsize(path) for path in report.files]
    assert len(sizes) > 3
    assert all(200_000 <= size < 450_000 for size in sizes[:-1])
    assert_same(read_back(report), concat_blocks(parts))


def test_many_small_blocks_make_few_row_groups(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path))
    report = write(config, [flat_block([10], prefix=f"{i}-") for i in range(200)])
    (path,) = report.files
    assert pq.read_metadata(path).num_row_groups == 1
    assert pq.read_metadata(path).num_rows == 200


def test_row_groups_let_a_reader_take_a_part(tmp_path: Path) -> None:
    report = write(OfflineConfig(output=str(tmp_path)), [flat_block([500] * 1000)])
    (path,) = report.files
    metadata = pq.read_metadata(path)
    assert 3 <= metadata.num_row_groups <= 8
    column = {metadata.row_group(0).column(i).path_in_schema: metadata.row_group(0).column(i) for i in range(20)
              if i < metadata.num_columns}  # fmt: skip
    assert column["obs.list.element.list.element"].compression == "LZ4"
    assert column["rewards.list.element"].compression == "ZSTD"
    assert column["episode_return"].statistics.has_min_max


def test_infos_that_come_late(tmp_path: Path) -> None:
    plain = [flat_block([2], prefix=f"{i}-") for i in range(4)]
    infos = ListedInfos([[{}, {"x": 1}, {}]])
    parts = [plain[0], replace(plain[1], infos=infos), plain[2]]
    parts += [replace(plain[3], infos=infos)]
    report = write(OfflineConfig(output=str(tmp_path)), parts)
    assert [pq.read_metadata(path).num_rows for path in report.files] == [1, 3]
    assert_same(read_back(report), concat_blocks(parts))


def test_several_modules_and_writers(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path))

    def of_module(module_id: str, width: int) -> ColumnBlock:
        block = flat_block([3, 2])
        obs = np.ones((7, width), np.float32)
        agents = Agents(["a", "b"], ["m", "m"], np.arange(7))
        return replace(block, columns={**block.columns, "obs": obs}, agents=agents, module_id=module_id)

    reports = [write(config, [of_module("red", 3), of_module("blue", 5)], str(i)) for i in range(2)]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"episodes-{i}-{m}-000000.parquet" for i in range(2) for m in ("blue", "red")]
    assert table_to_block(pq.read_table(reports[0].files[0])).module_id == "red"


def test_other_file_systems() -> None:
    config = OfflineConfig(output="memory://bucket/data")
    prepare_output(config)
    report = write(config, [flat_block([3, 2])])
    import fsspec

    with fsspec.open(f"memory://{report.files[0]}") as file:
        assert_same(table_to_block(pq.read_table(file)), flat_block([3, 2]))
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_tables_as_json_and_csv(tmp_path: Path) -> None:
    block = flat_block([3, 2])
    for method, kwargs, name in (
        ("write_json", {"compression": "gzip"}, "steps-0-000000.json.gz"),
        ("write_json", {}, "steps-0-000000.json"),
        ("write_csv", {}, "steps-0-000000.csv"),
    ):
        output = tmp_path / f"{method}{len(kwargs)}"
        config = OfflineConfig(
            output=str(output),
            output_write_episodes=False,
            output_write_method=method,
            output_write_method_kwargs=kwargs,
        )
        prepare_output(config)
        report = write(config, [block])
        assert [path.name for path in output.iterdir()] == [name]
        assert report.steps == 5
        data = (output / name).read_bytes()
        if method == "write_json":
            lines = (gzip.decompress(data) if kwargs else data).splitlines()
            rows = [json.loads(line) for line in lines]
            assert len(rows) == 5
            np.testing.assert_array_equal(np.float32(rows[0]["obs"]), block.columns["obs"][0])
        else:
            table = pa.csv.read_csv(output / name)
            assert table.num_rows == 5
            np.testing.assert_array_equal(np.float32(json.loads(table["obs"][0].as_py())), block.columns["obs"][0])
            np.testing.assert_array_equal(table["rewards"].to_numpy().astype(np.float32), block.columns["rewards"])


def test_csv_rows_without_a_task_have_the_columns_of_earlier_rows(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path), output_write_method="write_csv", output_write_episodes=False)
    with EpisodeWriter(config) as writer:
        writer.add(replace(flat_block([3]), tasks=["walk"]))
        writer._files[None]._flush()
        writer.add(flat_block([2], prefix="x"))
    table = pa.csv.read_csv(writer.close().files[0])
    assert table["task"].to_pylist() == ["walk"] * 3 + [""] * 2
    assert table["eps_id"].to_pylist() == ["e0"] * 3 + ["x0"] * 2
    assert "agent_id" not in table.column_names


def test_a_folder_with_data_is_refused_unless_appended(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path / "data"))
    prepare_output(config)
    first = write(config, [flat_block([3])])
    before = Path(first.files[0]).read_bytes()
    with pytest.raises(ConfigError) as error:
        prepare_output(config)
    assert_error(error.value, config_error(has_data("episodes-0-000000.parquet", "TMP/data")), tmp_path)
    more = OfflineConfig(output=str(tmp_path / "data"), output_append=True)
    prepare_output(more)
    second = write(more, [flat_block([2], prefix="x")])
    assert Path(second.files[0]).name == "episodes-0-000001.parquet"
    assert Path(first.files[0]).read_bytes() == before


BAD_OPTIONS: Mapping[str, tuple[dict[str, object], ConfigError]] = {
    "output_json_episodes": (
        {"output_write_method": "write_json"},
        config_error(
            Problem(
                "write_json can only write steps, not episodes",
                "offline.output_write_method",
                "write_json",
                "write_parquet",
                fix="set offline.output_write_episodes=false",
            )
        ),
    ),
    "output_unknown_compression": (
        {"output_write_method_kwargs": {"compression": "zst"}},
        config_error(unknown_compression("zst", "zstd")),
    ),
    "output_unknown_filesystem": (
        {"output_filesystem": "s4"},
        config_error(unknown_filesystem("offline.output_filesystem")),
    ),
    "output_unknown_uri": (
        {"output": "nowhere://bucket/x"},
        config_error(
            Problem(
                "no file system supports this address",
                "nowhere://bucket/x",
                "Unrecognized filesystem type in URI: nowhere://bucket/x",
                "gcs, s3, abs, local",
            )
        ),
    ),
    "output_bad_filesystem_kwargs": (
        {"output_filesystem": "local", "output_filesystem_kwargs": {"anonymus": True}},
        config_error(
            Problem(
                (
                    "the file system local cannot be created: TypeError: __init__() got an unexpected keyword "
                    "argument 'anonymus'"
                ),
                "offline.output_filesystem_kwargs",
                "{'anonymus': True}",
            )
        ),
    ),
    "output_none": (
        {"output": None},
        config_error(Problem("the output folder is not set", "offline.output", "null", fix="set a folder")),
    ),
}


@pytest.mark.parametrize(("options", "expected"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options_that_do_not_work(tmp_path: Path, options: dict[str, object], expected: ConfigError) -> None:
    with pytest.raises(ConfigError) as error:
        prepare_output(OfflineConfig(**{"output": str(tmp_path / "x"), **options}))  # type: ignore[arg-type]
    assert_error(error.value, expected, tmp_path)
    assert not (tmp_path / "x").exists()


def test_blocks_that_do_not_fit(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path / "data"), output_compress_columns=["obs", "action_lgp"])
    prepare_output(config)
    with pytest.raises(ConfigError) as error, EpisodeWriter(config) as writer:
        writer.add(flat_block([3]))
    problem = no_column_to_compress("offline.output_compress_columns", "action_lgp", "action_logp")
    assert_error(error.value, config_error(problem), tmp_path)
    block = flat_block([3])
    other = replace(block, columns={**block.columns, "obs": np.ones((4, 3), np.float32)})
    with pytest.raises(ConfigError) as error:
        write(OfflineConfig(output=config.output), [block, other])
    problem = Problem(f"these episodes cannot be recorded: {OTHER_SHAPE}", "offline.output")
    assert_error(error.value, config_error(problem), tmp_path)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_failed_write_raises_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OfflineConfig(output=str(tmp_path), output_max_rows_per_file=2)

    def fail(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    writer = EpisodeWriter(config)
    writer.add(flat_block([3, 2]))
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(WriteFailed, match="No space left on device"):
        writer.add(flat_block([3, 2], prefix="x"))
    writer.abort()
    assert [path.name for path in tmp_path.iterdir()] == ["episodes-0-000000.parquet"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    report = write(OfflineConfig(output=str(tmp_path)), [flat_block([3, 2])])
    assert [path.name for path in tmp_path.iterdir()] == ["episodes-0-000000.parquet"]
    assert_same(read_back(report), flat_block([3, 2]))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path))
    writer = EpisodeWriter(config)
    writer.add(flat_block([3]))
    writer._files[None]._flush()
    (tmp_path / "episodes-0-000000.parquet").write_text("somebody else was faster")
    with pytest.raises(WriteFailed, match="exists"):
        writer.close()
    assert (tmp_path / "episodes-0-000000.parquet").read_text() == "somebody else was faster"
