"""Filters of rows: text and rules with values of Python, and mistakes in them."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runner.offline.files.data_error import DataError
from runner.offline.files.raw_rows import read_filter

TABLE = pa.table(
    {
        "day": [datetime.date(2020, 1, day) for day in (1, 2, 3)],
        "x": [1.0, float("nan"), 3.0],
        "name": ["a", "b", "c"],
        "flag": [True, False, True],
    }
)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([["day", ">=", datetime.date(2020, 1, 2)]], "bc"),
        ([["x", "==", np.float64(3)]], "c"),
        ([["name", "in", ["a", "c"]], ["x", "<", 2]], "a"),
        ([[["name", "==", "a"]], [["name", "==", "b"]]], "ab"),
        ([["name", "==", None]], ""),
        ("flag", "ac"),
        ("not flag or x > 2", "bc"),
        ("not x >= 3", "ab"),
        ("1 <= x < 3 and name not in ['b']", "a"),
    ],
    ids=str,
)
def test_rows_that_pass(given: Any, names: str) -> None:
    assert "".join(TABLE.filter(read_filter(given, TABLE.schema))["name"].to_pylist()) == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x == None", "None is not a number, text or list"),
        ("name == b'a'", "b'a' is not a number, text or list"),
        ("true", "true is not a comparison"),
        ("x == y", "a comparison needs a column on one side and a value on the other"),
        ("name in 'ab'", "in and not in need a list of values"),
        ("z > 1", "there is no column z"),
        ([["x", "=>", 1]], "unknown operator"),
        (["x > 1"], "the filter cannot be read"),
    ],
    ids=str,
)
def test_mistakes(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_filter(given, TABLE.schema)
