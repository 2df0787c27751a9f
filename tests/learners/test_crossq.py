"""CrossQ: its target and losses against formulas, row by row, and runs that resume, reset and use Ray."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from runner import Trainer
from runner.config.algorithms import CrossQConfig
from runner.config.errors import ConfigError
from runner.learners.crossq import CrossQLoss
from runner.learners.loss import with_noise
from runner.modules import CrossQModule
from tests.learners.loss_contract import CONTINUOUS, LossContract
from tests.learners.offline_modules import CONFIG as MODULE
from tests.learners.offline_modules import make, recorded_rows
from tests.support.resuming import assert_resumes_exactly

CONFIG = CrossQConfig(gamma=0.9, initial_alpha=0.5, policy_delay=1)
MODULE_CONFIG = replace(MODULE, critic_use_batchnorm=True, fcnet_activation="relu")


class TestCrossQLossContract(LossContract):
    loss_class = CrossQLoss
    module_class = CrossQModule
    module_config = MODULE_CONFIG
    config = CONFIG
    action_spaces = ("continuous",)
    untouched = ("log_alpha_prime",)


def _q(module: Any, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Q (E, rows) of a batch with torch's batch normalisation."""
    of_members = []
    for member in range(module.critic.num_members):
        hidden = F.batch_norm(torch.cat((obs, actions), -1), None, None, training=True, eps=1e-3)
        for layer in module.critic.encoder.layers:
            hidden = F.relu(hidden @ layer.weights[0][member] + layer.biases[0][member])
            hidden = F.batch_norm(hidden, None, None, training=True, eps=1e-3)
        head = module.critic.head
        of_members.append((hidden @ head.weights[0][member] + head.biases[0][member]).squeeze(-1))
    return torch.stack(of_members)


def test_the_target_is_computed_in_the_same_batch_without_gradients() -> None:
    module: Any = make(CrossQModule, CONTINUOUS, config=MODULE_CONFIG)
    rows = recorded_rows(CONTINUOUS)
    num_rows = len(rows["rewards"])
    rows |= {"n_step": torch.full((num_rows,), 2), "weights": torch.rand(num_rows)}
    loss = CrossQLoss(CONFIG)
    loss.use_stream(np.random.default_rng(7))
    batch = with_noise(rows, loss, module)
    alpha = 0.5 * math.exp(module.log_alpha.item())
    theta = module.forward_train({"obs": rows["new_obs"]})["action_dist_inputs"].detach()
    next_actions, next_logp = module.squashed.sample_with_log_prob(theta, batch["next_policy_noise"])
    both = torch.cat((rows["obs"], rows["new_obs"])), torch.cat((module.clamped(rows["actions"]), next_actions))
    q, next_q = _q(module, *both).chunk(2, -1)
    values = (next_q.detach().amin(0) - alpha * next_logp) * (~rows["terminateds"]).float()
    y = rows["rewards"] + 0.9**2 * values
    qf_loss = (rows["weights"] * (y - q).square()).mean(-1).sum()
    metrics = loss(module, batch)
    torch.testing.assert_close(metrics.qf_loss, qf_loss)
    layers = [*module.critic.encoder.layers, module.critic.head]
    critic = [parameter for layer in layers for parameter in layer.parameters()]
    expected = torch.autograd.grad(qf_loss, critic)
    got = torch.autograd.grad(metrics.total_loss, critic)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_there_are_no_targets() -> None:
    module: Any = make(CrossQModule, CONTINUOUS, config=MODULE_CONFIG)
    assert not module.target_networks()
    assert not any("target" in name for name in module.state_dict())


SHORT = (
    *("tracking=none", "evaluation=none", "module.fcnet_hiddens=[8]", "algorithm.train_batch_size_per_learner=16"),
    *("algorithm.training_intensity=16", "algorithm.num_steps_sampled_before_learning_starts=64"),
    *("algorithm.min_sample_timesteps_per_iteration=100", "algorithm.replay_capacity=1000"),
)


@pytest.mark.parametrize("overrides", [(), ("learners.compile=true",), ("algorithm.reset_interval=70",)])
def test_a_run_resumes_exactly(overrides: tuple[str, ...], tmp_path: Path) -> None:
    make_trainer = partial(Trainer.from_experiment, "crossq_pendulum", [*SHORT, *overrides])
    assert_resumes_exactly(make_trainer, tmp_path, cuts=[1])


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_reset_restores_the_initial_parameters_and_optimiser(optimizer: str) -> None:
    def states(interval: str) -> tuple[Any, Any]:
        overrides = [*SHORT, f"algorithm.reset_interval={interval}", f"algorithm.optimizer.name={optimizer}"]
        with Trainer.from_experiment("crossq_pendulum", overrides) as trainer:
            before = trainer.learners.get_state()["learners"]["default_policy"]
            trainer.train()
            after = trainer.learners.get_state()["learners"]["default_policy"]
        return before, after

    before, after = states("1")
    assert after["modules"]["default_policy"]["loss"]["num_steps"] > 10
    for part in ("module", "optimizer"):
        assert after[part].keys() == before[part].keys()
        for name, value in before[part].items():
            torch.testing.assert_close(after[part][name], value, rtol=0, atol=0)
    before, after = states("null")
    assert not torch.equal(after["module"]["pi.layers.0.weight"], before["module"]["pi.layers.0.weight"])


@pytest.mark.parametrize("split", ["learners.num_learners=2", "algorithm.microbatch_size=64"])
def test_split_updates_are_rejected(split: str) -> None:
    with pytest.raises(ConfigError, match="batch renormalisation needs all rows of an update together"):
        Trainer.from_experiment("crossq_pendulum", [split])


def test_resets_do_not_discard_loaded_parameters() -> None:
    overrides = ["algorithm.reset_interval=10", "module.load_state_path=somewhere"]
    with pytest.raises(ConfigError, match=r"reset_interval would discard the parameters of module\.load_state_path"):
        Trainer.from_experiment("crossq_pendulum", overrides)


def test_crossq_needs_batchnorm() -> None:
    with pytest.raises(ConfigError, match=r"critic_use_batchnorm is false"):
        Trainer.from_experiment("crossq_pendulum", ["module.critic_use_batchnorm=false"])


def test_batchnorm_needs_crossq() -> None:
    with pytest.raises(ConfigError, match="critic_use_batchnorm: SACLoss does not support it"):
        Trainer.from_experiment("sac_pendulum", ["module.critic_use_batchnorm=true"])
