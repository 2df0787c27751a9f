"""Steps that functions of Ray Data, or of one's own, write, and what is read back of them."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.errors import ConfigError, RunFailure
from runner.config.offline import OfflineConfig
from runner.config.required_trust import find_trust_requirements
from runner.episodes.columns import ColumnBlock
from runner.offline.files.input_files import JSON
from runner.offline.files.ray_data import read_rows
from runner.offline.writing.writer import EpisodeWriter, WriteReport, prepare_output
from tests.conftest import QUICK, Run
from tests.offline import own_sources
from tests.offline.blocks import flat_block
from tests.offline.own_sources import QUERY, connection_to
from tests.offline.recorded import read, read_by
from tests.support.configs import config_from

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

MODULE = own_sources.__name__
COLUMNS = ["eps_id", "t", "obs", "actions", "rewards", "new_obs", "terminateds", "truncateds"]
INSERT = f"INSERT INTO steps ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def config_of(output: Path | str, method: str, max_rows: int | None = None, **kwargs: Any) -> OfflineConfig:
    return OfflineConfig(
        output=str(output),
        output_write_episodes=False,
        output_write_method=method,
        output_write_method_kwargs=kwargs,
        output_max_rows_per_file=max_rows,
    )


def write(config: OfflineConfig, block: ColumnBlock) -> WriteReport:
    prepare_output(config)
    with EpisodeWriter(config) as writer:
        writer.add(block)
    return writer.close()


def assert_same_steps(got: ColumnBlock, expected: ColumnBlock) -> None:
    assert list(got.episode_ids) == list(expected.episode_ids)
    for name in ("lengths", "is_terminated", "is_truncated", "t_started"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    for name in ("obs", "actions", "rewards"):
        np.testing.assert_array_equal(got.columns[name], expected.columns[name])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "steps.db") as connection:
        connection.execute(f"CREATE TABLE steps ({', '.join(COLUMNS)})")
    return tmp_path / "steps.db"


@pytest.mark.slow
def test_orc(ray_cluster: None, tmp_path: Path) -> None:
    block = flat_block([4, 3, 6])
    report = write(config_of(tmp_path / "orc", "write_orc", max_rows=5, compression="zstd"), block)
    assert [Path(path).name for path in report.files] == [f"steps-0-{number:06d}.orc" for number in range(3)]
    assert sorted(path.name for path in (tmp_path / "orc").iterdir()) == [Path(path).name for path in report.files]
    assert report.num_bytes == sum(Path(path).stat().st_size for path in report.files)
    again = read_by("read_orc", tmp_path / "orc")
    assert_same_steps(again, block)
    assert again.columns["obs"].dtype == block.columns["obs"].dtype


def test_sql(ray_cluster: None, database: Path) -> None:
    block, options = flat_block([4, 3, 6]), {"connection_factory": connection_to(database)}
    report = write(config_of(INSERT, "write_sql", max_rows=5, columns=COLUMNS, **options), block)
    assert (report.files, report.episodes, report.steps) == ((), 3, 13)
    assert_same_steps(read_by("read_sql", QUERY, **options), block)


def test_a_function_of_ones_own(ray_cluster: None, tmp_path: Path) -> None:
    block, path = flat_block([4, 3]), tmp_path / "steps.json"
    report = write(config_of(path, f"{MODULE}.write_lines", max_rows=5, marker="m"), block)
    assert (report.files, report.steps) == ((), 7)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["marker"] for line in lines] == ["m"] * 7
    assert_same_steps(read_by("read_json", path), block)


def test_webdataset_with_an_encoder(ray_cluster: None, tmp_path: Path) -> None:
    encoder = {"_target_": f"{MODULE}.packed_row", "_partial_": True}
    report = write(config_of(tmp_path / "tar", "write_webdataset", encoder=encoder), flat_block([4, 3]))
    assert [Path(path).name for path in report.files] == ["steps-0-000000.tar"]
    rows: list[dict[str, Any]] = read_rows(
        OfflineConfig(input_=str(tmp_path / "tar"), input_read_method="read_webdataset"), (JSON,)
    ).take_all()
    assert [json.loads(row["txt"])["t"] for row in rows] == [0, 1, 2, 3, 0, 1, 2]


def test_images_are_refused_where_they_would_lose_their_shape(ray_cluster: None, tmp_path: Path) -> None:
    block = flat_block([2])
    pictures = block.with_columns({"obs": np.zeros((3, 4, 4), np.uint8)})
    with pytest.raises(ConfigError, match="obs has two or more dimensions, which write_orc would write as bytes"):
        write(config_of(tmp_path / "orc", "write_orc"), pictures)
    assert not list((tmp_path / "orc").iterdir())


def test_what_cannot_be_written_leaves_nothing(ray_cluster: None, tmp_path: Path, database: Path) -> None:
    with pytest.raises(RunFailure, match=r"write_orc cannot write these steps: .*CompressionKind"):
        write(config_of(tmp_path / "orc", "write_orc", compression="zip"), flat_block([3]))
    assert not list((tmp_path / "orc").iterdir())
    options = {"columns": COLUMNS, "connection_factory": connection_to(database)}
    with pytest.raises(RunFailure, match="OperationalError: no such table: stepz"):
        write(config_of(INSERT.replace("steps", "stepz"), "write_sql", **options), flat_block([3]))
    assert sqlite3.connect(database).execute("SELECT count(*) FROM steps").fetchone() == (0,)


@pytest.mark.skipif(importlib.util.find_spec("crc32c") is not None, reason="its package is installed")
def test_a_package_that_is_missing_is_named(ray_cluster: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write_tfrecords needs a package that is not installed: .*crc32c"):
        write(config_of(tmp_path / "tf", "write_tfrecords"), flat_block([3]))


@pytest.mark.parametrize(
    ("method", "kwargs", "message"),
    [
        ("write_orcs", {}, r"unknown write method[\s\S]*did you mean  write_orc"),
        ("write_numpy", {"column": "obs"}, "write_numpy of ray.data writes only one column, but a step has several"),
        ("write_images", {"column": "obs"}, "writes only one column, but a step has several"),
        ("write_datasink", {}, "does not take a location to write to"),
        ("write_webdataset", {}, r"by the ending of a column name[\s\S]*encoder: {_target_"),
        ("write_sql", {}, "write_sql needs the argument connection_factory"),
        ("write_orc", {"mode": "overwrite"}, "write_orc takes no option mode"),
        ("write_orc", {"columns": "obs"}, "columns must be a list of names"),
        (f"{MODULE}.write_lines", {"markr": 1}, r"write_lines takes no option markr[\s\S]*did you mean  marker"),
        (f"{MODULE}.nothing", {}, "nothing"),
    ],
)
def test_what_is_refused_before_anything_is_recorded(
    tmp_path: Path, method: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_output(config_of(tmp_path, method, **kwargs))
    with pytest.raises(ConfigError, match=r"can only write steps|unknown write method|of ray\.data|nothing"):
        prepare_output(OfflineConfig(output=str(tmp_path), output_write_method=method))


def test_a_column_that_there_is_not(ray_cluster: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no such column[\s\S]*did you mean  actions"):
        write(config_of(tmp_path, "write_orc", columns=["eps_id", "action"]), flat_block([3]))


def test_functions_are_checked_before_a_run_and_belong_to_what_is_trusted() -> None:
    overrides = ["+experiment=ppo_cartpole", "offline.output=data", "offline.output_write_episodes=false"]
    method = f"offline.output_write_method={MODULE}.write_linez"
    with pytest.raises(ConfigError, match=r"did you mean .*write_lines"):
        config_from(*overrides, method)
    for name, verb in ((f"{MODULE}.write_lines", "imports"), ("write_sql", "contacts"), ("write_json", None)):
        demands = find_trust_requirements({"offline": {"output_write_method": name}})
        assert [demand.verb for demand in demands] == ([] if verb is None else [verb])


@pytest.mark.slow
@pytest.mark.parametrize("num_runners", [0, 1])
def test_record_and_convert(run_main: Run, tmp_path: Path, ray_cluster: None, num_runners: int) -> None:
    trained = run_main("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=1", "hydra.run.dir=run")
    assert trained.code == 0, trained.err
    as_orc = ("offline.output_write_method=write_orc", "offline.output_write_episodes=false")
    outcome = run_main(
        "record", "run", *as_orc, f"offline.output={tmp_path / 'orc'}", "evaluation.evaluation_duration=5",
        f"evaluation.evaluation_num_env_runners={num_runners}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "  5 episodes, " in outcome.out
    block = read_by("read_orc", tmp_path / "orc")
    assert len(block) == 5
    outcome = run_main(
        "convert", "orc", "again", "offline.input_read_method=read_orc",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert_same_steps(read(tmp_path / "again"), block)
