"""TD3 and DDPG against formulas written anew, row by row and with the same noise; policies that rest."""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner import Trainer
from runner.config.algorithms import TD3Config
from runner.config.optimizer import OptimizerConfig
from runner.learners.td3 import TD3Loss
from runner.modules.q_function_modules import TD3Module
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import CONTINUOUS, LossContract
from tests.learners.offline_modules import check_losses, make, replayed_rows, reward_after_three_iterations, row_of
from tests.learners.squashed_policies import q_values

CONFIG = TD3Config(gamma=0.9, policy_delay=1)
DELAYED = replace(CONFIG, policy_delay=2)
A = 2


class TestTD3LossContract(LossContract):
    loss_class = TD3Loss
    module_class = TD3Module
    config = CONFIG
    action_spaces = ("continuous",)


def action_of(actor: Any, obs: Tensor) -> Tensor:
    """(A,) of one observation: the means are the first half of the outputs, the bounds are -1 and 1."""
    return actor.forward(obs)[0, :A].tanh()


def naive_td3(module: Any, batch: dict[str, Tensor], cfg: TD3Config) -> dict[str, Tensor]:
    """The two terms."""
    num_rows = len(batch["obs"])
    noise = cfg.target_noise * np.random.default_rng(7).standard_normal((num_rows, A), np.float32)
    terms: dict[str, list[Tensor]] = {"actor": [], "critic": []}
    for i in range(num_rows):
        row = row_of(batch, i)
        obs, new_obs = row["obs"], row["new_obs"]
        smoothing = torch.tensor([min(max(float(x), -cfg.target_noise_clip), cfg.target_noise_clip) for x in noise[i]])
        next_action = (action_of(module.target_actor, new_obs) + smoothing).clamp(-1, 1)
        value = q_values(module.target_critic, new_obs, next_action).min().item()
        discount = 0.0 if row["terminateds"].item() else cfg.gamma ** row["n_step"].item()
        td = row["rewards"].item() + discount * value - q_values(module.critic, obs, row["actions"][0].clamp(-1, 1))
        terms["critic"].append(row["weights"].item() * (td**2).sum())
        terms["actor"].append(-q_values(module.critic, obs, action_of(module.actor, obs))[0])
    return {name: torch.stack(own).mean() for name, own in terms.items()}


@pytest.mark.parametrize(
    "changes", [{}, {"target_noise": 0.0}, {"target_noise": 2.0, "target_noise_clip": 0.3}], ids=str
)
def test_losses_and_gradients(changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    module, batch = make(TD3Module, CONTINUOUS), replayed_rows()
    expected = naive_td3(module, batch, config)
    check_losses(TD3Loss(config), module, batch, expected)


def test_noise_is_in_units_of_half_the_bounds() -> None:
    space = gym.spaces.Dict(
        a=gym.spaces.Box(0.0, 10.0, (1,), np.float32),
        b=gym.spaces.Box(np.array([-1.0, 2.0], np.float32), np.array([1.0, 3.0], np.float32)),
    )
    module = make(TD3Module, space)
    theta = torch.zeros(3, 6)  # in the middle of the bounds
    noise = torch.tensor([[0.2, 0.2, 0.2], [-0.5, 0.5, 0.5], [9.0, -9.0, 9.0]])
    actions = module.action_dist.mode_with_noise(theta, noise)
    torch.testing.assert_close(actions["a"], torch.tensor([[6.0], [2.5], [10.0]]))
    torch.testing.assert_close(actions["b"], torch.tensor([[0.2, 2.6], [0.5, 2.75], [-1.0, 3.0]]))


def learner_of(config: TD3Config, is_compiled: bool = False) -> ModuleLearner:
    streams, module = (np.random.default_rng(0), np.random.default_rng(5)), make(TD3Module, CONTINUOUS)
    return ModuleLearner(module, TD3Loss(config), config, *streams, is_compiled=is_compiled)


def actor_weights(learner: ModuleLearner) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner.module.actor.parameters()])


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "radam", "rmsprop", "sgd"])
def test_the_policy_learns_in_every_third_step(optimizer: str) -> None:
    options = {"momentum": 0.9} if optimizer == "sgd" else {}
    config = replace(CONFIG, policy_delay=3, actor_lr=1e-2, optimizer=OptimizerConfig(name=optimizer, **options))
    learner, batch = learner_of(config), replayed_rows()
    moved, reported = [], []
    for _ in range(9):
        before, critic = actor_weights(learner), learner.module.critic.head.weights[-1].detach().clone()
        metrics = learner.update(batch, 0).metrics
        moved.append(not torch.equal(before, actor_weights(learner)))
        reported.append({"policy_loss", "gradients_actor_optimizer_global_norm"} & metrics.keys())
        assert not torch.equal(critic, learner.module.critic.head.weights[-1])
    assert moved == [False, False, True] * 3
    assert [len(names) for names in reported] == [0, 0, 2] * 3


