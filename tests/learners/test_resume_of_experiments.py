"""Runs with memory, nested observations, masks and images go on from a checkpoint bit for bit, on Ray actors too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from runner.experiment.trainer import Trainer
from tests.conftest import QUICK
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray

LSTM = "ppo_stateless_cartpole_lstm"
SYNC = ("env_runners.gym_env_vectorize_mode=sync", "env._target_=null", "env.env=CartPole-v1")
TINY = (*QUICK, "algorithm.train_batch_size_per_learner=160", "module.fcnet_hiddens=[8]", "module.max_seq_len=7")


@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        (LSTM, []),
        (LSTM, ["module.use_lstm=false", "module.use_gru=true", "module.vf_share_layers=false"]),
        (LSTM, ["env_runners.rollout_fragment_length=10", "env_runners.episode_lookback_horizon=0"]),
        (LSTM, [*SYNC, "connectors=mean_std_filter"]),
        ("ppo_dict_cartpole", []),
        ("ppo_dict_cartpole", ["module.use_lstm=true", "connectors=mean_std_filter"]),
        ("ppo_masked_cartpole", []),
        ("ppo_masked_cartpole", ["module.use_gru=true"]),
        ("ppo_catch", []),
        ("ppo_pendulum", ["connectors=normalize"]),
        ("ppo_cartpole", ["env.env=Taxi-v4", "connectors=normalize"]),
    ],
    ids=[
        *("lstm", "gru", "lstm-fragments", "lstm-sync", "dict", "dict-lstm", "masked", "masked-gru", "catch"),
        *("normalize-floats", "normalize-discrete"),
    ],
)
def test_a_run_resumes_exactly(experiment: str, overrides: list[str], tmp_path: Path) -> None:
    make = partial(Trainer.from_experiment, experiment, [*TINY, *overrides])
    assert_resumes_exactly(make, tmp_path, cuts=[1])


@pytest.mark.ray
def test_memory_inline_and_on_ray_actors_is_the_same(ray_cluster: None) -> None:
    overrides = [*TINY, "env_runners.num_env_runners=2", "evaluation.evaluation_interval=2"]
    assert_same_on_ray(lambda engine: Trainer.from_experiment(LSTM, [*overrides, engine]), 2)
