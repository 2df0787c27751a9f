"""A chase in the plane: one agent flees, the other one catches it or runs out of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

Vectors = npt.NDArray[np.float64]
_AGENTS = ("chaser", "evader")
_PIXELS = 200


class Pursuit(MultiAgentEnv):
    """`chaser` and `evader` accelerate in the square [-1, 1]²; walls stop them. The chaser is faster,
    the evader nimbler.

    An observation is (8,) float32: own place and velocity, and the other's, relative to one's own. An action is (2,)
    float32 from -1 to 1: the acceleration, as a share of the largest one. Who wins has the reward 1, the other one -1:
    the chaser by a distance below 0.1, the evader after `max_steps` env steps.

    Args:
        max_steps: of an episode.
        render_mode: `rgb_array`, for pictures.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}
    possible_agents = _AGENTS
    _REACH = 0.1
    _STEP_S = 0.1
    _FASTEST = np.array([[0.8], [0.6]])  # distance a second: the chaser, the evader
    _ACCELERATION = np.array([[1.5], [3.0]])

    def __init__(self, max_steps: int = 100, render_mode: str | None = None) -> None:
        seen = gym.spaces.Box(-3.0, 3.0, (8,), np.float32)
        self.observation_spaces = dict.fromkeys(_AGENTS, seen)
        self.action_spaces = dict.fromkeys(_AGENTS, gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
        self._max_steps = max_steps
        self._places: Vectors = np.zeros((2, 2))
        self._velocities: Vectors = np.zeros((2, 2))
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start at random places that are at least 0.5 apart, at rest."""
        rng = np.random.default_rng(seed)
        while True:
            self._places = rng.uniform(-1.0, 1.0, (2, 2))
            if np.hypot(*(self._places[0] - self._places[1])) >= 0.5:
                break
        self._velocities = np.zeros((2, 2))
        self._num_steps = 0
        return self._seen(), {}

    def _seen(self) -> AgentDict:
        places, velocities = self._places, self._velocities
        return {
            agent: np.concatenate(
                [places[n], velocities[n], places[1 - n] - places[n], velocities[1 - n] - velocities[n]]
            ).astype(np.float32)
            for n, agent in enumerate(_AGENTS)
        }

    def step(self, actions: AgentDict) -> StepDicts:
        """Move both for a tenth of a second."""
        shares = np.clip(np.array([actions[agent] for agent in _AGENTS], np.float64), -1.0, 1.0)
        velocities = self._velocities + shares * self._ACCELERATION * self._STEP_S
        speeds = np.linalg.norm(velocities, axis=1, keepdims=True)
        velocities *= np.minimum(1.0, self._FASTEST / np.maximum(speeds, 1e-9))
        places = self._places + velocities * self._STEP_S
        velocities[np.abs(places) > 1.0] = 0.0
        self._places, self._velocities = np.clip(places, -1.0, 1.0), velocities
        self._num_steps += 1
        is_caught = bool(np.hypot(*(self._places[0] - self._places[1])) < self._REACH)
        is_over = is_caught or self._num_steps >= self._max_steps
        lead = 0.0 if not is_over else 1.0 if is_caught else -1.0
        rewards = {_AGENTS[0]: lead, _AGENTS[1]: -lead}
        return self._seen(), rewards, {"__all__": is_over}, {"__all__": False}, {}

    def get_state(self) -> dict[str, Any]:
        """Return places, velocities and the count of steps."""
        return {"places": self._places.copy(), "velocities": self._velocities.copy(), "num_steps": self._num_steps}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._places, self._velocities = np.array(state["places"]), np.array(state["velocities"])
        self._num_steps = int(state["num_steps"])

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the square: the chaser is red, the evader blue."""
        picture = np.full((_PIXELS, _PIXELS, 3), 245, np.uint8)
        rows, columns = np.mgrid[:_PIXELS, :_PIXELS]
        for place, colour in zip(self._places, ((200, 60, 60), (60, 90, 200)), strict=True):
            column, row = (place * (1, -1) + 1) / 2 * (_PIXELS - 1)
            picture[(rows - row) ** 2 + (columns - column) ** 2 < (_PIXELS * self._REACH / 4) ** 2] = colour
        return picture
