"""Networks of residual blocks (`module.architecture`) in modules, compiled losses and runs; rejected options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

from runner import Trainer
from runner.config.algorithms import SACConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.learners.sac import SACLoss
from runner.modules import DoubleQModule, SACModule
from runner.modules.hyperspherical import HypersphericalEnsemble
from runner.modules.residual import ResidualEnsemble
from tests.learners.loss_contract import LossContract
from tests.modules.spaces import items_of
from tests.support.resuming import assert_resumes_exactly

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ARCHITECTURES = {"simba": ResidualEnsemble, "simba_v2": HypersphericalEnsemble}
architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)


def config_of(architecture: str) -> ModuleConfig:
    return ModuleConfig(architecture=architecture, fcnet_hiddens=[8, 8], fcnet_activation="relu")


@architectures
def test_policy_and_q_functions_have_blocks(architecture: str) -> None:
    module = SACModule(VECTOR, gym.spaces.Box(-1.0, 1.0, (2,), np.float32), config_of(architecture))
    blocks: list[nn.Module | None] = [module.critic.encoder, module.encoder.blocks]
    assert [type(one) for one in blocks] == [ARCHITECTURES[architecture]] * 2
    obs, actions = items_of(VECTOR, 5), items_of(module.action_space, 5)
    assert module.compute_q_values(obs, actions).shape == (2, 5)
    assert module.dist_inputs(obs).shape == (5, 4)


@architectures
def test_blocks_follow_the_convolutions_of_images(architecture: str) -> None:
    image = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)
    module = DoubleQModule(image, gym.spaces.Discrete(3), config_of(architecture))
    assert module.forward_train({"obs": items_of(image, 5)})["qf_preds"].shape == (5, 3)


class TestSimbaContract(LossContract):
    loss_class = SACLoss
    config = SACConfig()
    module_class = SACModule
    module_config = replace(config_of("simba"), num_critics=3)
    action_spaces = ("continuous",)
    untouched = ("log_alpha_prime",)


class TestSimbaV2Contract(TestSimbaContract):
    module_config = replace(config_of("simba_v2"), num_critics=3)


@architectures
def test_a_run_with_normalised_observations_resumes_exactly(architecture: str, tmp_path: Path) -> None:
    overrides = [
        *(f"module.architecture={architecture}", "module.fcnet_hiddens=[8,8]", "connectors=mean_std_filter"),
        *("tracking=none", "evaluation=none", "algorithm.train_batch_size_per_learner=16"),
        *("algorithm.training_intensity=16", "algorithm.num_steps_sampled_before_learning_starts=64"),
        "algorithm.min_sample_timesteps_per_iteration=100",
    ]
    make_trainer = partial(Trainer.from_experiment, "sac_pendulum", overrides)
    assert_resumes_exactly(make_trainer, tmp_path, cuts=[1])


@pytest.mark.parametrize(
    ("architecture", "override", "message"),
    [
        ("simba", "module.fcnet_hiddens=[8,4]", "fcnet_hiddens: module.architecture=simba needs one width"),
        ("simba_v2", "module.fcnet_hiddens=[8,4]", "fcnet_hiddens: module.architecture=simba_v2 needs one width"),
        ("simba", "module.critic_dropout=0.1", "critic_dropout: residual blocks"),
        ("simba_v2", "module.critic_dropout=0.1", "critic_dropout: residual blocks"),
        ("simba", "module.critic_use_layernorm=true", "critic_use_layernorm: residual blocks"),
        ("simba_v2", "module.fcnet_bias_initializer=zeros_", r"fcnet_bias_initializer: residual .*=simba_v2\)"),
    ],
)
def test_options_that_do_not_fit(architecture: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.from_experiment("sac_pendulum", [f"module.architecture={architecture}", override])
