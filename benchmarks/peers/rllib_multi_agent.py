"""RLlib's PPO on CartPole for several agents, with the settings of `peer_cli.Settings`.

Two agents use one policy each; more agents share one policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
from peer_cli import parse_settings, report
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from rllib import RLlibSettings, ppo_config, run

AgentDict = dict[str, Any]


@dataclass(frozen=True)
class MultiAgentSettings(RLlibSettings):
    """RLlib 2.60 vectorises multi-agent environments only by stepping them one by one."""

    vectorize_mode: str = "sync"
    num_agents: int = 2

    @property
    def policy_of(self) -> dict[str, str]:
        """Agent -> policy."""
        return {f"agent_{number}": f"p{number if self.num_agents == 2 else 0}" for number in range(self.num_agents)}


class CartPoles(MultiAgentEnv):
    """Each agent balances a separate pole; the episode ends when the last one has ended.

    The work is the same as in `runner.environments.MultiAgentCartPole`: a Python CartPole without gymnasium's checker
    per agent, and one step for each running agent. RLlib also needs `__all__` flags.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.possible_agents = [f"agent_{number}" for number in range(config["num_agents"])]
        self.agents = list(self.possible_agents)
        self._envs = {agent: gymnasium.make("CartPole-v1", disable_env_checker=True) for agent in self.agents}
        self._running: list[str] = []
        self.observation_spaces = {agent: env.observation_space for agent, env in self._envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self._envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        self._running = list(self.possible_agents)
        obs = {
            agent: env.reset(seed=None if seed is None else (seed + number) % 2**31)[0]
            for number, (agent, env) in enumerate(self._envs.items())
        }
        return obs, {}

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        obs, rewards, terminateds, truncateds = {}, {}, {}, {}
        for agent in self._running:
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent], _ = self._envs[agent].step(
                int(actions[agent])
            )
        self._running = [agent for agent in self._running if not (terminateds[agent] or truncateds[agent])]
        terminateds["__all__"], truncateds["__all__"] = not self._running, False
        return obs, rewards, terminateds, truncateds, {}

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


def multi_agent_config(cfg: MultiAgentSettings) -> PPOConfig:
    """Return the configuration.

    `count_steps_by` is the unit of `train_batch_size_per_learner`; env steps are RLlib's default and ours.
    """
    policy_of = cfg.policy_of
    config = ppo_config(cfg, CartPoles).environment(env_config={"num_agents": cfg.num_agents})
    return config.multi_agent(
        policies=set(policy_of.values()),
        policy_mapping_fn=lambda agent_id, episode, **kwargs: policy_of[agent_id],
        count_steps_by="env_steps",
    )


def main() -> None:
    cfg = parse_settings(__doc__, MultiAgentSettings, remote_runners=True)
    report(run(cfg, multi_agent_config(cfg)))


if __name__ == "__main__":
    main()
