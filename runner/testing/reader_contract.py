"""Contract of formats of recorded data, built-in and user-defined."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import Problem
from runner.config.offline import OfflineConfig
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.offline.codecs.layout import Spaces
from runner.offline.files.data_error import DataError
from runner.offline.files.input_files import find_files
from runner.offline.formats import registry
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat, Row
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import open_source
from runner.offline.writing.conversion import convert
from runner.testing.rules import Rule, are_equal, check_rules, find_difference

_KEPT_BYTES = 100  # size of truncated files
_NEEDED = ("obs", "actions", "rewards")


def check_reader(format_class: type[RecordedFormat], path: str | Path, **options: Any) -> None:
    """Check a format of recorded data on a recording.

    Args:
        format_class: the format; if it is not in `registry.FORMATS`, it is treated as the last one.
        path: a file or folder with at least two episodes, one of them with several steps.
        options: options of the `offline` block for reading it.

    Raises:
        BrokenContract: the format breaks rules; the message lists all of them.
    """
    with _registered(format_class):
        contract = _ReaderContract(format_class, Path(path), options)
        check_rules(format_class.__name__, contract.rules())


@contextmanager
def _registered(format_class: type[RecordedFormat]) -> Iterator[None]:
    before = registry.FORMATS
    if format_class not in before:
        registry.FORMATS = (*before, format_class)
    try:
        yield
    finally:
        registry.FORMATS = before


class _ReaderContract:
    def __init__(self, format_class: type[RecordedFormat], path: Path, options: dict[str, Any]) -> None:
        self._format, self._path, self._options = format_class, path, options

    def rules(self) -> Iterator[Rule]:
        """Yield the rules; skip the remaining rules if the data cannot be read."""
        yield self.recognises_its_data
        try:
            self._whole = concat_blocks(list(self._open().blocks()))
        except DataError as error:
            problem = error.problems[0]
            yield lambda: [problem]
            return
        yield from (self.reads_well_formed_episodes, self.reads_the_same_again, self.knows_its_layout)
        yield from (self.narrows_columns, self.refuses_other_spaces, self.refuses_damaged_files)
        yield from (self.refuses_wrong_flags, self.converts)

    def _config(self, path: Path | None = None, **options: Any) -> OfflineConfig:
        return OfflineConfig(**{"input_": str(path or self._path), **self._options, **options})

    def _open(self, path: Path | None = None, **options: Any) -> RecordedSource:
        return open_source(self._config(path, **options))

    def recognises_its_data(self) -> Iterator[Problem]:
        """Check that this format is the first one that recognises its data."""
        config = self._config()
        found = registry.find_format(RawData(config, find_files(config, registry.file_kinds())))
        if found is not self._format:
            what = "an earlier format recognises the data"
            yield Problem(
                what,
                "recognises",
                found.__name__,
                self._format.__name__,
                fix=f"put {self._format.__name__} before it in registry.FORMATS",
            )

    def reads_well_formed_episodes(self) -> Iterator[Problem]:
        """Check that columns have one row per step, observations one more per episode, and rewards are finite."""
        block = self._whole
        if len(block) < 2 or block.num_rows <= len(block):
            what = "the check needs at least two episodes, one of them with several steps"
            yield Problem(what, "blocks", f"{len(block)} episodes of {block.num_rows} steps")
        missing = [name for name in _NEEDED if name not in block.columns]
        if missing:
            yield Problem(f"episodes lack {', '.join(missing)}", "blocks", ", ".join(block.columns))
            return
        rewards = block.columns["rewards"]
        if rewards.dtype.kind != "f" or not np.isfinite(rewards).all():
            yield Problem("rewards are not finite floats", "blocks", str(rewards.dtype), "finite float32 or float64")
        if len(set(block.episode_ids)) < len(block):
            yield Problem("two complete episodes have the same id", "blocks", expected="unique ids")
        is_both = block.is_terminated & block.is_truncated
        if self._format.has_trajectories and is_both.any():
            yield Problem("an episode is both terminated and truncated", "blocks", expected="at most one of them")

    def reads_the_same_again(self) -> Iterator[Problem]:
        """Check that a second stream, a copy, and raw tables contain the same episodes."""
        source = self._open()
        copied = copy.deepcopy(source)  # uses the same methods as pickle, which Ray uses
        ways: dict[str, Callable[[], list[ColumnBlock]]] = {
            "a second stream": lambda: list(source.blocks()),
            "a copy of the source": lambda: list(copied.blocks()),
            "raw tables, decoded one by one,": lambda: [source.decode(table) for table in source.tables()],
        }
        for way, read in ways.items():
            difference = _difference(concat_blocks(read()), self._whole)
            if difference is not None:
                yield Problem(f"{way} returns a different {difference}", "blocks, decode", expected="the same episodes")

    def knows_its_layout(self) -> Iterator[Problem]:
        """Check that the layout names the columns that are read."""
        got, expected = set(self._open().layout.columns), set(self._whole.columns)
        if got != expected:
            what = "the layout does not name the columns that are read"
            yield Problem(what, "layout", ", ".join(sorted(got)), ", ".join(sorted(expected)))

    def narrows_columns(self) -> Iterator[Problem]:
        """Check that reading fewer columns returns the same rows, without infos."""
        narrow = self._open().narrowed((), with_infos=False)
        opened = open_source(self._config(), columns=(), with_infos=False)
        for way, source in (("narrowed", narrow), ("opened for fewer columns", opened)):
            found = concat_blocks(list(source.blocks()))
            if set(found.columns) != set(_NEEDED) or found.infos is not None:
                infos = "" if found.infos is None else ", infos"
                what = f"a source that is {way} returns different columns"
                yield Problem(what, "selection", ", ".join(found.columns) + infos, ", ".join(_NEEDED))
                continue
            difference = find_difference(found.columns, {name: self._whole.columns[name] for name in _NEEDED})
            if difference is not None:
                yield Problem(
                    f"a source that is {way} returns a different {difference}", "selection", expected="the same rows"
                )

    def refuses_other_spaces(self) -> Iterator[Problem]:
        """Check that data that does not match the environment is rejected."""
        spaces = Spaces(gym.spaces.Box(-1, 1, (17, 23)), gym.spaces.Discrete(2))
        if self._error_of(lambda: open_source(self._config(), spaces)) is None:
            yield Problem("data that does not match the environment is accepted", "blocks", expected="a DataError")

    def refuses_damaged_files(self) -> Iterator[Problem]:
        """Check that truncated files are rejected with an error that names them."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self._path.name
            (shutil.copytree if self._path.is_dir() else shutil.copyfile)(self._path, path)
            files = [file for file in [path, *path.rglob("*")] if file.is_file()]
            for file in files:
                file.write_bytes(file.read_bytes()[:_KEPT_BYTES])
            error = self._error_of(lambda: list(self._open(path).blocks()))
        if error is None:
            yield Problem("truncated files are accepted", "blocks", expected="a DataError that names the file")
        elif not any(str(file) in str(error) for file in [path, *files]):
            yield Problem("the error about a damaged file does not name it", "blocks", str(error))

    def refuses_wrong_flags(self) -> Iterator[Problem]:
        """Check that options about the rows are verified."""
        wrong: dict[Row | None, dict[str, Any]] = {
            Row.EPISODE: {"input_read_sample_batches": True},
            Row.STEP: {"input_read_episodes": True},
            Row.BATCH: {"input_read_episodes": True},
            None: {"input_read_schema": {"obs": "x"}},
        }
        options = wrong[self._format.row]
        if self._error_of(lambda: self._open(**options)) is None:
            what = "options that contradict the rows are accepted"
            yield Problem(what, "row", str(options), f"a DataError, because row is {self._format.row}")

    @staticmethod
    def _error_of(read: Callable[[], object]) -> DataError | None:
        try:
            read()
        except DataError as error:
            return error
        return None

    def converts(self) -> Iterator[Problem]:
        """Check that data converted to episodes and to tables is unchanged."""
        for write_episodes in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                output = Path(folder) / "converted"
                convert(self._config(output=str(output), output_write_episodes=write_episodes))
                found = concat_blocks(list(open_source(OfflineConfig(input_=str(output))).blocks()))
            ids = list(found.episode_ids)
            for row, id_ in enumerate(self._whole.episode_ids):
                if id_ not in ids or not _is_same_episode(found[ids.index(id_)], self._whole[row]):
                    kind = "episodes" if write_episodes else "a table"
                    yield Problem(f"episode {id_} differs after it was converted to {kind}", "blocks")
                    break


