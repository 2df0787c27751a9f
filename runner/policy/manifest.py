"""Manifest of a policy file: spaces, inputs and outputs, distribution, scaling of actions, statistics."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.config.schemas import ExperimentConfig
from runner.episodes.spaces import plain_array, space_to_dict
from runner.module_building import BuiltActingModule
from runner.modules.action_distribution import ActionDistribution
from runner.modules.categorical import MultiCategorical
from runner.modules.distributions import NestedDistribution, distribution_for
from runner.modules.gaussian import SquashedGaussian
from runner.pipelines.connector_graphs import GreedyActionsGraph, LeafScaling, RemoveTimeGraph, ScalingGraph
from runner.pipelines.module_to_env_connectors import acting_space
from runner.policy.policy_graph import PolicyGraph

FORMAT_VERSION = 1
METADATA_KEY = "runner_manifest"
# Larger statistics are stored only as tensors.
_MOST_STATISTICS = 4096
_PACKAGES = ("runner", "torch", "onnx")

Json = dict[str, Any]


def make_manifest(graph: PolicyGraph, built: BuiltActingModule, config: ExperimentConfig) -> Json:
    """Return the manifest of a module of an experiment, without values of its parameters.

    `docs/reference/metrics_and_files.md` describes each key.
    """
    spec, module = built.spec, graph.module
    return {
        "format_version": FORMAT_VERSION,
        "experiment": config.experiment_name,
        "module_id": spec.module_id,
        "module_class": spec.module._target_,
        "weights_seq_no": None,
        "observation_space": space_to_dict(spec.observation_space),
        "action_space": space_to_dict(spec.action_space),
        "inputs": [port.to_dict() for port in graph.inputs],
        "outputs": [port.to_dict() for port in graph.outputs],
        "distribution": describe_distribution(
            module.action_dist, acting_space(spec.action_space, config.env.normalize_actions)
        ),
        "action_scaling": describe_scaling(built, spec.action_space),
        "statistics": {},
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def updated_manifest(manifest: Json, weights_seq_no: int | None, statistics: Mapping[str, npt.NDArray[Any]]) -> Json:
    """Return the manifest for other parameters. `statistics`: name of a tensor -> values of connectors."""
    values = {
        name: plain_array(value) if value.size <= _MOST_STATISTICS else None for name, value in statistics.items()
    }
    return {**manifest, "weights_seq_no": weights_seq_no, "statistics": values}


def describe_distribution(dist: ActionDistribution, space: gym.Space[Any], start: int = 0) -> Json:
    """Return a description of how to sample actions of `space` from columns `start`, ... of `action_dist_inputs`.

    A user-defined distribution is `custom`: users of the file can take greedy actions, but cannot sample.
    """
    columns = {"slice": [start, start + dist.num_inputs]}
    if isinstance(dist, SquashedGaussian) and isinstance(space, gym.spaces.Box):
        bounds = {"low": plain_array(space.low), "high": plain_array(space.high)}
        return {"name": "squashed_gaussian", **columns, **_shape_and_dtype(space), **bounds}
    if type(dist) is not type(distribution_for(space)):
        return {"name": "custom", "class": type(dist).__name__, **columns}
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        assert isinstance(dist, NestedDistribution)
        return {"name": "nested", **columns, **_describe_parts(dist, space, start)}
    if isinstance(space, gym.spaces.Discrete):
        numbers = {"num_actions": int(space.n), "start": int(space.start)}
        return {"name": "categorical", **columns, **numbers, "dtype": str(space.dtype)}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"name": "bernoulli", **columns, **_shape_and_dtype(space)}
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return {"name": "diag_gaussian", **columns, **_shape_and_dtype(space)}
    assert isinstance(dist, MultiCategorical)
    choices = {"sizes": list(dist.sizes), "starts": list(dist.starts)}
    return {"name": "multi_categorical", **columns, **choices, **_shape_and_dtype(space)}


def _describe_parts(dist: NestedDistribution, space: gym.spaces.Dict | gym.spaces.Tuple[Any], start: int) -> Json:
    keyed = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
    parts = []
    for of_part, (key, part) in zip(dist.parts, keyed, strict=True):
        described = describe_distribution(of_part, part, start)
        start = described["slice"][1]
        parts.append([key, described])
    return {"kind": "dict" if isinstance(space, gym.spaces.Dict) else "tuple", "parts": parts}


def _shape_and_dtype(space: gym.Space[Any]) -> Json:
    return {"shape": list(space.shape or ()), "dtype": str(space.dtype)}


def describe_scaling(built: BuiltActingModule, action_space: gym.Space[Any]) -> Json | None:
    """Return the map from the module's actions to the environment's, or None if custom connectors compute it."""
    graphs = [graph for graph in (connector.to_graph() for connector in built.module_to_env) if graph is not None]
    known = (GreedyActionsGraph, RemoveTimeGraph, ScalingGraph)
    if not all(type(graph) in known for graph in graphs):
        return None
    scalings = [graph.scalings for graph in graphs if isinstance(graph, ScalingGraph)]
    return _describe_scaling(scalings[0], action_space) if len(scalings) == 1 else None


def _describe_scaling(scaling: Any, space: gym.Space[Any]) -> Json:
    if isinstance(space, gym.spaces.Dict):
        parts = [[key, _describe_scaling(scaling and scaling[key], part)] for key, part in space.spaces.items()]
        return {"kind": "dict", "parts": parts}
    if isinstance(space, gym.spaces.Tuple):
        keyed = enumerate(space.spaces)
        return {
            "kind": "tuple",
            "parts": [[key, _describe_scaling(scaling and scaling[key], part)] for key, part in keyed],
        }
    if not isinstance(scaling, LeafScaling):
        return {"kind": "none"}
    return {"kind": scaling.kind, "low": plain_array(scaling.low), "high": plain_array(scaling.high)}
