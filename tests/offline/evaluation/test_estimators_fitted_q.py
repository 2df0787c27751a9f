"""Fitted-Q evaluation against action values that are known in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.errors import RunFailure
from runner.config.schemas import ModuleConfig
from runner.modules import distribution_for
from runner.offline.evaluation.fitted_q import FittedQConfig, ScaledQ, Transitions, fit_q
from tests.offline.small_mdp import BEHAVIOUR, CHAIN, GAMMA, TARGET, Episodes

ONE_HOT = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
TABLE = FittedQConfig(lr=0.05, num_updates=1500, target_update_period=20, network=ModuleConfig(fcnet_hiddens=[]))


def _transitions(episodes: Episodes, start: int = 0) -> Transitions:
    """One-hot observations; actions are `start` and `start + 1`; the terminal state's policy is uniform."""
    obs = torch.from_numpy(episodes.block(3).columns["obs"])
    log_target = np.log(np.concatenate((TARGET, np.full((1, 2), 0.5))))
    is_terminal = np.zeros(len(episodes.actions), np.bool_)
    is_terminal[np.cumsum(episodes.lengths) - 1] = episodes.is_terminated
    return Transitions(
        obs=obs,
        dist_inputs=torch.from_numpy(log_target[episodes.states].astype(np.float32)),
        actions=torch.from_numpy(episodes.actions + start),
        rewards=torch.from_numpy(episodes.rewards.astype(np.float32)),
        is_terminal=torch.from_numpy(is_terminal),
        lengths=episodes.lengths,
    )


def _fit(data: Transitions, space: gym.Space[Any], config: FittedQConfig = TABLE, **options: Any) -> ScaledQ:
    return fit_q(data, ONE_HOT, space, distribution_for(space), GAMMA, config, np.random.default_rng(0), **options)


@torch.no_grad()
def _table(q_function: ScaledQ, start: int = 0) -> np.ndarray[Any, Any]:
    """(3, 2) action values."""
    states, actions = torch.eye(3).repeat_interleave(2, 0), torch.arange(2).repeat(3) + start
    return q_function.q_values(states, actions).reshape(3, 2).numpy()


@torch.no_grad()
def _values(q_function: ScaledQ) -> np.ndarray[Any, Any]:
    return q_function.values(torch.eye(3), torch.from_numpy(np.log(TARGET).astype(np.float32))).numpy()


def _certainty_equivalent(episodes: Episodes) -> np.ndarray[Any, Any]:
    """(3, 2) Q of the MDP with the recorded frequencies and mean rewards, where fitted Q is exact."""
    at, following = episodes.states[episodes.obs_rows], episodes.states[episodes.obs_rows + 1]
    counts, sums = np.zeros((3, 2, 4)), np.zeros((3, 2, 4))
    np.add.at(counts, (at, episodes.actions, following), 1.0)
    np.add.at(sums, (at, episodes.actions, following), episodes.rewards)
    moves = counts / counts.sum(-1, keepdims=True)
    return replace(CHAIN, moves=moves, rewards=sums / np.maximum(counts, 1.0)).q_values(TARGET)


@pytest.mark.parametrize("start", [0, 5])
def test_a_table_is_fitted_to_the_true_action_values(start: int) -> None:
    episodes = CHAIN.sample(BEHAVIOUR, 5000, np.random.default_rng(1))
    space = gym.spaces.Discrete(2, start=start)
    q_function = _fit(_transitions(episodes, start), space)
    table = _table(q_function, start)
    assert table == pytest.approx(_certainty_equivalent(episodes), abs=0.02)
    assert table == pytest.approx(CHAIN.q_values(TARGET), abs=0.06)
    assert np.abs(table - CHAIN.q_values(BEHAVIOUR)).max() > 0.15  # of the target policy, not of the recording one
    assert _values(q_function) == pytest.approx((TARGET * table).sum(-1), abs=1e-5)


def test_a_truncated_episode_goes_on_in_its_final_observation() -> None:
    episodes = CHAIN.sample(BEHAVIOUR, 8000, np.random.default_rng(2), max_steps=2)
    assert (~episodes.is_terminated).mean() > 0.2
    table = _table(_fit(_transitions(episodes), gym.spaces.Discrete(2)))
    assert table == pytest.approx(CHAIN.q_values(TARGET), abs=0.08)


def test_only_the_given_rows_are_learned_from() -> None:
    data = _transitions(CHAIN.sample(BEHAVIOUR, 400, np.random.default_rng(3)))
    rows = np.arange(0, 200)
    config = replace(TABLE, num_updates=60)
    expected = _table(_fit(data, gym.spaces.Discrete(2), config, rows=rows))
    data.rewards[-100:] = 1e9
    assert _table(_fit(data, gym.spaces.Discrete(2), config, rows=rows)) == pytest.approx(expected)


