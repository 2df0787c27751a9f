"""Replay buffers, from which train batches are sampled."""

from runner.replay.episode_replay_buffer import EpisodeReplayBuffer
from runner.replay.hindsight_replay_buffer import HindsightReplayBuffer
from runner.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from runner.replay.replay_buffer import BufferEmpty, ReplayBuffer, Replayed
from runner.replay.sharded_replay_buffer import ShardedReplayBuffer

__all__ = [
    "BufferEmpty",
    "EpisodeReplayBuffer",
    "HindsightReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "Replayed",
    "ShardedReplayBuffer",
]
