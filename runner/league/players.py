"""Players: opponents that act on env runners without learning; and the check whether a policy file fits.

B is the number of seats for which a player acts in a vector step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.environments.games import best_moves
from runner.episodes import nested
from runner.rllink.client.local_policy import LocalPolicy


@dataclass
class Seat:
    """An agent of a running episode for which a player acts.

    Attributes:
        agent_id: id of the agent.
        obs: observation that awaits an action, or None if the agent does not act now.
        reward: sum of the agent's rewards since its last action.
        memory: values that the player keeps for this seat between the steps of an episode: plain values and arrays.
            Empty at the start of the episode.
    """

    agent_id: str
    obs: Any = None
    reward: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)


class Player:
    """Base class of players: chooses actions from the observations that the environment returns.

    To use a subclass, name it in `league.fixed`. The first argument of `__init__` is the action space of its agents.
    """

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> Any:
        """Return the actions (B, ...) for observations (B, ...), nested like the spaces.

        Args:
            obs: stacked observations.
            seats: seat of each row; values in their `memory` are kept until the next step of the episode.
            rng: the only source of random numbers, so that a run can be repeated.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define act")


class RandomPlayer(Player):
    """Draws actions uniformly; in `Discrete` spaces among the actions that a mask allows.

    Args:
        action_space: space of the agents' actions.
        mask_key: key of the mask (B, K) in dict observations; ignored if the key is missing.
    """

    def __init__(self, action_space: gym.Space[Any], mask_key: str = "action_mask") -> None:
        self._space = action_space
        self._mask_key = mask_key

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> Any:
        if isinstance(self._space, gym.spaces.Discrete):
            mask = obs.get(self._mask_key) if isinstance(obs, dict) else None
            allowed = np.ones((len(seats), int(self._space.n)), bool) if mask is None else mask != 0
            return self._space.start + np.argmax(np.where(allowed, rng.random(allowed.shape), -1.0), axis=1)
        self._space.seed(int(rng.integers(2**31)))
        return nested.stack([self._space.sample() for _ in seats])


class PolicyPlayer(Player):
    """Acts with a policy file, such as `export` writes or a snapshot.

    Args:
        content: content of the policy file.
        explore: whether to sample actions instead of taking the most likely ones.

    Raises:
        PolicyFileError: the content is not a policy file.
    """

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest of the policy file, including its spaces."""
        return self._policy.manifest

    def __init__(self, content: bytes, explore: bool) -> None:
        self._policy = LocalPolicy(content)
        self._explore = explore
        self._blank = self._policy.initial_state()

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> Any:
        """See `Player`; memories are the states of the policy."""
        if not self._blank:
            return self._policy.choose(obs, self._explore, rng)
        # A memory lacks the past reward, which `act` takes from `rewards`.
        states = [{name: value[0] for name, value in self._blank.items()} | seat.memory for seat in seats]
        state = {name: np.stack([one[name] for one in states]) for name in self._blank}
        rewards = np.array([seat.reward for seat in seats], np.float32)
        actions, extra = self._policy.act(obs, state, self._explore, rng, rewards)
        for row, seat in enumerate(seats):
            seat.memory = {name: value[row] for name, value in extra["state_out"].items()}
        return actions


class PerfectTicTacToePlayer(Player):
    """Plays tic-tac-toe by minimax, and draws among the best moves.

    Args:
        action_space: space of the agents' actions.
    """

    def __init__(self, action_space: gym.Space[Any]) -> None:
        del action_space

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        marks = obs["observations"].reshape(-1, 2, 9)
        boards = (marks[:, 0] - marks[:, 1]).astype(int)
        return np.array([rng.choice(best_moves(tuple(board))) for board in boards.tolist()], np.int64)


class OneMoveAheadConnectFourPlayer(Player):
    """Plays PettingZoo's connect four: wins if it can, else prevents the other's win, else moves at random.

    Args:
        action_space: space of the agents' actions.
    """

    def __init__(self, action_space: gym.Space[Any]) -> None:
        del action_space

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        rows = zip(obs["observation"], obs["action_mask"], strict=True)
        return np.array([_next_column(board, np.flatnonzero(mask), rng) for board, mask in rows], np.int64)


def _next_column(board: npt.NDArray[Any], open_columns: npt.NDArray[Any], rng: np.random.Generator) -> int:
    """Return a column for the player who owns the first plane (6, 7) of the board (6, 7, 2); row 5 is the lowest."""
    for plane in (0, 1):
        for column in open_columns:
            row = int(np.flatnonzero(~board[:, column].any(1))[-1])
            if _has_four(board[:, :, plane] != 0, row, int(column)):
                return int(column)
    return int(rng.choice(open_columns))


def _has_four(marks: npt.NDArray[np.bool_], row: int, column: int) -> bool:
    """Return whether a mark on an empty cell makes four in a row."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        length = 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < 6 and 0 <= c < 7 and marks[r, c]:
                length, r, c = length + 1, r + sign * down, c + sign * right
        if length >= 4:
            return True
    return False


Space = gym.Space[Any]


def find_misfits(policy: Space, agents: Space, is_of_actions: bool, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences between a policy's space and its agents' space: path, the policy's, the agents'.

    Bounds and widths of numbers matter only for actions: observations may leave their bounds, and are cast.
    """
    parts, others = _parts(policy), _parts(agents)
    if parts and type(policy) is type(agents) and parts.keys() == others.keys():
        for key, part in parts.items():
            yield from find_misfits(part, others[key], is_of_actions, f"{path}/{key}")
    elif not (policy == agents or (not is_of_actions and _are_boxes_alike(policy, agents))):
        yield path, policy, agents


def _parts(space: Space) -> dict[Any, Space]:
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, gym.spaces.Tuple) else {}


def _are_boxes_alike(policy: Space, agents: Space) -> bool:
    if not (isinstance(policy, gym.spaces.Box) and isinstance(agents, gym.spaces.Box)):
        return False
    return policy.shape == agents.shape and np.dtype(policy.dtype).kind == np.dtype(agents.dtype).kind
