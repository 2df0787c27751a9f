"""When a run ends."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.schemas import ExperimentConfig
from runner.experiment.stop_criteria import fewest_episodes, met_criteria
from tests.conftest import QUICK
from tests.support.configs import config_from

RETURN = "env_runners/episode_return_mean"


def config_of(*overrides: str) -> ExperimentConfig:
    without = ("~stop.env_runners/episode_return_mean", "~stop.num_env_steps_sampled_lifetime")
    return config_from("+experiment=ppo_cartpole", *without, *overrides)


def test_met_criteria_are_those_at_or_above_their_bound() -> None:
    config = config_of("stop.training_iteration=5", f"stop.{RETURN}=100", "stop.time_total_s=60")
    result = {"time_total_s": 60.0, "training_iteration": 4, RETURN: 100.5, "num_episodes_lifetime": 100}
    met = met_criteria(config, result)
    assert list(map(str, met)) == ["mean return 100.5 >= 100", "reached 60 seconds of training"]
    assert [criterion.key for criterion in met] == ["stop.env_runners.episode_return_mean", "stop.time_total_s"]


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_metric_without_a_value_or_not_a_number_meets_nothing(value: float | None) -> None:
    assert met_criteria(config_of(f"stop.{RETURN}=0"), {RETURN: value, "num_episodes_lifetime": 100}) == []


@pytest.mark.parametrize(
    ("metric", "overrides"),
    [
        (RETURN, []),
        ("env_runners/episode_return_min", []),
        ("env_runners/episode_len_mean", []),
        ("env_runners/success", ["metrics={env_runners/success: {info: is_success}}"]),
        (
            "env_runners/module_episode_return_mean/p0",
            ["env=multi_agent_cartpole", "multi_agent.agent_to_module={agent_0: p0, agent_1: p1}"],
        ),
    ],
)
@pytest.mark.parametrize(
    ("num_episodes", "smoothing", "is_met"), [(1, 100, False), (99, 100, False), (100, 100, True), (7, 7, True)]
)
def test_a_mean_over_training_episodes_waits_for_as_many_as_it_is_over(
    metric: str, overrides: list[str], num_episodes: int, smoothing: int, is_met: bool
) -> None:
    config = config_of(
        f"stop={{{metric}: 100}}", f"env_runners.metrics_num_episodes_for_smoothing={smoothing}", *overrides
    )
    assert fewest_episodes(config) == {metric: smoothing}
    assert bool(met_criteria(config, {metric: 500.0, "num_episodes_lifetime": num_episodes})) == is_met


@pytest.mark.parametrize(
    ("metric", "overrides"),
    [
        ("env_runners/episode_return_max", []),
        ("env_runners/height", ["metrics={env_runners/height: {info: height, reduce: max}}"]),
        ("evaluation/env_runners/episode_return_mean", []),
        ("num_episodes_lifetime", []),
        ("env_runners/num_episodes", []),
    ],
)
def test_other_metrics_do_not_wait(metric: str, overrides: list[str]) -> None:
    config = config_of(f"stop={{{metric}: 1}}", *overrides)
    assert fewest_episodes(config) == {}
    assert [one.metric for one in met_criteria(config, {"num_episodes_lifetime": 1, metric: 500.0})] == [metric]


def test_one_lucky_episode_does_not_end_a_run(run_main: Any) -> None:
    """Four sub-environments take 64 steps in an iteration; their episodes of 100 steps have a return of 100."""
    outcome = run_main(
        *("+experiment=ppo_cartpole", *QUICK, "env._target_=tests.support.environments.Faulty", "env.env=null"),
        *("env.env_config={episode_len: 100}", "env_runners.metrics_num_episodes_for_smoothing=11"),
        "stop.env_runners.episode_return_mean=100",
    )
    assert outcome.code == 0, outcome.err
    assert "stop when    mean return >= 100 over 11 episodes" in outcome.out
    assert "iterations  5" in outcome.out, outcome.out
