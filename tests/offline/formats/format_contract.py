"""Our formats by `runner.testing.check_reader`; subclass `FormatContract`, and set `format_class` and `make`."""

from __future__ import annotations

from pathlib import Path

from runner.config.offline import OfflineConfig
from runner.offline.formats.recorded_format import RecordedFormat
from runner.offline.reading.source import open_source
from runner.testing import check_reader


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
        source = open_source(OfflineConfig(input_=str(path)))
        assert source.description().format == self.format_class.name
