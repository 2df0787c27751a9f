"""Which space a mask of actions has."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

# Standardised masks are negative where they forbid: such a mix-up must not go unseen.
_UNFILTERED = "as the environment gives it (MeanStdFilter leaves the mask alone with keys_to_leave)"
_ARRAYS = (gym.spaces.Box, gym.spaces.MultiBinary, gym.spaces.MultiDiscrete)


def check_mask_space(action_space: gym.Space[Any], mask_space: gym.Space[Any], where: str = "actions") -> None:
    """Check that masks of `mask_space` can mask actions of `action_space`; 0 forbids.

    A mask is a Box (without negative numbers), MultiBinary or MultiDiscrete of shape (n,) for Discrete(n), (sum(nvec),)
    or a Tuple of (n_i,) for MultiDiscrete, and `shape` for MultiBinary (0 forbids the 1). A Dict of actions has a Dict
    with the masks of some or all of its entries, a Tuple a Tuple of its length with an empty Tuple where there is no
    mask. A Box has none.

    Args:
        action_space: the space of the actions.
        mask_space: the space of their mask.
        where: name of the actions in messages.

    Raises:
        TypeError: the mask does not fit.
    """
    spaces = gym.spaces
    if isinstance(action_space, spaces.Dict):
        _check_dict(action_space, mask_space, where)
    elif isinstance(action_space, spaces.Tuple):
        _check_tuple(action_space, mask_space, where)
    elif isinstance(action_space, spaces.MultiDiscrete) and isinstance(mask_space, spaces.Tuple):
        _check_choices(action_space.nvec.reshape(-1).tolist(), mask_space, where)
    elif isinstance(action_space, spaces.Discrete):
        _check_shape(mask_space, (int(action_space.n),), where)
    elif isinstance(action_space, spaces.MultiDiscrete):
        _check_shape(mask_space, (int(action_space.nvec.sum()),), where)
    elif isinstance(action_space, spaces.MultiBinary):
        _check_shape(mask_space, action_space.shape, where)
    else:
        raise _misfit(where, mask_space, f"none, because {action_space} cannot be masked")


def _check_dict(action_space: gym.spaces.Dict, mask_space: gym.Space[Any], where: str) -> None:
    keys = [key for key in action_space if not isinstance(action_space[key], gym.spaces.Box)]
    if not isinstance(mask_space, gym.spaces.Dict) or not len(mask_space) or not set(mask_space) <= set(action_space):
        kind = f"a Dict with one or more of the keys {', '.join(map(repr, keys))}"
        raise _misfit(where, mask_space, kind if keys else f"none, because {action_space} cannot be masked")
    for key, mask in mask_space.items():
        check_mask_space(action_space[key], mask, f"{where}[{key!r}]")


def _check_tuple(action_space: gym.spaces.Tuple[Any], mask_space: gym.Space[Any], where: str) -> None:
    if not isinstance(mask_space, gym.spaces.Tuple) or len(mask_space) != len(action_space):
        raise _misfit(where, mask_space, f"a Tuple of {len(action_space)} masks, an empty Tuple where there is none")
    for index, (part, mask) in enumerate(zip(action_space.spaces, mask_space.spaces, strict=True)):
        if not (isinstance(mask, (gym.spaces.Tuple, gym.spaces.Dict)) and not len(mask)):
            check_mask_space(part, mask, f"{where}[{index}]")


def _check_choices(sizes: list[int], mask_space: gym.spaces.Tuple[Any], where: str) -> None:
    shapes = [(size,) for size in sizes]
    if len(mask_space) != len(shapes) or not all(map(_has_shape, mask_space, shapes)):
        raise _misfit(where, mask_space, f"a Tuple of {len(shapes)} masks of shapes {', '.join(map(str, shapes))}")
    for index, (mask, shape) in enumerate(zip(mask_space.spaces, shapes, strict=True)):
        _check_shape(mask, shape, f"{where}[{index}]")


def _check_shape(mask_space: gym.Space[Any], shape: tuple[int, ...], where: str) -> None:
    if not _has_shape(mask_space, shape):
        raise _misfit(where, mask_space, f"a Box, MultiBinary or MultiDiscrete of shape {shape}")
    if isinstance(mask_space, gym.spaces.Box) and (mask_space.low < 0).any():
        raise _misfit(where, mask_space, f"a Box of shape {shape} without negative numbers, {_UNFILTERED}")


def _has_shape(space: gym.Space[Any], shape: tuple[int, ...]) -> bool:
    return isinstance(space, _ARRAYS) and space.shape == shape


def _misfit(where: str, mask_space: gym.Space[Any], allowed: str) -> TypeError:
    return TypeError(f"the mask of {where} does not fit: got {mask_space}; allowed: {allowed}")
