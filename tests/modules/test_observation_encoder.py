"""Features of observations of every space: CNNs for images, one-hot vectors, and what cannot be encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.images import ImageFormat, image_doubt, image_format
from runner.modules.layers import LayerOptions
from runner.modules.observation_encoder import CNN, ObservationEncoder, default_filters
from tests.modules.spaces import BOX, NESTED, items_of, leaf_spaces, rows_of, spaces

Space = gym.Space[Any]
# Without layers the perceptron hands out the features as they are.
BARE = ModuleConfig(fcnet_hiddens=[])


def features_of(space: Space, obs: Any, config: ModuleConfig = BARE) -> Tensor:
    torch.manual_seed(0)
    encoder = ObservationEncoder(space, config)
    features = encoder.forward(obs)
    assert features.dtype == torch.float32
    assert features.shape[1:] == (encoder.num_outputs,)
    return features


@given(space=spaces())
@settings(max_examples=60, deadline=None)
def test_any_space(space: Space) -> None:
    obs = items_of(space, 5)
    features = features_of(space, obs)
    assert len(features) == 5
    torch.testing.assert_close(features_of(space, rows_of(obs, slice(2, 4))), features[2:4])
    flat = np.stack([gym.spaces.flatten(space, item) for item in _items(space, 5)])
    if not any(isinstance(leaf, gym.spaces.Box) and leaf.dtype == np.float64 for leaf in leaf_spaces(space)):
        np.testing.assert_array_equal(features.numpy(), flat.astype(np.float32))  # gymnasium flattens in the same order


@given(space=spaces())
@settings(max_examples=30, deadline=None)
def test_leading_dimensions_are_joined(space: Space) -> None:
    obs = items_of(space, 3, 2)
    flat = {"obs": obs}
    rows = rows_of(flat, slice(None))["obs"]
    joined = features_of(space, rows)
    assert len(joined) == 6
    torch.testing.assert_close(features_of(space, rows_of(obs, 1)), joined[2:4])


def _items(space: Space, count: int) -> list[Any]:
    space.seed(0)
    return [space.sample() for _ in range(count)]


def test_discrete_is_one_hot_from_its_start() -> None:
    features = features_of(gym.spaces.Discrete(3, start=5), torch.tensor([7, 5]))
    assert features.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_multi_discrete_is_one_hot_number_by_number() -> None:
    space = gym.spaces.MultiDiscrete([2, 3], start=[0, 4])
    assert features_of(space, torch.tensor([[1, 4], [0, 6]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_nested_features_are_those_of_the_leaves_one_after_another() -> None:
    obs = items_of(NESTED, 4)
    features = features_of(NESTED, obs)
    torch.manual_seed(0)
    image = CNN(colour_image(10, 12), None, LayerOptions("relu"))
    assert features.shape[1] == image.num_outputs + 3 + 4 + 4 + 10
    torch.testing.assert_close(features[:, : image.num_outputs], image.forward(obs["camera"]))
    rest = features[:, image.num_outputs :]
    torch.testing.assert_close(rest[:, 3:7], obs["inner"][1]["bits"].float())
    torch.testing.assert_close(rest[:, 7:11], obs["inner"][1]["x"])


def test_the_only_entry_is_encoded_as_if_it_were_alone() -> None:
    obs = items_of(BOX, 4)
    alone = features_of(BOX, obs, ModuleConfig(fcnet_hiddens=[8]))
    entry = features_of(gym.spaces.Dict({"only": BOX}), {"only": obs}, ModuleConfig(fcnet_hiddens=[8]))
    assert torch.equal(alone, entry)


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "num_outputs"), [(8, 16 * 6 * 6), (10, 16 * 8 * 8), (16, 32 * 3 * 3), (32, 32 * 7 * 7), (84, 64 * 7 * 7)]
)
def test_default_filters(side: int, num_outputs: int) -> None:
    assert CNN(colour_image(side, side), None, LayerOptions("relu")).num_outputs == num_outputs


@pytest.mark.parametrize("side", [3, 4, 5, 6, 7, *range(8, 260, 7)])
def test_default_filters_fit_every_size(side: int) -> None:
    for shape in ((side, side, 1), (side, 2 * side, 3)):
        cnn = CNN(ImageFormat("HWC", shape, 1.0), None, LayerOptions("relu"))
        assert 32 <= cnn.num_outputs <= 30_000
        assert cnn.forward(torch.zeros(1, *shape)).shape == (1, cnn.num_outputs)


def test_nature_cnn_for_atari() -> None:
    assert default_filters(84, 84) == [[32, 8, 4], [64, 4, 2], [64, 3, 1]]


def test_cnn_is_that_of_plain_torch() -> None:
    options = replace(BARE, conv_filters=[[4, 3, 2], [5, 2, 1]], conv_activation="tanh")
    space = gym.spaces.Box(0, 255, (9, 11, 3), np.uint8)
    torch.manual_seed(0)
    encoder, images = ObservationEncoder(space, options), items_of(space, 6)
    first, second = (layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d))
    pixels = images.float().permute(0, 3, 1, 2) / 255
    expected = torch.tanh(second(torch.tanh(first(pixels)))).flatten(1)
    torch.testing.assert_close(encoder.forward(images), expected)
    assert expected.shape == (6, 5 * 3 * 4)
    sequences = encoder.forward(images.reshape(2, 3, 9, 11, 3))
    torch.testing.assert_close(sequences, expected)


def test_cnn_with_layer_normalisation() -> None:
    """Each convolution is normalised over channels, rows and columns of an image, before its activation."""
    options = replace(BARE, conv_filters=[[4, 3, 1], [3, 2, 1]], conv_use_layernorm=True)
    space = gym.spaces.Box(0, 255, (9, 11, 3), np.uint8)
    encoder, images = ObservationEncoder(space, options), items_of(space, 6)
    assert len([one for one in encoder.modules() if isinstance(one, nn.LayerNorm)]) == 2
    features = images.float().movedim(-1, 1) / 255
    for convolution in [one for one in encoder.modules() if isinstance(one, nn.Conv2d)]:
        features = convolution(features)
        deviations = features - features.mean((1, 2, 3), keepdim=True)
        features = (deviations / (deviations.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(encoder.forward(images), features.flatten(1))


def colour_image(height: int, width: int) -> ImageFormat:
    return ImageFormat("HWC", (height, width, 3), 1 / 255)


BYTES, UNIT, FREE = (0, 255, np.uint8), (0, 1, np.float32), (-np.inf, np.inf, np.float32)
FLOAT_BYTES, CODES = (0, 255, np.float32), (0, 10, np.uint8)


def box(bounds: tuple[Any, Any, Any], *shape: int) -> gym.spaces.Box:
    low, high, dtype = bounds
    return gym.spaces.Box(low, high, shape, dtype)


# Space -> axes (none: flattened), scale, whether it is doubtful.
READ: list[tuple[gym.spaces.Box, str, float, bool]] = [
    (box(BYTES, 84, 84, 3), "HWC", 1 / 255, False),
    (box(BYTES, 210, 160, 12), "HWC", 1 / 255, False),
    (box(BYTES, 3, 84, 84), "CHW", 1 / 255, False),
    (box(BYTES, 4, 84, 84), "CHW", 1 / 255, False),
    (box(BYTES, 16, 84, 84), "CHW", 1 / 255, False),
    (box(BYTES, 3, 210, 160), "CHW", 1 / 255, False),
    (box(BYTES, 1, 84, 84), "CHW", 1 / 255, False),
    (box(BYTES, 84, 84), "HW", 1 / 255, False),
    (box(BYTES, 20, 20), "HW", 1 / 255, False),
    (box(BYTES, 4, 210, 160, 3), "THWC", 1 / 255, False),
    (box(BYTES, 4, 84, 84, 1), "THWC", 1 / 255, False),
    (box(BYTES, 4, 3, 84, 84), "TCHW", 1 / 255, False),
    (box((0, 255, np.int64), 64, 64, 3), "HWC", 1 / 255, False),
    (box((0, 255, np.int32), 3, 64, 64), "CHW", 1 / 255, False),
    (box(FLOAT_BYTES, 84, 84, 3), "HWC", 1 / 255, False),
    (box(FLOAT_BYTES, 3, 84, 84), "CHW", 1 / 255, False),
    (box((0, 255, np.float64), 84, 84), "HW", 1 / 255, False),
    (box((0, 255, np.float16), 84, 84), "HW", 1 / 255, False),
    (box(UNIT, 84, 84, 3), "HWC", 1, False),
    (box(UNIT, 4, 84, 84), "CHW", 1, False),
    (box(UNIT, 84, 84), "HW", 1, False),
    (box(UNIT, 4, 84, 84, 3), "THWC", 1, False),
    (box((-1, 1, np.float32), 84, 84, 3), "HWC", 1, False),
    (box((-10, 10, np.float32), 84, 84, 3), "HWC", 1, False),
    (box(CODES, 10, 10, 4), "HWC", 1 / 10, False),
    (box(BYTES, 10, 10, 10), "HWC", 1 / 255, True),
    (box(BYTES, 12, 20, 24), "CHW", 1 / 255, True),
    (box(BYTES, 8, 8, 111), "HWC", 1 / 255, False),
    (box(BYTES, 7, 7, 3), "HWC", 1 / 10, True),
    (box(BYTES, 4, 7, 7, 3), "THWC", 1 / 10, True),
    (box(BYTES, 3, 3, 3), "HWC", 1 / 10, True),
    (box(FREE, 84, 84, 3), "HWC", 1, True),
    (box(FREE, 4, 84, 84), "CHW", 1, True),
    (box((0, np.finfo(np.float32).max, np.float32), 84, 84, 3), "HWC", 1, True),
    (box(FREE, 5, 20, 30), "", 1, True),
    (box(FREE, 64, 64), "", 1, True),
    (box(UNIT, 20, 20), "", 1, True),
    (box(CODES, 20, 20), "", 1, True),
    (box(CODES, 64, 64), "HW", 1 / 10, False),
    (box(BYTES, 5, 5), "", 1, True),
    (box(BYTES, 4, 128), "", 1, True),
    (box(BYTES, 128), "", 1, False),
    (box(FREE, 4, 17), "", 1, False),
    (box(FREE, 3, 3, 3), "", 1, False),
    (box(UNIT, 5, 5, 3), "", 1, False),
    (box((0, 1, np.int8), 8, 8, 111), "", 1, False),
]


@pytest.mark.parametrize(("space", "axes", "scale", "is_doubtful"), READ, ids=[str(case[0]) for case in READ])
def test_every_layout_is_read_or_named_as_doubtful(
    space: gym.spaces.Box, axes: str, scale: float, is_doubtful: bool
) -> None:
    image, doubt = image_format(space, BARE), image_doubt(space, BARE)
    assert (image.axes if image else "") == axes
    assert image is None or image.scale == pytest.approx(scale)
    assert (doubt is not None) == is_doubtful
    assert doubt is None or "module.image_layout" in doubt or "module.image_max" in doubt
    encoder = ObservationEncoder(gym.spaces.Dict({"camera": space, "x": BOX}), BARE)
    assert [text.partition(": ")[0] for text in encoder.doubts] == ["observations['camera']"] * is_doubtful
    assert any(isinstance(part, CNN) for part in encoder.leaf_encoders) == bool(axes)


# How each layout is turned into channels x height x width.
AS_CHANNELS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "HWC": ((9, 11, 3), lambda images: images.permute(0, 3, 1, 2)),
    "CHW": ((3, 9, 11), lambda images: images),
    "HW": ((9, 11), lambda images: images[:, None]),
    "THWC": ((4, 9, 11, 3), lambda images: torch.cat([frame.permute(0, 3, 1, 2) for frame in images.unbind(1)], 1)),
    "TCHW": ((4, 3, 9, 11), lambda images: torch.cat(list(images.unbind(1)), 1)),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.float16, np.int64])
@pytest.mark.parametrize("axes", AS_CHANNELS)
def test_layouts_are_channels_of_plain_torch(axes: str, dtype: Any) -> None:
    shape, as_channels = AS_CHANNELS[axes]
    space = gym.spaces.Box(0, 255, shape, dtype)
    torch.manual_seed(0)
    encoder, images = ObservationEncoder(space, replace(BARE, conv_filters=[[4, 3, 2]])), items_of(space, 6)
    conv = next(layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d))
    expected = torch.relu(conv(as_channels(images).float() / 255)).flatten(1)
    torch.testing.assert_close(encoder.forward(images), expected)
    torch.testing.assert_close(encoder.forward(images.reshape(2, 3, *shape)), expected)


def test_the_layout_is_an_option() -> None:
    space = box(BYTES, 12, 20, 24)
    for layout, axes in {"channels_first": "CHW", "channels_last": "HWC"}.items():
        config = replace(BARE, image_layout=layout)
        image = image_format(space, config)
        assert image is not None
        assert image.axes == axes
        assert image_doubt(space, config) is None
    flat = replace(BARE, image_layout="flat")
    assert image_format(space, flat) is None
    assert image_doubt(space, flat) is None


def test_the_largest_pixel_is_an_option() -> None:
    space, pixels = box(BYTES, 7, 7, 3), replace(BARE, image_max=255.0)
    image = image_format(space, pixels)
    assert image is not None
    assert image.scale == pytest.approx(1 / 255)
    assert image_doubt(space, pixels) is None
    assert image_doubt(box(FREE, 84, 84, 3), replace(BARE, image_max=5.0)) is None


@pytest.mark.parametrize(
    ("space", "largest"), [(box(BYTES, 9, 11, 3), 255.0), (box((0, 1, np.float32), 9, 11, 3), 1.0)]
)
@pytest.mark.parametrize("image_max", [None, 0.75])
def test_the_pixel_that_becomes_zero_is_an_option(space: Space, largest: float, image_max: float | None) -> None:
    images = items_of(space, 5)
    scaled = (images.float() - 0.5) / ((image_max or largest) - 0.5)
    expected = features_of(space, scaled, replace(BARE, image_max=1.0))
    torch.testing.assert_close(features_of(space, images, replace(BARE, image_min=0.5, image_max=image_max)), expected)


def test_the_pixel_that_becomes_zero_is_less_than_the_one_that_becomes_one() -> None:
    with pytest.raises(ValueError, match=r"module.image_min is 300, but must be less than 255, .* becomes 1"):
        image_format(box(BYTES, 9, 11, 3), replace(BARE, image_min=300.0))


def test_bytes_are_scaled_as_ever() -> None:
    space = box(BYTES, 9, 11, 3)
    images = items_of(space, 5)
    torch.manual_seed(0)
    encoder = ObservationEncoder(space, BARE)
    conv = next(layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d))
    pixels = images.permute(0, 3, 1, 2) * (1 / 255)
    assert torch.equal(encoder.forward(images), torch.relu(conv(pixels)).flatten(1))


@pytest.mark.parametrize("shape", [(84, 4, 84), (5, 5), (4, 128), (8, 8, 2, 2)])
def test_what_is_no_image_is_flattened(shape: tuple[int, ...]) -> None:
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    obs = items_of(space, 2)
    assert torch.equal(features_of(space, obs), obs.float().flatten(1))


def test_initialisers_of_convolutions() -> None:
    config = replace(
        BARE,
        conv_filters=[[4, 3, 2]],
        conv_kernel_initializer="constant_",
        conv_kernel_initializer_kwargs={"val": 0.5},
        conv_bias_initializer="zeros_",
    )
    encoder = ObservationEncoder(NESTED, config)
    values = {name.rpartition(".")[2]: parameter for name, parameter in encoder.named_parameters()}
    assert (values["weight"] == 0.5).all()
    assert (values["bias"] == 0).all()


# -- messages ----------------------------------------------------------------------------------------------------------

ENCODABLE = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
UNSUPPORTED = [
    pytest.param(
        gym.spaces.Text(3, charset="abc"),
        {},
        f"cannot encode observations: got Text(1, 3, charset=abc); expected: {ENCODABLE}",
        id="text",
    ),
    pytest.param(
        gym.spaces.Dict({"a": BOX, "b": gym.spaces.Tuple((BOX, gym.spaces.Graph(BOX, None)))}),
        {},
        f"cannot encode observations['b'][1]: got Graph(Box(-1.0, 1.0, (4,), float32), None); expected: {ENCODABLE}",
        id="graph_nested",
    ),
    pytest.param(
        gym.spaces.Dict({"seen": gym.spaces.Sequence(BOX)}),
        {},
        (
            "cannot encode observations['seen']: got Sequence(Box(-1.0, 1.0, (4,), float32), stack=False); "
            f"expected: {ENCODABLE}"
        ),
        id="sequence",
    ),
    pytest.param(
        gym.spaces.Dict({"none": gym.spaces.Box(0, 1, (0,))}),
        {},
        "there are no values to encode in observations of Dict('none': Box([], [], (0,), float32)); "
        f"expected: {ENCODABLE}",
        id="empty",
    ),
    pytest.param(
        gym.spaces.Box(0, 255, (4, 128), np.uint8),
        {"conv_filters": [[16, 3, 1]]},
        (
            "module.conv_filters is set, but no observation is an image: got Box(0, 255, (4, "
            "128), uint8); expected: a Box height x width x channels of bytes or floats, or "
            "a layout set by module.image_layout"
        ),
        id="no_image",
    ),
    pytest.param(
        gym.spaces.Box(0, 255, (20, 30, 3), np.uint8),
        {"conv_filters": [[16, 8, 4], [16, 5, 1]]},
        (
            "module.conv_filters: the kernel of [16, 5, 1] is larger than the 4 x 6 pixels of "
            "its input; the images are 20 x 30"
        ),
        id="large_kernel",
    ),
]


@pytest.mark.parametrize(("space", "options", "message"), UNSUPPORTED)
def test_what_cannot_be_encoded(space: Space, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        ObservationEncoder(space, replace(BARE, **options))
    assert str(caught.value) == message
