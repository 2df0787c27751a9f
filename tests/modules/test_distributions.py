"""Our distributions against torch's, which are slower and used in tests only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution, Independent, Normal, kl_divergence

from runner.episodes import nested
from runner.modules import (
    ActionDistribution,
    Bernoulli,
    Categorical,
    DiagGaussian,
    MultiCategorical,
    NestedDistribution,
    distribution_for,
)
from tests.modules.spaces import NESTED, items_of, leaf_spaces, rows_of, spaces

Space = gym.Space[Any]


def inputs(seed: int, width: int, *leading: int) -> Tensor:
    shape = (*(leading or (40,)), width)
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, 1.5, shape).astype(np.float32))


def theirs(space: Space, dist_inputs: Tensor) -> list[tuple[Callable[[Any], Tensor], Distribution]]:
    """For every independent number of an action: how to get it out of actions, and its distribution in torch."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        is_dict = isinstance(space, gym.spaces.Dict)
        found, start = [], 0
        for key, part in space.spaces.items() if is_dict else enumerate(space.spaces):  # type: ignore[union-attr]
            width = distribution_for(part).num_inputs
            for get, dist in theirs(part, dist_inputs[..., start : start + width]):
                found.append((lambda actions, key=key, get=get: get(actions[key]), dist))
            start += width
        return found
    if isinstance(space, gym.spaces.MultiBinary):
        return [(lambda bits: bits.reshape(dist_inputs.shape), Independent(TorchBernoulli(logits=dist_inputs), 1))]  # type: ignore[list-item]
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        mean, log_std = dist_inputs.chunk(2, -1)
        return [(lambda reals: reals.reshape(mean.shape), Independent(Normal(mean, log_std.exp()), 1))]
    starts = np.atleast_1d(space.low if isinstance(space, gym.spaces.Box) else space.start).reshape(-1)  # type: ignore[attr-defined]
    if isinstance(space, gym.spaces.Box):
        sizes = (space.high.astype(int) - space.low.astype(int) + 1).reshape(-1)
    else:
        sizes = np.atleast_1d(getattr(space, "nvec", None) if hasattr(space, "nvec") else space.n).reshape(-1)  # type: ignore[attr-defined]
    return [
        (
            lambda actions, d=d: actions.reshape(*dist_inputs.shape[:-1], -1)[..., d].long() - int(starts[d]),
            TorchCategorical(logits=logits),
        )
        for d, logits in enumerate(dist_inputs.split(sizes.tolist(), -1))  # type: ignore[no-untyped-call]
    ]


def check_against_torch(space: Space, *leading: int) -> None:
    dist = distribution_for(space)
    dist_inputs, others = inputs(0, dist.num_inputs, *leading), inputs(1, dist.num_inputs, *leading)
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(2), leading))
    assert noise.shape == (*leading, dist.num_noise)
    assert noise.dtype == torch.float32
    actions = dist.sample(dist_inputs, noise)
    check_actions(space, actions, leading)
    check_actions(space, dist.mode(dist_inputs), leading)
    ours = theirs(space, dist_inputs)
    log_prob = sum(theirs_.log_prob(get(actions).float()) for get, theirs_ in ours)
    entropy = sum(theirs_.entropy() for _, theirs_ in ours)
    pairs = zip(ours, theirs(space, others), strict=True)
    kl = sum(kl_divergence(first, second) for (_, first), (_, second) in pairs)
    got = (dist.log_prob(dist_inputs, actions), dist.entropy(dist_inputs), dist.kl(dist_inputs, others))
    for value, expected in zip(got, (log_prob, entropy, kl), strict=True):
        assert isinstance(expected, Tensor)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(dist.kl(dist_inputs, dist_inputs), torch.zeros(leading), atol=1e-5, rtol=0)
    for get, expected_dist in ours:
        if isinstance(expected_dist, TorchCategorical):
            assert torch.equal(get(dist.mode(dist_inputs)), expected_dist.logits.argmax(-1))


