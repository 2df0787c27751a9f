"""The pipelines of an experiment as text: each connector in order, with its columns, its spaces and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch

from runner.config.schemas import ExperimentConfig
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import BuiltModule, acting_modules, build_modules, weights_of
from runner.pipelines.connector import Connector
from runner.pipelines.description import ENDS, columns_of, space_text
from runner.pipelines.pipeline import ConnectorPipeline
from runner.pipelines.profile import time_connectors

_TITLES = {name: f"{name:<15} {begins} -> {ends}" for name, (begins, ends) in ENDS.items()}
_LEARNER_PASSES = 3

# Microseconds of each connector of a module's three pipelines, by the pipeline's name.
Costs = Mapping[str, Sequence[float]]
Spaces = tuple[gym.Space[Any], gym.Space[Any]]


def render_pipelines(config: ExperimentConfig, has_profile: bool = False) -> str:
    """Render the three pipelines of each module, built as in a run.

    Args:
        config: the experiment.
        has_profile: also sample, and report how long a call of each connector takes.
    """
    built_modules = build_modules(config)
    costs = measure_costs(config, built_modules) if has_profile else {}
    sections = []
    for module_id, built in built_modules.items():
        agents = built.spec.agents
        owner = f" of {module_id}, for {', '.join(agents)}" if agents else ""
        if built.spec.trains_on is not None:
            owner = f" of {module_id}, which trains on {built.spec.trains_on}"
        sections.append(f"pipelines{owner}")
        acting = [built.env_to_module, built.module_to_env] if built.spec.trains_on is None else []
        for pipeline in (*acting, built.learner):
            sections.append("\n".join(_render(pipeline, costs.get(module_id, {}).get(pipeline.name, ()))))
    if has_profile:
        runners = config.env_runners
        sections.append(
            f"us: median microseconds of a call; the env pipelines have {runners.num_envs_per_env_runner} "
            f"sub-environments, the learner pipeline {config.algorithm.train_batch_size_per_learner:,} env steps"
        )
    return "\n\n".join(sections)


def measure_costs(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> dict[str, Costs]:
    """Measure on one train batch of real steps; module id -> microseconds of each connector."""
    torch.set_num_threads(config.learners.torch_num_threads)
    acting = acting_modules(built_modules)
    specs = {module_id: built.spec for module_id, built in acting.items()}
    runner = build_env_runner(replace(config, callbacks=[]), specs, TRAINING, 0, 0)
    try:
        timed = {
            module_id: {pipeline.name: time_connectors(pipeline) for pipeline in runner.pipelines_of(module_id)}
            for module_id in acting
        }
        sample = runner.sample(config.algorithm.train_batch_size_per_learner, True, weights_of(acting), {})
    finally:
        runner.close()
    modules = {module_id: built.module for module_id, built in built_modules.items()}
    timed |= {module_id: {} for module_id in built_modules if module_id not in acting}
    blocks = sample.rollout.of_modules(None, config.multi_agent.auxiliary_modules).blocks
    for module_id, block in blocks.items():
        learner = built_modules[module_id].learner
        # The output shows the connectors of `parts`: the timing wrappers are taken out again.
        connectors = list(learner)
        timed[module_id][learner.name] = time_connectors(learner)
        for _ in range(_LEARNER_PASSES):
            learner(rl_module=modules, batch={}, episodes=block, shared_data={}, episodes_of_modules=blocks)
        learner.substitute_connectors(connectors)
    return {
        module_id: {name: [connector.microseconds for connector in connectors] for name, connectors in by_name.items()}
        for module_id, by_name in timed.items()
    }


def _render(pipeline: ConnectorPipeline, costs: Sequence[float]) -> Iterator[str]:
    yield _TITLES[pipeline.name]
    width = _width(pipeline)
    obs_space, action_space = pipeline.input_spaces
    yield f"     {'':<{width}}  observations {space_text(obs_space)}, actions {space_text(action_space)}"
    yield from _render_connectors(pipeline, width, costs)
    if costs:
        yield f"     {'together':<{width}}  {sum(costs):7.1f} us"


def _width(pipeline: ConnectorPipeline, indent: int = 0) -> int:
    """Return the width of the column of names, including the indent of nested connectors."""
    widths = [indent + len(type(connector).__name__) for connector in pipeline]
    inner = [_width(connector, indent + 2) for connector in pipeline if isinstance(connector, ConnectorPipeline)]
    return max([*widths, *inner], default=0)


def _render_connectors(
    pipeline: ConnectorPipeline, width: int, costs: Sequence[float] = (), indent: str = ""
) -> Iterator[str]:
    """Yield a line for each connector, and one for each space that it changes; a nested pipeline's connectors are
    indented.
    """
    spaces = pipeline.input_spaces
    for number, (connector, after) in enumerate(zip(pipeline, pipeline.spaces_after, strict=True), start=1):
        cost = f"{costs[number - 1]:7.1f} us  " if costs else ""
        name = f"{indent}{type(connector).__name__}"
        place = "" if indent else number
        yield f"  {place:>2} {name:<{width}}  {cost}{_columns(connector)}".rstrip()
        if isinstance(connector, ConnectorPipeline):
            yield from _render_connectors(connector, width, indent=f"{indent}  ")
        else:
            yield from _changes(spaces, after, width)
        spaces = after


def _changes(before: Spaces, after: Spaces, width: int) -> Iterator[str]:
    for kind, space, space_before in zip(("observations", "actions"), after, before, strict=True):
        if space != space_before:
            yield f"     {'':<{width}}  {kind} are {space_text(space)} from here on"


def _columns(connector: Connector) -> str:
    return "   ".join(f"{label} {', '.join(columns)}" for label, columns in columns_of(connector).items())