def _difference(first: ColumnBlock, second: ColumnBlock) -> str | None:
    """Return the difference between two blocks, or None if they are equal."""
    difference = find_difference(_dtypes(first), _dtypes(second))
    if difference is not None:
        return f"dtype of column {difference}"
    difference = find_difference(first.columns, second.columns)
    if difference is not None:
        return f"column {difference}"
    names = ("episode_ids", "lengths", "is_terminated", "is_truncated", "t_started")
    difference = next((name for name in names if not are_equal(getattr(first, name), getattr(second, name))), None)
    return difference if difference or are_equal(_infos_of(first), _infos_of(second)) else "infos"


def _dtypes(block: ColumnBlock) -> dict[str, Any]:
    return {name: nested.map_leaves(lambda leaf: str(leaf.dtype), column) for name, column in block.columns.items()}


def _infos_of(block: ColumnBlock) -> list[Any]:
    """Return the infos of each episode; an empty list for an episode without infos."""
    rows = [block.infos and block.infos.rows_of(n, length + 1) for n, length in enumerate(block.lengths.tolist())]
    return [infos if infos and any(infos) else [] for infos in rows]


def _is_same_episode(first: Any, second: Any) -> bool:
    pairs = (
        (getattr(one, f"get_{what}")() for one in (first, second)) for what in ("observations", "actions", "rewards")
    )
    return all(are_equal(*pair) for pair in pairs) and first.is_terminated == second.is_terminated
