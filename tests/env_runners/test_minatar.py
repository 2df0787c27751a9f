"""MinAtar's games as environments: what they show, and that an episode follows from its seed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from runner.environments import MinAtar
from runner.environments.other_packages import GAMES


def episode(env: MinAtar, seed: int | None, num_steps: int = 200) -> list[tuple[bytes, float]]:
    """Observation and reward of each step of an episode with the same actions each time."""
    actions = np.random.default_rng(0).integers(env.action_space.n, size=num_steps)  # type: ignore[attr-defined]
    obs, _ = env.reset(seed=seed)
    found = [(obs.tobytes(), 0.0)]
    for action in actions:
        obs, reward, is_over, _, _ = env.step(action)
        found.append((obs.tobytes(), reward))
        if is_over:
            break
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the checker, about what a game may render
@pytest.mark.parametrize("game", GAMES)
def test_each_game_is_an_environment(game: str) -> None:
    env = MinAtar(game)
    assert isinstance(env.observation_space, gym.spaces.Box)
    assert env.observation_space.shape[:2] == (10, 10)  # type: ignore[index]
    check_env(env, skip_render_check=True)


def test_an_episode_follows_from_its_seed_whatever_was_before() -> None:
    new, used = MinAtar(), MinAtar()
    for seed in range(3):
        episode(used, seed)
    for seed in range(20, 30):
        assert episode(used, seed) == episode(new, seed)
        assert episode(used, None) == episode(new, None)  # goes on from the generator of the seed


def test_objects_are_bright() -> None:
    obs, _ = MinAtar().reset(seed=0)
    assert obs.dtype == np.uint8
    assert set(np.unique(obs)) == {0, 255}
    assert obs[1:4, :, 3].all(), "three rows of bricks"


def test_actions_that_do_nothing_are_left_out() -> None:
    assert MinAtar("breakout").action_space == gym.spaces.Discrete(3)
    assert MinAtar("breakout", use_minimal_action_set=False).action_space == gym.spaces.Discrete(6)


def test_an_unknown_game_is_named() -> None:
    with pytest.raises(ValueError, match=r"game must be one of asterix, breakout, .*, got 'pong'"):
        MinAtar("pong")


def test_a_picture_shows_the_objects() -> None:
    env = MinAtar("breakout", render_mode="rgb_array")
    obs, _ = env.reset(seed=1)
    picture = env.render()
    assert picture.shape == (160, 160, 3)
    np.testing.assert_array_equal(picture[::16, ::16].any(-1), obs.any(-1))
