"""Checks of clients: the possible range of rewards, and clients whose returns differ too much from the others.

This module knows neither messages nor sockets. All state changes come from sampled episodes in their order, so a
resumed run reaches the same decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from runner.state import DeclaredState

MIN_CLIENTS = 3
_MIN_EPISODES = 5  # episodes of a client before it is judged
_EPISODES_PER_CLIENT = 20  # length of the window, per client in it
_MIN_WINDOW = 100
_FAR = 10.0  # deviations
_LEAST_DEVIATION, _LEAST_RELATIVE_DEVIATION = 0.1, 0.1
_MAD_TO_DEVIATION = 1.4826  # for a normal distribution

_UNLEARNED_BOUND = 1e10
_LEAST_BOUND = 1000.0
_THRESHOLD_FACTOR, _LEARNED_FACTOR = 10.0, 1e4
_EPISODES_TO_LEARN = 10


@dataclass
class RewardBound(DeclaredState):
    """The largest absolute reward that a client may send.

    Attributes:
        value: the bound.
        reason: origin of the bound, for messages.
        is_final: whether the bound is fixed; otherwise it is learned from the first episodes of three clients.
    """

    state = ("value", "reason", "is_final", "_largest", "_num_episodes")

    value: float = _UNLEARNED_BOUND
    reason: str = ""
    is_final: bool = False
    _largest: dict[str, float] = field(default_factory=dict)
    _num_episodes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def make(cls, given: float | None, reward_threshold: float | None) -> RewardBound:
        """Make the bound of a run.

        Args:
            given: `rllink.max_abs_reward`, or None to choose a bound.
            reward_threshold: return at which the environment is considered solved, or None if it is not known.
        """
        if given is not None:
            return cls(given, is_final=True)
        if reward_threshold is None:
            return cls()
        value = max(_LEAST_BOUND, _THRESHOLD_FACTOR * abs(reward_threshold))
        return cls(value, f"ten times the environment's reward threshold of {reward_threshold:g}", True)

    def note(self, client: str, largest: float, num_episodes: int) -> None:
        """Learn from a client's sampled steps.

        Args:
            client: name of the client.
            largest: largest absolute reward of the steps.
            num_episodes: number of episodes that ended with these steps.
        """
        if self.is_final or self._num_episodes.get(client, 0) >= _EPISODES_TO_LEARN:
            return
        self._largest[client] = max(largest, self._largest.get(client, 0.0))
        self._num_episodes[client] = self._num_episodes.get(client, 0) + num_episodes
        learned = [self._largest[name] for name, count in self._num_episodes.items() if count >= _EPISODES_TO_LEARN]
        if len(learned) >= MIN_CLIENTS:
            self.value = max(_LEAST_BOUND, _LEARNED_FACTOR * float(np.median(learned)))
            self.reason = f"learned from the first episodes of {len(learned)} clients"
            self.is_final = True

    def set_state(self, state: Any) -> None:
        """Restore a state, unless the configuration or the environment sets the bound."""
        if not self.is_final:
            super().set_state(state)


class ClientJudge:
    """Finds clients whose episode returns differ too much from the returns of the other clients.

    A client is an outlier if the median of its returns differs from the median of the other clients by more than ten
    deviations. The deviation is 1.48 times the median absolute deviation of the other clients' returns, and at least a
    tenth of their median and at least 0.1. The comparison starts when three clients have five recent episodes each.

    Args:
        trusted: names of clients that are never quarantined; patterns such as `*` are allowed.

    Attributes:
        quarantined: names of the quarantined clients.
    """

    def __init__(self, trusted: Sequence[str] = ()) -> None:
        self._trusted = tuple(trusted)
        self._recent: deque[tuple[str, float]] = deque()
        self.quarantined: set[str] = set()

    def judge(self, returns: Iterable[tuple[str, float]]) -> list[str]:
        """Add the returns of ended episodes; return the newly quarantined clients.

        Args:
            returns: name of the client and return of each episode, in the order of their ends.
        """
        self._recent.extend((client, return_) for client, return_ in returns if client not in self.quarantined)
        length = max(_MIN_WINDOW, _EPISODES_PER_CLIENT * len(self.recent_clients))
        while len(self._recent) > length:
            self._recent.popleft()
        found = self._find_outliers()
        self.quarantined |= set(found)
        self._recent = deque(one for one in self._recent if one[0] not in self.quarantined)
        return found

    @property
    def recent_clients(self) -> set[str]:
        """Return the clients with recently finished episodes that count."""
        return {client for client, _ in self._recent}

    def _find_outliers(self) -> list[str]:
        by_client: dict[str, list[float]] = {}
        for client, return_ in self._recent:
            by_client.setdefault(client, []).append(return_)
        judged = {client: returns for client, returns in by_client.items() if len(returns) >= _MIN_EPISODES}
        if len(judged) < MIN_CLIENTS:
            return []
        return [client for client in judged if not self._is_trusted(client) and _is_far_outside(client, judged)]

    def _is_trusted(self, client: str) -> bool:
        return any(fnmatchcase(client, pattern) for pattern in self._trusted)

    def get_state(self) -> dict[str, Any]:
        """Return the recent returns and the quarantined clients."""
        return {"recent": [list(one) for one in self._recent], "quarantined": sorted(self.quarantined)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; clients that are trusted now leave quarantine."""
        self._recent = deque((str(client), float(return_)) for client, return_ in state["recent"])
        self.quarantined = {str(client) for client in state["quarantined"] if not self._is_trusted(client)}


def _is_far_outside(client: str, judged: Mapping[str, Sequence[float]]) -> bool:
    others = [returns for name, returns in judged.items() if name != client]
    centre = float(np.median([np.median(returns) for returns in others]))
    distances = np.abs(np.concatenate([np.asarray(returns) for returns in others]) - centre)
    deviation = _MAD_TO_DEVIATION * float(np.median(distances))
    deviation = max(deviation, _LEAST_RELATIVE_DEVIATION * abs(centre), _LEAST_DEVIATION)
    return bool(abs(np.median(judged[client]) - centre) > _FAR * deviation)
