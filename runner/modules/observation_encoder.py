"""Encoding of observations of any space as one feature vector; images are encoded by convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.episodes.spaces import Path, leaf_at, leaf_spaces
from runner.modules.hyperspherical import HypersphericalEnsemble
from runner.modules.images import ImageFormat, image_doubts, image_format
from runner.modules.layers import ACTIVATIONS, MLP, DirectLayers, LayerOptions, layer_options
from runner.modules.residual import ResidualEnsemble

# Maximum smaller side -> [out_channels, kernel, stride] of each layer. The filters up to 7 are MiniGrid's
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
    """Return [out_channels, kernel, stride] of each layer, chosen by the smaller side of the image."""
    side = min(height, width)
    return next(filters for largest, filters in _DEFAULT_FILTERS.items() if side <= largest)


class CNN(DirectLayers):
    """Unpadded convolutions, each followed by an activation; the features are all outputs of the last one.

    Args:
        image: layout and scale of the images.
        filters: [out_channels, kernel, stride] of each layer, or None to choose them by the image's size.
        options: activation, layer norm, initialisation.

    Raises:
        ValueError: a kernel is larger than its input.
    """

    parameter_tuples = ("_chain",)

    def __init__(self, image: ImageFormat, filters: list[list[int]] | None, options: LayerOptions) -> None:
        super().__init__()
        self._image = image
        self._activate = ACTIVATIONS[options.activation]
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        height, width, channels = image.height, image.width, image.num_channels
        for out_channels, kernel, stride in default_filters(height, width) if filters is None else filters:
            if kernel > min(height, width):
                raise ValueError(
                    f"module.conv_filters: the kernel of [{out_channels}, {kernel}, {stride}] is larger than the "
                    f"{height} x {width} pixels of its input; the images are {image.height} x {image.width}"
                )
            layer = nn.Conv2d(channels, out_channels, kernel, stride)
            options.initialize(layer.weight, _bias_of(layer))
            self.layers.append(layer)
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            channels = out_channels
            if options.use_layernorm:
                self.norms.append(nn.LayerNorm([channels, height, width]))
        convolutions = [(layer.weight, _bias_of(layer), layer.stride) for layer in self._convolutions()]
        norms: list[nn.Module | None] = list(self.norms) or [None] * len(convolutions)
        self._chain = tuple(zip(convolutions, norms, strict=True))
        self.num_outputs = height * width * channels

    def forward(self, images: Tensor) -> Tensor:
        """Encode (..., *shape) bytes or floats -> (B, num_outputs); B is the product of leading dimensions."""
        pixels = self._pixels(images)
        for (weight, bias, stride), norm in self._chain:
            pixels = F.conv2d(pixels, weight, bias, stride)
            if norm is not None:
                pixels = norm(pixels)
            if self._activate is not None:
                pixels = self._activate(pixels)
        return pixels.flatten(1)

    def _pixels(self, images: Tensor) -> Tensor:
        """Return scaled floats (B, channels, H, W)."""
        image = self._image
        pixels = images.reshape(-1, *image.shape)
        # Permuting an axis of length 1 would make strides that exporters disagree on, without changing the memory.
        if image.axes[-1] == "C" and image.shape[-1] > 1:
            pixels = pixels.movedim(-1, -3)
        pixels = pixels.reshape(-1, image.num_channels, image.height, image.width)
        if image.scale == 1 or image.zero or pixels.is_floating_point():
            pixels = pixels.float()
        if image.zero:
            pixels = pixels - image.zero
        return pixels if image.scale == 1 else pixels * image.scale

    def _convolutions(self) -> list[nn.Conv2d]:
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]


def _bias_of(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None  # created with a bias
    return layer.bias


Space = gym.Space[Any]

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


class ObservationEncoder(MLP):
    """A perceptron, or residual blocks, on the concatenated features of all leaves of an observation.

    Each image (see `image_format`) is encoded by a separate CNN, Discrete and MultiDiscrete become one-hot vectors, and
    all other leaves are flattened.

    Args:
        space: space of the observations.
        config: widths, filters, activations.

    Attributes:
        doubts: leaves whose layout or scale may be misinterpreted, with the key that decides it.

    Raises:
        TypeError: a leaf cannot be encoded, or there are no leaves.
        ValueError: filters do not match the images.
    """

    def __init__(self, space: Space, config: ModuleConfig) -> None:
        leaves = list(_encodable_leaves(space))
        if not leaves:
            raise TypeError(f"there are no values to encode in observations of {space}; expected: {_SUPPORTED}")
        _check_filters_are_used(space, [leaf for _, leaf in leaves], config)
        encoders = [_leaf_encoder(leaf, config) for _, leaf in leaves]
        num_features, options = sum(encoder.num_outputs for encoder in encoders), layer_options(config, "fcnet")
        blocks = block_ensemble(config)
        super().__init__(num_features, config.fcnet_hiddens if blocks is None else [], options)
        self.blocks = None if blocks is None else blocks(1, num_features, config.fcnet_hiddens, options)
        if self.blocks is not None:
            self.num_outputs = self.blocks.num_outputs
        self.doubts = tuple(image_doubts(space, config))
        self.leaf_encoders = nn.ModuleList(encoder for encoder in encoders if isinstance(encoder, nn.Module))
        self._is_vector = isinstance(space, gym.spaces.Box) and len(space.shape) == 1
        self._encoders = tuple((path, encoder.forward) for (path, _), encoder in zip(leaves, encoders, strict=True))

    def forward(self, obs: Any) -> Tensor:
        """Encode observations (..., *shape), nested like the space, as (B, num_outputs)."""
        if not (self._is_vector and obs.ndim == 2 and obs.dtype == torch.float32):  # otherwise obs are the features
            obs = self._features(obs)
        return MLP.forward(self, obs) if self.blocks is None else self.blocks.forward(obs).squeeze(0)

    def _features(self, obs: Any) -> Tensor:
        parts = [encode(leaf_at(obs, path)) for path, encode in self._encoders]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


@dataclass(frozen=True)
class _Flatten:
    """Encodes rows of numbers as float32."""

    shape: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        return math.prod(self.shape)

    def forward(self, values: Tensor) -> Tensor:
        """Encode (..., *shape) -> (B, num_outputs) float32."""
        if values.dtype != torch.float32:
            values = values.float()
        return values.reshape(-1, self.num_outputs)


class _OneHot(nn.Module):
    """Encodes D numbers as concatenated one-hot vectors; a value outside the space becomes zeros.

    Args:
        sizes: number of values of each of the D numbers.
        starts: first value of each of the D numbers.
    """

    classes: Tensor
    components: Tensor

    def __init__(self, sizes: list[int], starts: list[int]) -> None:
        super().__init__()
        classes = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self.num_outputs = sum(sizes)
        self._num_components = len(sizes)
        # (num_outputs,) int64: the value that each output represents, and the index of its number.
        self.register_buffer("classes", torch.from_numpy(np.concatenate(classes)), persistent=False)
        components = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
        self.register_buffer("components", components, persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Encode (..., D) integers, or (...) for a single one -> (B, num_outputs) float32."""
        values = values.reshape(-1, self._num_components).long()
        if self._num_components > 1:
            values = values.index_select(1, self.components)
        return (values == self.classes).float()


