"""Every format keeps to the contract; a format of one's own is a class and a line."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError
from runner.offline.files.input_files import FileKind, InputFiles, find_files
from runner.offline.files.raw_rows import RawTable
from runner.offline.formats import registry
from runner.offline.formats.env_episodes import EnvEpisodeFormat
from runner.offline.formats.other_libraries import MinariFormat
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat
from runner.offline.formats.selection import Selection
from runner.offline.reading.source import open_source
from runner.offline.writing.conversion import convert
from runner.testing import check_reader
from tests.offline.blocks import assert_same
from tests.offline.formats.recordings import ALL_MAKERS, make_table
from tests.offline.recorded import BLOCK, source_of


def test_every_format_has_a_recording_and_a_name_of_its_own() -> None:
    assert sorted(one.name for one in registry.FORMATS) == sorted(ALL_MAKERS)


# Env episodes are read for a module: tests/offline/reading/test_env_episodes.py has their tests.
@pytest.mark.parametrize(
    "format_class", [one for one in registry.FORMATS if one is not EnvEpisodeFormat], ids=lambda one: str(one.name)
)
def test_contract(tmp_path: Path, format_class: type[RecordedFormat]) -> None:
    path = ALL_MAKERS[format_class.name](tmp_path / "data")
    check_reader(format_class, path)
    source = source_of(path)
    assert source.description().format == format_class.name
    whole = concat_blocks(list(source.blocks()))
    assert_same(concat_blocks(list(pickle.loads(pickle.dumps(source)).blocks())), whole)
    for write_episodes in (True, False):
        output = str(tmp_path / f"out_{write_episodes}")
        report = convert(OfflineConfig(input_=str(path), output=output, output_write_episodes=write_episodes))
        assert (report.format, report.written.episodes) == (format_class.name, len(whole))
        assert report.written.steps == whole.num_rows


@pytest.mark.parametrize("name", [one.name for one in registry.FORMATS])
def test_data_of_one_format_are_of_no_other(tmp_path: Path, name: str) -> None:
    """The first format that recognises data takes them, so that no earlier one may."""
    config = OfflineConfig(input_=str(ALL_MAKERS[name](tmp_path / "data")))
    data = RawData(config, find_files(config, registry.file_kinds()))
    assert data.files is not None
    kind = data.files.kind
    assert next(one.name for one in registry.FORMATS if kind in one.kinds and one.recognises(data)) == name


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".hdf5"])
@pytest.mark.parametrize("name", [one.name for one in registry.FORMATS if one is not MinariFormat])
def test_files_that_are_named_for_another_kind_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    """CSV is not among the kinds: text may begin with anything."""
    for file in list(ALL_MAKERS[name](tmp_path / "data").iterdir()):
        if file.suffix == suffix:
            return
        file.rename(file.with_suffix(suffix))
    with pytest.raises(DataError, match=r"this is not a \w+ file: it starts like \w+"):
        list(open_source(OfflineConfig(input_=str(tmp_path / "data"))).blocks())


def test_data_that_no_format_takes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FORMATS", registry.FORMATS[:2])
    with pytest.raises(DataError, match="the format of these data is unknown"):
        open_source(OfflineConfig(input_=str(make_table(tmp_path / "data"))))


# --- a format of one's own ------------------------------------------------------------------------

NPZ = FileKind("npz", "NumPy", (".npz",), b"PK\x03\x04", is_binary=True)


@dataclass(frozen=True)
class NpzFormat(RecordedFormat):
    """One episode a file."""

    name = "npz"
    kinds = (NPZ,)

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        return cls(selection, spaces)

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        assert files is not None
        for path in files.paths:
            with np.load(path, allow_pickle=False) as arrays:
                length = len(arrays["rewards"])
                yield ColumnBlock(
                    columns={name: arrays[name] for name in arrays},
                    lengths=np.array([length]),
                    is_terminated=np.array([True]),
                    is_truncated=np.array([False]),
                    t_started=np.array([0]),
                    episode_ids=[Path(path).stem],
                )


def make_npz(folder: Path) -> Path:
    folder.mkdir()
    for number, episode in enumerate(BLOCK):
        np.savez(
            folder / f"{number}.npz",
            obs=episode.get_observations(),
            actions=episode.get_actions(),
            rewards=episode.get_rewards(),
        )
    return folder


def test_a_format_of_ones_own_is_a_class_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OfflineConfig(input_=str(make_npz(tmp_path / "data")))
    with pytest.raises(DataError, match=r"does not contain data\s+files"):
        open_source(config)
    monkeypatch.setattr(registry, "FORMATS", (*registry.FORMATS, NpzFormat))
    source = open_source(config)
    assert source.description().format == "npz"
    assert [block.num_rows for block in source.blocks()] == [5, 3, 8]
    with pytest.raises(DataError, match="a filter is not supported for data of the format npz"):
        open_source(OfflineConfig(input_=config.input_, input_read_method_kwargs={"filter": "rewards > 0"}))
