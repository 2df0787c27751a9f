"""State that a class declares by the names of its attributes, instead of writing methods to save and restore them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from runner.config.errors import ConfigError, Problem, nearest_match
from runner.streams import restore_stream, stream_state


class DeclaredState:
    """Base class for objects whose checkpoints contain the attributes listed in `state`.

    The key of an attribute is its name without leading underscores. Attributes are numbers, strings, arrays, containers
    of plain values, random generators, or objects that have `get_state` and `set_state`. Override both methods to save
    anything else.
    """

    state: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that checkpoints contain."""

    def get_state(self) -> Any:
        """Return the state as plain values and arrays, or an empty dict."""
        return {key: _saved(getattr(self, name)) for key, name in self._names_of_state().items()}

    def set_state(self, state: Any) -> None:
        """Restore a state of `get_state`.

        Raises:
            ConfigError: the keys of the state differ from the declared attributes.
        """
        names = self._names_of_state()
        if names and state.keys() != names.keys():
            raise ConfigError([_misfit(type(self).__name__, state, names)])
        for key, name in names.items():
            setattr(self, name, _restored(getattr(self, name, None), state[key]))

    @property
    def has_state(self) -> bool:
        """Whether the class declares or saves a state."""
        return bool(type(self).state) or type(self).get_state is not DeclaredState.get_state

    def _names_of_state(self) -> dict[str, str]:
        return {name.lstrip("_"): name for name in type(self).state}


def _misfit(owner: str, state: Mapping[str, Any], names: Mapping[str, str]) -> Problem:
    missing, unknown = [key for key in names if key not in state], [key for key in state if key not in names]
    return Problem(
        f"the state of {owner} lacks {', '.join(missing)}"
        if missing
        else f"{owner} does not have the state {', '.join(unknown)}",
        where="the checkpoint",
        got=_listed(state),
        expected=f"{_listed(names)}, as in {owner}.state",
        nearest=None if missing else nearest_match(unknown[0], list(names)),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _saved(value: Any) -> Any:
    """Return a copy of a value for a checkpoint, which later changes of the value do not affect."""
    if isinstance(value, np.random.Generator):
        return stream_state(value)
    if hasattr(value, "get_state"):
        return value.get_state()
    try:
        if isinstance(value, (set, frozenset)):
            return sorted(value)
        return list(copy.deepcopy(value)) if isinstance(value, (tuple, deque)) else copy.deepcopy(value)
    except TypeError:  # such as a lock; writing the checkpoint reports the value with its key
        return value


def _restored(value: Any, saved: Any) -> Any:
    """Return the saved value in the type of the current value; generators and objects restore themselves."""
    if isinstance(value, np.random.Generator):
        restore_stream(value, saved)
        return value
    if hasattr(value, "set_state"):
        value.set_state(saved)
        return value
    if isinstance(value, deque):
        return deque(saved, value.maxlen)
    if isinstance(value, (tuple, set, frozenset)):
        return type(value)(saved)
    if isinstance(value, np.ndarray):
        return np.array(saved, value.dtype)
    is_number = getattr(saved, "ndim", None) == 0  # an array or a tensor
    return saved.item() if is_number else copy.deepcopy(saved)