_LeafEncoder = _Flatten | _OneHot | CNN


def _leaf_encoder(space: Space, config: ModuleConfig) -> _LeafEncoder:
    if isinstance(space, gym.spaces.Discrete):
        return _OneHot([int(space.n)], [int(space.start)])
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _OneHot(space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist())
    image = image_format(space, config)
    if image is not None:
        return CNN(image, config.conv_filters, layer_options(config, "conv"))
    assert space.shape is not None  # guaranteed by `_encodable_leaves`
    return _Flatten(tuple(space.shape))


def _encodable_leaves(space: Space) -> Iterator[tuple[Path, Space]]:
    """Yield the leaves of a space and their paths, in the order of its keys; leaves without numbers are skipped."""
    spaces = gym.spaces
    for path, leaf in leaf_spaces(space):
        if not isinstance(leaf, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            where = "observations" + "".join(f"[{key!r}]" for key in path)
            raise TypeError(f"cannot encode {where}: got {leaf}; expected: {_SUPPORTED}")
        if math.prod(leaf.shape or ()) > 0:
            yield path, leaf


def _check_filters_are_used(space: Space, leaves: list[Space], config: ModuleConfig) -> None:
    given = [name for name in ("conv_filters", "conv_use_layernorm", "image_min") if getattr(config, name)]
    if given and not any(image_format(leaf, config) for leaf in leaves):
        raise ValueError(
            f"module.{given[0]} is set, but no observation is an image: got {space}; expected: a Box height x width "
            "x channels of bytes or floats, or a layout set by module.image_layout"
        )


BlockEnsemble = type[ResidualEnsemble] | type[HypersphericalEnsemble]
_BLOCKS: Mapping[str, BlockEnsemble] = {"simba": ResidualEnsemble, "simba_v2": HypersphericalEnsemble}


def block_ensemble(config: ModuleConfig) -> BlockEnsemble | None:
    """Return the class of the encoder's residual blocks, or None if it is a perceptron."""
    return _BLOCKS.get(config.architecture) if config.fcnet_hiddens else None
