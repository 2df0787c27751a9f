"""Recognition of images in observations: the axes of height, width and channels, and the scale of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.schemas import ModuleConfig
from runner.episodes.spaces import leaf_spaces

# Names of the axes: frames, height, width, channels. Frames become channels.
HW, HWC, CHW, THWC, TCHW = "HW", "HWC", "CHW", "THWC", "TCHW"
_CHANNELS_LAST = {2: HW, 3: HWC, 4: THWC}
_CHANNELS_FIRST = {2: HW, 3: CHW, 4: TCHW}

_MIN_SIDE = 8  # minimum side of an image
_MIN_PIXEL_SIDE = 3  # minimum side if the bounds are typical of pixels
_CLEAR_SIDE = 32  # from this side length, an axis is unlikely to hold features of a few steps
_MAX_COLOURS = 4
_MAX_RATIO = 4  # maximum ratio of the longer side to the shorter one
_LARGEST_PIXEL = 65535
# Largest code of MiniGrid's cells, in a byte Box from 0 to 255. Divided by 255, codes are hard to learn from.
_LARGEST_CODE = 10


@dataclass(frozen=True)
class ImageFormat:
    """The interpretation of a Box as images.

    Attributes:
        axes: names of the axes in order: T (frames), H, W, C.
        shape: sizes of these axes.
        scale: factor for the pixel values minus `zero`.
        zero: pixel value that becomes 0.
    """

    axes: str
    shape: tuple[int, ...]
    scale: float
    zero: float = 0.0

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.shape[self.axes.index("H")]

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.shape[self.axes.index("W")]

    @property
    def num_channels(self) -> int:
        """Total number of channels of all frames."""
        sizes = dict(zip(self.axes, self.shape, strict=True))
        return sizes.get("T", 1) * sizes.get("C", 1)

    def __str__(self) -> str:
        words = {"T": "frames", "H": "height", "W": "width", "C": "channels"}
        scale = "unscaled" if self.scale == 1 else f"divided by {1 / self.scale:g}"
        scale = f"minus {self.zero:g}, {scale}" if self.zero else scale
        return f"images of {' x '.join(words[axis] for axis in self.axes)}, values {scale}"


def image_format(space: gym.Space[Any], config: ModuleConfig) -> ImageFormat | None:
    """Return the image format of a leaf of an observation space, or None if the leaf is flattened.

    Raises:
        ValueError: `module.image_min` is not less than the pixel value that becomes 1.
    """
    if not _is_candidate(space) or config.image_layout == "flat":
        return None
    assert space.shape is not None
    axes = _axes(space, config.image_layout)
    if axes is None:
        return None
    image = ImageFormat(axes, space.shape, 1.0, config.image_min)
    found = _LARGEST_CODE if _holds_codes(space, image) else _largest(space)
    largest = found if config.image_max is None else config.image_max
    if image.zero >= largest:
        raise ValueError(
            f"module.image_min is {image.zero:g}, but must be less than {largest:g}, the pixel value that becomes 1"
        )
    return replace(image, scale=1 / (largest - image.zero))


def image_doubt(space: gym.Space[Any], config: ModuleConfig) -> str | None:
    """Return the reason why the interpretation of a leaf is ambiguous, with the key that decides it, or None if it is
    clear."""
    if not _is_candidate(space) or config.image_layout == "flat":
        return None
    found = image_format(space, config)
    sized = f"{' x '.join(map(str, space.shape or ()))} {space.dtype}"
    if found is None:
        if config.image_layout != "auto" or not _may_be_image(space):
            return None
        expected = "channels_first or channels_last if they are images, or flat"
        return f"{sized} values are flattened and not scaled: set module.image_layout={expected}"
    if config.image_layout == "auto" and _is_layout_ambiguous(space):
        return f"{sized} values are read as {found}: set module.image_layout=channels_first, channels_last or flat"
    if config.image_max is None and _is_unbounded(space):
        return (
            f"{sized} values are read as {found}, because the Box is unbounded: set module.image_max to the largest "
            "pixel value, which becomes 1"
        )
    if config.image_max is None and _holds_codes(space, found):
        return (
            f"{sized} values are read as {found}, because small images usually contain codes such as MiniGrid's "
            f"0 to {_LARGEST_CODE}: "
            "set module.image_max to the largest value, which becomes 1"
        )
    return None


def image_doubts(space: gym.Space[Any], config: ModuleConfig) -> Iterator[str]:
    """Yield the `image_doubt` of each leaf of a space, with the leaf's path."""
    for path, leaf in leaf_spaces(space):
        if (doubt := image_doubt(leaf, config)) is not None:
            yield f"observations{''.join(f'[{key!r}]' for key in path)}: {doubt}"


def clear_axes(space: gym.Space[Any]) -> str | None:
    """Return the axes of a leaf that is clearly an image, otherwise None."""
    config = ModuleConfig()
    found = image_format(space, config)
    return None if found is None or _is_layout_ambiguous(space) else found.axes


