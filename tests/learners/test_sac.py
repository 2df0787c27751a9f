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

from runner.config.algorithms import SACConfig
from runner.learners.sac import POLICY_SCALES, Q_SCALES, TARGET_MEMBERS, TARGET_SCALES, SACLoss
from runner.modules import SACModule
from runner.modules.layers import ACTIVATIONS, ALL
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import CONTINUOUS, LossContract
from tests.learners.offline_modules import CONFIG as MODULE
from tests.learners.offline_modules import check_losses, make, replayed_rows, reward_after_three_iterations, row_of
from tests.learners.squashed_policies import q_values, sampled

CONFIG = SACConfig(gamma=0.9, initial_alpha=0.5)
A = 2


class TestSACLossContract(LossContract):
    loss_class = SACLoss
    module_class = SACModule
    config = CONFIG
    action_spaces = ("continuous",)
    untouched = ("log_alpha_prime",)
    module_config = MODULE


class TestREDQLossContract(TestSACLossContract):
    config = replace(CONFIG, num_target_critics=2, policy_q="mean")
    module_config = replace(MODULE, num_critics=4)


class TestDroQLossContract(TestSACLossContract):
    config = replace(CONFIG, policy_q="mean")
    module_config = replace(MODULE, critic_dropout=0.1, critic_use_layernorm=True)


def naive_sac(module: Any, batch: dict[str, Tensor], cfg: SACConfig) -> dict[str, Tensor]:
    """The three terms; the draws in the order in which the loss makes them."""
    num_rows, stream = len(batch["obs"]), np.random.default_rng(7)
    noise, next_noise = (torch.from_numpy(stream.standard_normal((num_rows, A), np.float32)) for _ in range(2))
    num_critics = module.critic.num_members
    members = list(range(num_critics))
    if cfg.num_target_critics is not None:
        members = stream.permutation(num_critics)[: cfg.num_target_critics].tolist()
    log_alpha = module.log_alpha + math.log(cfg.initial_alpha)
    alpha = math.exp(log_alpha.item())
    target_entropy = -A if cfg.target_entropy == "auto" else float(cfg.target_entropy)
    terms: dict[str, list[Tensor]] = {"actor": [], "critic": [], "alpha": []}
    for i in range(num_rows):
        row = row_of(batch, i)
        obs, new_obs = row["obs"], row["new_obs"]
        action, logp = sampled(module.forward_train(row)["action_dist_inputs"][0], noise[i])
        terms["alpha"].append(-log_alpha * (logp.item() + target_entropy))
        pi_q = q_values(module.critic, obs, action)
        terms["actor"].append(alpha * logp - (pi_q.min() if cfg.policy_q == "min" else pi_q.mean()))
        next_theta = module.forward_train({"obs": new_obs})["action_dist_inputs"][0].detach()
        next_action, next_logp = sampled(next_theta, next_noise[i])
        next_q = q_values(module.target_critic, new_obs, next_action)
        value = (min(next_q[number] for number in members) - alpha * next_logp).item()
        discount = 0.0 if row["terminateds"].item() else cfg.gamma ** row["n_step"].item()
        td = row["rewards"].item() + discount * value - q_values(module.critic, obs, row["actions"][0].clamp(-1, 1))
        terms["critic"].append(row["weights"].item() * (td**2).sum())
    return {name: torch.stack(own).mean() for name, own in terms.items()}


REDQ = {"num_target_critics": 2, "policy_q": "mean"}


