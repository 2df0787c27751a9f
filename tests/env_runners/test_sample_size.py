"""The bytes that samples of remote env runners take in Ray's object store."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle

from runner import make_env_runner
from runner.config.metrics import SAMPLE_BYTES, producible_metrics
from runner.env_runners.env_runner_actor import serialised_bytes
from runner.env_runners.sample import Sample
from runner.episodes import nested
from runner.experiment.trainer import Trainer

SMALL = ("algorithm.train_batch_size_per_learner=60", "evaluation=none", "tracking=none")


def samples_of(experiment: str, num_env_steps: int) -> list[Sample]:
    """Return samples of 16 sub-environments whose episodes have begun before."""
    env_runner = make_env_runner(experiment)
    samples = [env_runner.sample(num_env_steps) for _ in range(5)][1:]
    env_runner.close()
    return samples


@pytest.mark.parametrize(("experiment", "num_env_steps"), [("appo_cartpole", 128), ("impala_cartpole", 250)])
def test_a_sample_takes_little_more_than_its_columns(experiment: str, num_env_steps: int) -> None:
    for sample in samples_of(experiment, num_env_steps):
        columns = nested.leaves(dict(sample.rollout.blocks["default_policy"].columns))
        assert serialised_bytes(sample) < 1.3 * sum(leaf.nbytes for leaf in columns)


def test_a_sample_is_the_same_after_its_way() -> None:
    for sample in samples_of("impala_cartpole", 128):
        arrays: list[Any] = []
        pickled = cloudpickle.dumps(sample, protocol=5, buffer_callback=arrays.append)
        np.testing.assert_equal(pickle.loads(pickled, buffers=arrays).get_state(), sample.get_state())


@pytest.mark.ray
def test_the_size_of_a_sample_is_what_ray_stores(ray_cluster: None) -> None:
    import ray

    with Trainer.from_experiment("impala_cartpole", [*SMALL, "engine=inline"]) as trainer:
        assert SAMPLE_BYTES not in trainer.train()
        assert SAMPLE_BYTES not in producible_metrics(trainer.config)
        sample = trainer.env_runners.sample(16000, True)[0]
        assert sample.bytes_per_env_step == 0
    reference = ray.put(sample)
    (stored,) = ray.experimental.get_object_locations([reference]).values()
    assert serialised_bytes(sample) == pytest.approx(stored["object_size"], rel=0.3)


@pytest.mark.ray
def test_remote_env_runners_report_the_bytes_of_an_env_step(ray_cluster: None) -> None:
    with Trainer.from_experiment("impala_cartpole", [*SMALL, "env_runners.num_env_runners=1"]) as trainer:
        result = trainer.train()
        assert set(result) <= set(producible_metrics(trainer.config))
        sample = trainer.env_runners.sample(30, True)[0]
        per_step = serialised_bytes(sample) / sample.rollout.num_env_steps
        assert result[SAMPLE_BYTES] == pytest.approx(per_step, rel=0.3)
        assert "bytes_per_env_step" not in sample.get_state()
