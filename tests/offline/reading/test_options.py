"""The options of the group `offline`: each reads the data that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.episodes.columns import concat_blocks
from runner.offline.files.data_error import DataError
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import open_source
from tests.conftest import ROOT
from tests.offline.formats.recordings import make_hdf5
from tests.offline.recorded import BLOCK
from tests.support.configs import config_from

DATA = ROOT / "tests" / "data"


def opened(option: str, path: Path) -> RecordedSource:
    """Open data by an option of the command line."""
    overrides = ["+experiment=bc_cartpole", f"offline={option}", f"offline.input_={path}"]
    return open_source(config_from(*overrides).offline)


@pytest.mark.parametrize(
    ("option", "folder", "format_name"),
    [
        ("episodes", "rllib_cartpole_episodes", "rllib_episodes"),
        ("table", "rllib_cartpole_table", "table"),
        ("rllib", "rllib_sample_batches", "sample_batches"),
        ("minari", "minari/cartpole_hdf5", "minari"),
        ("minari", "minari/cartpole_arrow", "minari"),
    ],
)
def test_an_option_reads_its_data(option: str, folder: str, format_name: str) -> None:
    source = opened(option, DATA / folder)
    assert source.format.name == format_name
    assert concat_blocks(list(source.blocks())).columns["obs"].shape[1:] == (4,)


def test_d4rl(tmp_path: Path) -> None:
    source = opened("d4rl", make_hdf5(tmp_path / "data"))
    assert source.format.name == "hdf5"
    assert concat_blocks(list(source.blocks())).num_rows == BLOCK.num_rows


@pytest.mark.parametrize(("option", "folder"), [("episodes", "rllib_cartpole_table"), ("table", "rllib_episodes")])
def test_data_of_another_kind_are_told(option: str, folder: str) -> None:
    with pytest.raises(DataError, match="input_read_episodes"):
        opened(option, DATA / folder)
