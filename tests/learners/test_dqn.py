"""DQN's loss in closed form, target updates, and small environments learned in seconds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner import Trainer
from runner.config.algorithms import DQNConfig, MunchausenDQNConfig
from runner.config.schemas import ModuleConfig
from runner.learners.dqn import DQNLoss, rescaled, unscaled
from runner.learners.munchausen_dqn import MunchausenDQNLoss
from runner.modules import DoubleQModule
from tests.learners.loss_contract import LossContract
from tests.learners.toy_mdps import steps_to_the_end
from tests.support.configs import config_from

RETURN = "env_runners/episode_return_mean"


class TestDQNLossContract(LossContract):
    loss_class = DQNLoss
    module_class = DoubleQModule
    config = DQNConfig()
    action_spaces = ("discrete",)


class TestDQNLossContractOfOneNetwork(TestDQNLossContract):
    config = replace(DQNConfig(), double_q=False, td_error_loss_fn="mse")


class TestMunchausenDQNLossContract(TestDQNLossContract):
    loss_class = MunchausenDQNLoss
    config = MunchausenDQNConfig()


class Table(torch.nn.Module):
    """Q and its target as tables; observations are numbers of rows."""

    is_stateful = False
    num_noise = 0

    def __init__(self, q: Any, target_q: Any) -> None:
        super().__init__()
        self.q = torch.nn.Parameter(torch.tensor(q, dtype=torch.float64))
        self.target_q = torch.tensor(target_q, dtype=torch.float64)

    def forward_train(self, batch: Any) -> dict[str, Any]:
        return {"qf_preds": self.q[batch["obs"]]}

    def forward_target(self, batch: Any) -> dict[str, Any]:
        return {"qf_preds": self.target_q[batch["obs"]]}

    def outputs_at_steps(self, batch: Any) -> dict[str, Any]:
        return self.forward_train(batch)

    def at_steps(self, outputs: dict[str, Any], batch: Any) -> dict[str, Any]:
        return outputs

    def q_of(self, q: Any, actions: Any) -> Any:
        return q[torch.arange(len(actions)), actions]


def naive_loss(table: Table, rows: list[dict[str, Any]], config: DQNConfig) -> tuple[float, list[float]]:
    """The loss and the absolute TD errors, row by row."""
    losses, errors = [], []
    for row in rows:
        judge = table.q.detach() if config.double_q else table.target_q
        best = int(judge[row["new_obs"]].argmax())
        bootstrap = 0.0 if row["terminateds"] else float(table.target_q[row["new_obs"], best])
        if config.value_rescaling:
            bootstrap = _inverse_of_h(bootstrap)
        y = row["rewards"] + config.gamma ** row["n_step"] * bootstrap
        if config.value_rescaling:
            y = _h(y)
        error = float(table.q.detach()[row["obs"], row["actions"]]) - y
        if config.td_error_loss_fn == "mse":
            of_row = error**2
        else:
            of_row = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
        losses.append(row["weights"] * of_row)
        errors.append(abs(error))
    return sum(losses) / len(losses), errors


def _h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x


def _inverse_of_h(value: float) -> float:
    """Find the inverse by bisection."""
    low, high = -1e6, 1e6
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _h(middle) < value else (low, middle)
    return low


def test_values_are_rescaled_and_back() -> None:
    values = torch.tensor([-5000.0, -20.0, -1.0, -1e-3, 0.0, 1e-4, 0.5, 3.0, 400.0, 100_000.0])
    torch.testing.assert_close(rescaled(values), torch.tensor([_h(value) for value in values.tolist()]))
    torch.testing.assert_close(unscaled(rescaled(values)), values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize(("td_error_loss_fn", "value_rescaling"), [("huber", False), ("mse", False), ("huber", True)])
def test_loss_in_closed_form(double_q: bool, td_error_loss_fn: str, value_rescaling: bool) -> None:
    stream = np.random.default_rng(0)
    settings = {"td_error_loss_fn": td_error_loss_fn, "value_rescaling": value_rescaling}
    config = DQNConfig(gamma=0.8, double_q=double_q, **settings)
    table = Table(stream.normal(size=(6, 3)), stream.normal(size=(6, 3)))
    rows = [
        {
            "obs": int(stream.integers(6)),
            "actions": int(stream.integers(3)),
            "rewards": float(stream.normal()),
            "new_obs": int(stream.integers(6)),
            "terminateds": bool(stream.random() < 0.3),
            "n_step": int(stream.integers(1, 5)),
            "weights": float(stream.random()),
        }
        for _ in range(40)
    ]
    batch = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    metrics = DQNLoss(config)(table, {name: batch[name] for name in DQNLoss.reads})
    expected, errors = naive_loss(table, rows, config)
    assert metrics.total_loss.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(metrics.td_error.numpy(), errors, rtol=1e-5, atol=1e-6)
    assert metrics.td_error_mean.item() == pytest.approx(np.mean(errors), rel=1e-5)

    metrics.total_loss.backward()
    assert table.q.grad is not None
    for place in np.ndindex(6, 3):  # the target and the choice of the next action are constants
        nudged = {}
        for sign in (1, -1):
            values = table.q.detach().clone()
            values[place] += sign * 1e-6
            frozen = Table(values.tolist(), table.target_q.tolist())
            frozen.forward_train = lambda b, judge=table, q=frozen.q: (  # type: ignore[method-assign, misc]
                {"qf_preds": (q if b["obs"] is batch["obs"] else judge.q)[b["obs"]]}
            )
            nudged[sign] = DQNLoss(config)(frozen, batch).total_loss.item()
        assert table.q.grad[place].item() == pytest.approx((nudged[1] - nudged[-1]) / 2e-6, abs=1e-5)


def test_munchausen_targets_in_closed_form() -> None:
    stream, tau, alpha, gamma = np.random.default_rng(0), 0.3, 0.7, 0.8
    config = MunchausenDQNConfig(gamma=gamma, munchausen_alpha=alpha, munchausen_tau=tau, td_error_loss_fn="mse")
    table = Table(stream.normal(size=(6, 3)), stream.normal(size=(6, 3)))
    num_rows = 40
    batch = {
        "obs": torch.from_numpy(stream.integers(6, size=num_rows)),
        "actions": torch.from_numpy(stream.integers(3, size=num_rows)),
        "rewards": torch.from_numpy(stream.normal(size=num_rows)),
        "new_obs": torch.from_numpy(stream.integers(6, size=num_rows)),
        "terminateds": torch.from_numpy(stream.random(num_rows) < 0.3),
        "n_step": torch.ones(num_rows, dtype=torch.int64),
        "weights": torch.ones(num_rows, dtype=torch.float64),
    }
    metrics = MunchausenDQNLoss(config)(table, batch)

    q, target_q, errors = table.q.detach().numpy(), table.target_q.numpy(), []
    policy = np.exp(target_q / tau) / np.exp(target_q / tau).sum(1, keepdims=True)
    for row in range(num_rows):
        s, a, next_s = (int(batch[name][row]) for name in ("obs", "actions", "new_obs"))
        y = float(batch["rewards"][row]) + alpha * max(-1.0, tau * np.log(policy[s, a]))
        if not batch["terminateds"][row]:
            y += gamma * (policy[next_s] * (target_q[next_s] - tau * np.log(policy[next_s]))).sum()
        errors.append(abs(q[s, a] - y))
    np.testing.assert_allclose(metrics.td_error.numpy(), errors, rtol=1e-6)
    assert metrics.total_loss.item() == pytest.approx(np.mean(np.square(errors)))
    assert np.any(tau * np.log(policy) < -1)  # so that some rows are clipped


def test_a_dueling_head_adds_the_value_to_centred_advantages() -> None:
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    module = DoubleQModule(space, gym.spaces.Discrete(4), ModuleConfig(fcnet_hiddens=[5], dueling=True))
    head = module.qf[1]
    features = torch.randn(7, 5)
    value = features @ head.value.layers[0].weight.T + head.value.layers[0].bias
    advantages = features @ head.advantages.layers[0].weight.T + head.advantages.layers[0].bias
    expected = value + advantages - advantages.mean(1, keepdim=True)
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(head(features).mean(1, keepdim=True), value)


def trainer_of(*overrides: str) -> Trainer:
    settings = (
        "algorithm=dqn",
        "module=double_q",
        "module.fcnet_hiddens=[16]",
        "evaluation=none",
        "tracking=none",
        "stop.training_iteration=1",
    )
    return Trainer(config_from(*settings, *overrides))


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_targets_follow_every_so_many_env_steps(tau: float) -> None:
    """Between updates targets stay; an update moves them by tau."""
    with trainer_of(
        "algorithm.num_steps_sampled_before_learning_starts=8",
        "algorithm.min_sample_timesteps_per_iteration=0",
        "env=cartpole",
        "env_runners.rollout_fragment_length=1",
        "algorithm.training_intensity=null",
        "algorithm.target_network_update_freq=4",
        f"algorithm.tau={tau}",
    ) as trainer:
        module: Any = trainer.learners.modules["default_policy"]
        moved = []
        for _ in range(12):
            before = [p.clone() for p in module.target_qf.parameters()]
            trainer.train()
            after, online = list(module.target_qf.parameters()), list(module.qf.parameters())
            has_moved = any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
            moved.append(has_moved)
            if has_moved:
                for target, old, network in zip(after, before, online, strict=True):
                    torch.testing.assert_close(target, old + tau * (network - old))
    assert moved == [True, False, False, False] * 3  # the first update is due at once


def test_a_corridor_is_learned() -> None:
    settings = (
        "algorithm.lr=5e-3",
        "algorithm.num_steps_sampled_before_learning_starts=100",
        "algorithm.epsilon=[[0,1.0],[1500,0.02]]",
        "algorithm.training_intensity=8",
        "algorithm.target_network_update_freq=50",
        "algorithm.n_step=[1,3]",
        "module.dueling=true",
    )
    assert steps_to_the_end("algorithm=dqn", "module=double_q", *settings, num_env_steps=4000) < 6.5


@pytest.mark.parametrize("buffer", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_an_identity_environment_is_learned(buffer: str) -> None:
    with trainer_of(
        "env._target_=tests.support.environments.MatchDiscrete",
        "env_runners.rollout_fragment_length=4",
        "algorithm.lr=5e-3",
        "algorithm.gamma=0.5",
        "algorithm.num_steps_sampled_before_learning_starts=50",
        "algorithm.epsilon=[[0,1.0],[1000,0.0]]",
        f"algorithm.replay_buffers.replay._target_=runner.replay.{buffer}",
        *(() if buffer.startswith("P") else ("algorithm.td_error_loss_fn=mse",)),
        "env_runners.metrics_num_episodes_for_smoothing=50",
    ) as trainer:
        results = [trainer.train() for _ in range(4)]
    share = (results[-1][RETURN] or 0) / (results[-1]["env_runners/episode_len_mean"] or 1)
    assert share > 0.95
