"""Writes rendered frames of environments as videos: MP4 (H.264) with PyAV, GIF with Pillow; files are never
incomplete."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes.util import find_library
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol, Self, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.callbacks import Callback
from runner.config.errors import Problem, RunFailure, UserError

# (height, width, 3).
Frame = npt.NDArray[np.uint8]

SUFFIXES = (".mp4", ".gif")
BROWSERS_CODEC = "libx264"  # H.264
_GIF_WIDTH = 320
_GIF_FPS = 12.5
_MOST_GIF_FRAMES = 400


class _Encoder(Protocol):
    def add(self, frame: Frame) -> None:
        """Append a frame."""

    def finish(self) -> None:
        """Write the remaining frames."""


class VideoFile:
    """A video, written frame by frame to a temporary file that is renamed at the end.

    Args:
        path: the suffix, .mp4 or .gif, selects the format. A GIF is a preview: at most 320 pixels wide, 32 seconds
            long, and 12.5 frames per second.
        fps: frames per second.

    Raises:
        UserError: the suffix is not supported, a package is missing, or the file cannot be written.
    """

    def __init__(self, path: Path, fps: float) -> None:
        if path.suffix not in SUFFIXES:
            problem = Problem(
                "the suffix of a video must be .mp4 or .gif", str(path), path.suffix or "no suffix", ", ".join(SUFFIXES)
            )
            raise UserError(problem)
        self._path, self._partial = path, path.with_name(f".{path.stem}.partial{path.suffix}")
        self._encoder = _made(_Mp4 if path.suffix == ".mp4" else _Gif, self._partial, fps)

    def add(self, frame: Frame) -> None:
        """Append a frame (height, width, 3) uint8; all frames must have the size of the first one."""
        self._encoder.add(frame)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            self._encoder.finish()
            if error is None:
                os.replace(self._partial, self._path)
        except OSError as fault:
            raise _not_written(self._path, fault) from fault
        finally:
            self._partial.unlink(missing_ok=True)


def check_installed() -> None:
    """Raise `UserError` if a package for writing videos is missing."""
    for name in ("av", "PIL"):
        if importlib.util.find_spec(name) is None:
            problem = Problem(f"writing videos needs the package {name}", fix="pip install -e '.[video]'")
            raise UserError(problem)


def _made(kind: Any, path: Path, fps: float) -> _Encoder:
    check_installed()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()  # fail early: a GIF is only written at the end
        encoder: _Encoder = kind(path, fps)
    except OSError as fault:
        with suppress(OSError):
            path.unlink()
        raise _not_written(path, fault) from fault
    return encoder


def _not_written(path: Path, fault: OSError) -> UserError:
    return UserError(Problem(f"the video cannot be written: {fault}", str(path)))


def mp4_codec() -> str:
    """Return the best MP4 encoder of PyAV."""
    import av

    return BROWSERS_CODEC if BROWSERS_CODEC in av.codecs_available else "mpeg4"


class _Mp4:
    """H.264 if PyAV has an encoder for it, else MPEG-4."""

    def __init__(self, path: Path, fps: float) -> None:
        import av

        self._av = av
        self._container = av.open(str(path), "w")
        rate = Fraction(fps).limit_denominator(1000)
        self._stream = cast(Any, self._container.add_stream(mp4_codec(), rate=rate))
        self._stream.pix_fmt = "yuv420p"
        self._has_size = False

    def add(self, frame: Frame) -> None:
        even = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]  # colours are stored for 2 x 2 pixels
        if not self._has_size:
            self._stream.height, self._stream.width = even.shape[:2]
            self._has_size = True
        for packet in self._stream.encode(self._av.VideoFrame.from_ndarray(even, format="rgb24")):
            self._container.mux(packet)

    def finish(self) -> None:
        if self._has_size:
            for packet in self._stream.encode():
                self._container.mux(packet)
        self._container.close()


class _Gif:
    def __init__(self, path: Path, fps: float) -> None:
        from PIL import Image

        self._image = Image
        self._path = path
        self._every = max(1, round(fps / _GIF_FPS))
        self._frame_ms = round(1000 * self._every / fps)
        self._num_added = 0
        self._frames: list[Any] = []

    def add(self, frame: Frame) -> None:
        if self._num_added % self._every == 0 and len(self._frames) < _MOST_GIF_FRAMES:
            picture = self._image.fromarray(frame)
            picture.thumbnail((_GIF_WIDTH, picture.height))
            self._frames.append(picture.quantize(64))
        self._num_added += 1

    def finish(self) -> None:
        if self._frames:
            first, *others = self._frames
            first.save(self._path, save_all=True, append_images=others, duration=self._frame_ms, loop=0)


_DEFAULT_FPS = 30.0
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


class Camera(Callback):
    """Renders a frame of one sub-environment after each reset and step, for each of its videos.

    Attributes:
        videos: videos that receive the frames.
    """

    def __init__(self) -> None:
        self._envs: Any = None
        self.videos: Sequence[VideoFile] = ()

    @property
    def env(self) -> Any:
        """The environment, single-agent or multi-agent, or a `VectorEnv` of one; replaced after a failure."""
        return self._envs if isinstance(self._envs, gym.vector.VectorEnv) else self._envs[0]

    @property
    def fps(self) -> float:
        """Frames per second that the environment requests."""
        return fps_of(self.env)

    def on_environment_created(self, *, env: Any, **kwargs: Any) -> None:
        """Keep the environment."""
        self._envs = env

    def on_episode_start(self, **kwargs: Any) -> None:
        """Render the frame of a reset."""
        self._take()

    def on_episode_step(self, **kwargs: Any) -> None:
        """Render the frame of a step."""
        self._take()

    def _take(self) -> None:
        frame = frame_of(self.env)
        for video in self.videos:
            video.add(frame)


def render_mode(is_window: bool) -> str:
    """Return gymnasium's render mode for a window, or for frames as arrays."""
    if is_window:
        return "human"
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, without a display
    if not any(os.environ.get(name) for name in _SCREENS) and find_library("EGL") is not None:
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would need a window
    return "rgb_array"


def fps_of(env: Any) -> float:
    """Return the frames per second that an environment requests, or 30."""
    return float(getattr(env, "metadata", {}).get("render_fps") or _DEFAULT_FPS)


def frame_of(env: Any) -> Frame:
    """Return an image of an environment; of the first sub-environment if several are stepped together.

    Raises:
        RunFailure: `render` fails or does not return an image.
    """
    name = type(getattr(env, "unwrapped", env)).__name__
    try:
        frame = env.render()
    except Exception as error:  # user code may raise anything
        raise RunFailure(Problem(f"{name} raised {type(error).__name__} in render: {error}")) from error
    if isinstance(frame, (tuple, list)) and frame:
        frame = frame[0]
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        expected = "an array (height, width, 3) of uint8 from render() with render_mode rgb_array"
        raise RunFailure(Problem(f"{name} does not render an image", "render", got, expected))
    return frame
