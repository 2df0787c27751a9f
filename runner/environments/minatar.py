"""MinAtar's games (Young and Tian, 2019, https://arxiv.org/abs/1903.03176): Atari games on a grid of 10 x 10."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

_PIXELS = 16  # of a cell
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtar(gym.Env[Image, Any]):
    """Images (10, 10, C) uint8, 255 where the object of a channel is; rewards are the game's points.

    The library's games, with two differences that make an episode a matter of its seed: the generator is seeded at each
    reset, and the first action of an episode does not repeat the last one of the episode before. Needs
    `pip install "runner[minatar]"`.

    Args:
        game: asterix, breakout, freeway, seaquest or space_invaders.
        sticky_action_prob: the action before is repeated with this probability.
        difficulty_ramping: games get faster with time.
        use_minimal_action_set: only the actions that do something in this game.
        render_mode: rgb_array, or None.

    Raises:
        ValueError: another game.
        ImportError: the library is not installed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 - gymnasium's

    def __init__(
        self,
        game: str = "breakout",
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        use_minimal_action_set: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        if game not in GAMES:
            raise ValueError(f"game is one of {', '.join(GAMES)}, not {game!r}")
        try:
            from minatar import Environment  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError('MinAtar\'s games need pip install "runner[minatar]"') from error
        self._game: Any = Environment(game, sticky_action_prob, difficulty_ramping)
        num_actions = self._game.num_actions()
        self._actions = self._game.minimal_action_set() if use_minimal_action_set else list(range(num_actions))
        self.action_space = gym.spaces.Discrete(len(self._actions))
        self.observation_space = gym.spaces.Box(0, 255, tuple(self._game.state_shape()), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._game.seed(int(self.np_random.integers(2**31)))
        self._game.last_action = 0
        self._game.reset()
        return self._image(), {}

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Play one frame."""
        reward, is_over = self._game.act(self._actions[int(action)])
        return self._image(), float(reward), bool(is_over), False, {}

    def render(self) -> Image:
        """Return a picture (160, 160, 3) of the cells, in the hue of the last channel that has an object there."""
        objects: npt.NDArray[np.bool_] = self._game.state()
        hues = np.linspace(0.0, 2 * np.pi, objects.shape[-1], endpoint=False)
        colours = 155 + 100 * np.cos(hues[:, None] - np.array([0.0, 2.0, 4.0]) * np.pi / 3)
        picture = np.zeros((*objects.shape[:2], 3), np.uint8)
        for channel, colour in enumerate(colours):
            picture[objects[..., channel]] = colour.astype(np.uint8)
        return picture.repeat(_PIXELS, 0).repeat(_PIXELS, 1)

    def _image(self) -> Image:
        objects: npt.NDArray[np.bool_] = self._game.state()
        return objects.astype(np.uint8) * np.uint8(255)
