"""Convolutions for image observations."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.modules.mlp import ACTIVATIONS, LayerOptions

# Up to this smaller side: [out_channels, kernel, stride] of each layer. The first is MinAtar's (Young & Tian, 2019),
# the third the DQN paper's (Mnih et al., 2015).
_DEFAULT_FILTERS: dict[float, list[list[int]]] = {
    15: [[16, 3, 1]],
    47: [[16, 4, 2], [32, 3, 2]],
    127: [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
    float("inf"): [[32, 8, 4], [64, 4, 2], [64, 3, 2], [64, 3, 1]],
}
_MIN_SIDE = 8


def is_image(space: gym.spaces.Box) -> bool:
    """Return whether a Box is one of images H x W x C with H, W >= 8, of bytes or floats."""
    is_pixel = space.dtype == np.uint8 or np.issubdtype(space.dtype, np.floating)
    return is_pixel and len(space.shape) == 3 and min(space.shape[:2]) >= _MIN_SIDE


def default_filters(height: int, width: int) -> list[list[int]]:
    """Return [out_channels, kernel, stride] of each layer, by the smaller side of the image."""
    side = min(height, width)
    return next(filters for largest, filters in _DEFAULT_FILTERS.items() if side <= largest)


class CNN(nn.Module):
    """Unpadded convolutions with an activation after each; all pixels and channels of the last are the features.

    Args:
        shape: H, W, C of the images.
        filters: [out_channels, kernel, stride] of each layer; None: chosen by the image's size.
        options: activation, initialisation.

    Raises:
        ValueError: a kernel is larger than what it is applied to.
    """

    def __init__(self, shape: tuple[int, ...], filters: list[list[int]] | None, options: LayerOptions) -> None:
        super().__init__()
        self._shape = shape
        self._activate = ACTIVATIONS[options.activation]
        self.layers = nn.ModuleList()
        height, width, channels = shape
        for out_channels, kernel, stride in default_filters(height, width) if filters is None else filters:
            if kernel > min(height, width):
                raise ValueError(
                    f"module.conv_filters: the kernel of [{out_channels}, {kernel}, {stride}] is larger than the "
                    f"{height} x {width} pixels that it is applied to; the images are {shape[0]} x {shape[1]}"
                )
            layer = nn.Conv2d(channels, out_channels, kernel, stride)
            options.initialize(layer.weight, _bias_of(layer))
            self.layers.append(layer)
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            channels = out_channels
        self._chain = tuple((layer.weight, _bias_of(layer), layer.stride) for layer in self._convolutions())
        self.num_outputs = height * width * channels

    def forward(self, images: Tensor) -> Tensor:
        """Encode (..., H, W, C) bytes or floats -> (B, num_outputs), B the product of the leading dimensions."""
        height, width, num_channels = self._shape
        if num_channels == 1:  # the same memory; a permuted axis of length 1 makes strides that no export agrees on
            pixels = images.reshape(-1, 1, height, width)
        else:
            pixels = images.reshape(-1, *self._shape).permute(0, 3, 1, 2)  # (B, C, H, W)
        pixels = pixels * (1 / 255) if pixels.dtype == torch.uint8 else pixels.float()
        for weight, bias, stride in self._chain:
            pixels = F.conv2d(pixels, weight, bias, stride)
            if self._activate is not None:
                pixels = self._activate(pixels)
        return pixels.flatten(1)

    def _convolutions(self) -> list[nn.Conv2d]:
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]


def _bias_of(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None  # as constructed
    return layer.bias
