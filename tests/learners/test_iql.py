"""IQL against formulas written anew, row by row: the value of each loss, and which parameters it reaches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.algorithms import IQLConfig
from runner.learners.iql import IQLLoss
from runner.modules import IQLModule
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import CONTINUOUS, DISCRETE, LossContract
from tests.learners.offline_modules import CONFIG, OBSERVATIONS, check_gradients, make, recorded_rows, row_of
from tests.learners.test_marwil import SPACES, log_prob


class TestIQLLossContract(LossContract):
    loss_class = IQLLoss
    module_class = IQLModule
    config = IQLConfig()


def naive_iql(module: Any, batch: dict[str, Tensor], cfg: IQLConfig, space: gym.Space[Any]) -> dict[str, Tensor]:
    """Equations 5, 6 and 7."""
    terms: dict[str, list[Tensor]] = {"actor": [], "critic": [], "value": []}
    for i in range(len(batch["obs"])):
        row = row_of(batch, i)
        obs, action = row["obs"], row["actions"]
        if isinstance(space, gym.spaces.Box):
            action = action.clamp(-1.0, 1.0)
        target_q = module.compute_target_q_values(obs, action).min().item()
        value = module.compute_values(row)[0]
        u = target_q - value
        terms["value"].append(abs(cfg.expectile - float(u.item() < 0)) * u**2)
        next_value = 0.0 if row["terminateds"].item() else module.compute_values({"obs": row["new_obs"]}).item()
        y = row["rewards"].item() + cfg.gamma * next_value
        terms["critic"].append(sum((y - q) ** 2 for [q] in module.compute_q_values(obs, action)))
        weight = min(math.exp(cfg.beta * u.item()), 100.0)
        theta = module.forward_train(row)["action_dist_inputs"]
        terms["actor"].append(-weight * log_prob(theta, action, space))
    return {name: torch.stack(own).mean() for name, own in terms.items()}


@SPACES
@pytest.mark.parametrize("beta", [0.1, 50.0], ids=["small beta", "clipped weights"])
def test_losses_and_gradients(space: gym.Space[Any], beta: float) -> None:
    config = IQLConfig(beta=beta, expectile=0.7, gamma=0.9)
    module, batch = make(IQLModule, space), recorded_rows(space)
    expected = naive_iql(module, batch, config, space)
    metrics = IQLLoss(config)(module, batch)
    for name, value in (("policy", "actor"), ("qf", "critic"), ("vf", "value")):
        torch.testing.assert_close(getattr(metrics, f"{name}_loss"), expected[value], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics.total_loss, sum(expected.values()), rtol=1e-4, atol=1e-5)
    check_gradients(module, metrics.total_loss, expected)


def test_actions_beyond_the_bounds_count_as_those_at_the_bounds() -> None:
    """The environment did the same with both."""
    module, batch = make(IQLModule, CONTINUOUS), recorded_rows(CONTINUOUS)
    beyond = batch["actions"].abs() > 1
    assert 0.1 < beyond.float().mean() < 0.9
    far = batch | {"actions": torch.where(beyond, 40 * batch["actions"], batch["actions"])}
    near, far_out = (vars(IQLLoss(IQLConfig())(module, rows)) for rows in (batch, far))
    torch.testing.assert_close(near, far_out)


def test_v_is_the_expectile_of_q() -> None:
    """With one observation and fixed Q of A actions, V's minimum is the expectile, which plain numpy finds."""
    module, batch = make(IQLModule, DISCRETE), recorded_rows(DISCRETE, num_rows=300)
    batch["obs"] = torch.zeros(300, 3)
    with torch.no_grad():
        q = module.compute_target_q_values(batch["obs"], batch["actions"]).amin(0).numpy()
    low, high = q.min(), q.max()
    for _ in range(60):  # bisection of E[|tau - 1(u < 0)| u] = 0
        middle = (low + high) / 2
        u = q - middle
        low, high = (middle, high) if np.sum(np.where(u < 0, 0.1, 0.9) * u) > 0 else (low, middle)
    with torch.no_grad():
        module.vf.layers[-1].weight.zero_()
        module.vf.layers[-1].bias.fill_(float(low))
    IQLLoss(IQLConfig(expectile=0.9))(module, batch).total_loss.backward()
    assert module.vf.layers[-1].bias.grad.item() == pytest.approx(0.0, abs=1e-5)
    assert low > q.mean()


@pytest.mark.parametrize("num_critics", [1, 2, 5])
def test_an_ensemble_of_q_functions(num_critics: int) -> None:
    module = IQLModule(OBSERVATIONS, CONTINUOUS, replace(CONFIG, num_critics=num_critics))
    batch = recorded_rows(CONTINUOUS)
    assert module.compute_q_values(batch["obs"], batch["actions"]).shape == (num_critics, 30)
    metrics = IQLLoss(IQLConfig())(module, batch)
    metrics.total_loss.backward()
    assert bool(torch.isfinite(metrics.total_loss))


@pytest.mark.parametrize(("freq", "updates_at"), [(0, [1, 2, 3, 4]), (30, [1, 2, 3, 4]), (70, [3])])
def test_targets_follow_after_so_many_rows(freq: int, updates_at: list[int]) -> None:
    config = IQLConfig(tau=0.1, target_network_update_freq=freq)
    module, batch = make(IQLModule, DISCRETE), recorded_rows(DISCRETE)
    learner = ModuleLearner(module, IQLLoss(config), config, np.random.default_rng(0))
    seen = []
    for step in (1, 2, 3, 4):
        before = [target.clone() for target in module.target_critic.parameters()]
        learner.update(batch, 0)
        after, online = list(module.target_critic.parameters()), list(module.critic.parameters())
        if not all(torch.equal(old, new) for old, new in zip(before, after, strict=True)):
            seen.append(step)
            for old, new, q in zip(before, after, online, strict=True):
                torch.testing.assert_close(new, 0.9 * old + 0.1 * q, msg="not Polyak's average")
    assert seen == updates_at


def test_tau_1_copies() -> None:
    config = IQLConfig()
    module = make(IQLModule, DISCRETE)
    ModuleLearner(module, IQLLoss(config), config, np.random.default_rng(0)).update(recorded_rows(DISCRETE), 0)
    for target, online in zip(module.target_critic.parameters(), module.critic.parameters(), strict=True):
        assert torch.equal(target, online)
