"""Columns of progress.jsonl, fewer points of them, several of them on one grid; values on axes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runner.report.sweep_record import Axis, short_names
from runner.tracking.series import choose_axis, on_common_grid, read_columns, thin
from tests.report.folders import progress_line, write_run

NUMBERS = st.floats(-1e6, 1e6)


def test_columns_have_gaps(tmp_path: Path) -> None:
    lines = [progress_line(1), progress_line(2, loss=float("nan"), note="text"), progress_line(3, loss=4, flag=True)]
    columns = read_columns(write_run(tmp_path, lines))
    np.testing.assert_array_equal(columns["loss"], [math.nan, math.nan, 4.0])
    assert not {"note", "flag"} & set(columns)  # no numbers
    assert choose_axis(columns) == "num_env_steps_sampled_lifetime"
    assert read_columns(tmp_path / "nothing") == {}


def test_runs_without_env_steps_have_another_axis(tmp_path: Path) -> None:
    lines = [progress_line(number, num_env_steps_sampled_lifetime=0) for number in (1, 2)]
    assert choose_axis(read_columns(write_run(tmp_path / "a", lines))) == "training_iteration"
    rows = [{**line, "num_env_steps_trained_lifetime": 64} for line in lines]
    assert choose_axis(read_columns(write_run(tmp_path / "b", rows))) == "num_env_steps_trained_lifetime"


@given(arrays(np.float64, st.integers(1, 60), elements=NUMBERS), st.integers(1, 20))
def test_thin_keeps_the_mean_and_the_range(column: np.ndarray, num_points: int) -> None:
    (fewer,) = thin([column], num_points)
    assert len(fewer) == min(len(column), num_points)
    assert column.min() - 1e-6 <= fewer.min() <= fewer.max() <= column.max() + 1e-6
    if len(column) % len(fewer) == 0:
        assert fewer.mean() == pytest.approx(column.mean(), abs=1e-6)


def test_thin_leaves_gaps() -> None:
    (fewer,) = thin([np.array([1.0, math.nan, math.nan, math.nan, 5.0, 7.0])], 3)
    np.testing.assert_array_equal(fewer, [1.0, math.nan, 6.0])


def test_a_grid_of_seeds_that_end_elsewhere() -> None:
    """Interpolated between, held for a step beyond the end, unknown further out."""
    long = np.array([0.0, 10, 20, 30, 40]), np.array([0.0, 1, 2, 3, 4])
    short = np.array([0.0, 10, 19]), np.array([10.0, 11, 12])
    grid, values = on_common_grid([long, short, (np.array([5.0]), np.array([math.nan]))], 5)
    np.testing.assert_array_equal(grid, [0, 10, 20, 30, 40])
    np.testing.assert_array_equal(values[0], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(values[1], [10, 11, 12, math.nan, math.nan])
    assert np.isnan(values[2]).all()


def test_a_grid_of_one_point() -> None:
    grid, values = on_common_grid([(np.array([7.0]), np.array([1.0])), (np.array([7.0]), np.array([2.0]))], 10)
    np.testing.assert_array_equal(grid, [7.0])
    np.testing.assert_array_equal(values, [[1.0], [2.0]])


def test_axes_of_keys() -> None:
    log = Axis.of_key("lr", {"interval": [1e-5, 1e-1], "log": True}, [])
    assert log.position(1e-3) == pytest.approx(0.5)
    assert [text for _, text in log.ticks()] == ["1e-05", "0.0001", "0.001", "0.01", "0.1"]
    whole = Axis.of_key("n", {"interval": [1, 3], "int": True}, [])
    assert whole.ticks() == [(0.0, "1"), (0.5, "2"), (1.0, "3")]
    listed = Axis.of_key("n", ["10", "3", "6"], ["20"])  # extended by another sweep
    assert [listed.position(text) for text in ("3", "6", "10", "20")] == [
        0,
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
        1,
    ]
    named = Axis.of_key("h", ["b", "a"], [])
    assert (named.position("b"), named.position("a"), named.position("c")) == (0.0, 1.0, None)
    assert Axis.of_key("one", ["x"], []).position("x") == 0.5
    wider = Axis.of_key("lr", {"interval": [0.1, 0.2]}, [0.4])
    assert wider.position(0.4) == 1.0
    assert Axis.of_metric("m", [3.0, 3.0]).position(3.0) == 0.5


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8))
def test_positions_are_on_the_axis(numbers: list[float]) -> None:
    axis = Axis.of_metric("m", numbers)
    for number in numbers:
        position = axis.position(number)
        assert position is not None
        assert 0 <= position <= 1
    assert all(0 <= position <= 1 for position, _ in axis.ticks())


def test_short_names_are_clear() -> None:
    assert short_names(["algorithm.lr", "+experiment"]) == {"algorithm.lr": "lr", "+experiment": "experiment"}
    assert short_names(["a.lr", "b.lr"]) == {"a.lr": "a.lr", "b.lr": "b.lr"}
