"""Data that functions of Ray Data read, from files and from elsewhere, and a function of one's own."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.episodes.columns import concat_blocks
from runner.offline.files.input_files import JSON
from runner.offline.files.ray_data import read_rows
from runner.offline.reading.source import open_source
from tests.offline import own_sources
from tests.offline.own_sources import QUERY, connection_to, write_steps
from tests.offline.recorded import read_by
from tests.support.configs import config_from

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

MODULE = own_sources.__name__
LENGTHS = [5, 7, 9]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    write_steps(tmp_path / "steps.db", LENGTHS)
    return tmp_path / "steps.db"


def test_sql(ray_cluster: None, database: Path) -> None:
    before = database.read_bytes()
    block = read_by("read_sql", QUERY, connection_factory=connection_to(database))
    # The table has no observation after the last step; the flag says that episodes terminate there.
    assert block.lengths.tolist() == LENGTHS
    assert block.is_terminated.all()
    np.testing.assert_array_equal(block.columns["obs"][6], [1, 0, 0.5, 0])
    assert block.columns["actions"][:5].tolist() == [0, 1, 0, 1, 0]
    filtered = read_by("read_sql", QUERY, connection_factory=connection_to(database), filter="eps_id == 'e1'")
    assert filtered.lengths.tolist() == [7]
    assert database.read_bytes() == before


def test_a_database_that_cannot_be_read(ray_cluster: None, database: Path) -> None:
    with pytest.raises(ConfigError, match="OperationalError: no such table: stepz"):
        read_by("read_sql", "SELECT * FROM stepz", connection_factory=connection_to(database))
    with pytest.raises(ConfigError, match="the argument connection_factory of read_sql must be a function"):
        read_by("read_sql", QUERY, connection_factory="sqlite")


def test_a_function_of_ones_own(ray_cluster: None, database: Path) -> None:
    assert read_by(f"{MODULE}.read_rows_of", database, stop=2).lengths.tolist() == LENGTHS[:2]
    with pytest.raises(ConfigError, match=r"returns_no_dataset did not return a ray\.data\.Dataset"):
        read_by(f"{MODULE}.returns_no_dataset", database)
    with pytest.raises(ConfigError, match="read_rows_of takes no option stopp"):
        read_by(f"{MODULE}.read_rows_of", database, stopp=2)


def test_rows_that_stand_alone_are_trained_on_as_they_are_read(ray_cluster: None) -> None:
    options: dict[str, Any] = {"input_": "6", "input_read_method": f"{MODULE}.read_single_steps"}
    source = open_source(OfflineConfig(**options, input_read_method_kwargs={"filter": "actions == 1"}))
    tables = source.dataset().iter_batches(batch_size=None, batch_format="pyarrow")
    block = concat_blocks([source.decode(table) for table in tables if table.num_rows])
    assert block.lengths.tolist() == [1, 1, 1]
    assert block.columns["obs"][::2, 0].tolist() == [1, 3, 5]


def rows_of(config: OfflineConfig) -> list[dict[str, Any]]:
    """The rows that a pre-learner with its own `_map_to_episodes` gets."""
    rows: list[dict[str, Any]] = read_rows(config, (JSON,)).take_all()
    return rows


def test_text(ray_cluster: None, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or\nnot to be\n")
    rows = rows_of(OfflineConfig(input_=str(tmp_path), input_read_method="read_text"))
    assert [row["text"] for row in rows] == ["to be or", "not to be"]


def test_images(ray_cluster: None, tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (3, 8, 6, 3), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    options = {"include_paths": True, "size": [8, 6]}
    rows = rows_of(
        OfflineConfig(input_=str(tmp_path), input_read_method="read_images", input_read_method_kwargs=options)
    )
    assert [Path(row["path"]).stem for row in rows] == ["0", "1", "2"]
    np.testing.assert_array_equal(np.stack([row["image"] for row in rows]), pictures)


def add_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def test_webdataset(ray_cluster: None, tmp_path: Path) -> None:
    picture = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    with tarfile.open(tmp_path / "part.tar", "w") as archive:
        for number in range(2):
            stream = io.BytesIO()
            Image.fromarray(picture + number).save(stream, "PNG")
            add_member(archive, f"{number}.cls", str(number).encode())
            add_member(archive, f"{number}.png", stream.getvalue())
    rows = rows_of(OfflineConfig(input_=str(tmp_path), input_read_method="read_webdataset"))
    assert [row["cls"] for row in rows] == [0, 1]
    np.testing.assert_array_equal(rows[1]["png"], picture + 1)


class Marks:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


def test_nothing_in_a_webdataset_is_unpickled(ray_cluster: None, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "part.tar", "w") as archive:
        add_member(archive, "0.pkl", pickle.dumps(Marks(str(tmp_path / "marker"))))
    with pytest.raises(Exception, match="Refusing to unpickle"):
        rows_of(OfflineConfig(input_=str(tmp_path), input_read_method="read_webdataset"))
    assert not (tmp_path / "marker").exists()


BC = ("+experiment=bc_cartpole", "offline.input_=data")


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["offline.input_read_method=tests.offline.own_sources.read_rowz_of"], "does not define read_rowz_of"),
        (["offline.input_read_method=nowhere.read"], "nowhere"),
        (
            ["offline.input_read_method=tests.offline.own_sources.read_rows_of"],
            "read_rows_of needs the argument stop",
        ),
        (
            [
                "offline.input_read_method=read_sql",
                "offline.input_read_method_kwargs={connection_factory: {_target_: tests.offline.own_sources.conect}}",
            ],
            "does not define conect",
        ),
        (
            [
                "offline.input_read_method=read_sql",
                "offline.input_read_method_kwargs={connection_factory: {_target_: tests.offline.own_sources.connect}}",
            ],
            "connect needs the argument path",
        ),
    ],
)
def test_mistakes_that_validation_tells(overrides: list[str], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(*BC, *overrides)
    (problem,) = caught.value.problems
    assert what in str(problem)
