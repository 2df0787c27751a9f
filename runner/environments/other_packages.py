"""Environments of other packages: Gymnasium's BipedalWalker, MinAtar's and PettingZoo's."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.compat.gymnasium_box2d import destroy_bodies
from runner.config.errors import nearest_match
from runner.env_runners.petting_zoo import PettingZooAdapter


class NewWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Creates a new Box2D world for each episode of BipedalWalker, as gymnasium's LunarLander does.

    gymnasium (1.4) reuses one world, whose earlier episodes change the last bits of later ones. A resumed run, which
    repeats the actions of the running episodes in new worlds, would get different results.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset in a new world."""
        walker: Any = self.env.unwrapped
        destroy_bodies(walker)  # with the bodies of the old world, which `reset` would expect in the new one
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)


Image = npt.NDArray[np.uint8]

_PIXELS = 16  # side of a cell
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtar(gym.Env[Image, Any]):
    """Images (10, 10, C) uint8, 255 where the object of a channel is; rewards are the game's points.

    The library's games, with two differences that make an episode depend only on its seed: the generator is seeded at
    each reset, and the first action of an episode does not repeat the last one of the previous episode. Needs
    `pip install -e ".[minatar]"`.

    Args:
        game: asterix, breakout, freeway, seaquest or space_invaders.
        sticky_action_prob: probability that the previous action is repeated.
        difficulty_ramping: whether games get faster with time.
        use_minimal_action_set: whether to drop actions without effect in this game.
        render_mode: rgb_array, or None.

    Raises:
        ValueError: the game is unknown.
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
            raise ValueError(f"game must be one of {', '.join(GAMES)}, got {game!r}")
        try:
            from minatar import Environment  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError('MinAtar\'s games need pip install -e ".[minatar]"') from error
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
        """Return an image (160, 160, 3) of the cells, in the hue of the last channel with an object there."""
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


# A checkpoint's configuration may name an environment; only modules of these packages are imported.
_PACKAGES = ("pettingzoo", "mpe2")


class PettingZooEnv(PettingZooAdapter):
    """An environment of the PettingZoo library.

    Args:
        name: name of its module, for example `pettingzoo.sisl.pursuit_v5` or `mpe2.simple_spread_v3`.
        kind: `parallel` (all agents act in each step), `turn_based` (PettingZoo's AEC: one agent per step), or `auto`
            for parallel if the module supports it.
        state: whether to put the environment's state into each agent's info, for critics that read it.
        others: keyword arguments of the environment's constructor.

    Attributes:
        state_space: space of the state, or None if infos do not contain it.

    Raises:
        ValueError: the package, the module or the kind is unknown, or the environment does not have a state.
    """

    def __init__(self, name: str, kind: str = "auto", state: bool = False, **others: Any) -> None:
        module = _import_module(name)
        if kind not in ("auto", "parallel", "turn_based"):
            raise ValueError(f"kind must be auto, parallel or turn_based, got {kind!r}")
        is_parallel = hasattr(module, "parallel_env") if kind == "auto" else kind == "parallel"
        if is_parallel and not hasattr(module, "parallel_env"):
            raise ValueError(f"{name} does not support kind: parallel, use kind: turn_based")
        super().__init__((module.parallel_env if is_parallel else module.env)(**others), state)


def _import_module(name: str) -> Any:
    package = name.partition(".")[0]
    if package not in _PACKAGES:
        raise ValueError(
            f"{name} is not a module of {' or '.join(_PACKAGES)}; wrap other environments in your own class"
        )
    try:
        with warnings.catch_warnings():
            # PettingZoo 1.27 deprecates these modules in favour of a registry, which older supported versions lack.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not name.startswith(missing):
            raise ValueError(f"{name} needs the package {missing}: pip install {missing}") from error
        hint = nearest_match(name.rpartition(".")[2], _siblings(name))
        raise ValueError(f"module {name} not found" + (f"; did you mean {hint}?" if hint else "")) from error
    if not (callable(getattr(module, "env", None)) or hasattr(module, "parallel_env")):
        raise ValueError(f"{name} is not an environment: it defines neither env nor parallel_env")
    return module


def _siblings(name: str) -> list[str]:
    import pkgutil

    try:
        parent = importlib.import_module(name.rpartition(".")[0])
    except ImportError:
        return []
    return [module.name for module in pkgutil.iter_modules(parent.__path__)]
