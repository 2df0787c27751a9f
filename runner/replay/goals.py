"""Rewards and ends of steps for goals other than the desired one.

Dimension letters: B sampled rows, G shape of a goal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_KEYS = ("observation", ACHIEVED, DESIRED)

Goals = npt.NDArray[Any]
_Judge = Callable[[Goals, Goals], npt.NDArray[Any]]


class GoalJudge:
    """Computes rewards and ends of steps for other desired goals, with an environment like gymnasium-robotics'.

    `info` is {} in all calls, because infos are not replayed. Methods that accept batches of goals are called once for
    all rows.

    Args:
        env: environment whose observations are a Dict with `observation`, `achieved_goal` and `desired_goal`. It has a
            method `compute_reward(achieved_goal, desired_goal, info)`, and optionally `compute_terminated`.

    Raises:
        ValueError: the environment does not meet these conditions.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        space, goal_env = env.observation_space, env.unwrapped
        keys = list(space.spaces) if isinstance(space, gym.spaces.Dict) else []
        if not isinstance(space, gym.spaces.Dict) or not set(_KEYS) <= set(keys):
            raise ValueError(f"observations do not contain goals: {space}; expected a Dict with {', '.join(_KEYS)}")
        if space[ACHIEVED] != space[DESIRED] or space[DESIRED].shape is None:
            raise ValueError(
                f"goals are not arrays of the same space: {ACHIEVED} {space[ACHIEVED]}, {DESIRED} {space[DESIRED]}"
            )
        if not callable(getattr(goal_env, "compute_reward", None)):
            raise ValueError(
                f"{type(goal_env).__name__} does not define compute_reward(achieved_goal, desired_goal, info)"
            )
        some_goals = np.stack([space[DESIRED].sample() for _ in range(4)])
        self._reward = _of_rows(goal_env.compute_reward, some_goals)  # type: ignore[attr-defined]
        ends = getattr(goal_env, "compute_terminated", None)
        self._terminated = None if ends is None else _of_rows(ends, some_goals)

    def rewards(self, achieved: Goals, desired: Goals) -> npt.NDArray[np.float32]:
        """Return the rewards (B,) of steps that reached `achieved` (B, *G), if the goal had been `desired`."""
        return np.asarray(self._reward(achieved, desired), np.float32)

    def are_terminated(self, achieved: Goals, desired: Goals) -> npt.NDArray[np.bool_] | None:
        """Return whether (B,) these steps would have ended the episode, or None if goals do not end episodes."""
        return None if self._terminated is None else np.asarray(self._terminated(achieved, desired), np.bool_)


def _of_rows(method: Callable[..., Any], goals: Goals) -> _Judge:
    """Return the method for rows of goals: itself if its result for a batch equals its results for single goals."""

    def each(achieved: Goals, desired: Goals) -> npt.NDArray[Any]:
        return np.array([method(one, other, {}) for one, other in zip(achieved, desired, strict=True)])

    def at_once(achieved: Goals, desired: Goals) -> npt.NDArray[Any]:
        return np.asarray(method(achieved, desired, [{}] * len(achieved)))

    pairs = np.concatenate((goals, goals)), np.concatenate((goals, goals[::-1]))
    expected = each(*pairs)
    try:
        found = at_once(*pairs)
    except Exception:
        return each
    return at_once if found.shape == expected.shape and np.allclose(found, expected) else each
