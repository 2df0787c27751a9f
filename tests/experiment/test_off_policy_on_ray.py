"""Off-policy experiments: two env runners as Ray actors give the numbers of two in the driver's process."""

from __future__ import annotations

import pytest

from runner.experiment.trainer import Trainer
from tests.conftest import marked_but
from tests.support.resuming import assert_same_on_ray

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
    overrides = [*SMALL, *OWN[experiment]]
    results = assert_same_on_ray(lambda engine: Trainer.from_experiment(experiment, [*overrides, engine]), 4)
    assert results[-1]["num_env_steps_trained_lifetime"] > 0
