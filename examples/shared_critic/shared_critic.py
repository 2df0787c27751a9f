"""One critic for all agents: it sees the observations of all agents, while each agent acts on its own observation."""

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.modules import MultiRLModule


class SharedCritic(MultiRLModule):
    train_inputs = ("obs_of_agents", "agents_mask")

    def __init__(self, modules, hidden=32):
        super().__init__(modules)
        width = sum(module.observation_space.shape[0] + 1 for module in modules.values())  # one module per agent
        self.critic = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward_train(self, batches):
        outputs, values = super().forward_train(batches), self.compute_values(batches)
        return {module_id: {**outputs[module_id], "vf_preds": values[module_id]} for module_id in batches}

    def compute_values(self, batches):
        return {module_id: self._values(**batch) for module_id, batch in batches.items()}

    def _values(self, obs_of_agents, agents_mask, **others):
        seen = torch.cat([*obs_of_agents.values(), agents_mask.float()], -1)
        return self.critic(seen).squeeze(-1)


class TwoSwitches(MultiAgentEnv):
    """Each agent sees one of two lamps; a round is won if both switches equal their lamps. Equal lamps pay 3."""

    possible_agents = ("left", "right")

    def __init__(self, num_rounds=10):
        self.observation_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Box(-1, 1, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))
        self.num_rounds = num_rounds

    def reset(self, *, seed=None, options=None):
        self.rng, self.round = np.random.default_rng(seed), 0
        return self.observe(), {}

    def observe(self):
        self.lamps = dict(zip(self.possible_agents, self.rng.integers(2, size=2).tolist(), strict=True))
        return {agent: np.array([2 * lamp - 1], np.float32) for agent, lamp in self.lamps.items()}

    def step(self, actions):
        reward = float(actions == self.lamps) + 3.0 * (self.lamps["left"] == self.lamps["right"]) - 1.5
        self.round += 1
        return self.observe(), dict.fromkeys(actions, reward), {}, {"__all__": self.round == self.num_rounds}, {}