def check_actions(space: Space, actions: Any, leading: tuple[int, ...]) -> None:
    """Nested as the space, its shapes and dtypes, and (but for reals) inside of it."""
    like = items_of(space, *leading)
    nested.map_leaves(lambda ours, leaf: torch.testing.assert_close(ours, leaf, atol=1e9, rtol=0), actions, like)
    if isinstance(space, gym.spaces.Dict):
        assert list(actions) == list(space.spaces)
    columns = nested.map_leaves(lambda leaf: leaf.flatten(0, len(leading) - 1).numpy(), actions)
    for action in nested.unstack(columns):
        for part, leaf in zip(leaf_spaces(space), nested.leaves(action), strict=True):
            assert np.issubdtype(part.dtype, np.floating) or part.contains(np.asarray(leaf, part.dtype))


ZOO: dict[str, Space] = {
    "discrete": gym.spaces.Discrete(5),
    "discrete from 3": gym.spaces.Discrete(5, start=3),
    "discrete of int32": gym.spaces.Discrete(5, dtype=np.int32),
    "even": gym.spaces.MultiDiscrete([3, 3, 3]),
    "uneven": gym.spaces.MultiDiscrete([2, 5, 1, 3]),
    "matrix": gym.spaces.MultiDiscrete([[2, 5], [1, 3]], start=[[1, -2], [0, 7]]),
    "bits": gym.spaces.MultiBinary(4),
    "bit matrix": gym.spaces.MultiBinary((2, 3)),
    "vector": gym.spaces.Box(-1, 1, (3,), np.float32),
    "real": gym.spaces.Box(-1, 1, (), np.float32),
    "float64": gym.spaces.Box(-1, 1, (2, 2), np.float64),
    "integers": gym.spaces.Box(np.array([0, -3]), np.array([9, 3]), dtype=np.int32),
    "bytes": gym.spaces.Box(0, 255, (), np.uint8),
    "uint16": gym.spaces.Box(2, 9, (2,), np.uint16),
    "nested": gym.spaces.Tuple(
        (
            gym.spaces.Discrete(3),
            gym.spaces.Dict(
                {"z": gym.spaces.Box(-1, 1, (2,)), "a": gym.spaces.Tuple((gym.spaces.MultiBinary(2),))},
            ),
            gym.spaces.MultiDiscrete([2, 3]),
        )
    ),
}


@pytest.mark.parametrize("leading", [(40,), (6, 5)], ids=["B", "S x L"])
@pytest.mark.parametrize("name", ZOO)
def test_against_torch(name: str, leading: tuple[int, ...]) -> None:
    check_against_torch(ZOO[name], *leading)


@given(space=spaces())
@settings(max_examples=60, deadline=None)
def test_any_space_against_torch(space: Space) -> None:
    check_against_torch(space, 7)


def test_nested_inputs_and_noise_are_those_of_the_parts_one_after_another() -> None:
    space = gym.spaces.Dict({"b": gym.spaces.Discrete(2), "a": gym.spaces.Box(-1, 1, (3,))})
    dist = distribution_for(space)
    assert (dist.num_inputs, dist.num_noise, dist.log_std_inputs) == (8, 5, (3, 4, 5))
    dist_inputs, noise = inputs(0, 8), inputs(1, 5)
    actions = dist.sample(dist_inputs, noise)
    torch.testing.assert_close(actions["a"], DiagGaussian((3,)).sample(dist_inputs[:, :6], noise[:, :3]))
    assert torch.equal(actions["b"], Categorical(2).sample(dist_inputs[:, 6:], noise[:, 3:]))


def test_gaussian_samples_are_a_function_of_the_noise() -> None:
    dist, dist_inputs = DiagGaussian((2,)), torch.tensor([[1.0, -1.0, 0.0, math.log(3.0)]])
    torch.testing.assert_close(dist.sample(dist_inputs, torch.tensor([[0.5, -2.0]])), torch.tensor([[1.5, -7.0]]))
    torch.testing.assert_close(dist.mode(dist_inputs), torch.tensor([[1.0, -1.0]]))


