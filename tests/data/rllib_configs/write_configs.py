"""Write the configurations of this folder, and RLlib's defaults, with an installed RLlib: `python write_configs.py`.

Each file is what a user of RLlib writes with `json.dump(config.to_dict(), file, default=str)`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

HERE = Path(__file__).parent
DEFAULTS = HERE.parents[2] / "runner" / "importing" / "rllib_defaults.json"
ALGORITHMS = ("PPO", "DQN", "SAC", "TQC", "BC", "MARWIL", "CQL", "IQL", "IMPALA", "APPO")


def ppo_cartpole() -> AlgorithmConfig:
    """Return PPO on the new API stack, with a schedule, evaluation, and a model of its own."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .training(
            lr=[[0, 1e-3], [100_000, 1e-4]],
            train_batch_size_per_learner=512,
            minibatch_size=64,
            num_epochs=4,
            lambda_=0.95,
            clip_param=0.2,
            use_kl_loss=False,
            grad_clip=0.5,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], vf_share_layers=False))
        .evaluation(evaluation_interval=5, evaluation_duration=3, evaluation_config={"explore": False})
        .reporting(keep_per_episode_custom_metrics=True)
        .debugging(seed=7)
    )


def ppo_two_policies() -> AlgorithmConfig:
    """Return PPO with two policies, of which one is trained."""
    return (
        PPOConfig()
        .environment("two_poles")
        .multi_agent(
            policies=["p0", "p1"],
            policy_mapping_fn=lambda agent_id, episode: f"p{agent_id[-1]}",
            policies_to_train=["p0"],
            algorithm_config_overrides_per_module={"p0": PPOConfig.overrides(lr=1e-3, lambda_=0.9)},
        )
    )


def dqn_old_stack() -> AlgorithmConfig:
    """Return DQN on the old API stack."""
    config = DQNConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    return (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=4)
        .training(
            model={"fcnet_hiddens": [64], "fcnet_activation": "relu", "no_final_linear": True},
            train_batch_size=64,
            replay_buffer_config={"type": "MultiAgentReplayBuffer", "capacity": 20_000},
            hiddens=[128],
        )
    )


def sac_pendulum() -> AlgorithmConfig:
    """Return SAC with n-step targets."""
    return SACConfig().environment("Pendulum-v1").training(n_step=3, critic_lr=1e-3, gamma=0.98)


def marwil_cartpole() -> AlgorithmConfig:
    """Return MARWIL on recorded episodes."""
    return (
        MARWILConfig()
        .environment("CartPole-v1")
        .offline_data(input_=["data/cartpole"], input_read_episodes=True, dataset_num_iters_per_learner=20)
        .training(beta=0.5)
    )


def _to_json(values: dict[str, Any]) -> Any:
    return json.loads(re.sub(r" at 0x[0-9a-f]+", "", json.dumps(values, default=str)))


def main() -> None:
    """Write the files."""
    for make in (ppo_cartpole, ppo_two_policies, dqn_old_stack, sac_pendulum, marwil_cartpole):
        (HERE / f"{make.__name__}.json").write_text(json.dumps(make().to_dict(), default=str) + "\n")
    common = _to_json(AlgorithmConfig().to_dict())
    defaults = {"AlgorithmConfig": common, "DefaultModelConfig": _to_json(dataclasses.asdict(DefaultModelConfig()))}
    for name in ALGORITHMS:
        module = importlib.import_module(f"ray.rllib.algorithms.{name.lower()}")
        values = _to_json(getattr(module, f"{name}Config")().to_dict())
        defaults[name] = {key: value for key, value in values.items() if key not in common or common[key] != value}
    lines = []
    for name, values in defaults.items():
        items = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(items) + "\n}")
    DEFAULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
