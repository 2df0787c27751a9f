"""When a run ends."""

from __future__ import annotations

from runner.experiment.stop_criteria import met_criteria


def test_met_criteria_are_those_at_or_above_their_bound() -> None:
    stop = {"training_iteration": 5, "env_runners/episode_return_mean": 100.0, "time_total_s": 60.0, "absent": 1}
    result = {"time_total_s": 60.0, "training_iteration": 4, "env_runners/episode_return_mean": 100.5}
    met = met_criteria(stop, result)
    assert list(map(str, met)) == ["env_runners/episode_return_mean 100.5 >= 100", "time_total_s 60 >= 60"]
    assert [criterion.key for criterion in met] == ["stop.env_runners.episode_return_mean", "stop.time_total_s"]


def test_a_metric_without_a_value_or_not_a_number_meets_nothing() -> None:
    stop = {"env_runners/episode_return_mean": 0.0}
    assert met_criteria(stop, {"env_runners/episode_return_mean": None}) == []
    assert met_criteria(stop, {"env_runners/episode_return_mean": float("nan")}) == []
