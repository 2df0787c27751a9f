"""Log of actions that restores running episodes: all vector steps since sub-environments were last seeded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Vector steps after which a sub-environment gets a new seed at its next reset. For an Atari game this takes as long
# as 200 steps; a resumed run replays up to this many steps and the running episode.
NUM_STEPS_OF_SEED = 10_000


class ActionLog:
    """The actions of all vector steps since the earliest seed that is still in use.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self._actions: deque[Array] = deque()  # one (N, ...) array per vector step
        self._begins = np.zeros(num_envs, np.int64)  # number of logged vector steps before each seed

    @property
    def num_steps(self) -> npt.NDArray[np.int64]:
        """Vector steps (N,) since each sub-environment was seeded."""
        return len(self._actions) - self._begins

    def append(self, actions: Array) -> None:
        """Add the actions (N, ...) of a vector step."""
        self._actions.append(np.array(actions))

    def begin(self, are_seeded: Bools) -> None:
        """Forget the actions of the sub-environments (N,) that were seeded after the newest vector step."""
        self._begins[are_seeded] = len(self._actions)
        num_unneeded = int(self._begins.min())
        for _ in range(num_unneeded):
            self._actions.popleft()
        self._begins -= num_unneeded

    def replay(self, seed: Callable[[Bools], object], step: Callable[[Array, Bools], object]) -> None:
        """Repeat the logged steps.

        Args:
            seed: seeds and resets the given sub-environments (N,).
            step: takes a vector step with actions (N, ...) in the given sub-environments (N,).
        """
        for time, actions in enumerate((*self._actions, None)):
            if (are_seeded := self._begins == time).any():
                seed(are_seeded)
            if actions is not None:
                step(actions, self._begins <= time)

    def get_state(self) -> dict[str, Any]:
        """Return the log as arrays."""
        return {"begins": self._begins.copy(), **({"actions": np.stack(self._actions)} if self._actions else {})}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a log of `get_state`."""
        self._begins = np.array(state["begins"], np.int64)
        self._actions = deque(np.array(state["actions"]) if "actions" in state else ())
