"""Construction of the replay buffers of an experiment."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.schemas import ExperimentConfig
from runner.module_parts import ModuleParts
from runner.replay import ReplayBuffer
from runner.streams import random_stream


def build_replay_buffers(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> dict[str, ReplayBuffer]:
    """Make the buffers of `algorithm.replay_buffers` by name, each with its own random stream.

    Raises:
        ConfigError: one cannot be made with its arguments; a module or a learner pipeline needs more than is replayed.
    """
    if config.algorithm.replay_buffers:
        for module_id, of_module in parts.items():
            _check_needs(module_id, of_module)
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


def _check_needs(module_id: str, parts: ModuleParts) -> None:
    """Refuse what reads steps before a replayed one, or steps of other agents: buffers give neither."""
    learner = parts.learner
    needs = {
        "a module with memory reads the states before a chunk": parts.module.is_stateful,
        "a piece of the learner pipeline looks back": learner.num_lookback > 0,
        "a piece of the learner pipeline reads the steps of other agents": learner.needs_other_agents,
    }
    for what, is_needed in needs.items():
        if is_needed:
            allowed = "modules and pieces that read the replayed steps alone"
            raise ConfigError(
                [Problem(f"{what}, which is not replayed", "algorithm.replay_buffers", module_id, allowed)]
            )
