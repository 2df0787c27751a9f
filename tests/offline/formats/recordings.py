"""The same episodes as recordings of every format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from runner.offline.codecs.episode_format import episodes_to_table
from runner.offline.codecs.table_format import block_to_steps
from tests.offline.recorded import BLOCK

ENV_EPISODES = Path(__file__).parents[2] / "data" / "env_episodes"
RLLIB_EPISODES = Path(__file__).parents[2] / "data" / "rllib_cartpole_episodes"


def make_episodes(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(episodes_to_table(BLOCK), folder / "episodes.parquet")
    return folder


def make_env_episodes(folder: Path) -> Path:
    """Recorded episodes of two agents: a format that is read for one module at a time."""
    return Path(shutil.copytree(ENV_EPISODES, folder))


def make_table(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(block_to_steps(BLOCK).replace_schema_metadata(None), folder / "steps.parquet")
    return folder


def make_rllib_episodes(folder: Path) -> Path:
    """RLlib's own files: its episodes are not made here."""
    return Path(shutil.copytree(RLLIB_EPISODES, folder))


def make_hdf5(folder: Path) -> Path:
    import h5py

    folder.mkdir()
    steps = block_to_steps(BLOCK)
    with h5py.File(folder / "data.hdf5", "w") as root:
        root["observations"] = np.array(steps["obs"].to_pylist(), np.float32)
        root["next_observations"] = np.array(steps["new_obs"].to_pylist(), np.float32)
        root["actions"], root["rewards"] = BLOCK.columns["actions"], BLOCK.columns["rewards"]
        root["terminals"], root["timeouts"] = steps["terminateds"].to_numpy(), steps["truncateds"].to_numpy()
        root["infos/action_log_probs"] = BLOCK.columns["action_logp"]
        root["infos/speed"] = np.arange(16.0)
    return folder


def make_minari(folder: Path) -> Path:
    import h5py

    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as root:
        for number, episode in enumerate(BLOCK):
            group = root.create_group(f"episode_{number}")
            group["observations"], group["actions"] = episode.get_observations(), episode.get_actions()
            group["rewards"] = episode.get_rewards()
            ends = np.arange(len(episode)) == len(episode) - 1
            group["terminations"], group["truncations"] = ends & episode.is_terminated, ends & episode.is_truncated
    return folder


def make_sample_batches(folder: Path) -> Path:
    folder.mkdir()
    lines = []
    for number, episode in enumerate(BLOCK):
        ends = np.arange(len(episode)) == len(episode) - 1
        obs = episode.get_observations().tolist()
        batch = {
            "type": "SampleBatch",
            **{"obs": obs[:-1], "new_obs": obs[1:], "actions": episode.get_actions().tolist()},
            "rewards": episode.get_rewards().tolist(),
            "terminateds": (ends & episode.is_terminated).tolist(),
            "truncateds": (ends & episode.is_truncated).tolist(),
            "eps_id": [number] * len(episode),
            "action_logp": episode.get_extra_model_outputs("action_logp").tolist(),
        }
        lines.append(json.dumps(batch))
    (folder / "batches.json").write_text("\n".join(lines) + "\n")
    return folder


MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "hdf5": make_hdf5,
    "minari": make_minari,
    "sample_batches": make_sample_batches,
}
ALL_MAKERS = {
    **MAKERS,
    "env_episodes": make_env_episodes,
    "episodes": make_episodes,
    "table": make_table,
    "rllib_episodes": make_rllib_episodes,
}
