"""PPO's loss against one written anew with torch.distributions, row by row, and what adapts between updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal, kl_divergence

from runner import Trainer
from runner.config.algorithms import PPOConfig
from runner.config.errors import ConfigError
from runner.config.schedules import scheduled_value
from runner.config.schemas import ModuleConfig
from runner.learners.ppo import PPOLoss
from runner.modules import ActorCriticModule, RLModule
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import CONTINUOUS, DISCRETE, LossContract, make_batch, make_module


class TestPPOLossContract(LossContract):
    loss_class = PPOLoss
    config = PPOConfig(entropy_coeff=0.01)


class TestPPOLossContractWithoutKL(LossContract):
    loss_class = PPOLoss
    config = PPOConfig(use_kl_loss=False)


def _distribution(theta: Tensor, action_space: gym.Space[Any]) -> Distribution:
    if action_space is DISCRETE:
        return Categorical(logits=theta)
    mean, log_std = theta.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


def _naive_ppo(
    module: RLModule, batch: dict[str, Tensor], cfg: PPOConfig, action_space: gym.Space[Any]
) -> dict[str, Tensor]:
    """Eq. 9 of the paper, one row after the other, with torch.distributions."""
    rows: dict[str, list[Tensor]] = {"policy_loss": [], "vf_loss": [], "entropy": [], "kl": []}
    for i in range(len(batch["obs"])):
        row = {name: column[i : i + 1] for name, column in batch.items()}
        outputs = module.forward_train(row)
        new = _distribution(outputs["action_dist_inputs"], action_space)
        old = _distribution(row["action_dist_inputs"], action_space)
        log_ratio = new.log_prob(row["actions"]) - old.log_prob(row["actions"])
        ratio, advantage = log_ratio.exp(), row["advantages"]
        bounded = torch.clip(ratio, 1 - cfg.clip_param, 1 + cfg.clip_param)
        rows["policy_loss"].append(-torch.min(ratio * advantage, bounded * advantage))
        error = (outputs["vf_preds"] - row["value_targets"]) ** 2
        rows["vf_loss"].append(error if cfg.vf_clip_param is None else torch.clip(error, 0, cfg.vf_clip_param))
        rows["entropy"].append(new.entropy())
        rows["kl"].append(kl_divergence(old, new))
    means = {name: torch.stack(values).mean() for name, values in rows.items()}
    total = means["policy_loss"] + cfg.vf_loss_coeff * means["vf_loss"] - cfg.entropy_coeff * means["entropy"]
    if cfg.use_kl_loss:
        total = total + cfg.kl_coeff * means["kl"]
    return {
        "total_loss": total,
        "policy_loss": means["policy_loss"],
        "vf_loss": means["vf_loss"],
        "entropy": means["entropy"],
        "mean_kl_loss": means["kl"],
    }


@pytest.mark.parametrize("action_space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_kl_loss": False},
        {"entropy_coeff": 0.05},
        {"vf_clip_param": None},
        {"vf_clip_param": 1.0, "clip_param": 0.05, "kl_coeff": 3.0, "vf_loss_coeff": 0.2},
    ],
    ids=lambda changes: "-".join(changes) or "defaults",
)
def test_loss_and_gradient_equal_a_naive_ppo(changes: dict[str, Any], action_space: gym.Space[Any]) -> None:
    config = replace(PPOConfig(), **changes)
    module, other = make_module(action_space), make_module(action_space)
    batch = make_batch(module, num_rows=40, seed=3)
    expected = _naive_ppo(other, batch, config, action_space)
    metrics = PPOLoss(config)(module, batch)
    for name, value in expected.items():
        assert float(getattr(metrics, name).detach()) == pytest.approx(float(value.detach()), rel=1e-4, abs=1e-6), name
    metrics.total_loss.backward()
    expected["total_loss"].backward()
    for ours, theirs in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_the_ratio_is_bounded_by_clip_param() -> None:
    module = make_module(DISCRETE)
    batch = make_batch(module)
    batch["action_logp"] = batch["action_logp"] - 5.0  # every ratio is far above 1 + eps
    batch["advantages"] = torch.ones_like(batch["advantages"])
    metrics = PPOLoss(PPOConfig(clip_param=0.3))(module, batch)
    assert metrics.policy_loss.item() == pytest.approx(-1.3)


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.021, 0.3), (0.019, 0.2), (0.006, 0.2), (0.004, 0.1)], ids=["high", "mid", "mid2", "low"]
)
def test_kl_coefficient_adapts_to_its_target(kl: float, expected: float) -> None:
    loss = PPOLoss(PPOConfig(kl_coeff=0.2, kl_target=0.01))
    loss.after_update({"mean_kl_loss": kl})
    assert loss.coefficients()["curr_kl_coeff"] == pytest.approx(expected)


def test_kl_coefficient_stays_without_kl_loss() -> None:
    loss = PPOLoss(PPOConfig(use_kl_loss=False))
    loss.after_update({"mean_kl_loss": 1.0})
    assert loss.coefficients()["curr_kl_coeff"] == 0.0


@pytest.mark.parametrize("uses_kl", [True, False])
def test_whether_there_is_a_kl_loss_is_not_taken_from_a_state(uses_kl: bool) -> None:
    before = PPOLoss(PPOConfig(kl_coeff=0.2, use_kl_loss=not uses_kl))
    after = PPOLoss(PPOConfig(kl_coeff=0.3, use_kl_loss=uses_kl))
    after.set_state(before.get_state())
    assert after.coefficients()["curr_kl_coeff"] == (0.2 if uses_kl else 0.0)


def test_entropy_coefficient_follows_its_schedule() -> None:
    loss = PPOLoss(PPOConfig(entropy_coeff=[[0, 0.1], [1000, 0.0]]))
    coefficients = []
    for num_env_steps in (0, 250, 1000, 9000):
        loss.before_update(num_env_steps)
        coefficients.append(loss.coefficients()["curr_entropy_coeff"])
    assert coefficients == pytest.approx([0.1, 0.075, 0.0, 0.0])


def test_scheduled_value() -> None:
    schedule = [[0, 1.0], [100, 0.5], [300, 0.1]]
    assert [scheduled_value(schedule, step) for step in (0, 50, 100, 200, 300, 10**9)] == pytest.approx(
        [1.0, 0.75, 0.5, 0.3, 0.1, 0.1]
    )
    assert scheduled_value(3, 10**6) == 3.0


@pytest.mark.parametrize("is_compiled", [False, True])
def test_an_update_ends_at_the_target_kl(is_compiled: bool) -> None:
    def num_steps(target_kl: float | None, lr: float) -> float:
        config = PPOConfig(lr=lr, num_epochs=6, minibatch_size=None, use_kl_loss=False, target_kl=target_kl)
        stream = np.random.default_rng(0)
        module = make_module(DISCRETE)
        learner = ModuleLearner(module, PPOLoss(config), config, stream, is_compiled=is_compiled)
        batch = make_batch(module, 32)
        before = learner.get_weights()
        metrics = learner.update(batch, 0).metrics
        assert metrics["mean_kl_loss"] <= 1.5 * (target_kl or 1e9)
        assert not np.array_equal(learner.get_weights(), before)
        return metrics["num_minibatch_updates"]

    assert num_steps(None, 1e-1) == num_steps(1e6, 1e-1) == 6
    assert num_steps(0.1, 1e-5) == 6
    assert 1 <= num_steps(0.1, 1e-1) < 6


def test_target_kl_does_not_work_with_the_penalty() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.target_kl ends updates early"):
        Trainer.from_experiment("ppo_cartpole", ["algorithm.target_kl=0.02", "algorithm.use_kl_loss=true"])


@pytest.mark.ray
def test_learners_end_an_update_together(ray_cluster: None) -> None:
    overrides = ["algorithm.target_kl=0.001", "algorithm.use_kl_loss=false", "algorithm.lr=0.01", "tracking=none"]
    overrides += [
        "learners.num_learners=2",
        "algorithm.train_batch_size_per_learner=200",
        "algorithm.minibatch_size=50",
    ]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        result = trainer.train()
    num_steps = result["learners/default_policy/num_minibatch_updates"]
    assert 1 <= num_steps < 4 * trainer.config.algorithm.num_epochs


def test_values_on_a_logarithmic_scale() -> None:
    torch.manual_seed(0)
    vector = gym.spaces.Box(-5, 5, (3,), np.float32)
    module = ActorCriticModule(vector, DISCRETE, ModuleConfig(fcnet_hiddens=[8], vf_normalization="symlog"))
    with torch.no_grad():
        module.vf.layers[-1].weight.mul_(20.0)
    batch = make_batch(module)
    predicted = module.vf.forward(module.encoder.forward(batch["obs"])).squeeze(-1)
    assert predicted.min() < -1
    assert predicted.max() > 1
    values = module.compute_values(batch)
    torch.testing.assert_close(values, predicted.sign() * (predicted.abs().exp() - 1))
    torch.testing.assert_close(module.forward_train(batch)["vf_preds"], values)
    batch["value_targets"] = 1000.0 * batch["value_targets"]
    targets = batch["value_targets"]
    symlog = targets.sign() * (targets.abs() + 1).log()
    expected = (predicted - symlog).square().mean()
    torch.testing.assert_close(PPOLoss(PPOConfig(vf_clip_param=None))(module, batch).vf_loss, expected)


def test_a_logarithmic_scale_needs_ppo() -> None:
    with pytest.raises(ConfigError, match="vf_normalization: A2CLoss does not support it"):
        Trainer.from_experiment("a2c_cartpole", ["module.vf_normalization=symlog"])


def test_appo_rejects_a_target_kl() -> None:
    with pytest.raises(ConfigError, match="APPO's target policy differs"):
        Trainer.from_experiment("appo_cartpole", ["algorithm.target_kl=0.1"])
