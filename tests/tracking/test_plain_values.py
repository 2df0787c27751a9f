""""""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import _validate_metric_name
from tensorboardX.summary import _clean_tag

from runner.tracking.mlflow_tracker import MLflowSettings
from runner.tracking.mlflow_writer import RunWriter
from runner.tracking.plain_values import (
    MLFLOW_NAMES,
    TENSORBOARD_NAMES,
    NameRules,
    escaped_name,
    finite_number,
    json_value,
)


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


pytestmark = pytest.mark.filterwarnings("ignore")  # SQLAlchemy deprecates what MLflow uses
_PIECES = ["/", ".", ":", "-", "a", "2f", "(", "_", "é"]
_NAMES = ["".join(pieces) for size in range(5) for pieces in itertools.product(_PIECES, repeat=size)]


@pytest.mark.parametrize("rules", [MLFLOW_NAMES, TENSORBOARD_NAMES])
def test_two_names_never_become_one(rules: NameRules) -> None:
    different = set(_NAMES)
    assert len({escaped_name(name, rules) for name in different}) == len(different)
    long = [f"{'x' * size}{end}" for size in (233, 249, 250, 251, 300) for end in "ab"]
    keys = {escaped_name(name, rules) for name in [*long, *(escaped_name(name, rules) for name in long[6:])]}
    assert len(keys) >= len(long)


def test_every_name_is_valid() -> None:
    for name in [*_NAMES, "x" * 400, "../.." * 80, "a\n", "\0", "..hidden"]:
        key = escaped_name(name, MLFLOW_NAMES)
        assert len(key) <= 250
        _validate_metric_name(key)
        tag = escaped_name(name, TENSORBOARD_NAMES)
        assert _clean_tag(tag) == tag


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("learners/default_policy/policy_loss", "learners/default_policy/policy_loss"),
        ("config.a b:c-d", "config.a b:c-d"),
        ("agents//robot_1/return", "agents/:2f:robot_1/return"),
        ("/robot_1", ":2f:robot_1"),
        ("odd[0]", "odd:5b:0:5d:"),
        ("a:5b:", "a:3a:5b:3a:"),
        ("a/../b", "a/:2e:./b"),
        ("", "::"),
    ],
)
def test_names_in_mlflow(name: str, key: str) -> None:
    assert escaped_name(name, MLFLOW_NAMES) == key


class _Client:
    """Refuses whatever has `bad` in its key, as MLflow does: the whole batch."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def log_batch(self, run_id: str, synchronous: bool, **items: list[Metric | Param | RunTag]) -> None:
        for batch in items.values():
            if any("bad" in item.key for item in batch):
                raise MlflowException.invalid_parameter_value("an invalid value")
            self.keys += [item.key for item in batch]


def test_the_rest_of_a_batch_is_written(tmp_path: Path) -> None:
    written: list[int] = []
    warnings: list[str] = []
    settings = vars(MLflowSettings(f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path / "artifacts"), "e"))
    writer = RunWriter(settings, written.append, warnings.append)
    store = writer._client._tracking_client.store
    client = writer._client = _Client()  # type: ignore[assignment]
    writer.add_metrics(1, 1.7e9, {"/robot_1": 1.0, "robot_1": 2.0, "bad": 3.0, "loss": 4.0})
    assert writer.flush()
    assert client.keys == [":2f:robot_1", "robot_1", "loss"]  # type: ignore[attr-defined]
    assert sum(written) == 3
    writer._log_tags({"bad tag": "1", "good tag": "2"})
    assert client.keys[3:] == ["good tag"]  # type: ignore[attr-defined]
    assert [text.partition(": ")[0] for text in warnings] == [
        "MLflow rejects the metric bad",
        "MLflow rejects the tag bad tag",
    ]
    store._dispose_engine()
