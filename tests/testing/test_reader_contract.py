"""`check_reader` names what is wrong with a format; ours are checked in `tests/offline/formats`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataLocation, data_error
from runner.offline.files.input_files import FileKind, InputFiles
from runner.offline.files.raw_rows import RawTable
from runner.offline.formats import registry
from runner.offline.formats.native import EpisodeFormat
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat
from runner.offline.formats.selection import Selection
from runner.testing import BrokenContract, check_reader
from tests.offline.formats.recordings import make_episodes
from tests.testing.changed_classes import changed

NPZ = FileKind("npz", "NumPy", (".npz",), b"PK\x03\x04", is_binary=True)


@dataclass(frozen=True)
class NpzFormat(RecordedFormat):
    """One episode a file; nothing is wrong with it."""

    name = "npz"
    kinds = (NPZ,)

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        return cls(selection, spaces)

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        assert files is not None
        for path in files.paths:
            try:
                with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                    columns = {name: arrays[name] for name in arrays}
            except Exception as error:
                raise data_error(f"the file cannot be read: {error}", DataLocation(self.place_of(path))) from error
            yield self.selection.block(self.block_of(columns, Path(path).stem))

    def place_of(self, path: str) -> str | None:
        return path

    def block_of(self, columns: Mapping[str, Any], name: str) -> ColumnBlock:
        return ColumnBlock(
            columns=dict(columns),
            lengths=np.array([len(columns["rewards"])]),
            is_terminated=np.array([True]),
            is_truncated=np.array([False]),
            t_started=np.array([0]),
            episode_ids=[name],
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder, stream = tmp_path / "data", np.random.default_rng(0)
    folder.mkdir()
    for number, length in enumerate((5, 3, 8)):
        columns = {"actions": stream.integers(0, 2, length), "rewards": stream.normal(size=length).astype(np.float32)}
        np.savez(folder / f"{number}.npz", obs=stream.normal(size=(length + 1, 4)).astype(np.float32), **columns)
    return folder


def test_a_format_of_users(path: Path) -> None:
    before = registry.FORMATS
    check_reader(NpzFormat, path)
    assert registry.FORMATS is before


class NaNRewards(NpzFormat):
    def block_of(self, columns: Mapping[str, Any], name: str) -> ColumnBlock:
        return super().block_of({**columns, "rewards": columns["rewards"] * np.float32(np.nan)}, name)


SameIds = changed(NpzFormat, block_of=lambda self, columns, name: NpzFormat.block_of(self, columns, "one"))
NamesNoFile = changed(NpzFormat, place_of=lambda self, path: None)
ReadsNothing = changed(NpzFormat, blocks=lambda self, *sources: iter(()))


class EndsTwice(NpzFormat):
    def block_of(self, columns: Mapping[str, Any], name: str) -> ColumnBlock:
        return replace(super().block_of(columns, name), is_truncated=np.array([True]))


class ReadsAtRandom(NpzFormat):
    def block_of(self, columns: Mapping[str, Any], name: str) -> ColumnBlock:
        noise = np.random.default_rng().normal(size=len(columns["rewards"])).astype(np.float32)
        return super().block_of({**columns, "rewards": noise}, name)


class ReadsFloatsInCopies(NpzFormat):
    is_copied = False

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, is_copied=True)

    def block_of(self, columns: Mapping[str, Any], name: str) -> ColumnBlock:
        actions = columns["actions"].astype(np.float64 if self.is_copied else np.int64)
        return super().block_of({**columns, "actions": actions}, name)


class ReadsEverything(NpzFormat):
    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        for block in super().blocks(files, tables, counts):
            yield replace(block, columns={**block.columns, "action_logp": block.columns["rewards"]})


class SkipsBrokenFiles(NpzFormat):
    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        assert files is not None
        for path in files.paths:
            try:
                yield from super().blocks(replace(files, paths=(path,)), tables, counts)
            except Exception:
                yield self.block_of({"obs": np.zeros((2, 4)), "actions": np.zeros(1), "rewards": np.zeros(1)}, path)


class ReadsOneEpisode(NpzFormat):
    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        yield next(super().blocks(files, tables, counts))


@pytest.mark.parametrize(
    ("format_class", "message"),
    [
        (NaNRewards, "rewards are not finite floats"),
        (SameIds, "two complete episodes have the same id"),
        (EndsTwice, "an episode is both terminated and truncated"),
        (ReadsAtRandom, "a second stream returns a different column rewards"),
        (ReadsFloatsInCopies, "a copy of the source returns a different dtype of column actions"),
        (ReadsEverything, "a source that is narrowed returns different columns"),
        (SkipsBrokenFiles, "truncated files are accepted"),
        (NamesNoFile, "the error about a damaged file does not name it"),
        (ReadsNothing, "these data do not contain a complete step"),
        (ReadsOneEpisode, "the check needs at least two episodes, one of them with several steps"),
    ],
)
def test_refuses(format_class: type[NpzFormat], message: str, path: Path) -> None:
    with pytest.raises(BrokenContract, match=message) as caught:
        check_reader(format_class, path)
    assert str(caught.value).startswith(f"{format_class.__name__} breaks ")


class TakesEpisodes(EpisodeFormat):
    """Never the first to recognise its data."""


def test_another_format_comes_first(tmp_path: Path) -> None:
    with pytest.raises(BrokenContract, match="an earlier format recognises the data"):
        check_reader(TakesEpisodes, make_episodes(tmp_path / "data"))
