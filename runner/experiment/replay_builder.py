"""Construction of the replay buffers of an experiment."""

from __future__ import annotations

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.schemas import ExperimentConfig
from runner.replay import ReplayBuffer
from runner.streams import random_stream


def build_replay_buffers(config: ExperimentConfig) -> dict[str, ReplayBuffer]:
    """Make the buffers of `algorithm.replay_buffers` by name, each with its own random stream.

    Raises:
        ConfigError: one cannot be made with its arguments.
    """
    buffers = {}
    for name, block in config.algorithm.replay_buffers.items():
        key = f"algorithm.replay_buffers.{name}"
        arguments = {argument: value for argument, value in block.items() if argument != "_target_"}
        buffer_class = import_target(block["_target_"], f"{key}._target_", ReplayBuffer)
        try:
            buffers[name] = buffer_class(**arguments)
        except (TypeError, ValueError) as error:
            what = f"{block['_target_']} cannot be made: {error}"
            raise ConfigError([Problem(what, key, str(arguments))]) from error
        buffers[name].use_stream(random_stream(config.seed, f"replay_buffers/{name}"))
    return buffers
