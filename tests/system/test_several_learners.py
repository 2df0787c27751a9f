"""Learners in Ray actors: they update in step, and as one learner would on all rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.errors import ConfigError
from runner.config.schemas import ExperimentConfig
from runner.env_runners.loss_failure import with_rollout
from runner.episodes.columns import Rollout, concat_rollouts
from runner.episodes.rollout_parts import split_rollout
from runner.experiment.env_runner_builder import TRAINING
from runner.experiment.env_runner_group_builder import build_env_runner_group
from runner.experiment.learner_builder import _check_shared_out, build_learner_group
from runner.experiment.trainer import Trainer
from runner.learners.gradients import average_gradients
from runner.learners.loss_failure import LossNotFinite
from runner.learners.remote_learner_group import _unshared_from
from runner.module_building import build_modules
from tests.conftest import ROOT, without_times
from tests.support.configs import config_from
from tests.support.resuming import assert_same_runs

PPO = ("module.fcnet_hiddens=[16]", "evaluation.evaluation_interval=null", "algorithm.num_epochs=2")
RECORDED = ROOT / "tests" / "data" / "rllib_cartpole_episodes"
BC = (
    f"offline.input_={RECORDED}",
    "module.fcnet_hiddens=[16]",
    "offline.dataset_num_iters_per_learner=3",
    "evaluation.evaluation_interval=null",
    "checkpoint.metric=training_iteration",
    "~stop.evaluation.env_runners.episode_return_mean",
)
NOISE = (
    "connectors.learner=[{insert_after: AddColumnsFromEpisodesToTrainBatch, "
    "connector: {_target_: tests.learners.noise.RewardNoise}}]"
)


def _connector(block: str) -> str:
    connector = f"{{_target_: runner.pipelines.{block}}}"
    return f"connectors.learner=[{{insert_after: AddColumnsFromEpisodesToTrainBatch, connector: {connector}}}]"


def _config(experiment: str, *overrides: str) -> ExperimentConfig:
    return config_from(f"+experiment={experiment}", *overrides)


ray_test = pytest.mark.ray
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")


def test_more_learners_than_were_saved_have_streams_of_their_own_and_else_what_the_first_had() -> None:
    saved = {
        "learners": {"p": {"module": 1, "loss": {"count": 7, "stream": "a"}, "stream": "b"}},
        "pipelines": {"p": {"Noise": {"stream": {"x": "c"}, "draws": [1]}, "Filter": {"mean": 2}}},
    }
    unshared = {
        "learners": {"p": {"loss": {"count": 0, "stream": "A"}, "stream": "B"}},
        "pipelines": {"p": {"Noise": {"stream": {"x": "C"}, "draws": []}}},
    }
    assert _unshared_from(saved, unshared) == {
        "learners": {"p": {"loss": {"count": 7, "stream": "A"}, "stream": "B"}},
        "pipelines": {"p": {"Noise": {"stream": {"x": "C"}, "draws": [1]}, "Filter": {"mean": 2}}},
    }


@ray_test
def test_two_learners_take_the_step_of_the_mean_gradient_of_two_halves(ray_cluster: None) -> None:
    """One epoch, one minibatch: as one learner that averages the gradients of the halves, each with its pipeline."""
    same = [
        *PPO,
        "algorithm.num_epochs=1",
        "algorithm.minibatch_size=null",
        "algorithm.minibatching=time_ordered",
        "algorithm.train_batch_size_per_learner=401",
    ]
    with Trainer.from_experiment("ppo_cartpole", [*same, "learners.num_learners=2"]) as both:
        config = replace(both.config, learners=replace(both.config.learners, num_learners=0))
        rollout = _sampled(config, both.learners.get_weights())
        alone = build_learner_group(config, build_modules(config))
        alone.set_weights(both.learners.get_weights())
        expected = average_gradients([alone.gradients(part, 0) for part in split_rollout(rollout, 2, num_lookback=1)])

        before = both.learners.get_weights()["default_policy"]
        gradients = both.learners.gradients(rollout, 0)
        np.testing.assert_array_equal(both.learners.get_weights()["default_policy"], before)
        one, other = gradients.modules["default_policy"], expected.modules["default_policy"]
        assert one.num_rows == rollout.num_env_steps == other.num_rows
        np.testing.assert_allclose(one.vector, other.vector, atol=1e-3)  # one half may have a row more
        assert one.metrics == pytest.approx(dict(other.metrics), rel=1e-2, abs=1e-4)

        update = both.learners.update(rollout, 0)
        metrics = alone.apply(gradients, 0)["default_policy"]
        after = both.learners.get_weights()["default_policy"]
        np.testing.assert_allclose(after, alone.get_weights()["default_policy"], atol=1e-6)
        assert update.metrics["default_policy"] == pytest.approx(metrics, rel=1e-4)
        both.learners.apply(gradients, 0)
        alone.apply(gradients, 0)
        after = both.learners.get_weights()["default_policy"]
        np.testing.assert_allclose(after, alone.get_weights()["default_policy"], atol=1e-6)

        with pytest.raises(LossNotFinite) as caught:
            both.learners.update(_spoilt(rollout), 0)
        told = str(with_rollout(caught.value, _spoilt(rollout)))
        assert "the batch contains rewards = nan (env runner 0, sub-environment" in told


def _spoilt(rollout: Rollout) -> Rollout:
    """Put a number that is not finite into the second learner's part."""
    block = rollout.blocks["default_policy"]
    rewards = block.columns["rewards"].copy()
    rewards[-5] = np.nan
    return replace(rollout, blocks={"default_policy": replace(block, columns={**block.columns, "rewards": rewards})})


