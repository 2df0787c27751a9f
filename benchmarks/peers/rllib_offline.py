"""RLlib's behaviour cloning and recording (new API stack) with the settings of `offline_cli.Settings`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gymnasium
import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from offline_cli import BATCH, HIDDENS, LR, Settings, measure_recording, measure_updates, parse_settings
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

MODEL = DefaultModelConfig(fcnet_hiddens=HIDDENS, fcnet_activation="tanh")


def train(settings: Settings) -> None:
    is_streaming = settings.mode == "streaming"
    start = time.perf_counter()
    env = gymnasium.make(settings.env)
    config = (
        BCConfig()
        .environment(settings.env, observation_space=env.observation_space, action_space=env.action_space)
        .training(train_batch_size_per_learner=BATCH, lr=LR)
        .learners(num_learners=0)
        .rl_module(model_config=MODEL)
        .offline_data(
            input_=[settings.data],
            input_read_episodes=settings.kind == "episodes",
            input_compress_columns=[],
            # Enough episodes for one batch, so that no step is read in vain.
            input_read_batch_size=3 if settings.kind == "episodes" else None,
            materialize_data=False,
            materialize_mapped_data=not is_streaming,
            map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
            iter_batches_kwargs={"prefetch_batches": 2, "local_shuffle_buffer_size": None},
            dataset_num_iters_per_learner=settings.rllib_updates,
        )
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()

    def iterate() -> int:
        algorithm.train()
        return settings.rllib_updates

    measure_updates(settings, start, iterate)
    algorithm.stop()


def record(settings: Settings) -> None:
    config = (
        PPOConfig()
        .environment(settings.env)
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=settings.num_envs, batch_mode="complete_episodes", explore=True
        )
        .rl_module(model_config=MODEL)
        .offline_data(output=settings.output, output_write_episodes=True)
        .debugging(seed=0, log_level="ERROR")
    )
    runner = OfflineSingleAgentEnvRunner(config=config, worker_index=1)
    runner.sample(num_episodes=settings.num_envs)

    def one_recording() -> int:
        episodes = runner.sample(num_episodes=settings.episodes)
        return sum(len(episode) for episode in episodes)

    measure_recording(one_recording)


def convert(source: str, target: str) -> None:
    """Convert our episode file to RLlib's format: one msgpack blob per episode."""
    Path(target).mkdir(parents=True)
    spaces = gymnasium.make("CartPole-v1")
    for number, path in enumerate(sorted(Path(source).glob("*.parquet"))):
        rows = pq.read_table(path).to_pylist()
        blobs = [msgpack.packb(_episode(row, spaces).get_state(), default=msgpack_numpy.encode) for row in rows]
        pq.write_table(pa.table({"item": pa.array(blobs, pa.binary())}), f"{target}/{number:06}.parquet")


def _episode(row: dict, spaces: gymnasium.Env) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(
        id_=row["eps_id"],
        observations=[np.array(obs, np.float32) for obs in row["obs"]],
        observation_space=spaces.observation_space,
        actions=[np.int64(action) for action in row["actions"]],
        action_space=spaces.action_space,
        rewards=row["rewards"],
        terminated=row["terminated"],
        truncated=row["truncated"],
        len_lookback_buffer=0,
    )
    episode.to_numpy()
    return episode


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:])
    else:
        torch.set_num_threads(1)
        settings = parse_settings(__doc__)
        ray.init(address="local", num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        record(settings) if settings.output else train(settings)
        ray.shutdown()
