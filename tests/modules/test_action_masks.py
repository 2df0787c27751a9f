"""Masks: what they forbid never happens, everything stays finite, and masks that do not fit are refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import nested
from runner.modules import check_mask_space, distribution_for

Space = gym.Space[Any]
DISCRETE = gym.spaces.Discrete(4, start=2)
MULTI = gym.spaces.MultiDiscrete([2, 4, 3], start=[5, 0, -1])
BITS = gym.spaces.MultiBinary((2, 2))
REALS = gym.spaces.Box(-1, 1, (2,))
ACTIONS: dict[str, Space] = {
    "discrete": DISCRETE,
    "multi": MULTI,
    "bits": BITS,
    "dict": gym.spaces.Dict({"d": DISCRETE, "m": MULTI, "x": REALS, "free": DISCRETE}),
    "tuple": gym.spaces.Tuple((REALS, gym.spaces.Tuple((BITS, DISCRETE)), MULTI)),
}


def bits(*shape: int) -> Space:
    return gym.spaces.Box(0, 1, shape, np.int8)


MASKS: dict[str, list[Space]] = {
    "discrete": [bits(4), gym.spaces.MultiBinary(4), gym.spaces.MultiDiscrete([2] * 4), gym.spaces.Box(0, 1, (4,))],
    "multi": [bits(9), gym.spaces.Tuple((bits(2), bits(4), bits(3)))],
    "bits": [bits(2, 2), gym.spaces.MultiBinary((2, 2))],
    "dict": [gym.spaces.Dict({"d": bits(4), "m": bits(9)}), gym.spaces.Dict({"m": gym.spaces.MultiBinary(9)})],
    "tuple": [
        gym.spaces.Tuple((gym.spaces.Tuple(()), gym.spaces.Tuple((bits(2, 2), bits(4))), bits(9))),
        gym.spaces.Tuple(
            (gym.spaces.Dict({}), gym.spaces.Tuple((gym.spaces.Tuple(()), bits(4))), gym.spaces.Tuple(()))
        ),
    ],
}


def random_mask(action_space: Space, mask_space: Any, rng: np.random.Generator, rows: int) -> Any:
    """(rows, ...) masks of sevenths ones with at least one action left everywhere."""
    if isinstance(action_space, gym.spaces.Dict):
        return {key: random_mask(action_space[key], part, rng, rows) for key, part in mask_space.items()}
    if isinstance(mask_space, (gym.spaces.Dict, gym.spaces.Tuple)) and not len(mask_space):
        return {} if isinstance(mask_space, gym.spaces.Dict) else ()
    if isinstance(action_space, gym.spaces.Tuple):
        pairs = zip(action_space, mask_space, strict=True)
        return tuple(random_mask(part, mask, rng, rows) for part, mask in pairs)
    if isinstance(mask_space, gym.spaces.Tuple):
        return tuple(_block(rng, rows, part.shape[0], part.dtype) for part in mask_space)
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        return np.concatenate([_block(rng, rows, int(n), mask_space.dtype) for n in action_space.nvec], -1)
    if isinstance(action_space, gym.spaces.MultiBinary):
        return rng.integers(0, 2, (rows, *mask_space.shape)).astype(mask_space.dtype)
    return _block(rng, rows, mask_space.shape[0], mask_space.dtype)


def _block(rng: np.random.Generator, rows: int, size: int, dtype: Any) -> np.ndarray[Any, Any]:
    mask = (rng.random((rows, size)) < 0.3).astype(dtype)
    mask[np.arange(rows), rng.integers(0, size, rows)] = 1
    return mask


def is_allowed(action_space: Space, mask: Any, actions: Any) -> np.ndarray[Any, Any]:
    """(rows,) whether the mask allows the actions, computed action by action."""
    if isinstance(mask, (dict, tuple)) and not mask:
        return np.ones(len(next(nested.leaves(actions))), bool)
    if isinstance(action_space, gym.spaces.Dict):
        return np.all([is_allowed(action_space[key], mask[key], actions[key]) for key in mask], axis=0)
    if isinstance(action_space, gym.spaces.Tuple):
        parts = zip(action_space, mask, actions, strict=True)
        return np.all([is_allowed(part, own, action) for part, own, action in parts], axis=0)
    if isinstance(action_space, gym.spaces.MultiBinary):
        return (actions <= (mask != 0)).reshape(len(actions), -1).all(-1)
    sizes = action_space.nvec if isinstance(action_space, gym.spaces.MultiDiscrete) else [action_space.n]  # type: ignore[attr-defined]
    if isinstance(mask, tuple):
        mask = np.concatenate(mask, -1)
    chosen = actions.reshape(len(actions), -1) - np.atleast_1d(action_space.start)  # type: ignore[attr-defined]
    columns = chosen + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    return (np.take_along_axis(mask, columns.astype(np.int64), -1) != 0).all(-1)


CASES = [(name, number) for name, masks in MASKS.items() for number in range(len(masks))]


def cases(name: str, number: int, seed: int, rows: int = 200) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """The distribution, numpy masks, logits (some of them huge) and the masked logits."""
    rng = np.random.default_rng(seed)
    dist = distribution_for(ACTIONS[name])
    check_mask_space(ACTIONS[name], MASKS[name][number])
    mask = random_mask(ACTIONS[name], MASKS[name][number], rng, rows)
    scale = 10.0 ** rng.integers(-2, 5)
    logits = rng.normal(size=(rows, dist.num_inputs)).astype(np.float32)
    logits *= np.where(np.isin(np.arange(dist.num_inputs), dist.log_std_inputs), 1, scale).astype(np.float32)
    dist_inputs = torch.from_numpy(logits)
    return dist, mask, dist_inputs, dist.masked(dist_inputs, nested.map_leaves(torch.from_numpy, mask))


@pytest.mark.parametrize(("name", "number"), CASES)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_what_is_forbidden_never_happens(name: str, number: int, seed: int) -> None:
    dist, mask, _, masked = cases(name, number, seed)
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(seed), (len(masked),)))
    for actions in (dist.sample(masked, noise), dist.mode(masked)):
        arrays = nested.map_leaves(lambda leaf: leaf.numpy(), actions)
        assert is_allowed(ACTIONS[name], mask, arrays).all()
        assert torch.isfinite(dist.log_prob(masked, actions)).all()


@pytest.mark.parametrize(("name", "number"), CASES)
def test_forbidden_actions_have_probability_zero_and_all_stays_finite(name: str, number: int) -> None:
    dist, mask, dist_inputs, masked = cases(name, number, seed=1)
    _, _, _, masked_otherwise = cases(name, number, seed=2)
    noise = torch.from_numpy(dist.draw_noise(np.random.default_rng(0), (len(masked),)))
    actions = dist.sample(dist_inputs, noise)  # without the mask
    allowed = is_allowed(ACTIONS[name], mask, nested.map_leaves(lambda leaf: leaf.numpy(), actions))
    assert 0 < allowed.sum() < len(allowed)
    probabilities = dist.log_prob(masked, actions).exp()
    assert (probabilities[~torch.from_numpy(allowed)] == 0).all()
    leaf = masked.clone().requires_grad_()
    values = dist.entropy(leaf) + dist.kl(leaf, masked_otherwise) + dist.kl(masked_otherwise, leaf)
    (values.sum() + dist.log_prob(leaf, actions).sum()).backward()
    assert torch.isfinite(values).all()
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()


def test_masked_is_the_distribution_over_what_is_left() -> None:
    dist, logits = distribution_for(gym.spaces.Discrete(4)), torch.tensor([[0.3, 2.0, -1.0, 5.0]])
    masked = dist.masked(logits, torch.tensor([[True, False, True, True]]))
    rest = torch.distributions.Categorical(logits=logits[:, [0, 2, 3]])
    torch.testing.assert_close(dist.entropy(masked), rest.entropy())
    torch.testing.assert_close(dist.log_prob(masked, torch.tensor([2])), rest.log_prob(torch.tensor([1])))
    assert dist.entropy(dist.masked(logits, torch.tensor([[0, 1, 0, 0]]))).item() == 0


def test_masks_take_a_time_axis_and_any_dtype() -> None:
    for space, size in ((gym.spaces.Discrete(4), 4), (MULTI, 9), (gym.spaces.MultiBinary(3), 3)):
        dist, logits = distribution_for(space), torch.randn(3, 5, size, generator=torch.Generator().manual_seed(0))
        mask = torch.ones(3, 5, size, dtype=torch.int8)
        mask[..., 1] = 0
        expected = torch.where(mask == 0, -1e9, logits)
        for dtype in (torch.int8, torch.bool, torch.float32, torch.int64):
            assert torch.equal(dist.masked(logits, mask.to(dtype)), expected)


def test_no_gradient_reaches_a_forbidden_logit() -> None:
    dist, logits = distribution_for(MULTI), torch.zeros(1, 9, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 0, 1]])
    dist.log_prob(dist.masked(logits, mask), torch.tensor([[5, 1, -1]])).sum().backward()
    assert logits.grad is not None
    assert ((logits.grad == 0) == (mask == 0)).all()


# -- masks that forbid everything --------------------------------------------------------------------------------------


def test_first_fully_forbidden_row() -> None:
    discrete = distribution_for(DISCRETE)
    assert discrete.first_fully_forbidden(np.array([[1, 0, 0, 0], [0, 0, 0, 1]])) is None
    assert discrete.first_fully_forbidden(np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])) == 1
    assert discrete.first_fully_forbidden(np.zeros((2, 4), bool)) == 0


def test_first_fully_forbidden_row_of_one_choice_among_several() -> None:
    multi = distribution_for(MULTI)
    mask = np.ones((4, 9), np.int8)
    assert multi.first_fully_forbidden(mask) is None
    mask[3, :2] = 0
    assert multi.first_fully_forbidden(mask) == 3
    mask[2, 2:6] = 0
    assert multi.first_fully_forbidden(mask) == 2
    assert multi.first_fully_forbidden((mask[:, :2], mask[:, 2:6], mask[:, 6:])) == 2
    mask[1, 5:7] = 0  # the ends of two choices
    assert multi.first_fully_forbidden(mask) == 2


def test_bits_are_never_fully_forbidden() -> None:
    assert distribution_for(BITS).first_fully_forbidden(np.zeros((3, 2, 2))) is None


def test_first_fully_forbidden_row_of_nested_actions() -> None:
    dist = distribution_for(ACTIONS["dict"])
    d, m = np.ones((3, 4)), np.ones((3, 9))
    assert dist.first_fully_forbidden({"d": d, "m": m}) is None
    d[2] = 0
    assert dist.first_fully_forbidden({"d": d, "m": m}) == 2
    m[1, 6:] = 0
    assert dist.first_fully_forbidden({"d": d, "m": m}) == 1
    assert dist.first_fully_forbidden({"d": d}) == 2
    tuples = distribution_for(ACTIONS["tuple"])
    assert tuples.first_fully_forbidden(((), (np.zeros((3, 2, 2)), d), ())) == 2


@pytest.mark.parametrize(("name", "number"), CASES)
def test_random_masks_leave_something(name: str, number: int) -> None:
    dist, mask, _, _ = cases(name, number, seed=3)
    assert dist.first_fully_forbidden(mask) is None


# -- spaces ------------------------------------------------------------------------------------------------------------

# Spaces of actions and masks; where the mask does not fit, what is there, and what is allowed.
MISFITS = [
    pytest.param(
        DISCRETE,
        bits(3),
        "actions",
        "Box(0, 1, (3,), int8)",
        "a Box, MultiBinary or MultiDiscrete of shape (4,)",
        id="of_other_size",
    ),
    pytest.param(
        DISCRETE,
        gym.spaces.Discrete(4),
        "actions",
        "Discrete(4)",
        "a Box, MultiBinary or MultiDiscrete of shape (4,)",
        id="of_other_kind",
    ),
    pytest.param(
        REALS,
        bits(2),
        "actions",
        "Box(0, 1, (2,), int8)",
        "none, because Box(-1.0, 1.0, (2,), float32) cannot be masked",
        id="of_a_box",
    ),
    pytest.param(
        gym.spaces.Box(0, 3, (1,), np.int64),
        bits(4),
        "actions",
        "Box(0, 1, (4,), int8)",
        "none, because Box(0, 3, (1,), int64) cannot be masked",
        id="of_an_integer_box",
    ),
    pytest.param(
        MULTI,
        bits(3, 4),
        "actions",
        "Box(0, 1, (3, 4), int8)",
        "a Box, MultiBinary or MultiDiscrete of shape (9,)",
        id="of_multi_discrete",
    ),
    pytest.param(
        MULTI,
        gym.spaces.Tuple((bits(2), bits(4), bits(4))),
        "actions",
        "Tuple(Box(0, 1, (2,), int8), Box(0, 1, (4,), int8), Box(0, 1, (4,), int8))",
        "a Tuple of 3 masks of shapes (2,), (4,), (3,)",
        id="of_multi_discrete_tuple",
    ),
    pytest.param(
        MULTI,
        gym.spaces.Tuple((bits(2), bits(4))),
        "actions",
        "Tuple(Box(0, 1, (2,), int8), Box(0, 1, (4,), int8))",
        "a Tuple of 3 masks of shapes (2,), (4,), (3,)",
        id="of_multi_discrete_short_tuple",
    ),
    pytest.param(
        BITS,
        bits(4),
        "actions",
        "Box(0, 1, (4,), int8)",
        "a Box, MultiBinary or MultiDiscrete of shape (2, 2)",
        id="of_multi_binary",
    ),
    pytest.param(
        ACTIONS["dict"],
        bits(4),
        "actions",
        "Box(0, 1, (4,), int8)",
        "a Dict with one or more of the keys 'd', 'free', 'm'",
        id="of_a_dict",
    ),
    pytest.param(
        ACTIONS["dict"],
        gym.spaces.Dict({"e": bits(4)}),
        "actions",
        "Dict('e': Box(0, 1, (4,), int8))",
        "a Dict with one or more of the keys 'd', 'free', 'm'",
        id="of_an_unknown_key",
    ),
    pytest.param(
        ACTIONS["dict"],
        gym.spaces.Dict({"x": bits(4)}),
        "actions['x']",
        "Box(0, 1, (4,), int8)",
        "none, because Box(-1.0, 1.0, (2,), float32) cannot be masked",
        id="of_a_box_in_a_dict",
    ),
    pytest.param(
        ACTIONS["tuple"],
        gym.spaces.Tuple((gym.spaces.Tuple(()), bits(4))),
        "actions",
        "Tuple(Tuple(), Box(0, 1, (4,), int8))",
        "a Tuple of 3 masks; use an empty Tuple for no mask",
        id="of_a_short_tuple",
    ),
    pytest.param(
        ACTIONS["tuple"],
        gym.spaces.Tuple((gym.spaces.Tuple(()), gym.spaces.Tuple((bits(2, 2), bits(5))), bits(9))),
        "actions[1][1]",
        "Box(0, 1, (5,), int8)",
        "a Box, MultiBinary or MultiDiscrete of shape (4,)",
        id="deep_inside",
    ),
]


@pytest.mark.parametrize(("actions", "mask", "where", "got", "expected"), MISFITS)
def test_masks_that_do_not_fit(actions: Space, mask: Space, where: str, got: str, expected: str) -> None:
    with pytest.raises(TypeError) as caught:
        check_mask_space(actions, mask)
    assert str(caught.value) == f"the mask of {where} does not match: got {got}; expected: {expected}"


def test_a_box_cannot_be_masked() -> None:
    with pytest.raises(TypeError, match="the actions of a Box cannot be masked"):
        distribution_for(REALS).masked(torch.zeros(1, 4), torch.ones(1, 2))
