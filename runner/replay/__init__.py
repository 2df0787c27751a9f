"""Buffers of experiences that train batches are sampled from."""

from runner.replay.episode_replay_buffer import EpisodeReplayBuffer
from runner.replay.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer, Replayed

__all__ = ["EpisodeReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer", "Replayed"]
