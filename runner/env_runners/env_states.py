"""State of environments and wrappers between steps: from their `get_state`, or else their plain attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.streams import stream_state

_BIT_GENERATORS = {
    cls.__name__: cls
    for cls in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}
# Wrappers whose state is reset completely with the environment.
_WRAPPERS_OF_AN_EPISODE = (gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker, gym.wrappers.TimeLimit)
_CONTAINERS = (list, deque, set)


def has_own_state(env: Any) -> bool:
    """Return whether the environment or wrapper defines `get_state` and `set_state`."""
    return hasattr(env, "get_state") and hasattr(env, "set_state")


def layers_of(env: Any) -> list[Any]:
    """Return the wrappers, outermost first, and the environment."""
    layers = [env]
    while layers[-1] is not layers[-1].unwrapped:
        layers.append(layers[-1].env)
    return layers


def lasting_wrappers(env: Any) -> list[Any]:
    """Return the wrappers that may keep state across episodes, which a reset does not clear."""
    return [layer for layer in layers_of(env)[:-1] if not isinstance(layer, _WRAPPERS_OF_AN_EPISODE)]


def defines_state(wrapper: Any) -> bool:
    """Return whether `state_of` a wrapper seems to be complete, judging by its attributes."""
    return has_own_state(wrapper) or not any(isinstance(value, _CONTAINERS) for value in vars(wrapper).values())


def state_of(layer: Any) -> dict[str, Any]:
    """Return the state of an environment or a wrapper from its `get_state`, or else its plain attributes."""
    state: dict[str, Any] = layer.get_state() if has_own_state(layer) else plain_attributes(layer)
    return state


def restore(layer: Any, state: Mapping[str, Any]) -> None:
    """Restore a state of `state_of`."""
    if has_own_state(layer):
        layer.set_state(state)
    else:
        _restore_attributes(layer, state)


def plain_attributes(layer: Any, has_parts: bool = True) -> dict[str, Any]:
    """Return the arrays, numbers, strings and random generators among an object's attributes.

    Args:
        layer: the object.
        has_parts: whether to include attributes that are objects of such values, for example a running mean.
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
    """Return whether the object consists only of attributes, all of them plain."""
    attributes = getattr(value, "__dict__", None)
    if not attributes or isinstance(value, type) or callable(value):
        return False
    return len(plain_attributes(value, has_parts=False)) == len(attributes)


def _restore_attributes(layer: Any, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if name not in vars(layer):  # a checkpoint may only set existing attributes
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
