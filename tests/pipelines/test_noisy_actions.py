"""Noise of actions: its size, its memory, its schedule, streams and state."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.schemas import ModuleConfig
from runner.modules.gaussian import SquashedGaussian
from runner.modules.rl_module import RLModule
from runner.pipelines import NoisyActions
from runner.streams import random_stream
from tests.pipelines.fixed_episodes import FixedEpisodes, pipeline_of

OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTION_SPACE = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
ROWS = 64


def make_connector(sigma: Any, **options: Any) -> NoisyActions:
    connector = NoisyActions(sigma, **options)
    connector.use_stream(random_stream(3, "env_runner/module_to_env", 0))
    return connector


class Episodes(FixedEpisodes):
    """Episodes of which some start."""

    def __init__(self, starts: Any) -> None:
        super().__init__()
        self.starts = np.asarray(starts)
        self.max_rows = len(self.starts)

    @property
    def starts_episode(self) -> Any:
        return self.starts


def act(connector: NoisyActions, starts: Any = (True,) * ROWS, explore: bool = True, mean: float = 0.0) -> Any:
    module = RLModule(OBS_SPACE, ACTION_SPACE, ModuleConfig())
    module.action_dist = SquashedGaussian(ACTION_SPACE)
    theta = torch.tensor([[mean, -20.0]]).repeat(len(starts), 1)
    episodes: Any = Episodes(starts)
    batch = connector(rl_module=module, batch={"action_dist_inputs": theta}, episodes=episodes, explore=explore)
    assert set(batch) == {"actions"}
    return batch["actions"].numpy()[:, 0]


def test_gaussian_noise_has_its_size_and_no_memory() -> None:
    connector = make_connector(0.25)
    actions = np.stack([act(connector) for _ in range(400)])  # half the distance of the bounds is 2
    assert actions.std() == pytest.approx(0.5, rel=0.02)
    assert abs(actions.mean()) < 0.01
    assert abs(np.corrcoef(actions[:-1].ravel(), actions[1:].ravel())[0, 1]) < 0.02


def test_actions_stay_within_their_bounds() -> None:
    actions = act(make_connector(5.0), mean=1.0)
    assert np.abs(actions).max() == 2.0
    assert (np.abs(actions) == 2.0).mean() > 0.5


def test_greedy_actions_have_no_noise() -> None:
    np.testing.assert_allclose(act(make_connector(0.5), explore=False, mean=0.3), 2 * np.tanh(0.3), rtol=1e-6)


def test_correlated_noise_is_its_recursion_and_starts_anew() -> None:
    correlated, white = make_connector(0.1, kind="ornstein_uhlenbeck"), make_connector(0.1)
    expected = np.zeros(3)
    for step in range(40):
        starts = np.array([step == 0, step % 7 == 0, step in (0, 5)])
        expected = np.where(starts, 0.0, 0.85 * expected) + act(white, starts) / 2
        np.testing.assert_allclose(act(correlated, starts) / 2, expected.clip(-1, 1), atol=1e-6)


def test_random_actions_are_uniform_until_their_step() -> None:
    connector = make_connector(0.0, num_random_steps=100)
    connector.at_env_steps(99)
    actions = np.concatenate([act(connector) for _ in range(300)])
    counts, _ = np.histogram(actions, 10, (-2.0, 2.0))
    expected = len(actions) / 10
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.9  # 99.9 % quantile, 9 degrees of freedom
    connector.at_env_steps(100)
    assert act(connector).tolist() == [0.0] * ROWS


def test_sigma_follows_its_schedule() -> None:
    connector = make_connector([[0, 1.0], [100, 0.5]])
    found = []
    for num_env_steps in (0, 50, 100, 1000):
        connector.at_env_steps(num_env_steps)
        found.append(connector.sigma)
    assert found == [1.0, 0.75, 0.5, 0.5]


@pytest.mark.parametrize("kind", ["gaussian", "ornstein_uhlenbeck"])
def test_a_state_goes_on_with_the_same_noise(kind: str) -> None:
    connector, other = NoisyActions(0.1, kind=kind), NoisyActions(0.1, kind=kind)
    pipeline = pipeline_of(connector)
    continues = (False,) * ROWS
    for _ in range(300):
        act(connector, continues)
    pipeline_of(other, index=9).set_state(pipeline.get_state())
    for _ in range(300):
        assert act(connector, continues).tolist() == act(other, continues).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": -0.1}, "sigma must be >= 0, .* got -0.1"),
        ({"sigma": 0.1, "kind": "white"}, "kind must be gaussian or ornstein_uhlenbeck, got 'white'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoisyActions(**options)


def test_actions_without_bounds_are_refused() -> None:
    module = RLModule(OBS_SPACE, gym.spaces.Discrete(2), ModuleConfig())
    episodes: Any = Episodes([True])
    with pytest.raises(TypeError, match="noise needs actions within bounds"):
        make_connector(0.1)(
            rl_module=module, batch={"action_dist_inputs": torch.zeros(1, 2)}, episodes=episodes, explore=True
        )
