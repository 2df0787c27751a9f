"""Action masks in observations: whether their space matches the action space, and observations without them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

# Standardised masks contain negative numbers for forbidden actions, so they can be detected.
_UNFILTERED = "as returned by the environment (exclude the mask from MeanStdFilter with keys_to_leave)"
_ARRAYS = (gym.spaces.Box, gym.spaces.MultiBinary, gym.spaces.MultiDiscrete)


def without_mask(observation_space: gym.Space[Any], action_space: gym.Space[Any], key: str | None) -> gym.Space[Any]:
    """Return the observation space without its action mask, after checking that the mask matches the actions."""
    if key is None:
        return observation_space
    if not isinstance(observation_space, gym.spaces.Dict) or key not in observation_space.spaces:
        raise TypeError(
            f"module.action_mask_key {key!r} does not exist: got observations of {observation_space}; "
            f"expected: a Dict with the key {key!r}"
        )
    check_mask_space(action_space, observation_space[key])
    return gym.spaces.Dict([(name, part) for name, part in observation_space.items() if name != key])


def check_mask_space(action_space: gym.Space[Any], mask_space: gym.Space[Any], where: str = "actions") -> None:
    """Check that masks of `mask_space` can mask actions of `action_space`; 0 forbids.

    A mask is a Box (without negative numbers), MultiBinary or MultiDiscrete of shape (n,) for Discrete(n), (sum(nvec),)
    or a Tuple of (n_i,) for MultiDiscrete, and `shape` for MultiBinary (0 forbids the 1). A Dict of actions has a Dict
    with the masks of some or all entries. A Tuple has a Tuple of the same length, with an empty Tuple for entries
    without a mask. A Box cannot be masked.

    Args:
        action_space: space of the actions.
        mask_space: space of their mask.
        where: name of the actions in messages.

    Raises:
        TypeError: the mask does not match the actions.
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
        raise _misfit(where, mask_space, f"a Tuple of {len(action_space)} masks; use an empty Tuple for no mask")
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


def _misfit(where: str, mask_space: gym.Space[Any], expected: str) -> TypeError:
    return TypeError(f"the mask of {where} does not match: got {mask_space}; expected: {expected}")
