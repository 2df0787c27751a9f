"""RLlib's PPO (new API stack) with the settings of `peer_cli.Settings`."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import ray
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from peer_cli import (
    AGENT_STEPS,
    COUNTS,
    GRADIENT_STEPS,
    HIDDEN,
    LOSS_ROWS,
    MAX_GRAD_NORM,
    RETURN_WINDOW,
    SAMPLING_S,
    UPDATE_S,
    Progress,
    Settings,
    measure,
    parse_settings,
    report,
)
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig, ppo
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

NO_VF_CLIP = 1e6  # above any squared value error on CartPole


COUNTED = "CountedCartPole-v1"


class CountedCartPole(CartPoleVectorEnv):
    """gymnasium's vector CartPole that stores the last 100 finished returns.

    RLlib's `episode_return_mean` covers the episodes of its latest merge, not the last 100 of the training, which the
    other systems report. So the environment counts for the time to 450, and the same criterion applies to all.
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
    """RLlib's default is "sync": one Python CartPole per sub-environment.

    RLlib can also step gymnasium's vector CartPole, like `ours` and `bare`. That is faster, so it is the default here.
    """

    vectorize_mode: str = "vector_entry_point"


def env_of(cfg: RLlibSettings) -> str:
    return COUNTED if cfg.mode == "time-to-450" else "CartPole-v1"


def ppo_config(cfg: RLlibSettings, env: Any, model_options: Mapping[str, Any] | None = None) -> PPOConfig:
    """Return PPO's configuration for one environment; `model_options` are added to the single hidden layer."""
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .environment(env)
        .env_runners(
            num_env_runners=cfg.num_env_runners,
            num_envs_per_env_runner=cfg.num_envs,
            gym_env_vectorize_mode=cfg.vectorize_mode,
            rollout_fragment_length=cfg.rollout_length,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[HIDDEN], fcnet_activation="tanh", vf_share_layers=True, **(model_options or {})
            )
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


def progress_of(result: dict[str, Any], counts: Mapping[str, float]) -> Progress:
    env_steps = int(result["num_env_steps_sampled_lifetime"])
    if CountedCartPole.finished:
        return Progress(env_steps, float(np.mean(CountedCartPole.finished)), counts)
    return Progress(env_steps, float(result["env_runners"].get("episode_return_mean", math.nan)), counts)


class Work:
    """Counts the work of an algorithm's iterations; see `peer_cli.COUNTS`.

    RLlib's timers are running means, so the calls themselves are timed: in `PPO.training_step` the sampling, and the
    update with the learner connectors.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._counts = dict.fromkeys(COUNTS, 0.0)
        ppo.synchronous_parallel_sample = self._timed(SAMPLING_S, ppo.synchronous_parallel_sample)
        group: Any = algorithm.learner_group
        group.update = self._counting_steps(self._timed(UPDATE_S, group.update))
        group._learner._update = self._counting_rows(group._learner._update)
        modules = group._learner.module.values()
        self.num_parameters = sum(parameter.numel() for module in modules for parameter in module.parameters())

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **kwargs)
            self._counts[name] += time.perf_counter() - start
            return result

        return timed

    def _counting_steps(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*, episodes: Sequence[Any], **kwargs: Any) -> Any:
            self._counts[AGENT_STEPS] += sum(episode.agent_steps() for episode in episodes)
            return update(episodes=episodes, **kwargs)

        return counted

    def _counting_rows(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def counted(batch: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            self._counts[GRADIENT_STEPS] += len(batch)
            self._counts[LOSS_ROWS] += sum(int(rows["loss_mask"].sum()) for rows in batch.values())
            return update(batch, *args, **kwargs)

        return counted

    def iterate(self) -> Progress:
        return progress_of(self._algorithm.train(), dict(self._counts))


def run(cfg: RLlibSettings, config: PPOConfig) -> dict[str, Any]:
    """Train with `config` and measure."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    ray.init(address="local", num_cpus=cfg.num_env_runners + 1, include_dashboard=False, log_to_driver=False)
    algorithm = config.build_algo()
    setup_s = time.perf_counter() - start
    work = Work(algorithm)
    result = measure("rllib", cfg, work.iterate, setup_s) | {"num_parameters": work.num_parameters}
    algorithm.stop()
    ray.shutdown()
    return result


def main() -> None:
    cfg = parse_settings(__doc__, RLlibSettings, remote_runners=True)
    report(run(cfg, ppo_config(cfg, env_of(cfg))))


if __name__ == "__main__":
    main()
