"""Numbers of episodes out of infos: against a plain loop, and what is no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.errors import RunFailure
from runner.config.info_metrics import OF_EPISODE, InfoMetric
from runner.env_runners.episode_infos import EpisodeInfos
from runner.env_runners.listeners import VectorStep
from runner.rows.finished_episodes import NO_EPISODES

METRICS = [InfoMetric(f"env_runners/{at}", ("task", "x"), at) for at in OF_EPISODE]
PLAIN = {"sum": sum, "mean": np.mean, "min": min, "max": max}
NUM_ENVS = 3

step_infos = st.one_of(st.none(), st.integers(-5, 5), st.floats(-9, 9), st.booleans())
vector_steps = st.lists(
    st.lists(st.tuples(step_infos, st.booleans()), min_size=NUM_ENVS, max_size=NUM_ENVS), max_size=12
)


def step_of(infos: Any, is_reset: Any, is_done: Any) -> VectorStep:
    """Return a vector step with these infos."""
    views: Any = None
    return VectorStep(is_reset, is_done, np.ones_like(is_done), views, infos=infos)


def taken(infos: EpisodeInfos) -> dict[str, Any]:
    """Return metric -> numbers of the episodes that ended since the last call."""
    return dict(infos.complete(NO_EPISODES, None).infos)


def as_gymnasium(values: list[Any]) -> dict[str, Any]:
    """Return what a vector environment makes of the infos {"task": {"x": value}}."""
    is_valid = np.array([value is not None for value in values])
    numbers = np.array([0.0 if value is None else float(value) for value in values])
    return {"task": {"x": numbers, "_x": is_valid}, "_task": is_valid}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=vector_steps, is_columns=st.booleans(), cut=st.integers(0, 11))
def test_numbers_are_those_of_a_plain_loop(steps: list[list[tuple[Any, bool]]], is_columns: bool, cut: int) -> None:
    infos = EpisodeInfos(METRICS, NUM_ENVS)
    so_far: list[list[Any]] = [[] for _ in range(NUM_ENVS)]
    awaits_reset = np.zeros(NUM_ENVS, np.bool_)
    expected: list[list[Any]] = []
    found: dict[str, list[float]] = {metric.name: [] for metric in METRICS}
    for number, step in enumerate(steps):
        values = [value for value, _ in step]
        is_done = np.array([done for _, done in step]) & ~awaits_reset
        made = as_gymnasium(values) if is_columns else [{"task": {"x": v}} if v is not None else {} for v in values]
        infos.on_step(step_of(made, awaits_reset, is_done))
        for env in np.flatnonzero(~awaits_reset):
            so_far[env].append(values[env])
        for env in np.flatnonzero(is_done):
            expected.append(so_far[env])
            so_far[env] = []
        awaits_reset = is_done
        if number == cut:  # a fragment ends, and the runner goes on from a checkpoint
            for name, numbers in taken(infos).items():
                found[name] += numbers.tolist()
            state, infos = infos.get_state(), EpisodeInfos(METRICS, NUM_ENVS)
            infos.set_state(state)
    for name, numbers in taken(infos).items():
        found[name] += numbers.tolist()
    for metric in METRICS:
        kind = metric.at.removeprefix("episode_")
        for got, values in zip(found[metric.name], expected, strict=True):
            known = [float(value) for value in values if value is not None]
            if kind == "end":
                last = values[-1]
                assert got == last if last is not None else np.isnan(got)
            else:
                assert got == pytest.approx(PLAIN[kind](known)) if known else np.isnan(got)


@pytest.mark.parametrize("is_columns", [True, False])
def test_infos_that_do_not_count_are_not_looked_at(is_columns: bool) -> None:
    infos = EpisodeInfos(METRICS[:2], 2)  # the last info, and the sum
    column = np.array(["running", 3.0], object)
    made: Any = [{"task": {"x": value}} for value in column]
    if is_columns:
        made = {"task": {"x": column}}
    infos.on_step(step_of(made, np.array([True, False]), np.array([False, True])))  # 0 was reset, 1 has ended
    assert {name: numbers.tolist() for name, numbers in taken(infos).items()} == {
        "env_runners/episode_end": [3.0],
        "env_runners/episode_sum": [3.0],
    }


@pytest.mark.parametrize("value", ["won", [1.0, 2.0], {"y": 1}])
@pytest.mark.parametrize("is_columns", [True, False])
def test_what_is_no_number(value: Any, is_columns: bool) -> None:
    infos = EpisodeInfos(METRICS[:1], 1)
    made: Any = [{"task": {"x": value}}]
    if is_columns:
        column = np.empty(1, object)
        column[0] = value
        made = {"task": {"x": column, "_x": np.array([True])}, "_task": np.array([True])}
    with pytest.raises(
        RunFailure, match=r"metrics\.env_runners/episode_end: the value in the info of a step is not a number"
    ):
        infos.on_step(step_of(made, np.array([False]), np.array([True])))


@pytest.mark.parametrize("values", [3.0, np.array([3.0])])
def test_columns_without_a_value_per_sub_environment(values: Any) -> None:
    infos = EpisodeInfos(METRICS[:1], 2)
    with pytest.raises(RunFailure, match="info task/x does not contain a value per sub-environment"):
        infos.on_step(step_of({"task": {"x": values}}, np.zeros(2, np.bool_), np.ones(2, np.bool_)))


@pytest.mark.parametrize(
    ("value", "is_counted"),
    [("odd", True), (np.array("odd"), True), ("even", False), (np.array(["odd", "odd"]), False), (None, False)],
)
def test_groups_are_told_by_single_values(value: Any, is_counted: bool) -> None:
    metric = InfoMetric("env_runners/x/odd", ("x",), group=(("task",), "odd"))
    infos = EpisodeInfos([metric], 1)
    infos.on_step(step_of([{"x": 3, "task": value}], np.array([False]), np.array([True])))
    [number] = taken(infos)["env_runners/x/odd"]
    assert number == 3.0 if is_counted else np.isnan(number)
