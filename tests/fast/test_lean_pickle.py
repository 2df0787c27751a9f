"""The pickle of dataclasses that travel between processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from runner.fast.lean_pickle import LeanPickle


@dataclass(frozen=True)
class Part(LeanPickle):
    VECTOR_DTYPES: ClassVar[Mapping[str, Any]] = {"counts": np.int64, "flags": np.bool_, "sums": np.float64}

    counts: npt.NDArray[np.int64]
    flags: npt.NDArray[np.bool_]
    sums: npt.NDArray[np.float64]
    rows: npt.NDArray[np.float32]
    names: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def total(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True)
class FurtherPart(Part):
    more: str = ""


def part_of(length: int) -> FurtherPart:
    counts = np.arange(length) - 2**40
    rows = np.ones((length, 2), np.float32)
    return FurtherPart(counts, counts % 2 == 0, counts / 3, rows, {"a": length}, "further")


@pytest.mark.parametrize("length", [0, 1, 200, 201])
@pytest.mark.parametrize("copied", [lambda part: pickle.loads(pickle.dumps(part, protocol=5)), copy.deepcopy])
def test_values_and_dtypes_come_back(length: int, copied: Any) -> None:
    part = part_of(length)
    assert part.total == int(part.counts.sum())
    back = copied(part)
    assert type(back) is FurtherPart
    assert set(vars(back)) == {"counts", "flags", "sums", "rows", "names", "more"}
    for name in ("counts", "flags", "sums", "rows"):
        got, expected = getattr(back, name), getattr(part, name)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    assert (back.names, back.more, back.total) == (part.names, part.more, part.total)


def test_names_of_fields_are_no_part_of_the_pickle() -> None:
    pickled = pickle.dumps(replace(part_of(3), names={}))
    assert not [name for name in Part.__match_args__ if name.encode() in pickled]
