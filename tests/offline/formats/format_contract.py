"""Our formats by `runner.testing.check_reader`; subclass `FormatContract`, and set `format_class` and `make`."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from runner.config.offline import OfflineConfig
from runner.episodes.columns import concat_blocks
from runner.offline.files.data_error import DataError
from runner.offline.formats.recorded_format import RecordedFormat, Row
from runner.offline.writing.conversion import convert
from runner.testing import check_reader
from tests.offline.blocks import assert_same
from tests.offline.recorded import read, source_of


class FormatContract:
    """The contract of one format.

    Attributes:
        format_class: the format.
    """

    format_class: type[RecordedFormat]

    def make(self, folder: Path) -> Path:
        """Record at least two episodes, with an output of the policy beside observations, actions and rewards."""
        raise NotImplementedError

    def test_contract(self, tmp_path: Path) -> None:
        path = self.make(tmp_path / "data")
        check_reader(self.format_class, path)
        source = source_of(path)
        assert source.description().format == self.format_class.name
        whole = concat_blocks(list(source.blocks()))
        assert_same(concat_blocks(list(source.blocks())), whole)
        assert_same(concat_blocks(list(pickle.loads(pickle.dumps(source)).blocks())), whole)
        assert_same(concat_blocks([source.decode(table) for table in source.tables()]), whole)

    def test_flags_that_say_something_else_are_told(self, tmp_path: Path) -> None:
        wrong: dict[Row | None, tuple[dict[str, object], str]] = {
            Row.EPISODE: ({"input_read_sample_batches": True}, "these data are not SampleBatches"),
            Row.STEP: ({"input_read_episodes": True}, "the rows of these data are not episodes"),
            Row.BATCH: ({"input_read_episodes": True}, "the rows of these data are not episodes"),
            None: ({"input_read_schema": {"obs": "x"}}, "cannot be renamed"),
        }
        options, what = wrong[self.format_class.row]
        with pytest.raises(DataError, match=what):
            source_of(self.make(tmp_path / "data"), **options)

    @pytest.mark.parametrize("write_episodes", [True, False])
    def test_conversion_counts_what_it_writes(self, tmp_path: Path, write_episodes: bool) -> None:
        path = str(self.make(tmp_path / "data"))
        whole = read(path)
        output = str(tmp_path / "out")
        report = convert(OfflineConfig(input_=path, output=output, output_write_episodes=write_episodes))
        assert (report.format, report.written.episodes) == (self.format_class.name, len(whole))
        assert report.written.steps == whole.num_rows
