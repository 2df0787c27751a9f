"""Passes over train rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from runner.offline.training.batch_readers import passes


class ThreeBatches:
    """A data set of three batches, which notes the seed of each pass."""

    def __init__(self) -> None:
        self.seeds: list[Any] = []

    def iter_batches(self, **options: Any) -> Iterator[dict[str, Any]]:
        self.seeds.append(options.get("local_shuffle_seed"))
        return iter([{"x": np.full(2, number)} for number in range(3)])


def seeds_of_four_passes(**options: Any) -> list[Any]:
    rows: Any = ThreeBatches()
    found = list(islice(passes(rows, 2, options), 12))
    assert [(int(batch["x"][0]), is_last) for batch, is_last in found] == [(0, False), (1, False), (2, True)] * 4
    return list(rows.seeds)


@pytest.mark.ray
def test_each_pass_has_another_order_that_is_repeatable() -> None:
    seeds = seeds_of_four_passes(local_shuffle_buffer_size=100, local_shuffle_seed=0)
    assert len(set(seeds)) == 4
    assert seeds == seeds_of_four_passes(local_shuffle_buffer_size=100, local_shuffle_seed=0)
    assert not set(seeds) & set(seeds_of_four_passes(local_shuffle_buffer_size=100, local_shuffle_seed=1))
    assert seeds_of_four_passes() == [None] * 4
