"""Env steps per second that RLlib's RLlink server receives, without a learner."""

from __future__ import annotations

import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.external.env_runner_server_for_external_inference import EnvRunnerServerForExternalInference
from rllink_cli import measure, parse_settings

PORT = 5655


def main() -> None:
    settings = parse_settings(__doc__)
    env = gym.make("CartPole-v1")
    config = (
        PPOConfig()
        .environment(observation_space=env.observation_space, action_space=env.action_space, env_config={"port": PORT})
        .env_runners(env_runner_cls=EnvRunnerServerForExternalInference)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
    )
    server = EnvRunnerServerForExternalInference(config=config, worker_index=1, num_workers=1)

    def sample() -> int:
        return sum(len(episode) for episode in server.sample())

    measure(settings, ("localhost", PORT + 1), sample)
    server.stop()
    import os

    os._exit(0)  # its listener thread binds the port again and never ends


if __name__ == "__main__":
    main()
