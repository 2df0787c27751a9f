"""Convolutions for image observations."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from runner.modules.images import ImageFormat
from runner.modules.mlp import ACTIVATIONS, LayerOptions

# Up to this smaller side: [out_channels, kernel, stride] of each layer. The filters up to 7 are MiniGrid's
# (Chevalier-Boisvert et al., 2023), up to 15 MinAtar's (Young & Tian, 2019), up to 127 DQN's (Mnih et al., 2015).
_DEFAULT_FILTERS: dict[float, list[list[int]]] = {
    4: [[16, 2, 1], [32, 2, 1]],
    7: [[16, 2, 1], [32, 2, 1], [64, 2, 1]],
    15: [[16, 3, 1]],
    47: [[16, 4, 2], [32, 3, 2]],
    127: [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
    float("inf"): [[32, 8, 4], [64, 4, 2], [64, 3, 2], [64, 3, 1]],
}


def default_filters(height: int, width: int) -> list[list[int]]:
    """Return [out_channels, kernel, stride] of each layer, by the smaller side of the image."""
    side = min(height, width)
    return next(filters for largest, filters in _DEFAULT_FILTERS.items() if side <= largest)


class CNN(nn.Module):
    """Unpadded convolutions with an activation after each; all pixels and channels of the last are the features.

    Args:
        image: layout and scale of the images.
        filters: [out_channels, kernel, stride] of each layer; None: chosen by the image's size.
        options: activation, initialisation.

    Raises:
        ValueError: a kernel is larger than what it is applied to.
    """

    def __init__(self, image: ImageFormat, filters: list[list[int]] | None, options: LayerOptions) -> None:
        super().__init__()
        self._image = image
        self._activate = ACTIVATIONS[options.activation]
        self.layers = nn.ModuleList()
        height, width, channels = image.height, image.width, image.num_channels
        for out_channels, kernel, stride in default_filters(height, width) if filters is None else filters:
            if kernel > min(height, width):
                raise ValueError(
                    f"module.conv_filters: the kernel of [{out_channels}, {kernel}, {stride}] is larger than the "
                    f"{height} x {width} pixels that it is applied to; the images are {image.height} x {image.width}"
                )
            layer = nn.Conv2d(channels, out_channels, kernel, stride)
            options.initialize(layer.weight, _bias_of(layer))
            self.layers.append(layer)
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            channels = out_channels
        self._chain = tuple((layer.weight, _bias_of(layer), layer.stride) for layer in self._convolutions())
        self.num_outputs = height * width * channels

    def forward(self, images: Tensor) -> Tensor:
        """Encode (..., *shape) bytes or floats -> (B, num_outputs), B the product of the leading dimensions."""
        pixels = self._pixels(images)
        for weight, bias, stride in self._chain:
            pixels = F.conv2d(pixels, weight, bias, stride)
            if self._activate is not None:
                pixels = self._activate(pixels)
        return pixels.flatten(1)

    def _pixels(self, images: Tensor) -> Tensor:
        """Return scaled floats (B, channels, H, W)."""
        image = self._image
        pixels = images.reshape(-1, *image.shape)
        # A permuted axis of length 1 makes strides that no export agrees on, and is not needed: the memory is the same.
        if image.axes[-1] == "C" and image.shape[-1] > 1:
            pixels = pixels.movedim(-1, -3)
        pixels = pixels.reshape(-1, image.num_channels, image.height, image.width)
        if image.scale == 1 or pixels.is_floating_point():
            pixels = pixels.float()
        return pixels if image.scale == 1 else pixels * image.scale

    def _convolutions(self) -> list[nn.Conv2d]:
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]


def _bias_of(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None  # as constructed
    return layer.bias
