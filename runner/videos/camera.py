"""A callback that takes a picture of an environment after each reset and step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes.util import find_library
from typing import Any

import gymnasium as gym
import numpy as np

from runner.callbacks import Callback
from runner.config.errors import Problem, RunFailure
from runner.videos.video_file import Frame, VideoFile

_DEFAULT_FPS = 30.0
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


class Camera(Callback):
    """Takes a picture of one sub-environment after each reset and step, for each of its videos.

    Attributes:
        videos: that get the pictures.
    """

    def __init__(self) -> None:
        self._envs: Any = None
        self.videos: Sequence[VideoFile] = ()

    @property
    def env(self) -> Any:
        """The environment, with one agent or several, or a `VectorEnv` of one; another one after a failure."""
        return self._envs if isinstance(self._envs, gym.vector.VectorEnv) else self._envs[0]

    @property
    def fps(self) -> float:
        """Pictures a second, as the environment asks for."""
        return fps_of(self.env)

    def on_environment_created(self, *, env: Any, **kwargs: Any) -> None:
        """Keep the environment."""
        self._envs = env

    def on_episode_start(self, **kwargs: Any) -> None:
        """Take the picture of a reset."""
        self._take()

    def on_episode_step(self, **kwargs: Any) -> None:
        """Take the picture of a step."""
        self._take()

    def _take(self) -> None:
        frame = frame_of(self.env)
        for video in self.videos:
            video.add(frame)


def render_mode(is_window: bool) -> str:
    """Return gymnasium's render mode of a window, or of pictures as arrays."""
    if is_window:
        return "human"
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, and misses no display
    if not any(os.environ.get(name) for name in _SCREENS) and find_library("EGL") is not None:
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would ask for a window
    return "rgb_array"


def fps_of(env: Any) -> float:
    """Return the pictures a second that an environment asks for, or 30."""
    return float(getattr(env, "metadata", {}).get("render_fps") or _DEFAULT_FPS)


def frame_of(env: Any) -> Frame:
    """Return a picture of an environment, of the first one where several are stepped together.

    Raises:
        RunFailure: it renders something else than a picture.
    """
    name = type(getattr(env, "unwrapped", env)).__name__
    try:
        frame = env.render()
    except Exception as error:  # a user's environment may raise anything
        raise RunFailure(Problem(f"{name} raised {type(error).__name__} in render: {error}")) from error
    if isinstance(frame, (tuple, list)) and frame:
        frame = frame[0]
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        allowed = "an array (height, width, 3) of uint8 from render() with render_mode rgb_array"
        raise RunFailure(Problem(f"{name} renders no picture", "render", got, allowed))
    return frame