def test_a_resting_policy_moves_as_if_only_its_own_steps_were() -> None:
    config = replace(CONFIG, policy_delay=2, critic_lr=0.0, actor_lr=1e-2)  # the Q functions stay
    delayed, each = learner_of(config), learner_of(replace(config, policy_delay=1))
    batch = replayed_rows()
    for _ in range(6):
        delayed.update(batch, 0)
    for _ in range(3):
        each.update(batch, 0)
    assert torch.equal(actor_weights(delayed), actor_weights(each))
    state = delayed.network.get_state()["optimizer"]
    assert state["step"].tolist() == [3.0, 6.0]


@pytest.mark.parametrize("num_before", [1, 2])
def test_a_state_keeps_the_delay(num_before: int) -> None:
    batch, learner, other = replayed_rows(), learner_of(DELAYED), learner_of(DELAYED)
    for _ in range(num_before):
        learner.update(batch, 0)
    other.set_state(learner.get_state())
    for _ in range(3):
        assert learner.update(batch, 0).metrics == other.update(batch, 0).metrics
    np.testing.assert_array_equal(learner.get_weights(), other.get_weights())


def test_delayed_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    eager, compiled, batch = learner_of(DELAYED), learner_of(DELAYED, is_compiled=True), replayed_rows()
    seconds = []
    for _ in range(6):
        update = compiled.update(batch, 0)
        assert update.metrics == pytest.approx(eager.update(batch, 0).metrics, rel=1e-4, abs=1e-6)
        seconds.append(update.compile_s)
    assert [one > 0 for one in seconds] == [True, True, False, False, False, False]
    np.testing.assert_allclose(compiled.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)


QUICK = (
    *("env.env=null", "env._target_=tests.support.environments.MatchContinuous", "seed=100", "tracking=none"),
    *("algorithm.actor_lr=3e-3", "algorithm.critic_lr=3e-3", "algorithm.gamma=0", "module.fcnet_hiddens=[32]"),
    *("algorithm.train_batch_size_per_learner=64", "algorithm.training_intensity=64"),
    *("algorithm.num_steps_sampled_before_learning_starts=100", "algorithm.num_random_steps=100"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_it_learns_to_match_what_it_sees(name: str) -> None:
    overrides = [f"algorithm={name}", f"module={name}", *QUICK]
    assert reward_after_three_iterations("td3_pendulum", overrides) > 0.9, "uniform actions have 0.45, the best have 1"


def test_targets_follow_with_the_policy() -> None:
    with Trainer.from_experiment("td3_pendulum", [*QUICK, "algorithm.min_sample_timesteps_per_iteration=0"]) as trainer:
        module: Any = trainer.learners._modules["default_policy"]
        followed = []
        for _ in range(108):
            before = (
                module.target_actor[1].layers[-1].bias.clone(),
                module.target_critic.head.biases[-1].clone(),
            )
            trainer.train()
            after = module.target_actor[1].layers[-1].bias, module.target_critic.head.biases[-1]
            followed.append([not torch.equal(old, new) for old, new in zip(before, after, strict=True)])
    learned = followed[followed.index([True, True]) - 1 :]
    assert len(learned) > 6
    assert all(now == [number % 2 == 1] * 2 for number, now in enumerate(learned))


@pytest.mark.parametrize("computes", ["update", "gradients"])
def test_no_batch_is_kept_after_its_update(computes: str) -> None:
    stream, loss_stream = np.random.default_rng(0), np.random.default_rng(7)
    learner = ModuleLearner(make(TD3Module, CONTINUOUS), TD3Loss(CONFIG), CONFIG, stream, loss_stream)
    batch = replayed_rows()
    column = weakref.ref(batch["obs"])
    assert len(getattr(learner, computes)(batch, 0).rows["td_error"]) == len(batch["obs"])
    del batch
    assert column() is None