def test_a_sample_of_reduced_precision_is_what_log_prob_is_of() -> None:
    dist = distribution_for(gym.spaces.Box(-1, 1, (2,), np.float16))
    dist_inputs = inputs(0, 4)
    actions = dist.sample(dist_inputs, inputs(1, 2))
    assert actions.dtype == torch.float16
    torch.testing.assert_close(
        dist.log_prob(dist_inputs, actions), DiagGaussian((2,)).log_prob(dist_inputs, actions.float())
    )


# -- frequencies -------------------------------------------------------------------------------------------------------

_DRAWS = 100_000


def _draws(dist: ActionDistribution, dist_inputs: Tensor, seed: int = 0) -> Any:
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(seed), (_DRAWS,)))
    return dist.sample(dist_inputs.expand(_DRAWS, -1), noise)


def _assert_frequencies(drawn: Tensor, expected: Tensor) -> None:
    """Within five standard errors."""
    counts = torch.bincount(drawn.long(), minlength=len(expected)) / _DRAWS
    assert len(counts) == len(expected)
    assert ((counts - expected).abs() <= 5 * (expected * (1 - expected) / _DRAWS).sqrt() + 1e-9).all()


def test_frequencies_of_a_categorical() -> None:
    logits = inputs(3, 6, 1)
    _assert_frequencies(_draws(Categorical(6), logits), logits[0].softmax(-1))


def test_frequencies_of_uneven_choices_and_their_independence() -> None:
    space = gym.spaces.MultiDiscrete([2, 4], start=[3, -1])
    logits = inputs(4, 6, 1)
    drawn = _draws(distribution_for(space), logits) - torch.tensor([3, -1])
    first, second = logits[0, :2].softmax(-1), logits[0, 2:].softmax(-1)
    _assert_frequencies(drawn[:, 0] * 4 + drawn[:, 1], (first[:, None] * second).flatten())


def test_frequencies_of_bits_and_their_independence() -> None:
    logits = inputs(5, 2, 1)
    drawn = _draws(Bernoulli((2,)), logits)
    ones = logits[0].sigmoid()
    first, second = torch.stack((1 - ones, ones), -1)
    _assert_frequencies(drawn[:, 0] * 2 + drawn[:, 1], (first[:, None] * second).flatten())


def test_moments_of_a_gaussian() -> None:
    drawn = _draws(DiagGaussian((2,)), torch.tensor([[2.0, -1.0, 0.0, math.log(0.5)]]))
    torch.testing.assert_close(drawn.mean(0), torch.tensor([2.0, -1.0]), atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.tensor([1.0, 0.5]), atol=0.01, rtol=0)


def test_parts_of_a_nested_distribution_are_independent() -> None:
    dist = distribution_for(gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(2))))
    first, second = _draws(dist, torch.zeros(1, 4))
    _assert_frequencies(first * 2 + second, torch.full((4,), 0.25))


def test_noise_is_finite() -> None:
    noise = Categorical(4).draw_noise(np.random.default_rng(0), (10000,))
    assert np.isfinite(noise).all()


# -- gradients, extremes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO)
def test_gradients_are_those_of_torch(name: str) -> None:
    space = ZOO[name]
    dist = distribution_for(space)
    dist_inputs = inputs(0, dist.num_inputs).requires_grad_()
    actions = dist.sample(dist_inputs.detach(), torch.from_numpy(dist.draw_noise(np.random.default_rng(2), (40,))))
    ours = dist.log_prob(dist_inputs, actions) + dist.entropy(dist_inputs)
    others = sum(d.log_prob(get(actions).float()) + d.entropy() for get, d in theirs(space, dist_inputs))
    assert isinstance(others, Tensor)
    (gradient,) = torch.autograd.grad(ours.sum(), dist_inputs)
    (expected,) = torch.autograd.grad(others.sum(), dist_inputs)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("vector", "real", "float64", "nested")])
def test_extreme_logits_stay_finite(name: str) -> None:
    dist = distribution_for(ZOO[name])
    for scale in (1e4, 1e9):
        dist_inputs = (inputs(0, dist.num_inputs) * scale).requires_grad_()
        values = (
            dist.entropy(dist_inputs)
            + dist.kl(dist_inputs, -dist_inputs)
            + dist.log_prob(dist_inputs, dist.mode(-dist_inputs))
        )
        values.sum().backward()  # type: ignore[no-untyped-call]
        assert torch.isfinite(values).all()
        assert dist_inputs.grad is not None
        assert torch.isfinite(dist_inputs.grad).all()


