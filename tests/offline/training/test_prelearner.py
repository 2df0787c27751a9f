"""Train rows as flat columns, with what connectors have reported for them."""

from __future__ import annotations

import numpy as np
import pytest

from runner.episodes import nested
from runner.offline.training.prelearner import flat_columns, metric_columns, nested_columns, without_metrics
from runner.pipelines.custom_metrics import ReducedMetrics, ReducedValue, merge_metrics

# Calls of a pre-learner: number of rows, and the values that it reports for each of them.
CALLS = ((3, [1.0, 5.0, 3.0]), (4, [2.0, 2.0, 9.0, 2.0]), (2, []), (1, [4.0]))
EXPECTED = {"mean": 28.0 / 8, "sum": 28.0, "max": 9.0, "last": 4.0, "min": 1.0, "median": 2.5, "p90": 6.2}


def reported(values: list[float]) -> ReducedMetrics:
    metrics = {f"connectors/learner/{name}": ReducedValue(name) for name in EXPECTED}
    for reduced in metrics.values():
        for value in values:
            reduced.add(value, 1.0)
    return metrics


@pytest.mark.parametrize("rows_per_batch", [1, 3, 4, 10])
def test_what_was_reported_reaches_the_learner_once_however_rows_are_cut(rows_per_batch: int) -> None:
    calls = [
        {**flat_columns({"obs": {"x": np.full((num, 2), number)}}), **metric_columns(reported(values), num)}
        for number, (num, values) in enumerate(CALLS)
    ]
    rows = {name: np.concatenate([call[name] for call in calls]) for name in calls[0]}
    merged: ReducedMetrics = {}
    for start in range(0, 10, rows_per_batch):
        batch = {name: column[start : start + rows_per_batch] for name, column in rows.items()}
        columns, metrics = without_metrics(batch)
        assert list(columns) == ["obs/x"]
        np.testing.assert_array_equal(nested_columns(columns)["obs"]["x"], batch["obs/x"])
        merge_metrics(merged, metrics)
    assert {name: reduced.result for name, reduced in merged.items()} == {
        f"connectors/learner/{name}": pytest.approx(value, abs=1e-12) for name, value in EXPECTED.items()
    }


def test_nothing_is_reported_for_no_rows() -> None:
    columns, metrics = without_metrics(metric_columns(reported([1.0]), 0))
    assert columns == {}
    assert {reduced.result for reduced in metrics.values()} == {None}


def test_nested_columns_have_the_keys_of_their_spaces() -> None:
    obs = {0: np.zeros(2), 10: {"a": np.ones(2)}, "text": (np.full(2, 2.0), {3: np.full(2, 3.0)})}
    flat = flat_columns({"obs": obs})
    assert list(flat) == ["obs/##0", "obs/##10/a", "obs/text/#0", "obs/text/#1/##3"]
    assert nested.equal(nested_columns(flat), {"obs": obs})
