"""The pipelines of an experiment as text: each piece in its place, with its columns, its spaces and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch

from runner.builder import TRAINING, build_env_runner, build_parts
from runner.config.schemas import ExperimentConfig
from runner.module_parts import ModuleParts
from runner.pipelines.piece import ConnectorPiece
from runner.pipelines.pipeline import ConnectorPipeline
from runner.pipelines.profile import time_pieces

_TITLES = {
    "env_to_module": "env_to_module   running episodes -> batch of the next forward pass",
    "module_to_env": "module_to_env   module outputs -> actions of the next step",
    "learner": "learner         episode chunks -> train batch",
}
_LEARNER_PASSES = 3

# Microseconds of each piece of a module's three pipelines, by the pipeline's name.
Costs = Mapping[str, Sequence[float]]


def render_pipelines(config: ExperimentConfig, has_profile: bool = False) -> str:
    """Render the three pipelines of each module, built as in a run.

    Args:
        config: the experiment.
        has_profile: also sample, and say how long a call of each piece takes.
    """
    parts = build_parts(config)
    costs = measure_costs(config, parts) if has_profile else {}
    sections = []
    for module_id, module_parts in parts.items():
        agents = module_parts.plan.agents
        sections.append("pipelines" if agents is None else f"pipelines of {module_id}, for {', '.join(agents)}")
        for pipeline in (module_parts.env_to_module, module_parts.module_to_env, module_parts.learner):
            sections.append("\n".join(_render(pipeline, costs.get(module_id, {}).get(pipeline.name, ()))))
    if has_profile:
        runners = config.env_runners
        sections.append(
            f"us: median microseconds of a call; the env pipelines have {runners.num_envs_per_env_runner} "
            f"sub-environments, the learner pipeline {config.algorithm.train_batch_size_per_learner:,} env steps"
        )
    return "\n\n".join(sections)


def measure_costs(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> dict[str, Costs]:
    """Measure on one train batch of real steps; module id -> microseconds of each piece."""
    torch.set_num_threads(config.learners.torch_num_threads)
    plans = {module_id: module_parts.plan for module_id, module_parts in parts.items()}
    runner = build_env_runner(config, plans, TRAINING, 0, 0)
    try:
        timed = {
            module_id: {pipeline.name: time_pieces(pipeline) for pipeline in runner.pipelines_of(module_id)}
            for module_id in parts
        }
        weights = {module_id: module_parts.weights() for module_id, module_parts in parts.items()}
        sample = runner.sample(config.algorithm.train_batch_size_per_learner, True, weights, {})
    finally:
        runner.close()
    modules = {module_id: module_parts.module for module_id, module_parts in parts.items()}
    for module_id, block in sample.rollout.blocks.items():
        learner = parts[module_id].learner
        # The output shows the pieces of `parts`: the timing wrappers are taken out again.
        pieces = list(learner)
        timed[module_id][learner.name] = time_pieces(learner)
        for _ in range(_LEARNER_PASSES):
            learner(rl_module=modules, batch={}, episodes=block, shared_data={})
        learner.substitute_pieces(pieces)
    return {
        module_id: {name: [piece.microseconds for piece in pieces] for name, pieces in by_name.items()}
        for module_id, by_name in timed.items()
    }


def _render(pipeline: ConnectorPipeline, costs: Sequence[float]) -> Iterator[str]:
    yield _TITLES[pipeline.name]
    names = [type(piece).__name__ for piece in pipeline]
    width = max(map(len, names), default=0)
    spaces = pipeline.input_spaces
    yield f"     {'':<{width}}  observations {space_text(spaces[0])}, actions {space_text(spaces[1])}"
    for number, (piece, name) in enumerate(zip(pipeline, names, strict=True), start=1):
        cost = f"{costs[number - 1]:7.1f} us  " if costs else ""
        yield f"  {number:>2} {name:<{width}}  {cost}{_columns(piece)}".rstrip()
        after = pipeline.spaces_after[number - 1]
        for kind, space, space_before in zip(("observations", "actions"), after, spaces, strict=True):
            if space != space_before:
                yield f"     {'':<{width}}  {kind} are {space_text(space)} from here on"
        spaces = after
    if costs:
        yield f"     {'together':<{width}}  {sum(costs):7.1f} us"


def space_text(space: gym.Space[Any]) -> str:
    """A space on one line; bounds of a Box only where they are the same everywhere."""
    if isinstance(space, gym.spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {space_text(part)}" for key, part in space.spaces.items()) + ")"
    if isinstance(space, gym.spaces.Tuple):
        return "Tuple(" + ", ".join(map(space_text, space.spaces)) + ")"
    if isinstance(space, gym.spaces.Box) and (len({*space.low.flat}) > 1 or len({*space.high.flat}) > 1):
        return f"Box({space.shape}, {space.dtype})"
    return str(space)


def _columns(piece: ConnectorPiece) -> str:
    parts = {"reads": piece.reads, "writes": piece.writes, "per fragment": piece.writes_per_fragment}
    return "   ".join(f"{label} {', '.join(columns)}" for label, columns in parts.items() if columns)
