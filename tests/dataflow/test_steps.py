"""Dataflow steps: lazy, and without a lost or doubled row; the counters that come with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.dataflow import concat_batches, parallel_rollouts
from runner.dataflow.run_metrics import RunMetrics, episode_metrics
from runner.env_runners.rollout_buffer import FinishedEpisodes
from runner.episodes.columns import ColumnBlock, Rollout
from runner.trainer import Trainer
from tests.conftest import QUICK


def _block(first_row: int, lengths: list[int]) -> ColumnBlock:
    num_rows = sum(lengths)
    rows = np.arange(first_row, first_row + num_rows, dtype=np.float32)
    return ColumnBlock(
        columns={
            "obs": np.zeros((num_rows + len(lengths), 1), np.float32),
            "actions": np.zeros(num_rows, np.int64),
            "rewards": rows,
        },
        lengths=np.array(lengths, np.int64),
        is_terminated=np.ones(len(lengths), np.bool_),
        is_truncated=np.zeros(len(lengths), np.bool_),
        t_started=np.zeros(len(lengths), np.int64),
        episode_ids=[f"{first_row}-{i}" for i in range(len(lengths))],
    )


def _joined(blocks: list[ColumnBlock], min_env_steps: int) -> list[list[ColumnBlock]]:
    """The blocks of each batch: as few as hold so many steps; those left over make none."""
    batches: list[list[ColumnBlock]] = []
    batch: list[ColumnBlock] = []
    for block in blocks:
        batch = [*batch, block]
        if sum(one.num_rows for one in batch) >= min_env_steps:
            batches, batch = [*batches, batch], []
    return batches


@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=12),
    min_env_steps=st.integers(1, 20),
)
def test_concat_batches_neither_loses_nor_doubles_rows(lengths: list[list[int]], min_env_steps: int) -> None:
    blocks, taken, row = [], [], 0
    for one in lengths:
        blocks.append(_block(row, one))
        row += sum(one)

    def source() -> Iterator[Rollout]:
        for block in blocks:
            taken.append(block)
            yield Rollout({"default_policy": block}, block.num_rows)

    batches = concat_batches(source(), min_env_steps)
    assert taken == [], "nothing runs before a batch is asked for"
    seen: list[float] = []
    for expected in _joined(blocks, min_env_steps):
        num_taken = len(taken)
        rollout = next(batches)
        batch = rollout.blocks["default_policy"]
        assert len(taken) - num_taken == len(expected), "no more than it needs"
        assert rollout.num_env_steps == batch.num_rows == sum(block.num_rows for block in expected)
        assert list(batch.episode_ids) == [id_ for block in expected for id_ in block.episode_ids]
        seen += batch.columns["rewards"].tolist()
    assert seen == list(range(len(seen)))
    with pytest.raises(RuntimeError, match="StopIteration"):  # the source has run dry: the rest is no batch
        next(batches)
    assert row - len(seen) < min_env_steps


def test_rollouts_run_only_when_asked_for() -> None:
    with Trainer.from_experiment("ppo_cartpole", QUICK) as trainer:
        metrics = RunMetrics(smoothing=10)
        rollouts = parallel_rollouts(trainer.env_runners, 40, True, metrics)
        assert metrics.num_env_steps_sampled_lifetime == 0
        first = next(rollouts)
        assert metrics.num_env_steps_sampled_lifetime == first.num_env_steps >= 40
        second = next(rollouts)
        assert metrics.num_env_steps_sampled_lifetime == first.num_env_steps + second.num_env_steps
        first, second = (rollout.blocks["default_policy"] for rollout in (first, second))
        continued = set(first.episode_ids) & set(second.episode_ids)
        assert continued, "a cut episode goes on in the next round"
        last_obs = dict(zip(first.episode_ids, [chunk.get_observations(-1) for chunk in first], strict=True))
        for chunk in second:
            if chunk.id_ in continued:
                np.testing.assert_array_equal(chunk.get_observations(0), last_obs[chunk.id_])


# -- metrics -------------------------------------------------------------------------------------------------------


def _add(metrics: RunMetrics, returns: list[float]) -> None:
    num = len(returns)
    finished = FinishedEpisodes(np.array(returns, np.float64), np.full(num, 3, np.int64), np.zeros(num, np.int64))
    metrics.add_episodes(finished)


def test_running_means_are_over_the_last_episodes() -> None:
    metrics = RunMetrics(smoothing=3)
    _add(metrics, [1.0, 2.0])
    first = metrics.end_iteration()
    assert first["env_runners/episode_return_mean"] == 1.5
    metrics.begin_iteration()
    _add(metrics, [6.0, 10.0])
    second = metrics.end_iteration()
    assert second["env_runners/episode_return_mean"] == 6.0  # of 2, 6 and 10
    assert (second["env_runners/episode_return_min"], second["env_runners/episode_return_max"]) == (2.0, 10.0)
    assert (second["env_runners/num_episodes"], second["num_episodes_lifetime"]) == (2, 4)


def test_no_mean_of_nothing() -> None:
    result = episode_metrics("evaluation/env_runners", np.zeros(0), np.zeros(0, np.int64), 0, 0, 0)
    assert result["evaluation/env_runners/episode_return_mean"] is None
    assert result["evaluation/env_runners/num_episodes"] == 0


def test_timers_add_up_and_start_anew_each_iteration() -> None:
    metrics = RunMetrics(smoothing=3)
    for _ in range(2):
        metrics.begin_iteration()
        for _ in range(3):
            with metrics.timed("work"):
                pass
        result: dict[str, Any] = metrics.end_iteration()
        assert 0 <= result["timers/work"] <= result["time_this_iter_s"] <= result["time_total_s"]
    assert result["time_total_s"] > result["time_this_iter_s"]


def test_metrics_go_on_from_a_state() -> None:
    metrics = RunMetrics(smoothing=3)
    metrics.add_sampled(7)
    _add(metrics, [1.0, 2.0, 3.0, 4.0])
    metrics.end_iteration()
    other = RunMetrics(smoothing=3)
    other.set_state(metrics.get_state())
    assert other.get_state() == metrics.get_state()
    metrics.begin_iteration()
    other.begin_iteration()
    _add(metrics, [9.0])
    _add(other, [9.0])
    ours, theirs = metrics.end_iteration(), other.end_iteration()
    for name in ("env_runners/episode_return_mean", "num_env_steps_sampled_lifetime", "training_iteration"):
        assert ours[name] == theirs[name]
    assert ours["env_runners/episode_return_mean"] == pytest.approx(16 / 3)


def test_means_of_agents_and_modules_are_over_the_last_episodes_also_after_a_resume() -> None:
    def add(metrics: RunMetrics, returns: list[float]) -> None:
        values, num = np.array(returns), len(returns)
        counts = np.full(num, 3, np.int64), np.zeros(num, np.int64)
        metrics.add_episodes(FinishedEpisodes(values, *counts, {"left": values}, {"p0": values}))

    metrics = RunMetrics(smoothing=3)
    add(metrics, [1.0, 2.0, 3.0])
    resumed = RunMetrics(smoothing=3)
    resumed.set_state(metrics.get_state())
    for one in (metrics, resumed):
        add(one, [6.0, 9.0])
        result = one.end_iteration()
        assert result["env_runners/agent_episode_return_mean/left"] == 6.0  # of 3, 6 and 9
        assert result["env_runners/module_episode_return_mean/p0"] == 6.0


def test_gradient_steps_of_all_updates_are_summed_and_other_metrics_averaged() -> None:
    metrics = RunMetrics(smoothing=3)
    metrics.add_update({"p0": {"num_minibatch_updates": 4.0, "total_loss": 1.0}}, connector_s=0.0, num_rows=8)
    both = {"num_minibatch_updates": 6.0, "total_loss": 2.0}
    metrics.add_update({"p0": both, "p1": both}, connector_s=0.0, num_rows=8)
    result = metrics.end_iteration()
    assert (result["learners/p0/num_minibatch_updates"], result["learners/p0/total_loss"]) == (10.0, 1.5)
    assert (result["learners/p1/num_minibatch_updates"], result["learners/p1/total_loss"]) == (6.0, 2.0)
    assert result["num_env_steps_trained_lifetime"] == 16


def test_every_reported_metric_is_producible_and_the_other_way_round() -> None:
    from runner.config.metrics import producible_metrics

    overrides = [*QUICK, "evaluation.evaluation_interval=1", "evaluation.evaluation_duration=2"]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        assert set(trainer.train()) == set(producible_metrics(trainer.config))