def test_one_stream_one_fit() -> None:
    data = _transitions(CHAIN.sample(BEHAVIOUR, 50, np.random.default_rng(4)))
    config = FittedQConfig(num_updates=30, network=ModuleConfig(fcnet_hiddens=[8]))
    first, second = (_table(_fit(data, gym.spaces.Discrete(2), config)) for _ in range(2))
    assert (first == second).all()


def test_values_that_are_not_finite_are_an_error() -> None:
    data = _transitions(CHAIN.sample(BEHAVIOUR, 50, np.random.default_rng(5)))
    data.obs[:] = float("inf")
    with pytest.raises(RunFailure, match="action values are not finite"):
        _fit(data, gym.spaces.Discrete(2), replace(TABLE, num_updates=3))


def test_actions_of_several_parts_are_sampled() -> None:
    """Two choices of which the second does nothing: the values are those of the chain."""
    episodes = CHAIN.sample(BEHAVIOUR, 3000, np.random.default_rng(6))
    plain = _transitions(episodes)
    space = gym.spaces.MultiDiscrete([2, 3])
    idle = torch.from_numpy(np.random.default_rng(7).integers(3, size=len(plain.actions)))
    data = replace(
        plain,
        actions=torch.stack((plain.actions, idle), -1),
        dist_inputs=torch.cat((plain.dist_inputs, torch.zeros(len(plain.dist_inputs), 3)), -1),
    )
    network = ModuleConfig(fcnet_hiddens=[32], fcnet_activation="relu")
    q_function = _fit(data, space, FittedQConfig(lr=5e-3, num_updates=1500, num_action_samples=8, network=network))
    with torch.no_grad():
        states, actions = torch.eye(3).repeat_interleave(2, 0), torch.arange(2).repeat(3)
        table = q_function.q_values(states, torch.stack((actions, torch.ones_like(actions)), -1)).reshape(3, 2)
    assert table.numpy() == pytest.approx(CHAIN.q_values(TARGET), abs=0.2)


class TestLinearQuadratic:
    """s' = 0.8 s + a + noise, reward -s^2, policy a ~ N(-0.3 s, 0.2^2): V(s) = -p s^2 - c, in closed form."""

    keep, noise, std, gain = 0.8, 0.1, 0.2, -0.3
    p = 1 / (1 - GAMMA * (keep + gain) ** 2)
    c = GAMMA * p * (std**2 + noise**2) / (1 - GAMMA)

    def _q(self, s: Tensor, a: Tensor) -> Tensor:
        return -s.square() - GAMMA * (self.p * ((self.keep * s + a).square() + self.noise**2) + self.c)

    def _recorded(self, num_episodes: int, num_steps: int) -> Transitions:
        """Truncated episodes of a wider policy around a ~ N(-0.1 s, 0.5^2)."""
        stream = np.random.default_rng(8)
        s = stream.uniform(-1.5, 1.5, size=num_episodes)
        states, actions = [s], []
        for _ in range(num_steps):
            actions.append(-0.1 * s + 0.5 * stream.normal(size=num_episodes))
            s = self.keep * s + actions[-1] + self.noise * stream.normal(size=num_episodes)
            states.append(s)
        obs = np.stack(states, 1).astype(np.float32)  # (E, T + 1)
        flat = torch.from_numpy(obs.reshape(-1, 1))
        return Transitions(
            obs=flat,
            dist_inputs=torch.cat((self.gain * flat, torch.full_like(flat, np.log(self.std))), -1),
            actions=torch.from_numpy(np.stack(actions, 1).astype(np.float32).reshape(-1, 1)),
            rewards=torch.from_numpy(-(obs[:, :-1] ** 2).reshape(-1)),
            is_terminal=torch.zeros(num_episodes * num_steps, dtype=torch.bool),
            lengths=np.full(num_episodes, num_steps),
        )

    def test_values_of_sampled_actions(self) -> None:
        data = self._recorded(400, 10)
        spaces = gym.spaces.Box(-9.0, 9.0, (1,), np.float32), gym.spaces.Box(-9.0, 9.0, (1,), np.float32)
        network = ModuleConfig(fcnet_hiddens=[64], fcnet_activation="relu")
        config = FittedQConfig(lr=5e-3, num_updates=2500, num_action_samples=8, network=network)
        dist = distribution_for(spaces[1])
        q_function = fit_q(data, *spaces, dist, GAMMA, config, np.random.default_rng(9))
        s, a = torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-0.5, 0.5, 5), indexing="ij")
        with torch.no_grad():
            fitted = q_function.q_values(s.reshape(-1, 1), a.reshape(-1, 1))
            values = q_function.values(s[:, :1], torch.stack((self.gain * s[:, 0], torch.full((9,), -1.609)), -1))
        true_q, true_values = self._q(s.reshape(-1), a.reshape(-1)), -self.p * s[:, 0].square() - self.c
        assert (fitted - true_q).abs().mean() < 0.06
        assert (values - true_values).abs().mean() < 0.08
        assert true_q.std() > 0.5
