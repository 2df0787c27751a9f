"""Buffers of episodes that train batches are sampled from."""

from runner.replay.episode_replay_buffer import EpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer"]
