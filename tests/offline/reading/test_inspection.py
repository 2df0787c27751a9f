"""`inspect`: the numbers are those of the data, on paper and as JSON."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.config.errors import Problem
from runner.config.offline import OfflineConfig
from runner.episodes.columns import ListedInfos, concat_blocks
from runner.offline.codecs.layout import Spaces
from runner.offline.reading.inspection import Distribution, inspect_data
from runner.offline.reading.inspection_report import print_report
from runner.offline.writing.writer import EpisodeWriter
from tests.conftest import AssertGolden, Run
from tests.offline.blocks import flat_block
from tests.offline.problems import no_path
from tests.support.problems import shown_problems

LENGTHS = [5, 3, 8, 2, 20, 11]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spaces = Spaces(gym.spaces.Box(-5, 5, (4,)), gym.spaces.Discrete(2))
    config = OfflineConfig(output=str(tmp_path / "expert"), output_max_rows_per_file=4)
    with EpisodeWriter(config, spaces, "CartPole-v1") as writer:
        writer.add(flat_block(LENGTHS))
    return tmp_path / "expert"


def test_numbers(folder: Path) -> None:
    block = flat_block(LENGTHS)
    found = inspect_data(OfflineConfig(input_=str(folder)))
    returns = np.array([float(np.sum(episode.get_rewards(), dtype=np.float64)) for episode in block])
    assert (found.episodes, found.steps, found.terminated, found.truncated) == (6, 49, 3, 3)
    assert found.returns.mean == pytest.approx(returns.mean())
    assert (found.returns.minimum, found.returns.maximum) == pytest.approx((returns.min(), returns.max()))
    assert found.returns.percentiles[50] == pytest.approx(np.median(returns))
    assert sum(found.returns.bin_counts) == 6
    assert found.lengths.mean == pytest.approx(np.mean(LENGTHS))
    columns = {column.name: column for column in found.columns}
    assert list(columns) == ["obs", "actions", "rewards", "action_logp"]
    assert columns["actions"].counts == {
        0: int((block.columns["actions"] == 0).sum()),
        1: int(block.columns["actions"].sum()),
    }
    assert columns["obs"].minimum == pytest.approx(float(block.columns["obs"].min()))
    assert columns["obs"].mean == pytest.approx(float(block.columns["obs"].mean()))
    assert found.has_action_logp
    assert not found.has_infos
    assert found.first_rows[0]["obs"] == block.columns["obs"][0].tolist()


def test_infos_of_any_episode_count(tmp_path: Path) -> None:
    block = replace(flat_block([2, 2]), infos=ListedInfos([None, [{}, {"x": 1}, {}]]))
    with EpisodeWriter(OfflineConfig(output=str(tmp_path))) as writer:
        writer.add(block)
    assert inspect_data(OfflineConfig(input_=str(tmp_path))).has_infos


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([500.0, 500.0], [500, 501]),
        ([1e16, 1e16], [1e16, 1e16 + 2]),
        ([0, 500.0], list(range(0, 501, 50))),
        ([1, 2, 3], [1, 2, 3]),
        ([-1.5, 0.5], None),
    ],
)
def test_bins_are_round_and_hold_everything(values: list[float], edges: list[float] | None) -> None:
    found = Distribution.of(np.array(values))
    assert sum(found.bin_counts) == len(values)
    assert len(found.bin_counts) <= 11
    if edges is not None:
        assert found.bin_edges == edges


def test_nested_columns_images_and_values_that_are_not_finite(tmp_path: Path) -> None:
    block = flat_block([3, 2])
    obs = {"image": np.full((7, 8, 8), 7, np.uint8), "speed": np.array([1.0, np.nan, 3, 4, 5, np.inf, 7])}
    columns = {**block.columns, "obs": obs, "actions": np.linspace(-1, 1, 10).reshape(5, 2).astype(np.float32)}
    with EpisodeWriter(OfflineConfig(output=str(tmp_path))) as writer:
        writer.add(replace(block, columns=columns))
    found = inspect_data(OfflineConfig(input_=str(tmp_path)))
    summary = {column.name: column for column in found.columns}
    assert (summary["obs/image"].minimum, summary["obs/image"].shape) == (7, [8, 8])
    assert (summary["obs/speed"].num_not_finite, summary["obs/speed"].mean) == (2, 4.0)
    assert (summary["actions"].minimum, summary["actions"].maximum) == (-1, 1)
    assert summary["actions"].counts is None
    assert found.first_rows[0]["obs/image"] == "uint8[8, 8]"


def test_the_page(run_main: Run, folder: Path, assert_golden: AssertGolden) -> None:
    outcome = run_main("inspect", "expert")
    assert outcome.code == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "\x1b" not in outcome.out
    text = "\n".join(line for line in outcome.out.splitlines() if not line.startswith(("  files", "  digest")))
    assert_golden("inspect_page", text)


def test_on_a_terminal(folder: Path) -> None:
    from rich.console import Console

    file = io.StringIO()
    print_report(inspect_data(OfflineConfig(input_=str(folder))), Console(file=file, width=80, force_terminal=True))
    assert "\x1b[1m" in file.getvalue()
    assert "action_logp" in file.getvalue()


def test_on_a_terminal_without_a_size(run_main: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    monkeypatch.delenv("COLUMNS", raising=False)
    outcome = run_main("inspect", "expert")
    assert outcome.code == 0, outcome.err
    assert "action_logp" in outcome.out


def test_json_and_a_schema(run_main: Run, folder: Path, tmp_path: Path) -> None:
    outcome = run_main("inspect", "expert", "--json")
    content = json.loads(outcome.out)
    assert (content["episodes"], content["steps"]) == (6, 49)
    assert content["description"]["format"] == "episodes"
    assert content["description"]["schema"]["eps_id"] == "string"
    pq.write_table(pa.table({"o": [1.0, 2.0], "actions": [0, 1], "rewards": [1.0, 1.0]}), tmp_path / "a.parquet")
    outcome = run_main("inspect", "a.parquet", "offline.input_read_schema.obs=o")
    assert outcome.code == 0
    assert "neither eps_id, t nor" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["expart"], no_path("TMP/expart", "TMP/expert")),
        (
            [],
            Problem(
                "DATA is missing",
                expected="folder or file of recorded data",
                fix="runner inspect DATA [OPTIONS] [KEY=VALUE ...]; `runner help inspect` describes it",
            ),
        ),
        (
            ["expert", "offline.input_=expert"],
            Problem("inspect takes the data as an argument, not as offline.input_", fix="runner inspect data/expert"),
        ),
    ],
    ids=["missing", "nothing", "twice"],
)
def test_mistakes(run_main: Run, folder: Path, tmp_path: Path, arguments: list[str], expected: Problem) -> None:
    outcome = run_main("inspect", *arguments)
    assert outcome.code == 2
    assert shown_problems(outcome.err, tmp_path) == [expected]


def test_what_is_read_is_what_was_recorded_by_many_writers(tmp_path: Path) -> None:
    config = OfflineConfig(output=str(tmp_path), output_append=True)
    parts = [flat_block([4, 6], prefix=f"w{i}-", seed=i) for i in range(3)]
    for number, block in enumerate(parts):
        with EpisodeWriter(config, writer_id=f"runner-{number}") as writer:
            writer.add(block)
    found = inspect_data(OfflineConfig(input_=str(tmp_path)))
    assert (found.episodes, found.steps) == (6, concat_blocks(parts).num_rows)
