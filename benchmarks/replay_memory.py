"""Memory of stacked frames in replay, which stores each frame once, and milliseconds per batch that stacks them."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import bench_common as bc
import gymnasium as gym
import numpy as np
import torch

from runner.episodes.columns import ColumnBlock, Rollout
from runner.module_building import make_connector
from runner.pipelines import FrameStacking
from runner.pipelines.defaults import learner_pipeline
from runner.replay import ReplayBuffer

ID = "default_policy"
NUM_FRAMES, ROWS, CHUNK = 4, 32, 500
BAR = 1.3
ACTIONS = gym.spaces.Discrete(6)
EDITS = [{"prepend": {"_target_": "runner.pipelines.AddOneTsToEpisodesAndTruncate"}}]


def filled(capacity: int, side: int, num_lookback: int) -> ReplayBuffer:
    """Return a full buffer of single frames (side, side, 1) in episodes of `CHUNK` steps."""
    buffer, rng = ReplayBuffer(capacity), np.random.default_rng(0)
    buffer.use_stream(rng)
    buffer.use_lookback({ID: num_lookback})
    for number in range(capacity // CHUNK + 1):
        block = ColumnBlock(
            columns={
                "obs": rng.integers(0, 256, (CHUNK + 1, side, side, 1), np.uint8),
                "actions": rng.integers(0, 6, CHUNK),
                "rewards": np.ones(CHUNK, np.float32),
            },
            lengths=np.array([CHUNK]),
            is_terminated=np.array([True]),
            is_truncated=np.array([False]),
            t_started=np.array([0]),
            episode_ids=[str(number)],
        )
        buffer.add(Rollout({ID: block}, CHUNK))
    return buffer


def batches_of(buffer: ReplayBuffer, side: int, num_frames: int) -> Any:
    """Return a function that samples a batch and prepares it for a learner."""
    space = gym.spaces.Box(0, 255, (side, side, 1), np.uint8)
    pipeline = learner_pipeline(space, ACTIONS, torch.device("cpu"), EDITS, make_connector, ["n_step", "weights"])
    if num_frames > 1:
        pipeline.insert_after("AddObservationsFromEpisodesToBatch", FrameStacking(num_frames))

    def batch() -> Any:
        block = buffer.sample(ROWS).rollout.blocks[ID]
        return pipeline(rl_module={}, batch={}, episodes=block)[ID]["obs"]

    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="frames of 16 x 16 in a small buffer")
    args = parser.parse_args()
    capacity, side, repeats = (2000, 16, 20) if args.quick else (100_000, 84, 200)
    rows, num_bytes = [], []
    for num_frames in (1, NUM_FRAMES):
        buffer = filled(capacity, side, num_frames - 1)
        make = batches_of(buffer, side, num_frames)
        num_bytes.append(buffer.metrics()["num_bytes"] or 0)
        rows.append(
            [
                f"{side} x {side} x {num_frames}",
                str(tuple(make().shape)),
                f"{num_bytes[-1] / 2**20:.1f}",
                f"{1e3 * statistics.median(bc.seconds_of(make) for _ in range(repeats)):.2f}",
            ]
        )
    print(f"A buffer of {capacity:,} env steps of single frames, sampled {ROWS} at a time.\n")
    print(bc.markdown_table(["the module sees", "rows of obs per batch", "MiB stored", "ms per batch"], rows))
    print(
        f"\nStacked frames need {num_bytes[1] / num_bytes[0]:.3f} times the memory of single ones; the target is {BAR}."
    )
    if num_bytes[1] > BAR * num_bytes[0]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
