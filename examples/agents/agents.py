"""Two connectors that show agents information about each other while they act, and a game that needs one of them."""

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.pipelines import EnvToModuleConnector, Requirements


class OfOthers(EnvToModuleConnector):
    """Base class: appends `width` numbers about each of the other agents to a vector observation."""

    def __init__(self, agents, width):
        self.agents, self.width = list(agents), width

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        more = np.full(self.width * len(self.agents), np.inf, np.float32)
        low, high = input_observation_space.low, input_observation_space.high
        return gym.spaces.Box(np.concatenate((low, -more)), np.concatenate((high, more)), dtype=np.float32)

    def __call__(self, *, batch, episodes, episodes_of_modules, **kwargs):
        found = np.zeros((len(batch["obs"]), len(self.agents), self.width), np.float32)
        row_of = {episodes.env_of(slot): [] for slot in episodes.slots.tolist()}
        for row, slot in enumerate(episodes.slots.tolist()):
            row_of[episodes.env_of(slot)].append(row)
        for others in episodes_of_modules.values():
            asked = [(n, slot) for n, slot in enumerate(others.slots.tolist()) if others.agent_of(slot) in self.agents]
            values = self.of_rows(others) if asked else None
            for number, slot in asked if values is not None else ():
                place = self.agents.index(others.agent_of(slot))
                found[row_of.get(others.env_of(slot), []), place] = values[number]
        return batch | {"obs": np.concatenate((batch["obs"], found.reshape(len(found), -1)), 1)}

    def of_rows(self, episodes):
        """Return (K, width) for the newest K running episodes of a module, or None if there are none yet."""
        raise NotImplementedError


class HearOthers(OfOthers):
    """A channel: each of `agents` sends its last action, one of `words`, as a one-hot vector."""

    requires = Requirements(num_lookback=1)

    def __init__(self, agents, words):
        super().__init__(agents, words)

    def of_rows(self, episodes):
        said = episodes.newest_step("actions")
        return None if said is None else np.eye(self.width)[said] * ~episodes.starts_episode[:, None]


class SeeOpponents(OfOthers):
    """Shows the current observation of each of `agents`, a vector of `width` numbers."""

    def of_rows(self, episodes):
        return episodes.current_obs


class Lamp(MultiAgentEnv):
    """`seer` sees a lamp, `doer` does not. Both get 1 if the doer's switch equals the lamp `delay` steps ago."""

    possible_agents = ("seer", "doer")

    def __init__(self, delay=1, num_steps=10):
        self.observation_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Box(-1, 1, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))
        self.delay, self.num_steps = delay, num_steps

    def reset(self, *, seed=None, options=None):
        self.lamps = np.random.default_rng(seed).integers(2, size=self.num_steps + 1).tolist()
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return {"seer": np.array([2 * self.lamps[self.t] - 1], np.float32), "doer": np.zeros(1, np.float32)}

    def step(self, actions):
        is_right = self.t >= self.delay and actions["doer"] == self.lamps[self.t - self.delay]
        self.t += 1
        return self.observe(), dict.fromkeys(actions, float(is_right)), {"__all__": self.t == self.num_steps}, {}, {}