def _sampled(config: ExperimentConfig, weights: dict[str, Any]) -> Rollout:
    runners = build_env_runner_group(config, TRAINING, build_modules(config))
    runners.set_weights(weights)
    return concat_rollouts([sample.rollout for sample in runners.sample(802, True)])


@pytest.mark.parametrize(
    ("experiment", "overrides", "connector"),
    [
        ("pg_cartpole", [], "MonteCarloReturns"),
        ("ppo_cartpole", [_connector("ScaleRewards")], "ScaleRewards"),
        ("ppo_cartpole", [_connector("ComputeReturnsToGo, gamma: 0.9")], "ComputeReturnsToGo"),
    ],
)
def test_a_connector_that_needs_all_rows_is_refused(experiment: str, overrides: list[str], connector: str) -> None:
    config = _config(experiment, "learners.num_learners=2", *overrides)
    with pytest.raises(ConfigError, match=f"{connector} needs all sampled rows"):
        build_learner_group(config, build_modules(config))


def test_a_fixed_factor_needs_no_other_rows_and_one_learner_has_all() -> None:
    for config in (
        _config("ppo_cartpole", "learners.num_learners=2", _connector("ScaleRewards, factor: 0.1")),
        _config("pg_cartpole", "learners.num_learners=1"),
    ):
        _check_shared_out(config, build_modules(config))


@ray_test
def test_one_remote_learner_gives_the_numbers_of_a_local_one(ray_cluster: None) -> None:
    overrides = [*PPO, "algorithm.train_batch_size_per_learner=400", NOISE]
    of_learners = ([*overrides, f"learners.num_learners={number}"] for number in (0, 1))
    assert_same_runs([partial(Trainer.from_experiment, "ppo_cartpole", own) for own in of_learners], 2)


@ray_test
@pytest.mark.parametrize(
    "experiment", ["ppo_multi_agent_cartpole", pytest.param("ppo_stateless_cartpole_lstm", marks=pytest.mark.slow)]
)
def test_online_runs_go_on_where_they_were(ray_cluster: None, experiment: str) -> None:
    hidden = ["module.lstm_cell_size=8"] if experiment.endswith("lstm") else []
    overrides = [
        *PPO,
        *hidden,
        NOISE,
        "algorithm.train_batch_size_per_learner=400",
        "algorithm.minibatch_size=64",
        "learners.num_learners=2",
    ]
    with Trainer.from_experiment(experiment, overrides) as first:
        first.train()
        state = first.get_state()
        expected = without_times(first.train())
    shared, [peer] = state["learners"]["pipelines"], state["learners"]["peers"]
    for module_id, connectors in peer["pipelines"].items():
        drawn, draws_of_first = (
            connectors["RewardNoise"]["first_draws"],
            shared[module_id]["RewardNoise"]["first_draws"],
        )
        assert len(drawn) == len(draws_of_first) == 1
        assert drawn != draws_of_first, "connectors of different learners draw the same numbers"
    with Trainer.from_experiment(experiment, overrides) as second:
        second.set_state(state)
        assert without_times(second.train()) == expected
    with Trainer.from_experiment(experiment, [*overrides, "learners.num_learners=0"]) as alone:
        alone.set_state(state)
        assert alone.train()["training_iteration"] == 2


@pytest.mark.slow
@ray_test
def test_recorded_data_are_split_between_learners(ray_cluster: None, tmp_path: Path) -> None:
    overrides = [*BC, "learners.num_learners=2", "algorithm.train_batch_size_per_learner=256", "algorithm.lr=0.01"]
    with Trainer.from_experiment("bc_cartpole", overrides) as first:
        lines = [without_times(first.train()) for _ in range(2)]
        state = first.get_state()
        expected = without_times(first.train())
    assert [line["num_env_steps_sampled"] for line in lines] == [2 * 3 * 256] * 2
    assert lines[1]["learners/default_policy/policy_loss"] < lines[0]["learners/default_policy/policy_loss"]
    with Trainer.from_experiment("bc_cartpole", overrides) as second:
        second.set_state(state)
        assert without_times(second.train()) == expected


@pytest.mark.slow
@ray_test
def test_a_pass_is_split_between_learners(ray_cluster: None) -> None:
    overrides = [*BC, "offline.dataset_num_iters_per_learner=null", "learners.num_learners=2"]
    with Trainer.from_experiment("bc_cartpole", [*overrides, "algorithm.train_batch_size_per_learner=512"]) as trainer:
        lines = [trainer.train() for _ in range(2)]
    assert [line["num_env_steps_sampled"] for line in lines] == [3614, 3614]
