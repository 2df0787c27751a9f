"""RLlib's PPO (new API stack) with the settings of `peer_cli.Settings`."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import ray
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from peer_cli import (
    HIDDEN,
    MAX_GRAD_NORM,
    RETURN_WINDOW,
    Iterate,
    Progress,
    Settings,
    measure,
    parse_settings,
    report,
)
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

NO_VF_CLIP = 1e6  # above any squared value error on CartPole


COUNTED = "CountedCartPole-v1"


class CountedCartPole(CartPoleVectorEnv):
    """gymnasium's vector CartPole that keeps the last 100 finished returns.

    RLlib's own `episode_return_mean` covers the episodes of its latest merge, not
    the last 100 of the training; the other systems report the last 100. For the
    time to 450 the environment counts, so that one criterion holds for all.
    """

    finished: ClassVar[deque[float]] = deque(maxlen=RETURN_WINDOW)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._returns = np.zeros(self.num_envs)

    def reset(self, **kwargs: Any) -> Any:
        self._returns[:] = 0.0
        return super().reset(**kwargs)

    def step(self, action: np.ndarray) -> Any:
        step = super().step(action)
        _, reward, terminated, truncated, _ = step
        self._returns += reward
        done = terminated | truncated
        if done.any():
            self.finished.extend(self._returns[done])
            self._returns[done] = 0.0
        return step


gymnasium.register(
    COUNTED,
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    vector_entry_point=CountedCartPole,
    max_episode_steps=500,
)


@dataclass(frozen=True)
class RLlibSettings(Settings):
    """RLlib's own default is "sync", one Python CartPole for each sub-environment.

    It can also step gymnasium's vector CartPole, as `ours` and `bare` do; that is
    faster, so it is what RLlib is measured with unless the flag says otherwise.
    """

    vectorize_mode: str = "vector_entry_point"


def env_of(cfg: RLlibSettings) -> str:
    return COUNTED if cfg.mode == "time-to-450" else "CartPole-v1"


def ppo_config(cfg: RLlibSettings) -> PPOConfig:
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .environment(env_of(cfg))
        .env_runners(
            num_env_runners=cfg.num_env_runners,
            num_envs_per_env_runner=cfg.num_envs,
            gym_env_vectorize_mode=cfg.vectorize_mode,
            rollout_fragment_length=cfg.rollout_length,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[HIDDEN], fcnet_activation="tanh", vf_share_layers=True)
        )
        .training(
            lr=cfg.lr,
            gamma=cfg.gamma,
            lambda_=cfg.lambda_,
            clip_param=cfg.clip_param,
            vf_clip_param=NO_VF_CLIP,
            vf_loss_coeff=cfg.vf_loss_coeff,
            entropy_coeff=cfg.entropy_coeff,
            use_kl_loss=False,
            grad_clip=MAX_GRAD_NORM,
            grad_clip_by="global_norm",
            num_epochs=cfg.num_epochs,
            minibatch_size=cfg.minibatch_size,
            train_batch_size_per_learner=cfg.rows,
        )
        .debugging(seed=cfg.seed, log_level="ERROR")
    )


def progress_of(result: dict[str, Any]) -> Progress:
    env_steps = int(result["num_env_steps_sampled_lifetime"])
    if CountedCartPole.finished:
        return Progress(env_steps, float(np.mean(CountedCartPole.finished)))
    return Progress(env_steps, float(result["env_runners"].get("episode_return_mean", math.nan)))


def build(cfg: RLlibSettings) -> tuple[Algorithm, Iterate]:
    ray.init(num_cpus=cfg.num_env_runners + 1, include_dashboard=False, log_to_driver=False)
    algorithm = ppo_config(cfg).build_algo()
    return algorithm, lambda: progress_of(algorithm.train())


def main() -> None:
    cfg = parse_settings(__doc__, RLlibSettings, remote_runners=True)
    torch.set_num_threads(1)
    start = time.perf_counter()
    algorithm, iterate = build(cfg)
    result = measure("rllib", cfg, iterate, time.perf_counter() - start)
    algorithm.stop()
    ray.shutdown()
    report(result)


if __name__ == "__main__":
    main()
