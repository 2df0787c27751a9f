"""Off-policy experiments: two env runners as Ray actors give the numbers of two in the driver's process."""

from __future__ import annotations

import numpy as np
import pytest

from runner.experiment.trainer import Trainer
from tests.conftest import marked_but, without_times

SMALL = (
    "algorithm.min_sample_timesteps_per_iteration=60",
    "algorithm.num_steps_sampled_before_learning_starts=60",
    "algorithm.replay_capacity=150",  # the ring is written over
    "algorithm.train_batch_size_per_learner=16",
    "algorithm.training_intensity=4",
    "module.fcnet_hiddens=[8]",
    "env_runners.num_envs_per_env_runner=2",
    "env_runners.num_env_runners=2",
    "evaluation.evaluation_interval=3",
    "evaluation.evaluation_duration=2",
    "tracking=none",
)
OWN = {
    "dqn_cartpole": (),
    "her_bit_flipping": (),
    "rainbow_cartpole": ("module.num_atoms=11",),
    "sac_cartpole_discrete": (),
    "sac_pendulum": (),
    "td3_pendulum": (),
    "tqc_pendulum": (),
}


@pytest.mark.ray
@pytest.mark.parametrize("experiment", marked_but(pytest.mark.slow, OWN, "dqn_cartpole", "sac_pendulum"))
def test_two_ray_actors_make_the_numbers_of_two_inline_runners(experiment: str, ray_cluster: None) -> None:
    results, weights = [], []
    for engine in ("inline", "ray"):
        overrides = [*SMALL, *OWN[experiment], f"engine={engine}"]
        with Trainer.from_experiment(experiment, overrides) as trainer:
            results.append([without_times(trainer.train()) for _ in range(4)])
            weights.append(trainer.learners.get_weights())
    assert results[0] == results[1]
    assert results[0][-1]["num_env_steps_trained_lifetime"] > 0
    for module_id, vector in weights[0].items():
        np.testing.assert_array_equal(vector, weights[1][module_id])
