"""Files in run folders, as RLlib lays them out: numbers, appending, what is refused, and nothing left behind."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import fs

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock
from runner.offline.files.filesystems import Location
from runner.offline.writing.conversion import convert
from runner.offline.writing.output_files import FileList, names_in
from runner.offline.writing.writer import EpisodeWriter, WriteFailed, WriteReport, prepare_output
from tests.conftest import QUICK, Run
from tests.offline.blocks import assert_same, flat_block
from tests.offline.recorded import read


def config_of(output: Path, **options: Any) -> OfflineConfig:
    return OfflineConfig(output=str(output), output_run_folders=True, **options)


def write(config: OfflineConfig, block: ColumnBlock, number: int = 1, env: str | None = "CartPole-v1") -> WriteReport:
    prepare_output(config)
    writer_id = f"env_runner-{number - 1}-0"
    with EpisodeWriter(config, env_name=env, writer_id=writer_id, writer_number=number) as writer:
        writer.add(block)
    return writer.close()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def folders_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("run-*"))


def test_each_file_has_its_folder(tmp_path: Path) -> None:
    block = flat_block([4] * 5)
    report = write(config_of(tmp_path, output_max_rows_per_file=2), block)
    assert files_in(tmp_path) == [
        f"cartpole-v1/run-000001-{number:05d}/episodes-env_runner-0-0-{number:06d}.parquet" for number in (1, 2, 3)
    ]
    assert [str(tmp_path / name) for name in files_in(tmp_path)] == list(report.files)
    assert_same(read(tmp_path), block)


def test_env_runners_and_environments_are_told_apart(tmp_path: Path) -> None:
    config = config_of(tmp_path, output_append=True)
    write(config, flat_block([3], prefix="a"), number=2)
    write(config, flat_block([3], prefix="b"), number=1)
    write(config, flat_block([3], prefix="c"), number=2)
    write(config, flat_block([3], prefix="d"), env="ALE/Breakout-v5")
    write(config, flat_block([3], prefix="e"), env=None)
    assert folders_in(tmp_path) == [
        "ale-breakout-v5/run-000001-00001",
        *(f"cartpole-v1/run-{run}" for run in ("000001-00001", "000002-00001", "000002-00002")),
        "environment/run-000001-00001",
    ]
    assert sorted(read(tmp_path).episode_ids) == ["a0", "b0", "c0", "d0", "e0"]


def test_a_folder_with_data_is_refused(tmp_path: Path) -> None:
    write(config_of(tmp_path), flat_block([3]))
    with pytest.raises(ConfigError, match="the folder already contains data: cartpole-v1/run-000001-00001/episodes-"):
        prepare_output(config_of(tmp_path))
    prepare_output(config_of(tmp_path), [str(tmp_path / name) for name in files_in(tmp_path)])


@pytest.mark.parametrize("rows", [None, 1])
def test_what_is_dropped_leaves_no_folder(tmp_path: Path, rows: int | None) -> None:
    config = config_of(tmp_path, output_max_rows_per_file=rows, output_max_file_size=1)
    writer = EpisodeWriter(config, env_name="CartPole-v1")
    writer.add(flat_block([3, 3]))
    writer.discard()
    assert folders_in(tmp_path) == []


def test_a_file_that_is_begun_leaves_no_folder(tmp_path: Path) -> None:
    writer = EpisodeWriter(config_of(tmp_path, output_max_file_size=None), env_name="CartPole-v1")
    writer.add(flat_block([200_000]))
    assert len(folders_in(tmp_path)) == 1
    writer.abort()
    assert folders_in(tmp_path) == []


def test_a_name_that_is_taken_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(config_of(tmp_path), flat_block([3]))
    monkeypatch.setattr("runner.offline.writing.output_files._highest", lambda *_: 0)
    before = {name: (tmp_path / name).read_bytes() for name in files_in(tmp_path)}
    with pytest.raises(WriteFailed, match="exists"):
        write(config_of(tmp_path, output_append=True), flat_block([4]))
    assert {name: (tmp_path / name).read_bytes() for name in files_in(tmp_path)} == before


@pytest.mark.parametrize("has_folders", [False, True])
@pytest.mark.parametrize("is_complete", [False, True])
def test_processes_that_choose_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_complete: bool, has_folders: bool
) -> None:
    config = OfflineConfig(output=str(tmp_path / "data"), output_run_folders=has_folders)
    location = prepare_output(config)
    assert location is not None
    first = EpisodeWriter(config)
    first.add(flat_block([3]))
    first._files[None]._flush()
    if is_complete:
        first.close()
    stale: list[list[str]] = [[]]  # what the second process has seen before the first one began its file

    def listed(*arguments: Any) -> list[str]:
        return stale.pop() if stale else names_in(*arguments)

    monkeypatch.setattr("runner.offline.writing.output_files.names_in", listed)
    files = FileList(tmp_path / "list.txt", location)
    with EpisodeWriter(config, file_list=files) as second:
        second.add(flat_block([2], prefix="x"))
    written = second.close().files
    first.close()
    assert files.paths == list(written), "the list must not contain the other process's file"
    assert sorted(read(tmp_path / "data").episode_ids) == ["e0", "x0"]
    assert len(files_in(tmp_path / "data")) == 2


def test_a_run_that_goes_on_removes_newer_files_with_their_folders(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data", output_max_rows_per_file=1)
    location = prepare_output(config)
    assert location is not None
    files = FileList(tmp_path / "list.txt", location)
    with EpisodeWriter(config, env_name="CartPole-v1", file_list=files) as writer:
        writer.add(flat_block([3, 3, 3]))
    written = writer.close().files
    assert files.paths == list(written)
    outside = tmp_path / "keep.parquet"
    outside.write_bytes(b"somebody's")
    files.add(str(outside))
    files.add(f"{tmp_path}/data/../keep.parquet")
    files.keep_only(written[:1])
    assert folders_in(tmp_path / "data") == ["cartpole-v1/run-000001-00001"]
    assert outside.exists()
    with EpisodeWriter(config, env_name="CartPole-v1", file_list=files) as writer:
        writer.add(flat_block([2]))
    assert folders_in(tmp_path / "data")[1:] == ["cartpole-v1/run-000001-00002"]


def test_what_is_read_is_not_written_beside(tmp_path: Path) -> None:
    write(config_of(tmp_path), flat_block([3]))
    beside = config_of(tmp_path, input_=str(tmp_path / "cartpole-v1"), output_append=True)
    with pytest.raises(ConfigError, match="this folder contains the input data"):
        convert(beside)


def test_a_folder_inside_the_input_is_not_written(tmp_path: Path) -> None:
    write(OfflineConfig(output=str(tmp_path / "data")), flat_block([3]))
    inside = OfflineConfig(input_=str(tmp_path / "data"), output=str(tmp_path / "data" / "converted"))
    with pytest.raises(ConfigError, match="this folder is inside the input data"):
        convert(inside)
    elsewhere = replace(inside, output=f"memory://{tmp_path}/data/copy")
    assert convert(elsewhere).written.episodes == 1
    one_file = replace(inside, input_=str(next((tmp_path / "data").glob("*.parquet"))))
    assert convert(one_file).written.episodes == 1


def test_an_input_folder_with_subfolders_is_not_written(tmp_path: Path) -> None:
    write(OfflineConfig(output=str(tmp_path / "data" / "first")), flat_block([3]))
    same = OfflineConfig(input_=str(tmp_path / "data"), output=str(tmp_path / "data"))
    with pytest.raises(ConfigError, match="this folder contains the input data"):
        convert(same)


def test_only_files_have_folders(tmp_path: Path) -> None:
    method = {"output_write_method": "tests.offline.own_sources.write_lines", "output_write_episodes": False}
    with pytest.raises(ConfigError, match=r"offline.output_run_folders needs a method that writes files, but"):
        prepare_output(config_of(tmp_path, **method))


def test_record_as_rllib_does(run_main: Run, tmp_path: Path) -> None:
    trained = run_main("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=1", "hydra.run.dir=run")
    assert trained.code == 0, trained.err
    outcome = run_main(
        "record", "run", "offline.output=data", "offline.output_run_folders=true", "offline.output_max_rows_per_file=2",
        "offline.output_episode_format=rllib", "evaluation.evaluation_num_env_runners=2", "engine=inline",
        "evaluation.evaluation_duration=6",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    numbers = [re.fullmatch(r"cartpole-v1/run-(\d{6})-(\d{5})", name) for name in folders_in(tmp_path / "data")]
    assert [tuple(map(int, match.groups())) for match in numbers if match] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    block = read(tmp_path / "data")
    assert len(block) == 6
    np.testing.assert_array_equal(block.is_terminated | block.is_truncated, np.ones(6, np.bool_))


class _CreatedMeanwhile:
    """A file system with a folder that another process creates while Arrow looks whether it exists."""

    def __init__(self) -> None:
        self.num_looks = 0

    def get_file_info(self, selector: fs.FileSelector) -> Any:
        self.num_looks += 1
        if self.num_looks == 1:
            raise FileNotFoundError(selector.base_dir)
        return fs.LocalFileSystem().get_file_info(selector)


def test_a_folder_that_another_process_creates_meanwhile_is_listed(tmp_path: Path) -> None:
    (tmp_path / "run-000002-00001").mkdir()
    filesystem: Any = _CreatedMeanwhile()
    location = Location(filesystem, str(tmp_path), str(tmp_path))
    assert names_in(location, fs.FileType.Directory) == ["run-000002-00001"]
    assert filesystem.num_looks == 2
