"""What every format of recorded data keeps to; a format of one's own can be put through it, too.

Subclass `FormatContract`, and set `format_class` and `make`.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.offline.codecs.layout import Spaces
from runner.offline.files.data_error import DataError
from runner.offline.files.input_files import find_files
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat, Row
from runner.offline.formats.registry import file_kinds, find_format
from runner.offline.reading.recorded_source import Source
from runner.offline.reading.source import open_source
from runner.offline.writing.conversion import convert
from tests.offline.blocks import assert_same


class FormatContract:
    """Tests of one format.

    Attributes:
        format_class: the format.
    """

    format_class: type[RecordedFormat]

    def make(self, folder: Path) -> Path:
        """Record at least two episodes, with an output of the policy beside observations, actions and rewards."""
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return self.make(tmp_path / "data")

    def open(self, path: Path, **options: object) -> Source:
        return open_source(OfflineConfig(input_=str(path), **options))  # type: ignore[arg-type]

    def test_its_data_are_recognised(self, path: Path) -> None:
        config = OfflineConfig(input_=str(path))
        data = RawData(config, find_files(config, file_kinds()))
        assert find_format(data) is self.format_class
        assert self.open(path).description().format == self.format_class.name

    def test_a_copy_and_raw_tables_hold_the_same_episodes(self, path: Path) -> None:
        source = self.open(path)
        whole = concat_blocks(list(source.blocks()))
        assert len(whole) > 1
        assert_same(concat_blocks(list(pickle.loads(pickle.dumps(source)).blocks())), whole)
        assert_same(concat_blocks([source.decode(table) for table in source.tables()]), whole)
        assert set(source.layout.columns) == set(whole.columns)

    def test_narrowed_data_have_fewer_columns_and_the_same_rows(self, path: Path) -> None:
        source = self.open(path)
        whole = concat_blocks(list(source.blocks()))
        narrow = source.narrowed((), with_infos=False)
        found = concat_blocks(list(narrow.blocks()))
        assert set(found.columns) == set(narrow.layout.columns) == {"obs", "actions", "rewards"}
        assert found.infos is None
        for name, column in found.columns.items():
            np.testing.assert_array_equal(column, whole.columns[name])
        opened_so = open_source(OfflineConfig(input_=str(path)), columns=(), with_infos=False)
        assert_same(concat_blocks(list(opened_so.blocks())), found)

    def test_data_that_do_not_fit_the_environment_are_refused(self, path: Path) -> None:
        import gymnasium as gym

        with pytest.raises(DataError, match="the data do not fit the environment"):
            open_source(OfflineConfig(input_=str(path)), Spaces(gym.spaces.Box(-1, 1, (17,)), gym.spaces.Discrete(2)))

    def test_damaged_files_are_refused_by_name(self, path: Path) -> None:
        files = sorted(file for file in path.rglob("*") if file.is_file())
        for file in files:
            file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(DataError) as caught:
            list(self.open(path).blocks())
        assert any(str(file) in str(caught.value) for file in [path, *files])

    def test_flags_that_say_something_else_are_refused(self, path: Path) -> None:
        wrong: dict[Row | None, tuple[dict[str, object], str]] = {
            Row.EPISODE: ({"input_read_sample_batches": True}, "these data are no SampleBatches"),
            Row.STEP: ({"input_read_episodes": True}, "the rows of these data are no episodes"),
            Row.BATCH: ({"input_read_episodes": True}, "the rows of these data are no episodes"),
            None: ({"input_read_schema": {"obs": "x"}}, "have no columns to be named"),
        }
        options, what = wrong[self.format_class.row]
        with pytest.raises(DataError, match=what):
            self.open(path, **options)

    @pytest.mark.parametrize("write_episodes", [True, False])
    def test_converted_data_hold_the_same_episodes(self, path: Path, tmp_path: Path, write_episodes: bool) -> None:
        whole = concat_blocks(list(self.open(path).blocks()))
        output = tmp_path / "out"
        report = convert(OfflineConfig(input_=str(path), output=str(output), output_write_episodes=write_episodes))
        assert (report.format, report.written.episodes) == (self.format_class.name, len(whole))
        assert report.written.steps == whole.num_rows
        _assert_same_episodes(concat_blocks(list(self.open(output).blocks())), whole)


def _assert_same_episodes(found: ColumnBlock, whole: ColumnBlock) -> None:
    for row, id_ in enumerate(whole.episode_ids):
        chunk = found[list(found.episode_ids).index(id_)]
        np.testing.assert_array_equal(chunk.get_observations(), whole[row].get_observations())
        np.testing.assert_array_equal(chunk.get_actions(), whole[row].get_actions())
        assert chunk.is_terminated == whole[row].is_terminated
