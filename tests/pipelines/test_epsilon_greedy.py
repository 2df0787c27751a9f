"""Epsilon-greedy actions: their shares, masks, schedule, streams and state."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner import make_env_runner
from runner.config.schemas import ModuleConfig
from runner.modules.action_distribution import MASKED_LOGIT
from runner.modules.rl_module import RLModule
from runner.pipelines import EpsilonGreedyActions
from runner.streams import random_stream
from tests.pipelines.fixed_episodes import FixedEpisodes, pipeline_of

OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
Q = torch.tensor([[0.0, 3.0, -1.0, 0.5]])


def make_connector(epsilon: Any, index: int = 0) -> EpsilonGreedyActions:
    connector = EpsilonGreedyActions(epsilon)
    connector.use_stream(random_stream(3, "env_runner/module_to_env", index))
    return connector


def act(connector: EpsilonGreedyActions, q: torch.Tensor, explore: bool = True, start: int = 0) -> Any:
    module = RLModule(OBS_SPACE, gym.spaces.Discrete(q.shape[1], start=start), ModuleConfig())
    batch = connector(rl_module=module, batch={"action_dist_inputs": q}, episodes=FixedEpisodes(), explore=explore)
    assert set(batch) == {"actions"}
    return batch["actions"].numpy()


def counts(connector: EpsilonGreedyActions, q: torch.Tensor, rows: int = 64, steps: int = 600) -> Any:
    return sum(np.bincount(act(connector, q.expand(rows, 4)), minlength=4) for _ in range(steps))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_shares_of_actions(epsilon: float) -> None:
    seen = counts(make_connector(epsilon), Q)
    expected = np.full(4, epsilon / 4)
    expected[1] += 1 - epsilon
    if epsilon == 0:
        assert seen.tolist() == [0, 64 * 600, 0, 0]
    else:
        expected *= 64 * 600
        assert float(((seen - expected) ** 2 / expected).sum()) < 16.3  # 99.9 % quantile, 3 degrees of freedom


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    masked = Q.clone()
    masked[0, 2] = MASKED_LOGIT
    seen = counts(make_connector(1.0), masked)
    assert seen[2] == 0
    expected = 64 * 600 / 3
    assert float(((seen[[0, 1, 3]] - expected) ** 2 / expected).sum()) < 13.8  # 99.9 %, 2 degrees of freedom


def test_actions_begin_where_their_space_does() -> None:
    assert act(make_connector(0.0), Q, start=5).tolist() == [6]
    assert set(np.concatenate([act(make_connector(1.0, index), Q, start=5) for index in range(40)])) == {5, 6, 7, 8}


def test_epsilon_follows_the_env_steps_that_it_is_told() -> None:
    connector = make_connector([[0, 1.0], [100, 0.5], [200, 0.0]])
    seen = []
    for num_env_steps in (0, 50, 100, 150, 200, 10**6):
        connector.at_env_steps(num_env_steps)
        seen.append(connector.epsilon)
    assert seen == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])


def test_greedy_when_not_exploring() -> None:
    connector = make_connector(1.0)
    assert all(act(connector, Q, explore=False) == 1 for _ in range(50))


def test_a_resumed_connector_goes_on() -> None:
    """In the middle of the noise that is drawn at once, and where that ends."""
    for steps in (0, 1, 100, 255, 256, 300):
        connector, other = EpsilonGreedyActions(0.7), EpsilonGreedyActions(0.7)
        pipeline = pipeline_of(connector)
        for _ in range(steps):
            act(connector, Q.expand(3, 4))
        pipeline_of(other, index=9).set_state(pipeline.get_state())
        for _ in range(300):
            assert np.array_equal(act(connector, Q.expand(3, 4)), act(other, Q.expand(3, 4)))


@pytest.mark.parametrize("epsilon", [-0.1, 1.5, "much", [[0, 1.0], [0, 0.5]], [[0, 2.0]], [[0]], None])
def test_what_is_no_share(epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"epsilon must be 0 to 1, or \[\[env steps, value\], \.\.\.\]"):
        EpsilonGreedyActions(epsilon)


def test_rows_explore_as_differently_as_the_exponent_says() -> None:
    connector = EpsilonGreedyActions(0.5, exponent=2.0)
    connector.use_stream(random_stream(3, "env_runner/module_to_env", 0))
    others = sum((act(connector, Q.expand(3, 4)) != 1).astype(float) for _ in range(4000)) / 4000
    expected = 0.75 * np.array([0.5, 0.5**2, 0.5**3])  # a random action is the best one in a quarter of the cases
    np.testing.assert_allclose(others, expected, atol=0.03)
    with pytest.raises(ValueError, match="exponent must be a number of 0 or more, got -1"):
        EpsilonGreedyActions(0.5, exponent=-1)


def test_the_rows_of_all_env_runners_explore_differently() -> None:
    """Six places, 0 to 5: env runner 1 of 3 has places 1 and 4."""
    connector = EpsilonGreedyActions(0.5, exponent=5.0)
    connector.use_env_runner(1, 3)
    connector.use_stream(random_stream(3, "env_runner/module_to_env", 0))
    others = sum((act(connector, Q.expand(2, 4)) != 1).astype(float) for _ in range(6000)) / 6000
    np.testing.assert_allclose(others, 0.75 * np.array([0.5**2, 0.5**5]), atol=0.02)


def test_a_run_tells_each_env_runner_its_place() -> None:
    """Ape-X with env runners of a single sub-environment each: one explores in half of its steps, one hardly ever."""
    overrides = ["env_runners.num_env_runners=2", "env_runners.num_envs_per_env_runner=1", "algorithm.epsilon=0.5"]
    different = []
    for index in (0, 1):
        runner = make_env_runner("apex_cartpole", [*overrides, "module.fcnet_hiddens=[4]"], index=index)
        (block,) = runner.sample(4000, True).rollout.blocks.values()
        obs = torch.from_numpy(np.concatenate([chunk.get_observations()[:-1] for chunk in block]))
        best = runner.module.forward_train({"obs": obs})["qf_preds"].argmax(-1).numpy()
        actions = np.concatenate([chunk.get_actions() for chunk in block])
        different.append(float((actions != best).mean()))
        runner.close()
    np.testing.assert_allclose(different, [0.5 / 2, 0.5**8 / 2], atol=0.03)
    assert different[1] < 0.01


def test_each_number_of_an_action_explores_by_itself() -> None:
    """MultiDiscrete actions: four kinds of rows, each as often as independent coins have it."""
    sizes, epsilon, rows = [3, 2], 0.3, 64 * 400
    module = RLModule(OBS_SPACE, gym.spaces.MultiDiscrete(sizes), ModuleConfig())
    q = torch.tensor([[0.0, 3.0, -1.0, 1.0, 0.5]]).expand(64, 5)
    connector = make_connector(epsilon)
    seen = np.zeros(sizes)
    for _ in range(rows // 64):
        batch = connector(rl_module=module, batch={"action_dist_inputs": q}, episodes=FixedEpisodes(), explore=True)
        np.add.at(seen, tuple(batch["actions"].numpy().T), 1)
    first = np.array([epsilon / 3, 1 - epsilon + epsilon / 3, epsilon / 3])
    second = np.array([1 - epsilon + epsilon / 2, epsilon / 2])
    expected = rows * np.outer(first, second)
    assert float(((seen - expected) ** 2 / expected).sum()) < 20.5  # 99.9 % quantile, 5 degrees of freedom
