"""Learners in Ray actors: they update in step, and as one learner would on all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from runner.learners.remote_learner_group import split_rows
from runner.trainer import Trainer
from tests.conftest import ROOT, without_times

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
ray_test = pytest.mark.ray
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")


def test_rows_are_split_evenly() -> None:
    columns = {
        "obs": {"a": torch.arange(7), "b": torch.arange(14).reshape(7, 2)},
        "loss_mask": torch.tensor([True, True, False, True, True, True, True]),
    }
    first, second = split_rows(columns, 2)
    assert first["obs"]["a"].tolist() == [0, 1, 3]
    assert second["obs"]["a"].tolist() == [4, 5, 6]
    assert second["obs"]["b"].tolist() == [[8, 9], [10, 11], [12, 13]]
    assert "loss_mask" not in first
    assert split_rows(columns, 7) == []


def test_sequences_are_split_and_keep_their_masks() -> None:
    columns = {
        "obs": torch.arange(12).reshape(4, 3),
        "loss_mask": torch.tensor([[True] * 3, [False] * 3, [True] * 3, [True, False, False]]),
    }
    first, second = split_rows(columns, 2)
    assert first["obs"].tolist() == [[0, 1, 2], [6, 7, 8]]
    assert second["loss_mask"].tolist() == [[True, False, False]]


@ray_test
def test_two_learners_take_the_step_of_one_on_all_rows(ray_cluster: None) -> None:
    """One epoch, one minibatch: the mean of two gradients on halves is the gradient on the whole."""
    same = [*PPO, "algorithm.num_epochs=1", "algorithm.minibatch_size=null"]
    with Trainer.from_experiment("ppo_cartpole", [*same, "algorithm.train_batch_size_per_learner=800"]) as alone:
        expected = alone.train()
        weights = alone.learners.get_weights()["default_policy"]
    halves = ["algorithm.train_batch_size_per_learner=400", "learners.num_learners=2"]
    with Trainer.from_experiment("ppo_cartpole", [*same, *halves]) as both:
        got = both.train()
        np.testing.assert_allclose(both.learners.get_weights()["default_policy"], weights, atol=1e-6)
    assert got["num_env_steps_sampled"] == expected["num_env_steps_sampled"]
    for name in ("policy_loss", "vf_loss", "total_loss"):
        name = f"learners/default_policy/{name}"
        assert got[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-3)  # one half may have a row more


@ray_test
@pytest.mark.parametrize("experiment", ["ppo_stateless_cartpole_lstm", "ppo_multi_agent_cartpole"])
def test_online_runs_go_on_where_they_were(ray_cluster: None, experiment: str) -> None:
    hidden = ["module.lstm_cell_size=8"] if experiment.endswith("lstm") else []
    overrides = [
        *PPO,
        *hidden,
        "algorithm.train_batch_size_per_learner=400",
        "algorithm.minibatch_size=64",
        "learners.num_learners=2",
    ]
    with Trainer.from_experiment(experiment, overrides) as first:
        first.train()
        state = first.get_state()
        expected = without_times(first.train())
    with Trainer.from_experiment(experiment, overrides) as second:
        second.set_state(state)
        assert without_times(second.train()) == expected
    with Trainer.from_experiment(experiment, [*overrides, "learners.num_learners=0"]) as alone:
        alone.set_state(state)
        assert alone.train()["training_iteration"] == 2


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


@ray_test
def test_a_pass_is_split_between_learners(ray_cluster: None) -> None:
    overrides = [*BC, "offline.dataset_num_iters_per_learner=null", "learners.num_learners=2"]
    with Trainer.from_experiment("bc_cartpole", [*overrides, "algorithm.train_batch_size_per_learner=512"]) as trainer:
        lines = [trainer.train() for _ in range(2)]
    assert [line["num_env_steps_sampled"] for line in lines] == [3614, 3614]
