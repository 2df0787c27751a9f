"""Counters, running means and timers of a run, counted from the items that operators give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.env_runners.sample import Sample
from runner.episodes.columns import Rollout
from runner.experiment.trainer import Trainer
from runner.league.matches import Match
from runner.plans import CompleteEpisodes, Experiences, Operator, RunMetrics, TrainResult
from runner.plans.episode_metrics import episode_metrics
from runner.rows.finished_episodes import FinishedEpisodes
from runner.rows.task_outcomes import TaskOutcome
from tests.conftest import QUICK
from tests.plans.hand_made import Sent, context_of


def _sampled(finished: FinishedEpisodes, num_env_steps: int = 0) -> Experiences:
    rollout = Rollout({}, num_env_steps)
    return Experiences(rollout, samples=[Sample(rollout, finished, {})])


class ReadingOperator(Operator):
    """Works with recorded data."""

    needs = ("recorded_data",)


def _add(metrics: RunMetrics, returns: list[float]) -> None:
    num = len(returns)
    finished = FinishedEpisodes(np.array(returns, np.float64), np.full(num, 3, np.int64), np.zeros(num, np.int64))
    metrics.count(_sampled(finished))


def test_running_means_are_over_the_last_episodes() -> None:
    metrics = RunMetrics(smoothing=3)
    _add(metrics, [1.0, 2.0])
    first = metrics.finish_iteration()
    assert first["env_runners/episode_return_mean"] == 1.5
    metrics.begin_iteration()
    _add(metrics, [6.0, 10.0])
    second = metrics.finish_iteration()
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
            metrics.count(TrainResult([], 0, timers={"work": 0.5}))
        result: dict[str, Any] = metrics.finish_iteration()
        assert result["timers/work"] == 1.5
        assert 0 <= result["time_this_iter_s"] <= result["time_total_s"]
    assert result["time_total_s"] > result["time_this_iter_s"]


def test_metrics_go_on_from_a_state() -> None:
    metrics = RunMetrics(smoothing=3)
    metrics.count(_sampled(FinishedEpisodes(*[np.zeros(0)] * 3), 7))
    _add(metrics, [1.0, 2.0, 3.0, 4.0])
    metrics.finish_iteration()
    other = RunMetrics(smoothing=3)
    other.set_state(metrics.get_state())
    assert other.get_state() == metrics.get_state()
    metrics.begin_iteration()
    other.begin_iteration()
    _add(metrics, [9.0])
    _add(other, [9.0])
    ours, theirs = metrics.finish_iteration(), other.finish_iteration()
    for name in ("env_runners/episode_return_mean", "num_env_steps_sampled_lifetime", "training_iteration"):
        assert ours[name] == theirs[name]
    assert ours["env_runners/episode_return_mean"] == pytest.approx(16 / 3)


def test_means_of_agents_and_modules_are_over_the_last_episodes_also_after_a_resume() -> None:
    def add(metrics: RunMetrics, returns: list[float]) -> None:
        values, num = np.array(returns), len(returns)
        counts = np.full(num, 3, np.int64), np.zeros(num, np.int64)
        metrics.count(_sampled(FinishedEpisodes(values, *counts, {"left": values}, {"p0": values})))

    metrics = RunMetrics(smoothing=3)
    add(metrics, [1.0, 2.0, 3.0])
    resumed = RunMetrics(smoothing=3)
    resumed.set_state(metrics.get_state())
    for one in (metrics, resumed):
        add(one, [6.0, 9.0])
        result = one.finish_iteration()
        assert result["env_runners/agent_episode_return_mean/left"] == 6.0  # of 3, 6 and 9
        assert result["env_runners/module_episode_return_mean/p0"] == 6.0


def test_gradient_steps_of_all_updates_are_summed_and_other_metrics_averaged() -> None:
    metrics = RunMetrics(smoothing=3)
    metrics.count(TrainResult([{"p0": {"num_minibatch_updates": 4.0, "total_loss": 1.0}}], 8))
    both = {"num_minibatch_updates": 6.0, "total_loss": 2.0}
    metrics.count(TrainResult([{"p0": both, "p1": both}], 8))
    result = metrics.finish_iteration()
    assert (result["learners/p0/num_minibatch_updates"], result["learners/p0/total_loss"]) == (10.0, 1.5)
    assert (result["learners/p1/num_minibatch_updates"], result["learners/p1/total_loss"]) == (6.0, 2.0)
    assert result["num_env_steps_trained_lifetime"] == 16


def test_recorded_env_steps_count_as_sampled_only_where_a_plan_samples_none() -> None:
    read = TrainResult([], 8, num_env_steps_read=8)
    for operators, num_sampled in (([ReadingOperator], 8), ([ReadingOperator, CompleteEpisodes], 5)):
        context = context_of(env_runners=Sent())
        for operator in operators:
            operator(context)
        context.metrics.count(read)
        if num_sampled == 5:
            context.metrics.count(_sampled(FinishedEpisodes(*[np.zeros(0)] * 3), 5))
        result = context.metrics.finish_iteration()
        assert result["num_env_steps_sampled"] == result["num_env_steps_sampled_lifetime"] == num_sampled
        assert result["num_env_steps_trained_lifetime"] == 8


def test_every_reported_metric_is_producible_and_the_other_way_round() -> None:
    from runner.config.metrics import producible_metrics

    overrides = [*QUICK, "evaluation.evaluation_interval=1", "evaluation.evaluation_duration=2"]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        assert set(trainer.train()) == set(producible_metrics(trainer.config))


def test_the_lag_of_samples_when_they_are_taken_counts_where_none_is_known_at_training() -> None:
    def lags(metrics: RunMetrics) -> tuple[Any, Any]:
        result = metrics.finish_iteration()
        return result["env_runners/weights_lag_mean"], result["env_runners/weights_lag_max"]

    metrics, resumed = RunMetrics(10), RunMetrics(10)
    metrics.reports_lag = resumed.reports_lag = True
    metrics.add_lag_when_taken(1, 30)
    metrics.add_lag_when_taken(3, 10)
    metrics.stop_midway()
    resumed.set_state(metrics.get_state())
    for of_one in (metrics, resumed):
        of_one.begin_iteration()
        assert lags(of_one) == (1.5, 3)
    metrics.begin_iteration()
    assert lags(metrics) == (None, None), "of this iteration alone"
    metrics.begin_iteration()
    metrics.add_lag_when_taken(3, 10)
    metrics.count(TrainResult([{}], 5, lags=[(2, 5)]))
    assert lags(metrics) == (2.0, 2)


def test_a_broken_off_iteration_keeps_what_leagues_and_curricula_conclude_from() -> None:
    metrics, restored = RunMetrics(10), RunMetrics(10)
    metrics.outcomes = {"league": [Match("main", "main-0", 0.5)], "curriculum": [TaskOutcome("near", 1.0)]}
    metrics.stop_midway()
    restored.set_state(metrics.get_state())
    restored.begin_iteration()
    assert restored.outcomes == {"league": [["main", "main-0", 0.5]], "curriculum": [["near", 1.0]]}
    restored.begin_iteration()
    assert restored.outcomes == {}
