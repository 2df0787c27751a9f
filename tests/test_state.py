"""Attributes that a class declares as its state are saved, restored and checked."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pytest
import torch

from runner.checkpoints.files import UnstorableError, to_plain
from runner.config.errors import ConfigError
from runner.state import DeclaredState


class Counter(DeclaredState):
    state = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Everything(DeclaredState):
    state = ("rate", "_counts", "seen", "newest", "place", "note", "rng", "inner")

    def __init__(self) -> None:
        self.rate, self.note = 0.5, None
        self._counts = np.zeros(3, np.int32)
        self.seen, self.newest, self.place = {"b", "a"}, deque([1, 2], maxlen=2), (3, 4)
        self.rng = np.random.default_rng(0)
        self.inner = Counter()


class Nothing(DeclaredState):
    pass


def test_a_restored_object_equals_the_saved_one() -> None:
    saved, restored = Everything(), Everything()
    saved.rate, saved._counts[1], saved.inner.count, saved.note = 0.25, 7, 3, "x"
    saved.seen.add("c")
    saved.newest.append(5)
    saved.place = (9, 9)
    saved.rng.random(4)
    state = saved.get_state()
    counts = saved._counts.copy()
    saved._counts[:] = -1  # does not reach the state
    restored.set_state(state)
    restored._counts[0] += 0  # may be written into
    assert (restored.rate, restored.place, restored.note, restored.inner.count) == (0.25, (9, 9), "x", 3)
    assert restored._counts.tolist() == counts.tolist()
    assert restored._counts.dtype == np.int32
    assert (restored.seen, restored.newest) == ({"a", "b", "c"}, deque([2, 5], maxlen=2))
    assert restored.rng.random() == saved.rng.random()


def test_keys_and_values_are_plain() -> None:
    state = Everything().get_state()
    assert list(state) == ["rate", "counts", "seen", "newest", "place", "note", "rng", "inner"]
    assert (state["seen"], state["newest"], state["place"], state["inner"]) == (
        ["a", "b"],
        [1, 2],
        [3, 4],
        {"count": 0},
    )


@pytest.mark.parametrize("value", [np.int64(4), np.array(4), torch.tensor(4)])
def test_arrays_of_one_number_become_numbers(value: object) -> None:
    counter = Counter()
    counter.set_state({"count": value})
    assert type(counter.count) is int
    assert counter.count == 4


@pytest.mark.parametrize(
    ("state", "what", "nearest"),
    [
        ({}, "the state of Counter lacks count", None),
        ({"count": 1, "cont": 2}, "Counter does not have the state cont", "count"),
    ],
)
def test_other_names_are_errors(state: dict[str, int], what: str, nearest: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        Counter().set_state(state)
    [problem] = caught.value.problems
    assert (problem.what, problem.expected, problem.nearest) == (what, "count, as in Counter.state", nearest)


def test_a_class_without_state() -> None:
    assert Nothing().get_state() == {}
    Nothing().set_state({"of": "an earlier version"})
    assert (Nothing().has_state, Counter().has_state) == (False, True)


@pytest.mark.parametrize("value", [threading.Lock(), {1, "a"}, {"lock": threading.Lock()}])
def test_a_checkpoint_names_a_value_that_cannot_be_copied(value: object) -> None:
    counter = Counter()
    counter.count = value  # type: ignore[assignment]
    with pytest.raises(UnstorableError, match="count"):
        to_plain(counter.get_state(), "counter", {}, lambda segment: [])
