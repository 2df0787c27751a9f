"""SAC against formulas written anew with torch.distributions, row by row and with the same noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner import Trainer
from runner.config.algorithms import SACConfig
from runner.learners.learner import Learner
from runner.learners.loss import with_noise
from runner.learners.sac import SACLoss
from runner.modules import RLModule, SACModule
from tests.learners.loss_contract import CONTINUOUS, LossContract
from tests.learners.offline_modules import check_gradients, make, recorded_rows, row_of
from tests.learners.squashed_policies import q_values, sampled

CONFIG = SACConfig(gamma=0.9, initial_alpha=0.5)
A = 2


class TestSACLossContract(LossContract):
    config = CONFIG
    action_spaces = ("continuous",)
    untouched = ("log_alpha_prime",)

    def make_loss(self) -> SACLoss:
        return SACLoss(self.config)

    def make_module(self, action_space: gym.Space[Any]) -> RLModule:
        module: RLModule = make(SACModule, action_space)
        return module


def replayed_rows() -> dict[str, Tensor]:
    """Random rows with importance weights and targets over 1 to 3 steps."""
    rows, stream = recorded_rows(CONTINUOUS), np.random.default_rng(3)
    num_rows = len(rows["rewards"])
    weights = torch.from_numpy(stream.random(num_rows, np.float32))
    return rows | {"n_step": torch.from_numpy(stream.integers(1, 4, num_rows)), "weights": weights}


def naive_sac(module: Any, batch: dict[str, Tensor], cfg: SACConfig) -> dict[str, Tensor]:
    """The three terms; the draws in the order in which the loss makes them."""
    num_rows, stream = len(batch["obs"]), np.random.default_rng(7)
    noise, next_noise = (torch.from_numpy(stream.standard_normal((num_rows, A), np.float32)) for _ in range(2))
    log_alpha = module.log_alpha + math.log(cfg.initial_alpha)
    alpha = math.exp(log_alpha.item())
    target_entropy = -A if cfg.target_entropy == "auto" else float(cfg.target_entropy)
    terms: dict[str, list[Tensor]] = {"actor": [], "critic": [], "alpha": []}
    for i in range(num_rows):
        row = row_of(batch, i)
        obs, new_obs = row["obs"], row["new_obs"]
        action, logp = sampled(module.forward_train(row)["action_dist_inputs"][0], noise[i])
        terms["alpha"].append(-log_alpha * (logp.item() + target_entropy))
        terms["actor"].append(alpha * logp - q_values(module.critic, obs, action).min())
        next_theta = module.forward_train({"obs": new_obs})["action_dist_inputs"][0].detach()
        next_action, next_logp = sampled(next_theta, next_noise[i])
        value = (q_values(module.target_critic, new_obs, next_action).min() - alpha * next_logp).item()
        discount = 0.0 if row["terminateds"].item() else cfg.gamma ** row["n_step"].item()
        td = row["rewards"].item() + discount * value - q_values(module.critic, obs, row["actions"][0].clamp(-1, 1))
        terms["critic"].append(row["weights"].item() * (td**2).sum())
    return {name: torch.stack(own).mean() for name, own in terms.items()}


@pytest.mark.parametrize("changes", [{}, {"target_entropy": 0.3}, {"initial_alpha": 0.01}], ids=str)
def test_losses_and_gradients(changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    module, batch = make(SACModule, CONTINUOUS), replayed_rows()
    with torch.no_grad():
        module.log_alpha.fill_(0.2)
    expected = naive_sac(module, batch, config)
    loss = SACLoss(config)
    loss.use_stream(np.random.default_rng(7))
    metrics: Any = loss(module, with_noise(batch, loss, module))
    for name, term in (("policy_loss", "actor"), ("qf_loss", "critic"), ("alpha_loss", "alpha")):
        torch.testing.assert_close(getattr(metrics, name), expected[term], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(metrics.total_loss, sum(expected.values()), rtol=1e-3, atol=1e-3)
    check_gradients(module, metrics.total_loss, expected)


def test_dict_actions_are_one_vector_in_parts() -> None:
    parts = gym.spaces.Dict(
        a=gym.spaces.Box(-1.0, 1.0, (1,), np.float32), b=gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
    )
    bounds = np.array([1.0, 2.0, 2.0], np.float32)
    flat, nested = make(SACModule, gym.spaces.Box(-bounds, bounds)), make(SACModule, parts)
    weights = flat.state_dict()
    columns = [0, 3, 1, 2, 4, 5]  # mean and log std of each part in turn; flat, all means come first
    last = f"pi.layers.{len(flat.pi.layers) - 1}"
    for name in (f"{last}.weight", f"{last}.bias"):
        weights[name] = weights[name][columns]
    nested.load_state_dict(weights)
    batch = replayed_rows() | {"actions": 3 * torch.randn(30, 3, generator=torch.Generator().manual_seed(0))}
    in_parts = batch | {"actions": {"a": batch["actions"][:, :1], "b": batch["actions"][:, 1:]}}
    loss = SACLoss(CONFIG)
    noise = loss.draw_noise(flat, batch)
    metrics: Any = loss(flat, batch | noise)
    of_parts: Any = loss(nested, in_parts | noise)
    for one in (metrics, of_parts):
        one.total_loss.backward()
    torch.testing.assert_close(of_parts.total_loss, metrics.total_loss)
    torch.testing.assert_close(of_parts.policy_loss, metrics.policy_loss)
    torch.testing.assert_close(flat.pi.layers[-1].weight.grad[columns], nested.pi.layers[-1].weight.grad)


def test_targets_follow_each_step() -> None:
    module, batch = make(SACModule, CONTINUOUS), replayed_rows()
    learner = Learner(module, SACLoss(CONFIG), CONFIG, np.random.default_rng(0))
    before = [parameter.clone() for parameter in module.target_critic.parameters()]
    learner.update(batch, 0)
    follow = zip(module.target_critic.parameters(), before, module.critic.parameters(), strict=True)
    for after, old, network in follow:
        torch.testing.assert_close(after, old + CONFIG.tau * (network - old))


def test_it_learns_to_match_what_it_sees() -> None:
    overrides = [
        *("env.env=null", "env._target_=tests.environments.MatchContinuous"),
        "seed=100",
        *("algorithm.actor_lr=3e-3", "algorithm.critic_lr=3e-3", "algorithm.alpha_lr=3e-3", "algorithm.gamma=0"),
        *("algorithm.train_batch_size_per_learner=64", "algorithm.training_intensity=64"),
        *("algorithm.num_steps_sampled_before_learning_starts=100", "module.fcnet_hiddens=[32]"),
        "tracking=none",
    ]
    with Trainer.from_experiment("sac_pendulum", overrides) as trainer:
        for _ in range(3):
            trainer.train()
        found = trainer.evaluate()
    reward = found["evaluation/env_runners/episode_return_mean"] / found["evaluation/env_runners/episode_len_mean"]
    assert reward > 0.9, "uniform actions have 0.45, the best have 1"
