import json
import math
from pathlib import Path

import numpy as np
import pytest

from runner.tracking.plain_values import finite_number, json_value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (2.5, 2.5), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (np.array(4.0), 4.0)],
)
def test_numbers_of_any_kind_become_floats(value: object, expected: float) -> None:
    number = finite_number(value)
    assert type(number) is float
    assert number == expected


@pytest.mark.parametrize(
    "value",
    [None, True, np.True_, "1.0", b"1", math.nan, math.inf, np.float32("nan"), [1.0], np.zeros(2), 10**400],
)
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert finite_number(value) is None


def test_json_value_gives_strict_json() -> None:
    value = {
        "nan": math.nan,
        "inf": np.float64("inf"),
        "single": np.float32(0.5),
        "double": np.float64(0.1),
        "count": np.int32(7),
        "flag": np.True_,
        "array": np.array([1.0, math.nan]),
        "tuple": (1, "a", None, True),
        "path": Path("/a/b"),
    }
    assert json.loads(json.dumps(json_value(value), allow_nan=False)) == {
        "nan": None,
        "inf": None,
        "single": 0.5,
        "double": 0.1,
        "count": 7,
        "flag": True,
        "array": [1.0, None],
        "tuple": [1, "a", None, True],
        "path": "/a/b",
    }
