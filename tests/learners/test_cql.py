"""CQL against formulas written anew with torch.distributions, row by row and with the same noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.algorithms import CQLConfig, DiscreteCQLConfig
from runner.learners.cql import CQLLoss
from runner.learners.cql_discrete import DiscreteCQLLoss
from runner.learners.loss import with_noise
from runner.modules import DoubleQModule, SACModule
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import CONTINUOUS, DISCRETE, LossContract
from tests.learners.offline_modules import check_gradients, make, recorded_rows, row_of
from tests.learners.squashed_policies import policy, q_values, sampled

CONFIG = CQLConfig(gamma=0.9, num_actions=3, bc_iters=0)
N, A = 3, 2


class TestCQLLossContract(LossContract):
    loss_class = CQLLoss
    module_class = SACModule
    config = replace(CONFIG, lagrangian=True)
    action_spaces = ("continuous",)


class TestCQLLossContractWithoutLagrangian(TestCQLLossContract):
    config = replace(CONFIG, bc_iters=10)
    untouched = ("log_alpha_prime",)


class TestDiscreteCQLLossContract(LossContract):
    loss_class = DiscreteCQLLoss
    module_class = DoubleQModule
    config = DiscreteCQLConfig()
    action_spaces = ("discrete",)


def naive_cql(module: Any, batch: dict[str, Tensor], cfg: CQLConfig, is_cloning: bool) -> dict[str, Tensor]:
    """SAC's and CQL's terms; the draws in the order in which the loss makes them."""
    num_rows, stream = len(batch["obs"]), np.random.default_rng(7)
    draw = {name: torch.from_numpy(stream.standard_normal((num_rows, A), np.float32)) for name in ("pi", "next")}
    uniform = 2 * torch.from_numpy(stream.random((num_rows, N, A), np.float32)) - 1
    current, of_next = (torch.from_numpy(stream.standard_normal((num_rows, N, A), np.float32)) for _ in range(2))
    log_alpha = module.log_alpha + math.log(cfg.initial_alpha)
    alpha = math.exp(log_alpha.item())
    terms: dict[str, list[Tensor]] = {"actor": [], "critic": [], "alpha": []}
    gaps: list[Tensor] = []

    for i in range(num_rows):
        row = row_of(batch, i)
        obs, new_obs = row["obs"], row["new_obs"]
        action = row["actions"][0].clamp(-1, 1)
        theta = module.forward_train(row)["action_dist_inputs"][0]
        next_theta = module.forward_train({"obs": new_obs})["action_dist_inputs"][0].detach()
        pi_action, pi_logp = sampled(theta, draw["pi"][i])
        terms["alpha"].append(-log_alpha * (pi_logp.item() - A))
        if is_cloning:
            bounded = action.clamp(-1 + 1e-6, 1 - 1e-6)
            terms["actor"].append(alpha * pi_logp - policy(theta).log_prob(bounded).sum())
        else:
            terms["actor"].append(alpha * pi_logp - q_values(module.critic, obs, pi_action).min())

        next_action, next_logp = sampled(next_theta, draw["next"][i])
        next_q = q_values(module.target_critic, new_obs, next_action).min()
        if not cfg.deterministic_backup:
            next_q = next_q - alpha * next_logp
        y = row["rewards"].item() + cfg.gamma * (0.0 if row["terminateds"].item() else next_q.item())
        q = q_values(module.critic, obs, action)
        terms["critic"].append(((y - q) ** 2).sum())

        exponents = []
        for n in range(N):
            exponents.append(q_values(module.critic, obs, uniform[i, n]) - math.log(0.25))
            for dist_inputs, noise in ((theta.detach(), current[i, n]), (next_theta, of_next[i, n])):
                some_action, logp = sampled(dist_inputs, noise)
                exponents.append(q_values(module.critic, obs, some_action) - logp)
        sums = sum((exponent / cfg.temperature).exp() for exponent in exponents)
        gaps.append(cfg.temperature * torch.log(sums) - q)
    losses = {name: torch.stack(own).mean() for name, own in terms.items()}
    gap = torch.stack(gaps).mean(0)  # (E,)
    losses["qf"], losses["cql"] = losses["critic"], gap.sum()
    if cfg.lagrangian:
        excess = cfg.min_q_weight * gap - cfg.lagrangian_thresh
        alpha_prime = module.log_alpha_prime.exp()
        losses["critic"] = losses["critic"] + alpha_prime.item() * excess.sum()
        losses["alpha"] = losses["alpha"] - (alpha_prime * excess.detach()).mean()
    else:
        losses["critic"] = losses["critic"] + cfg.min_q_weight * gap.sum()
    return losses


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bc_iters": 1},
        {"deterministic_backup": False, "initial_alpha": 0.3},
        {"temperature": 0.5, "min_q_weight": 2.0},
        {"lagrangian": True, "lagrangian_thresh": 3.0},
    ],
    ids=lambda changes: "-".join(changes) or "defaults",
)
def test_losses_and_gradients(changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    module, batch = make(SACModule, CONTINUOUS), recorded_rows(CONTINUOUS)
    with torch.no_grad():
        module.log_alpha.fill_(0.2)
        module.log_alpha_prime.fill_(-0.4)
    expected = naive_cql(module, batch, config, is_cloning=config.bc_iters > 0)
    loss = CQLLoss(config)
    loss.use_stream(np.random.default_rng(7))
    metrics = loss(module, with_noise(batch, loss, module))
    torch.testing.assert_close(metrics.policy_loss, expected["actor"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(metrics.qf_loss, expected["qf"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(metrics.cql_loss, expected["cql"], rtol=1e-3, atol=1e-4)
    groups = {name: expected[name] for name in ("actor", "critic", "alpha")}
    torch.testing.assert_close(metrics.total_loss, sum(groups.values()), rtol=1e-3, atol=1e-3)
    check_gradients(module, metrics.total_loss, groups)


def test_logsumexp_estimates_the_integral_over_actions() -> None:
    """A Q function that is linear in the action has a known integral of exp Q; 3 n estimates of it are summed."""
    space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    module, batch = make(SACModule, space), recorded_rows(space)
    with torch.no_grad():
        for parameter in module.critic.parameters():
            parameter.zero_()
        module.critic.encoder.weights[0][:, 3, 0] = 0.1  # tanh(0.1 a), nearly linear; the first three inputs are obs
        module.critic.head.weights[0][:, 0, 0] = 10.0
    loss = CQLLoss(replace(CONFIG, num_actions=3000, min_q_weight=1.0))
    metrics = loss(module, with_noise(batch, loss, module))
    mean_q = batch["actions"].clamp(-1, 1).mean().item()
    expected = math.log(math.e - 1 / math.e) + math.log(3 * 3000) - mean_q  # integral of exp(a) over [-1, 1]
    assert metrics.cql_loss.item() == pytest.approx(2 * expected, rel=5e-3)


def test_cloning_ends_after_exactly_bc_iters_gradient_steps() -> None:
    config = replace(CONFIG, bc_iters=3)
    module, batch = make(SACModule, CONTINUOUS), recorded_rows(CONTINUOUS)
    learner = ModuleLearner(module, CQLLoss(config), config, np.random.default_rng(0))
    compute, rows = module.compute_q_values, []
    module.compute_q_values = lambda obs, actions, *others: (
        rows[-1].append(actions.ndim) or compute(obs, actions, *others)
    )
    left = []
    for _ in range(5):
        rows.append([])
        left.append(learner.update(batch, 0).metrics["curr_bc_iters_left"])
    assert left == [3 - step for step in (1, 2, 3)] + [0, 0], "what is left after each update"
    cloning = [2, 3, 3, 3]  # Q of the recorded actions (B, A) and of three kinds of sampled ones (B, n, A)
    improving = [2, *cloning]  # and of the policy's own actions
    assert rows == [cloning, cloning, cloning, improving, improving]


def test_cloning_goes_on_where_a_checkpoint_left_it() -> None:
    config = replace(CONFIG, bc_iters=3)
    module, batch = make(SACModule, CONTINUOUS), recorded_rows(CONTINUOUS)
    learner = ModuleLearner(module, CQLLoss(config), config, np.random.default_rng(0))
    for _ in range(2):
        learner.update(batch, 0)
    other = ModuleLearner(make(SACModule, CONTINUOUS, seed=1), CQLLoss(config), config, np.random.default_rng(1))
    other.set_state(learner.get_state())
    assert [other.update(batch, 0).metrics["curr_bc_iters_left"] for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(("entropy", "expected"), [("auto", -2.0), (0.5, 0.5)])
def test_alpha_is_adapted_to_the_target_entropy(entropy: float | str, expected: float) -> None:
    module, batch = make(SACModule, CONTINUOUS), recorded_rows(CONTINUOUS)
    loss = CQLLoss(replace(CONFIG, target_entropy=entropy))
    metrics = loss(module, with_noise(batch, loss, module))
    metrics.total_loss.backward()
    assert module.log_alpha.grad.item() == pytest.approx(-(metrics.logp_mean.item() + expected), rel=1e-4)
    assert metrics.alpha_value.item() == 1.0


# -- discrete actions --------------------------------------------------------------------------------------------------

FROM_2 = gym.spaces.Discrete(3, start=2)


@pytest.mark.parametrize("space", [DISCRETE, FROM_2], ids=["from 0", "from 2"])
def test_discrete_losses_and_gradients(space: gym.spaces.Discrete) -> None:
    config = DiscreteCQLConfig(gamma=0.9, temperature=0.7, min_q_weight=1.3)
    module, batch = make(DoubleQModule, space), recorded_rows(space)
    errors, gaps = [], []
    for i in range(len(batch["obs"])):
        q = module.qf(batch["obs"][i : i + 1])[0]
        best = module.qf(batch["new_obs"][i : i + 1])[0].argmax()
        next_q = module.target_qf(batch["new_obs"][i : i + 1])[0, best].item()
        y = batch["rewards"][i].item() + 0.9 * next_q * (1 - float(batch["terminateds"][i]))
        recorded = q[int(batch["actions"][i]) - int(space.start)]
        errors.append((y - recorded) ** 2)
        gaps.append(0.7 * torch.log((q / 0.7).exp().sum()) - recorded)
    qf_loss, cql_loss = torch.stack(errors).mean(), torch.stack(gaps).mean()
    expected = qf_loss + 1.3 * cql_loss
    metrics = DiscreteCQLLoss(config)(module, batch)
    torch.testing.assert_close(metrics.qf_loss, qf_loss)
    torch.testing.assert_close(metrics.cql_loss, cql_loss)
    torch.testing.assert_close(metrics.total_loss, expected)
    check_gradients(module, metrics.total_loss, {"default": expected})


def test_discrete_logsumexp_in_closed_form() -> None:
    module, batch = make(DoubleQModule, DISCRETE), recorded_rows(DISCRETE)
    with torch.no_grad():
        for parameter in module.qf.parameters():
            parameter.zero_()
        module.qf[-1].layers[-1].bias.copy_(torch.tensor([math.log(1.0), math.log(2.0), math.log(5.0)]))
    batch["actions"] = torch.tensor([0, 1, 2] * 10)
    metrics = DiscreteCQLLoss(DiscreteCQLConfig())(module, batch)
    assert metrics.cql_loss.item() == pytest.approx(math.log(8.0) - math.log(10.0) / 3, rel=1e-5)
    assert metrics.qf_mean.item() == pytest.approx(math.log(10.0) / 3, rel=1e-5)