def test_tables_made_while_acting_serve_for_learning() -> None:
    with torch.inference_mode():
        dist = distribution_for(gym.spaces.MultiDiscrete([2, 3]))
        dist.mode(inputs(0, 5))
    dist_inputs = inputs(0, 5).requires_grad_()
    dist.entropy(dist_inputs).sum().backward()  # type: ignore[no-untyped-call]
    assert dist_inputs.grad is not None


# -- spaces ------------------------------------------------------------------------------------------------------------


def test_distribution_for_a_space() -> None:
    kinds = {
        "discrete": Categorical,
        "discrete from 3": Categorical,
        "matrix": MultiCategorical,
        "bits": Bernoulli,
        "vector": DiagGaussian,
        "integers": MultiCategorical,
        "nested": NestedDistribution,
    }
    for name, kind in kinds.items():
        assert isinstance(distribution_for(ZOO[name]), kind)
    assert type(distribution_for(gym.spaces.Discrete(7))) is Categorical  # the hot path adds nothing
    widths = {name: distribution_for(space).num_inputs for name, space in ZOO.items()}
    assert widths["matrix"] == 11
    assert widths["float64"] == 8
    assert widths["integers"] == 17
    assert widths["bytes"] == 256
    assert widths["nested"] == 3 + 2 + 4 + 5


def test_order_of_keys_is_the_space_s() -> None:
    space = gym.spaces.Dict([("z", gym.spaces.Discrete(2)), ("a", gym.spaces.Discrete(2))])
    assert list(distribution_for(space).mode(torch.zeros(1, 4))) == ["z", "a"]


def test_actions_of_a_row_depend_on_that_row_only() -> None:
    dist = distribution_for(NESTED["inner"])
    dist_inputs = inputs(0, dist.num_inputs)
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(0), (40,)))
    some = slice(5, 9)
    parts = dist.sample(dist_inputs[some], noise[some])
    nested.map_leaves(torch.testing.assert_close, parts, rows_of(dist.sample(dist_inputs, noise), some))


SUPPORTED = "Discrete, MultiDiscrete, MultiBinary, non-empty Box, and Dict and Tuple of these"
UNSUPPORTED = [
    pytest.param(
        gym.spaces.Text(3, charset="abc"),
        f"no action distribution for actions: got Text(1, 3, charset=abc); expected: {SUPPORTED}",
        id="text",
    ),
    pytest.param(
        gym.spaces.Dict(
            {
                "a": gym.spaces.Discrete(2),
                "b": gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Text(3, charset="abc"))),
            }
        ),
        f"no action distribution for actions['b'][1]: got Text(1, 3, charset=abc); expected: {SUPPORTED}",
        id="text_nested",
    ),
    pytest.param(
        gym.spaces.Sequence(gym.spaces.Discrete(2)),
        f"no action distribution for actions: got Sequence(Discrete(2), stack=False); expected: {SUPPORTED}",
        id="sequence",
    ),
    pytest.param(
        gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Dict({})}),
        f"no action distribution for actions['b']: got the empty Dict(); expected: {SUPPORTED}",
        id="empty_dict",
    ),
    pytest.param(
        gym.spaces.Box(-1, 1, (0,)),
        f"no action distribution for actions: got Box([], [], (0,), float32); expected: {SUPPORTED}",
        id="empty_box",
    ),
    pytest.param(
        gym.spaces.Dict({"count": gym.spaces.Box(-np.inf, np.inf, (2,), np.int64)}),
        (
            "no action distribution for actions['count']: got Box(-9223372036854775808, "
            "9223372036854775807, (2,), int64), 36,893,488,147,419,103,232 possible integers; "
            "expected: at most 1,048,576, or a Box of floats"
        ),
        id="unbounded_integers",
    ),
]


@pytest.mark.parametrize(("space", "message"), UNSUPPORTED)
def test_spaces_without_a_distribution(space: Space, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        distribution_for(space)
    assert str(caught.value) == message
