"""Elastic numbers of env runners: their bounds, and runs that need a fixed number."""

from __future__ import annotations

import pytest

from runner.config.errors import ConfigError
from runner.config.plans.training_ratio import env_steps_per_round
from runner.config.schemas import ExperimentConfig
from runner.experiment.ray_resources import bundles_of, other_actors
from runner.plans.operators.rollouts import env_steps_per_request
from tests.support.configs import config_from

TWO_TO_SIX = "env_runners.num_env_runners={min: 2, max: 6}"


def config_of(*overrides: str, experiment: str = "ppo_cartpole") -> ExperimentConfig:
    return config_from(f"+experiment={experiment}", *overrides)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("{min: 0, max: 4}", "min must be at least 1"),
        ("{min: 5, max: 4}", "min is greater than max"),
        ("{min: 2}", "needs max"),
        ("{}", "needs min and max"),
        ("{min: 1, max: 2, maxx: 3}", r"num_env_runners.maxx is not a known key[\s\S]*did you mean +max"),
        ("{min: 1, max: 2.5}", "has the wrong type"),
    ],
)
def test_bounds_that_are_none(number: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config_of(f"env_runners.num_env_runners={number}")


def test_a_bound_is_reported_where_it_is_set() -> None:
    with pytest.raises(ConfigError, match=r"where +override env_runners\.num_env_runners\.min=0\n"):
        config_of(TWO_TO_SIX, "env_runners.num_env_runners.min=0")


@pytest.mark.parametrize(
    ("experiment", "overrides", "reason"),
    [
        ("ppo_cartpole", ["engine=inline"], "needs Ray"),
        ("ppo_cartpole", ["env.port=0"], r"external\s+simulators"),
        ("ppo_cartpole", ["env_runners.scheduling_strategy=PACK"], r"reserves all\s+resources"),
        ("bc_cartpole", ["offline.input_=data"], r"learns\s+from\s+recorded\s+data"),
        (
            "impala_cartpole",
            ["algorithm.plan=[{ParallelRollouts: {mode: async, deterministic: true}}, ConcatBatches, TrainOneStep]"],
            r"algorithm.plan.0 has\s+deterministic: true",
        ),
    ],
)
def test_runs_in_which_the_number_must_be_fixed(experiment: str, overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config_of(TWO_TO_SIX, *overrides, experiment=experiment)


@pytest.mark.parametrize("experiment", ["ppo_cartpole", "impala_cartpole", "a3c_cartpole"])
def test_modes_that_take_any_number(experiment: str) -> None:
    runners = config_of(TWO_TO_SIX, experiment=experiment).env_runners
    assert (runners.is_elastic, runners.min_env_runners, runners.max_env_runners) == (True, 2, 6)


def test_a_run_asks_for_the_least_and_leaves_room_for_others() -> None:
    evaluation = ("evaluation.evaluation_interval=1", "evaluation.evaluation_num_env_runners=1")
    config = config_of(TWO_TO_SIX, "learners.num_learners=1", *evaluation)
    assert len(bundles_of(config)) == 1 + 2 + 1 + 1
    assert len(other_actors(config)) == 1 + 1


def test_a_round_is_the_train_batch_and_a_request_has_its_length_with_the_least_runners() -> None:
    batch = "algorithm.train_batch_size_per_learner=600"
    automatic = config_of(TWO_TO_SIX, batch, "algorithm.minibatch_size=60")
    assert [env_steps_per_round(automatic, number) for number in (2, 6)] == [600, 600]
    assert env_steps_per_request(automatic) == 300
    fixed = ("env_runners.rollout_fragment_length=10", "env_runners.num_envs_per_env_runner=4")
    config = config_of(TWO_TO_SIX, batch, "algorithm.minibatch_size=60", *fixed)
    assert [env_steps_per_round(config, number) for number in (2, 6)] == [80, 240]
    assert env_steps_per_request(config) == 40
