"""What an environment or a wrapper keeps from step to step: its own `get_state`, else its plain attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.streams import stream_state

_BIT_GENERATORS = {
    cls.__name__: cls for cls in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}
# A reset begins all of their state anew.
_WRAPPERS_OF_AN_EPISODE = (gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker, gym.wrappers.TimeLimit)
_CONTAINERS = (list, deque, set)


def has_own_state(env: Any) -> bool:
    """Whether it has `get_state` and `set_state`."""
    return hasattr(env, "get_state") and hasattr(env, "set_state")


def layers_of(env: Any) -> list[Any]:
    """Return the wrappers from the outermost to the environment itself."""
    layers = [env]
    while layers[-1] is not layers[-1].unwrapped:
        layers.append(layers[-1].env)
    return layers


def lasting_wrappers(env: Any) -> list[Any]:
    """Return the wrappers that may keep something over episodes: all that a reset does not begin anew."""
    return [layer for layer in layers_of(env)[:-1] if not isinstance(layer, _WRAPPERS_OF_AN_EPISODE)]


def tells_its_state(wrapper: Any) -> bool:
    """Whether `_state_of` a wrapper is all that it keeps from step to step, as far as its attributes show."""
    return has_own_state(wrapper) or not any(isinstance(value, _CONTAINERS) for value in vars(wrapper).values())


def state_of(layer: Any) -> dict[str, Any]:
    """Return what an environment or a wrapper says of its state by itself, else its plain attributes."""
    state: dict[str, Any] = layer.get_state() if has_own_state(layer) else plain_attributes(layer)
    return state


def restore(layer: Any, state: Mapping[str, Any]) -> None:
    """Put an environment or a wrapper back into a state of `state_of`."""
    if has_own_state(layer):
        layer.set_state(state)
    else:
        _restore_attributes(layer, state)


def plain_attributes(layer: Any, has_parts: bool = True) -> dict[str, Any]:
    """Return the arrays, numbers, strings and random generators among an object's attributes.

    Args:
        layer: the object.
        has_parts: also attributes that are objects made of such, a running mean for example.
    """
    state: dict[str, Any] = {}
    for name, value in vars(layer).items():
        if isinstance(value, np.random.Generator):
            state[name] = {"generator": type(value.bit_generator).__name__, "state": stream_state(value)}
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            state[name] = value.copy()
        elif isinstance(value, (np.bool_, np.number)):
            state[name] = np.asarray(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            state[name] = value
        elif has_parts and _is_plain_object(value):
            state[name] = {"attributes": plain_attributes(value, has_parts=False)}
    return state


def _is_plain_object(value: Any) -> bool:
    """Return whether the object's attributes are all it has, and all plain."""
    attributes = getattr(value, "__dict__", None)
    if not attributes or isinstance(value, type) or callable(value):
        return False
    return len(plain_attributes(value, has_parts=False)) == len(attributes)


def _restore_attributes(layer: Any, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if name not in vars(layer):  # a checkpoint sets what the environment has, and nothing else
            continue
        if isinstance(value, Mapping) and value.get("generator") in _BIT_GENERATORS:
            generator = np.random.Generator(_BIT_GENERATORS[value["generator"]]())
            generator.bit_generator.state = value["state"]
            setattr(layer, name, generator)
        elif isinstance(value, Mapping):
            part = vars(layer)[name]
            if _is_plain_object(part):
                _restore_attributes(part, value["attributes"])
        else:
            setattr(layer, name, value.copy()[()] if isinstance(value, np.ndarray) else value)
