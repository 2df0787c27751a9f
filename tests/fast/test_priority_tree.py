"""Draws follow priorities, by chi-squared; sums never drift."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from runner.fast.priority_tree import PriorityTree
from runner.streams import random_stream


@pytest.mark.parametrize("num_leaves", [2, 16, 17, 300, 70_000])
def test_draws_follow_priorities(num_leaves: int) -> None:
    stream = random_stream(0, "test")
    tree = PriorityTree(num_leaves)
    priorities = stream.random(num_leaves) * (stream.random(num_leaves) > 0.5)
    priorities[-1] = 1.0
    tree.set(np.arange(num_leaves), priorities)
    # One at a time: the strata of a large draw are nearer to the expected counts than independent draws are.
    counts = np.bincount(np.concatenate([tree.draw(5, stream) for _ in range(4000)]), minlength=num_leaves)
    assert counts[priorities == 0].sum() == 0
    by_group = np.array_split(np.arange(num_leaves), min(num_leaves, 50))
    expected = np.array([priorities[group].sum() for group in by_group]) / priorities.sum() * 20_000
    got = np.array([counts[group].sum() for group in by_group])
    assert chisquare(got[expected > 0], expected[expected > 0]).pvalue > 1e-4


@given(
    num_leaves=st.integers(1, 5000),
    changes=st.lists(st.tuples(st.integers(0, 4999), st.floats(0, 1e12)), max_size=60),
    seed=st.integers(0, 9),
)
def test_the_total_is_the_sum_after_any_change(num_leaves: int, changes: list[tuple[int, float]], seed: int) -> None:
    tree, plain = PriorityTree(num_leaves), np.zeros(num_leaves)
    for start in range(0, len(changes), 7):
        some = changes[start : start + 7]
        numbers = np.array([number % num_leaves for number, _ in some])
        values = np.array([value for _, value in some])
        tree.set(numbers, values)
        plain[numbers] = values
        np.testing.assert_array_equal(tree.priorities, plain)
        assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
    if plain.any():
        assert (plain[tree.draw(40, random_stream(seed, "test"))] > 0).all()
    else:
        with pytest.raises(ValueError, match="all priorities are 0"):
            tree.draw(1, random_stream(seed, "test"))


def test_sums_are_computed_for_many_changes_at_once() -> None:
    tree, plain = PriorityTree(100_000), np.zeros(100_000)
    stream = random_stream(1, "test")
    for size in (1, 4000, 90_000, 3, 20_000):
        numbers = stream.integers(0, 100_000, size)
        values = stream.random(size)
        tree.set(numbers, values)
        plain[numbers] = values
        assert tree._num_stale < 4096
    assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
    assert (plain[tree.draw(64, stream)] > 0).all()
