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
from runner.modules.cnn import CNN, default_filters
from runner.modules.mlp import LayerOptions
from runner.modules.observation_encoder import ObservationEncoder
from tests.modules.spaces import BOX, NESTED, items_of, rows_of, spaces

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
    if not any(isinstance(leaf, gym.spaces.Box) and leaf.dtype == np.float64 for leaf in _leaves(space)):
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


def _leaves(space: Space) -> list[Any]:
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        return [leaf for part in parts for leaf in _leaves(part)]
    return [space]


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
    image = CNN((10, 12, 3), None, LayerOptions("relu"))
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
    assert CNN((side, side, 3), None, LayerOptions("relu")).num_outputs == num_outputs


@pytest.mark.parametrize("side", range(8, 260, 7))
def test_default_filters_fit_every_size(side: int) -> None:
    for shape in ((side, side, 1), (side, 2 * side, 3)):
        cnn = CNN(shape, None, LayerOptions("relu"))
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


def test_float_images_are_not_scaled() -> None:
    bytes_, floats = (gym.spaces.Box(0, 255, (8, 8, 1), dtype) for dtype in (np.uint8, np.float32))
    images = items_of(bytes_, 3)
    torch.testing.assert_close(features_of(bytes_, images), features_of(floats, images / 255))


@pytest.mark.parametrize("shape", [(7, 20, 3), (20, 7, 3), (4, 84, 84), (20, 20), (8, 8, 2, 2)])
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

UNSUPPORTED: dict[str, tuple[Space, dict[str, Any]]] = {
    "obs_text": (gym.spaces.Text(3, charset="abc"), {}),
    "obs_graph_nested": (
        gym.spaces.Dict({"a": BOX, "b": gym.spaces.Tuple((BOX, gym.spaces.Graph(BOX, None)))}),
        {},
    ),
    "obs_sequence": (gym.spaces.Dict({"seen": gym.spaces.Sequence(BOX)}), {}),
    "obs_empty": (gym.spaces.Dict({"none": gym.spaces.Box(0, 1, (0,))}), {}),
    "obs_no_image": (gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), {"conv_filters": [[16, 3, 1]]}),
    "obs_large_kernel": (gym.spaces.Box(0, 255, (20, 30, 3), np.uint8), {"conv_filters": [[16, 8, 4], [16, 5, 1]]}),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_encoded(name: str, assert_golden: Callable[[str, str], None]) -> None:
    space, options = UNSUPPORTED[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        ObservationEncoder(space, replace(BARE, **options))
    assert_golden(name, str(caught.value))
