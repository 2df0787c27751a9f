"""Values in the scale of their targets: PopArt's statistics, rescaled layers, and runs with it."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from runner import Trainer
from runner.config.algorithms import PPOConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.learners.ppo import PPOLoss
from runner.modules import ActorCriticModule
from runner.modules.flat_parameters import FlatParameters
from runner.modules.value_normalization import PopArtScale, SymlogScale
from tests.support.resuming import assert_resumes_exactly, train

SPACES = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
SMALL = (
    *("tracking=none", "evaluation=none", "module.fcnet_hiddens=[8]", "algorithm.train_batch_size_per_learner=128"),
    *("algorithm.minibatch_size=64", "algorithm.num_epochs=2", "module.vf_normalization=popart"),
)


def make_module(seed: int = 0) -> ActorCriticModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCriticModule(*SPACES, ModuleConfig(fcnet_hiddens=[8], vf_normalization="popart"))


def test_the_first_batch_sets_the_scale() -> None:
    scale = PopArtScale(nn.Linear(4, 1))
    targets = torch.tensor([1.0, 2.0, 6.0])
    scale.update(targets)
    torch.testing.assert_close(scale.mean, torch.tensor([3.0]))
    torch.testing.assert_close(scale.std, targets.std(correction=0).reshape(1))


def test_statistics_of_equally_large_batches() -> None:
    """The first ten batches count equally, so the statistics equal the statistics of all targets."""
    scale, stream = PopArtScale(nn.Linear(4, 1)), np.random.default_rng(0)
    batches = [torch.from_numpy(stream.normal(mean, 3.0, 50)).float() for mean in range(100, 110)]
    for targets in batches:
        scale.update(targets)
    of_all = torch.cat(batches)
    torch.testing.assert_close(scale.mean, of_all.mean().reshape(1))
    torch.testing.assert_close(scale.std, of_all.std(correction=0).reshape(1), rtol=1e-4, atol=0)


def test_old_batches_are_forgotten() -> None:
    scale = PopArtScale(nn.Linear(4, 1))
    for _ in range(20):
        scale.update(torch.tensor([-1.0, 1.0]))
    for _ in range(100):
        scale.update(torch.tensor([90.0, 110.0]))
    torch.testing.assert_close(scale.mean, torch.tensor([100.0]), rtol=1e-3, atol=0)
    torch.testing.assert_close(scale.std, torch.tensor([10.0]), rtol=1e-2, atol=0)


def test_values_stay_the_same() -> None:
    module = make_module()
    batch = {"obs": torch.randn(64, 3)}
    before = module.compute_values(batch)
    for shift in (1000.0, -5.0, 3e4):
        module.update_value_scale(shift + 50 * torch.randn(32))
        torch.testing.assert_close(module.compute_values(batch), before, rtol=1e-2, atol=1e-2)
    assert module.vf_scale is not None
    targets = 3e4 + 50 * torch.randn(32)
    torch.testing.assert_close(module.vf_scale.values(module.normalize_values(targets)), targets)


def test_equal_targets() -> None:
    module = make_module()
    module.update_value_scale(torch.full((32,), 7.0))
    assert torch.isfinite(module.compute_values({"obs": torch.randn(4, 3)})).all()


def test_the_loss_compares_standardised_values() -> None:
    module = make_module()
    batch = {"obs": torch.randn(16, 3), "actions": torch.zeros(16, dtype=torch.int64)}
    outputs = module.forward_train(batch)
    theta = outputs["action_dist_inputs"].detach()
    batch |= {"action_dist_inputs": theta, "action_logp": module.action_dist.log_prob(theta, batch["actions"])}
    batch |= {"advantages": torch.zeros(16), "value_targets": 200.0 + 30.0 * torch.randn(16)}
    loss = PPOLoss(PPOConfig(vf_clip_param=None))
    loss.before_epochs(module, batch)
    targets = batch["value_targets"]
    expected = ((outputs["vf_preds"] - targets) / targets.std(correction=0)).square().mean()
    torch.testing.assert_close(loss(module, batch).vf_loss, expected, rtol=1e-3, atol=1e-4)


def test_padding_does_not_count() -> None:
    module = make_module()
    mask = torch.tensor([[True, True, False], [True, False, False]])
    targets = torch.tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
    PPOLoss(PPOConfig()).before_epochs(module, {"value_targets": targets, "loss_mask": mask})
    assert isinstance(module.vf_scale, PopArtScale)
    torch.testing.assert_close(module.vf_scale.mean, torch.tensor([3.0]))


@pytest.mark.parametrize("overrides", [[], ["module.use_lstm=true", "module.lstm_cell_size=8", "module.max_seq_len=8"]])
def test_runs_resume_exactly(overrides: list[str], tmp_path: Path) -> None:
    assert_resumes_exactly(lambda: Trainer.from_experiment("ppo_cartpole", [*SMALL, *overrides]), tmp_path)


def test_compiled_updates_have_the_same_values() -> None:
    losses = []
    for compiled in ("false", "true"):
        with Trainer.from_experiment("ppo_cartpole", [*SMALL, f"learners.compile={compiled}"]) as trainer:
            losses.append([result["learners/default_policy/vf_loss"] for result in train(trainer, 3)])
            scale = trainer.learners.modules["default_policy"].vf_scale
            assert float(scale.num_batches) == 3
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


def test_weights_contain_the_scale() -> None:
    """A module with the weights of the learner computes the same values."""
    with Trainer.from_experiment("ppo_cartpole", SMALL) as trainer:
        trainer.train()
        module = trainer.learners.modules["default_policy"]
        other = copy.deepcopy(module)
        for parameter in (*other.parameters(), *other.buffers()):
            parameter.data = torch.zeros_like(parameter)
        FlatParameters(other).load(trainer.learners.get_weights()["default_policy"])
        batch = {"obs": torch.randn(5, 4)}
        torch.testing.assert_close(other.compute_values(batch), module.compute_values(batch))


def test_symlog_does_not_adapt() -> None:
    module = ActorCriticModule(*SPACES, ModuleConfig(fcnet_hiddens=[8], vf_normalization="symlog"))
    before = module.compute_values({"obs": torch.zeros(1, 3)})
    module.update_value_scale(torch.tensor([5.0, 1000.0]))
    torch.testing.assert_close(module.compute_values({"obs": torch.zeros(1, 3)}), before)


@pytest.mark.parametrize("value", [-2.0, 0.0, 2.0])
def test_symlog_and_its_inverse_have_slopes_above_zero(value: float) -> None:
    scale, x = SymlogScale(), torch.tensor([value], requires_grad=True)
    (slope,) = torch.autograd.grad(scale.normalized(x).sum(), x)
    (slope_of_inverse,) = torch.autograd.grad(scale.values(x).sum(), x)
    torch.testing.assert_close(slope, torch.tensor([1 / (1 + abs(value))]))
    torch.testing.assert_close(slope_of_inverse, torch.tensor([math.exp(abs(value))]))
    torch.testing.assert_close(scale.values(scale.normalized(x)), x)


@pytest.mark.parametrize(
    ("experiment", "overrides", "message"),
    [
        ("a2c_cartpole", [], "vf_normalization: A2CLoss does not support it"),
        ("appo_cartpole", [], "popart does not work with APPO"),
        ("ppo_cartpole", ["learners.num_learners=2"], "popart does not work with several learners"),
        ("ppo_cartpole", ["algorithm.plan=[AsyncGradients, ApplyGradients]"], "plans that compute gradients"),
        ("mappo_speaker_listener", [], "vf_normalization does not work with multi_agent.multi_rl_module"),
    ],
)
def test_what_does_not_support_popart(experiment: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.from_experiment(experiment, ["module.vf_normalization=popart", *overrides]).close()
