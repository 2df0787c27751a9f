"""Train Stable-Baselines3 with an entry of RL Baselines3 Zoo, evaluate, and print the returns."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

ALGORITHMS: Mapping[str, type[BaseAlgorithm]] = {"ppo": PPO, "dqn": DQN, "sac": SAC}
SEED_OF_EVALUATION = 10_000  # differs from the seeds of training


def number_or_schedule(value: Any) -> float | Callable[[float], float]:
    if isinstance(value, str):
        start = float(value.removeprefix("lin_"))
        return lambda left: left * start
    return float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--entry", type=json.loads, required=True, help="the entry as JSON")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num-episodes", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    entry = dict(args.entry)
    num_env_steps, is_normalised = int(entry.pop("n_timesteps")), entry.pop("normalize", False)
    envs: VecEnv = make_vec_env(args.env, n_envs=entry.pop("n_envs", 1), seed=args.seed)
    held_out: VecEnv = make_vec_env(args.env, n_envs=1, seed=SEED_OF_EVALUATION + args.seed)
    if is_normalised:
        envs = VecNormalize(envs, gamma=entry.get("gamma", 0.99))
        held_out = VecNormalize(held_out, training=False, norm_reward=False)
        held_out.obs_rms = envs.obs_rms
    for name in ("learning_rate", "clip_range"):
        if name in entry:
            entry[name] = number_or_schedule(entry[name])
    model = ALGORITHMS[args.algorithm](entry.pop("policy"), envs, seed=args.seed, device="cpu", **entry)
    model.learn(num_env_steps)
    returns, _ = evaluate_policy(model, held_out, args.num_episodes, return_episode_rewards=True)
    print(json.dumps({"return": sum(returns) / len(returns), "num_env_steps": model.num_timesteps}))


if __name__ == "__main__":
    main()
