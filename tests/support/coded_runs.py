"""Env runners on coded environments, with a module whose outputs are exact functions of the observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.listeners import EpisodeListener
from runner.env_runners.runner_identity import RunnerIdentity
from runner.env_runners.vector_envs import BatchedEnvironments, SubEnvironments, SyncEnvironments
from runner.episodes import SingleAgentEpisode
from runner.module_building import make_connector
from runner.modules.flat_parameters import flat_values
from runner.modules.rl_module import RLModule
from runner.pipelines.defaults import env_to_module_pipeline, module_to_env_pipeline
from tests.support.environments import NUM_CODED_ACTIONS, CodedEnv, CodedVectorEnv

CPU = torch.device("cpu")


def coded_action(n: float, t: float, k: float) -> int:
    """The most likely action on observation (n, t, k)."""
    return int(7 * n + 3 * t + k) % NUM_CODED_ACTIONS


def coded_value(n: float, t: float, k: float) -> float:
    """The value of observation (n, t, k); exact in float32."""
    return 0.5 * n + 0.25 * t - 0.125 * k


class CodedModule(RLModule):
    """Logits 2 for `coded_action`, 0 for the others, and `coded_value`; has one parameter, which it does not use."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unused = nn.Parameter(torch.zeros(1))

    def forward_train(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        n, t, k = batch["obs"].unbind(-1)
        actions = (7 * n + 3 * t + k).long() % NUM_CODED_ACTIONS
        logits = 2.0 * nn.functional.one_hot(actions, NUM_CODED_ACTIONS).float()
        return {"action_dist_inputs": logits, "vf_preds": 0.5 * n + 0.25 * t - 0.125 * k}


def coded_module() -> CodedModule:
    """A module for the spaces of `CodedEnv`."""
    return CodedModule(CodedEnv.observation_space, CodedEnv.action_space, ModuleConfig())


def make_runner(
    env: SubEnvironments,
    module: RLModule,
    num_lookback: int = 1,
    seed_name: tuple[str, int, int] = ("env_runner", 0, 0),
    seed: int = 0,
    env_to_module_edits: Sequence[Mapping[str, Any]] = (),
    module_to_env_edits: Sequence[Mapping[str, Any]] = (),
    validate_observations: str = "warn",
    listeners: Sequence[EpisodeListener] = (),
) -> SingleAgentEnvRunner:
    """A runner with the default pipelines and these edits."""
    spaces = env.single_observation_space, env.single_action_space
    return SingleAgentEnvRunner(
        env,
        module,
        env_to_module_pipeline(*spaces, CPU, env_to_module_edits, make_connector),
        module_to_env_pipeline(*spaces, True, False, module_to_env_edits, make_connector),
        RunnerIdentity(*seed_name, seed),
        num_lookback,
        validate_observations,
        listeners,
    )


def coded_envs(kind: str, num_envs: int, lengths: Sequence[int]) -> tuple[SubEnvironments, list[Any]]:
    """Coded sub-environments, batched or stepped one by one, and their log of all steps."""
    if kind == "batched":
        env = CodedVectorEnv(num_envs, lengths)
        return BatchedEnvironments(env, seed=0), env.log
    log: list[Any] = []
    numbers = iter(range(num_envs))
    return SyncEnvironments(lambda: CodedEnv(next(numbers), lengths, log), num_envs, seed=0), log


def weights_of(module: RLModule) -> dict[str, Any]:
    """What `sample` takes as weights to act with `module` as it is."""
    return {"default_policy": flat_values(module)}


def naive_episodes(
    n: int, lengths: Sequence[int], num_steps: int, actions: Mapping[tuple[int, int, int], int]
) -> list[SingleAgentEpisode]:
    """Episodes of sub-environment n with `num_steps` steps in all, collected one step after the other.

    Args:
        actions: of (n, t, k).
    """
    env = CodedEnv(n, lengths)
    module = coded_module()
    episodes: list[SingleAgentEpisode] = []
    for _ in range(num_steps):
        if not episodes or episodes[-1].is_done:
            episodes.append(SingleAgentEpisode(f"0-env_runner-0-{n}-{len(episodes)}"))
            obs, info = env.reset()
            episodes[-1].add_env_reset(obs, info)
        obs = episodes[-1].get_observations(-1)
        action = actions[n, env.t, env.k]
        logits = module.forward_train({"obs": torch.from_numpy(obs[None])})["action_dist_inputs"]
        logp = module.action_dist.log_prob(logits, torch.tensor([action]))
        next_obs, reward, terminated, truncated, info = env.step(action)
        outputs = {"action_dist_inputs": logits[0].numpy(), "action_logp": logp[0].numpy()}
        episodes[-1].add_env_step(
            next_obs,
            action,
            np.float32(reward),
            info,
            terminated=terminated,
            truncated=truncated,
            extra_model_outputs=outputs,
        )
    return [episode.to_numpy() for episode in episodes]