@pytest.mark.parametrize("changes", [{}, {"target_entropy": 0.3}, {"initial_alpha": 0.01}, REDQ], ids=str)
def test_losses_and_gradients(changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    num_critics = 5 if changes is REDQ else 2
    module = make(SACModule, CONTINUOUS, config=replace(MODULE, num_critics=num_critics))
    batch = replayed_rows()
    with torch.no_grad():
        module.log_alpha.fill_(0.2)
    expected = naive_sac(module, batch, config)
    check_losses(SACLoss(config), module, batch, expected)


def test_each_gradient_step_draws_other_q_functions_for_the_target() -> None:
    module = make(SACModule, CONTINUOUS, config=replace(MODULE, num_critics=5))
    loss = SACLoss(replace(CONFIG, num_target_critics=2))
    drawn = [loss.draw_noise(module, replayed_rows())[TARGET_MEMBERS].tolist() for _ in range(200)]
    assert all(len(set(pair)) == 2 for pair in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=5)
    assert bool((np.abs(counts - 80) < 30).all()), counts


def test_dropout_is_of_hidden_units() -> None:
    """With a rate of 1/2 the mean over many draws is near the network's linear part; a draw is what it says."""
    config = replace(MODULE, fcnet_hiddens=[6], head_fcnet_hiddens=[4], critic_dropout=0.5, critic_use_layernorm=True)
    module, batch = make(SACModule, CONTINUOUS, config=config), replayed_rows()
    scales = torch.from_numpy(module.draw_dropout(np.random.default_rng(0), 2, 30))
    assert scales.shape == (2, 30, 10)
    assert scales.unique().tolist() == [0.0, 2.0]
    assert abs(float(scales.mean()) - 1.0) < 0.15
    critic, obs, actions = module.critic, batch["obs"], batch["actions"]
    expected, features = [], torch.cat((obs, actions), -1)
    for number in range(2):
        hidden = features
        for part, factors in ((critic.encoder, scales[number, :, :6]), (critic.head, scales[number, :, 6:])):
            hidden = (hidden @ part.weights[0][number] + part.biases[0][number]) * factors
            hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
            hidden = ACTIVATIONS[config.fcnet_activation if part is critic.encoder else config.head_fcnet_activation](
                hidden
            )
        expected.append((hidden @ critic.head.weights[1][number] + critic.head.biases[1][number]).squeeze(-1))
    torch.testing.assert_close(module.compute_q_values(obs, actions, ALL, scales), torch.stack(expected))
    assert not any("norm" in name for name in dict(module.pi.named_parameters()))


def test_every_pass_has_dropout_of_its_own() -> None:
    module = make(SACModule, CONTINUOUS, config=replace(MODULE, num_critics=3, critic_dropout=0.3))
    loss = SACLoss(replace(CONFIG, num_target_critics=2))
    noise = loss.draw_noise(module, replayed_rows())
    assert [noise[name].shape[0] for name in (Q_SCALES, TARGET_SCALES, POLICY_SCALES)] == [3, 2, 3]
    metrics: Any = loss(module, replayed_rows() | noise)
    for name in (Q_SCALES, TARGET_SCALES, POLICY_SCALES):
        changed: Any = loss(module, replayed_rows() | noise | {name: torch.ones_like(noise[name])})
        term = "policy_loss" if name == POLICY_SCALES else "qf_loss"
        other = "qf_loss" if name == POLICY_SCALES else "policy_loss"
        assert not torch.equal(getattr(changed, term), getattr(metrics, term))
        assert torch.equal(getattr(changed, other), getattr(metrics, other))


def test_policy_and_temperature_rest_together() -> None:
    config = replace(CONFIG, policy_delay=3)
    loss = SACLoss(config)
    learner = ModuleLearner(make(SACModule, CONTINUOUS), loss, config, np.random.default_rng(0))
    batch, moved = replayed_rows(), []
    for _ in range(6):
        before = [parameter.clone() for parameter in (learner.module.log_alpha, *learner.module.pi.parameters())]
        metrics = learner.update(batch, 0).metrics
        after = (learner.module.log_alpha, *learner.module.pi.parameters())
        moved.append([not torch.equal(old, new) for old, new in zip(before, after, strict=True)])
        assert ("policy_loss" in metrics) == ("alpha_loss" in metrics) == all(moved[-1])
    assert moved == [[False] * len(moved[0]), [False] * len(moved[0]), [True] * len(moved[0])] * 2


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
    of_module: Any = loss(nested, in_parts | noise)
    for one in (metrics, of_module):
        one.total_loss.backward()
    torch.testing.assert_close(of_module.total_loss, metrics.total_loss)
    torch.testing.assert_close(of_module.policy_loss, metrics.policy_loss)
    torch.testing.assert_close(flat.pi.layers[-1].weight.grad[columns], nested.pi.layers[-1].weight.grad)


def test_targets_follow_each_step() -> None:
    module, batch = make(SACModule, CONTINUOUS), replayed_rows()
    learner = ModuleLearner(module, SACLoss(CONFIG), CONFIG, np.random.default_rng(0))
    before = [parameter.clone() for parameter in module.target_critic.parameters()]
    learner.update(batch, 0)
    follow = zip(module.target_critic.parameters(), before, module.critic.parameters(), strict=True)
    for after, old, network in follow:
        torch.testing.assert_close(after, old + CONFIG.tau * (network - old))


MATCHING = (
    *("env._target_=tests.support.environments.MatchContinuous", "algorithm.alpha_lr=3e-3"),
    *("algorithm.train_batch_size_per_learner=64", "algorithm.training_intensity=64"),
)


@pytest.mark.slow
def test_it_learns_to_match_what_it_sees() -> None:
    assert reward_after_three_iterations("sac_pendulum", MATCHING) > 0.9, "uniform actions have 0.45, the best have 1"