def _is_candidate(space: gym.Space[Any]) -> bool:
    """Return whether a Box has the rank and dtype of images: bytes or floats, or other numbers from 0 to 255."""
    if not isinstance(space, gym.spaces.Box) or not 2 <= len(space.shape) <= 4 or 0 in space.shape:
        return False
    return space.dtype == np.uint8 or np.issubdtype(space.dtype, np.floating) or _range(space) == (0, 255)


def _axes(space: gym.Space[Any], layout: str) -> str | None:
    assert space.shape is not None
    rank = len(space.shape)
    if layout != "auto":
        axes = (_CHANNELS_FIRST if layout == "channels_first" else _CHANNELS_LAST)[rank]
        smallest = _MIN_SIDE if rank == 2 else _MIN_PIXEL_SIDE
        return axes if min(_sides(space.shape, axes)) >= smallest else None
    return {2: _flat_axes, 3: _coloured_axes, 4: _stacked_axes}[rank](space)


def _flat_axes(space: gym.Space[Any]) -> str | None:
    """Return the axes of a Box with two dimensions: a grey image, or rows of features."""
    short, long = sorted(space.shape or ())
    smallest = _MIN_SIDE if _range(space) == (0, 255) else _CLEAR_SIDE
    return HW if _is_pixels(space) and short >= smallest and long <= _MAX_RATIO * short else None


def _coloured_axes(space: gym.Space[Any]) -> str | None:
    """Return the axes of a Box with three dimensions; the smallest one holds channels or stacked frames."""
    shape = space.shape or ()
    first, middle, last = shape
    smallest = _smallest_side(space)
    if first < min(middle, last) and min(middle, last) >= smallest and _is_clear_first(space):
        return CHW
    if min(first, middle) >= _MIN_SIDE:
        return HWC
    is_small_image = min(first, middle) >= smallest and last <= min(_MAX_COLOURS, first, middle)
    return HWC if is_small_image else None


def _is_clear_first(space: gym.Space[Any]) -> bool:
    """Return whether a smaller first axis is treated as channels; unbounded floats require large square images."""
    _, middle, last = space.shape or ()
    if not _is_pixels(space):
        return middle == last and middle >= _CLEAR_SIDE
    return max(middle, last) <= _MAX_RATIO * min(middle, last)


def _stacked_axes(space: gym.Space[Any]) -> str | None:
    """Return the axes of a Box with four dimensions: frames, each with up to four channels."""
    shape, smallest = space.shape or (), _smallest_side(space)
    for axes in (THWC, TCHW):
        height, width = _sides(shape, axes)
        is_clear = _is_pixels(space) or (height == width and height >= _CLEAR_SIDE)
        if is_clear and min(height, width) >= smallest and shape[axes.index("C")] <= _MAX_COLOURS:
            return axes
    return None


def _is_layout_ambiguous(space: gym.Space[Any]) -> bool:
    """Return whether an image has another plausible layout than the chosen one."""
    shape = space.shape or ()
    if len(shape) == 3:
        first, middle, last = shape
        if first < min(middle, last):
            return first >= _MIN_SIDE and middle != last
        return last > _MAX_COLOURS and not (first == middle != last) and last >= min(first, middle)
    return len(shape) == 4 and all(
        min(_sides(shape, axes)) >= _smallest_side(space) and shape[axes.index("C")] <= _MAX_COLOURS
        for axes in (THWC, TCHW)
    )


def _may_be_image(space: gym.Space[Any]) -> bool:
    shape = space.shape or ()
    if _range(space) == (0, 255):
        return min(sorted(shape)[-2:]) >= _MIN_PIXEL_SIDE
    short, long = sorted(shape)[-2:]
    smallest = _MIN_SIDE if _is_pixels(space) or len(shape) > 2 else _CLEAR_SIDE
    return short >= smallest and long <= _MAX_RATIO * short


def _smallest_side(space: gym.Space[Any]) -> int:
    return _MIN_PIXEL_SIDE if _range(space) == (0, 255) else _MIN_SIDE


def _sides(shape: tuple[int, ...], axes: str) -> tuple[int, int]:
    return shape[axes.index("H")], shape[axes.index("W")]


def _range(space: gym.Space[Any]) -> tuple[float, float]:
    assert isinstance(space, gym.spaces.Box)
    return float(space.low.min()), float(space.high.max())


def _is_pixels(space: gym.Space[Any]) -> bool:
    """Return whether the bounds are brightness values: bytes, or floats from 0 to 1, 255 or 65535."""
    low, high = _range(space)
    return space.dtype == np.uint8 or (low == 0 and high in (1, 255, _LARGEST_PIXEL))


def _holds_codes(space: gym.Space[Any], image: ImageFormat) -> bool:
    """Return whether an image is so small that its values are probably codes."""
    return _range(space) == (0, 255) and min(image.height, image.width) < _MIN_SIDE


def _is_unbounded(space: gym.Space[Any]) -> bool:
    return max(abs(bound) for bound in _range(space)) > _LARGEST_PIXEL


def _largest(space: gym.Space[Any]) -> float:
    """Return the pixel value that becomes 1; Boxes with negative values are already standardised."""
    low, high = _range(space)
    return high if low >= 0 and 1 < high <= _LARGEST_PIXEL else 1.0
