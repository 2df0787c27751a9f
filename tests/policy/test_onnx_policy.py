"""onnxruntime's outputs are those of the module and its numpy connectors, for every kind of policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces

from runner.config.errors import ConfigError
from runner.module_building import BuiltActingModule
from runner.modules.action_distribution import MASKED_LOGIT
from runner.modules.flat_parameters import FlatParameters
from runner.pipelines import Connector, ObservationConnector, Requirements
from runner.pipelines.connector_graph import ConnectorGraph, ObservationGraph
from runner.policy import OnnxPolicy
from runner.policy.manifest import METADATA_KEY, make_manifest
from runner.policy.onnx_policy import save_pt2
from runner.policy.policy_graph import PolicyGraph
from runner.policy.stored_policy import ProgramPolicy, largest_difference
from runner.rllink.client.local_policy import LocalPolicy
from tests.policy.policies import make_parts, prepended, random_weights, seen_state

VECTOR = spaces.Box(-5.0, 5.0, (4,), np.float32)
TWO = spaces.Discrete(2)
NESTED = spaces.Dict(
    {
        "position": spaces.Box(-100.0, 100.0, (3,), np.float64),
        "mode": spaces.Discrete(3, start=-1),
        "more": spaces.Tuple(
            [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Box(0, 255, (2, 2), np.uint8)]
        ),
    }
)
ARM = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,), np.float32)
FREE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
IMAGES = spaces.Box(0, 255, (10, 10, 2), np.uint8)
ONE_CHANNEL = spaces.Box(0, 255, (16, 16, 1), np.uint8)
MASKED = spaces.Dict({"mask": spaces.MultiBinary(3), "seen": VECTOR})
NESTED_ACTIONS = spaces.Dict(
    {
        "move": ARM,
        "choice": spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 4])]),
        "bits": spaces.MultiBinary((2, 2)),
        "integers": spaces.Box(-2, 3, (2,), np.int8),
    }
)

Case = tuple[gym.Space[Any], gym.Space[Any], tuple[str, ...], list[dict[str, Any]]]
PAST_MANY = prepended("PrevActionsPrevRewards", n_prev_actions=2, n_prev_rewards=3)
CASES: dict[str, Case] = {
    "lstm": (VECTOR, TWO, ("module.use_lstm=true", "module.lstm_cell_size=8"), []),
    "gru": (VECTOR, FREE, ("module.use_gru=true", "module.lstm_cell_size=8", "module.vf_share_layers=false"), []),
    "nested_observations": (NESTED, TWO, (), []),
    "flattened": (NESTED, TWO, (), [prepended("FlattenObservations", keys_to_remove=["mode"])]),
    "filtered": (VECTOR, TWO, ("module.use_lstm=true", "module.lstm_cell_size=8"), [prepended("MeanStdFilter")]),
    "filtered_leaves": (NESTED, TWO, (), [prepended("MeanStdFilter", clip_by_value=1.5)]),
    "one channel": (ONE_CHANNEL, TWO, (), []),
    "stacked": (IMAGES, TWO, (), [prepended("FrameStacking", num_frames=3)]),
    "channels first": (spaces.Box(0, 255, (3, 16, 20), np.uint8), TWO, (), []),
    "channels first, stacked": (
        spaces.Dict({"camera": spaces.Box(0, 255, (3, 16, 16), np.uint8), "x": VECTOR}), TWO, (),
        [prepended("FrameStacking", num_frames=3)],
    ),
    "grey": (spaces.Box(0, 255, (16, 20), np.uint8), TWO, (), []),
    "grey, stacked": (spaces.Box(0, 255, (16, 20), np.uint8), TWO, (), [prepended("FrameStacking", num_frames=3)]),
    "frames": (spaces.Box(0, 1, (4, 16, 16), np.float32), TWO, (), []),
    "coloured frames": (spaces.Box(0, 255, (4, 16, 20, 3), np.uint8), TWO, (), []),
    "coloured frames first": (spaces.Box(0, 255, (4, 3, 16, 20), np.float32), TWO, (), []),
    "grey frames with channels": (spaces.Box(0, 255, (4, 16, 20, 1), np.uint8), TWO, (), []),
    "cells": (spaces.Box(0, 255, (7, 7, 3), np.uint8), TWO, ("module.image_max=10",), []),
    "background": (IMAGES, TWO, ("module.image_min=87", "module.image_max=151"), []),
    "stacked_but_mask": (
        MASKED, spaces.Discrete(3), ("module.action_mask_key=mask",),
        [prepended("FrameStacking", num_frames=2, keys_to_leave=["mask"])],
    ),
    "past_discrete": (VECTOR, spaces.Discrete(3, start=5), (), [PAST_MANY]),
    "past_nested": (VECTOR, NESTED_ACTIONS, (), [prepended("PrevActionsPrevRewards")]),
    "past_lstm": (
        VECTOR, TWO, ("module.use_lstm=true", "module.lstm_cell_size=8"),
        [prepended("PrevActionsPrevRewards", n_prev_rewards=0)],
    ),
    "multi_discrete": (VECTOR, spaces.MultiDiscrete([2, 3, 3]), (), []),
    "clipped": (VECTOR, ARM, ("env.normalize_actions=false", "env.clip_actions=true"), []),
    "squashed": (VECTOR, ARM, ("module._target_=runner.modules.SACModule",), []),
    "discrete_sac": (
        MASKED, spaces.Discrete(3),
        ("module._target_=runner.modules.DiscreteSACModule", "module.action_mask_key=mask"), [],
    ),
    "deterministic": (VECTOR, ARM, ("module._target_=runner.modules.TD3Module",), []),
    "squashed_lstm": (
        VECTOR, ARM,
        ("module._target_=runner.modules.SACModule", "module.use_lstm=true", "module.lstm_cell_size=8"), [],
    ),
    "discrete_sac_gru": (
        MASKED, spaces.Discrete(3),
        ("module._target_=runner.modules.DiscreteSACModule", "module.action_mask_key=mask", "module.use_gru=true"), [],
    ),
    "deterministic_gru": (VECTOR, ARM, ("module._target_=runner.modules.TD3Module", "module.use_gru=true"), []),
    "residual": (VECTOR, ARM, ("module._target_=runner.modules.SACModule", "module.architecture=simba"), []),
    "hyperspherical": (VECTOR, ARM, ("module._target_=runner.modules.SACModule", "module.architecture=simba_v2"), []),
    "nested_actions": (VECTOR, NESTED_ACTIONS, ("module.fcnet_use_layernorm=true", "module.free_log_std=true"), []),
}  # fmt: skip


def difference(model: bytes, parts: BuiltActingModule, weights: Any, shared_state: Any) -> float:
    return largest_difference(LocalPolicy(model), parts, weights, shared_state)


def test_rounding_errors_of_large_outputs_are_relative_to_their_row() -> None:
    parts, config = make_parts(VECTOR, spaces.Discrete(64))
    weights = 100.0 * random_weights(parts, 1)
    model = OnnxPolicy.of_module(parts, config).to_bytes(weights, {})
    assert difference(model, parts, weights, {}) < 1e-5


class OtherNumbers(LocalPolicy):
    """A file whose distribution inputs differ from the module's."""

    change: Callable[[Any], Any]

    def act(self, *arguments: Any, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        actions, extra = super().act(*arguments, **keywords)
        return actions, extra | {"action_dist_inputs": type(self).change(extra["action_dist_inputs"])}


class NotNumbers(OtherNumbers):
    change = staticmethod(lambda inputs: np.nan * inputs)


class ShiftedLogits(OtherNumbers):
    change = staticmethod(lambda inputs: np.where(inputs == MASKED_LOGIT, inputs, inputs + 1.0))


@pytest.mark.parametrize("policy_class", [NotNumbers, ShiftedLogits])
def test_other_numbers_are_a_difference_also_next_to_masked_actions(policy_class: type[OtherNumbers]) -> None:
    parts, config = make_parts(MASKED, spaces.Discrete(3), "module.action_mask_key=mask")
    weights = random_weights(parts)
    model = OnnxPolicy.of_module(parts, config).to_bytes(weights, {})
    assert not largest_difference(policy_class(model), parts, weights, {}) < 0.01


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_computes_what_the_module_does(name: str) -> None:
    observation_space, action_space, overrides, connectors = CASES[name]
    parts, config = make_parts(observation_space, action_space, *overrides, env_to_module=connectors)
    policy = OnnxPolicy.of_module(parts, config)
    shared_state = seen_state(parts)
    assert bool(shared_state) == ("filtered" in name)
    for seed in (1, 2):  # other parameters than the exported ones, and no new export
        weights = random_weights(parts, seed)
        model = policy.to_bytes(weights, shared_state)
        assert difference(model, parts, weights, shared_state) < 1e-5
    one_row = largest_difference(LocalPolicy(model), parts, weights, shared_state, num_rows=1)
    assert one_row < 1e-5
    for initializer in onnx.load_from_string(model).graph.initializer:
        assert not initializer.name.startswith("module.vf.")  # the value function is no part of the policy


@pytest.mark.parametrize(
    ("experiment", "observation_space", "overrides"),
    [
        ("dqn_cartpole", VECTOR, ()),
        ("dqn_cartpole", MASKED, ("module.action_mask_key=mask",)),
        ("dqn_cartpole", VECTOR, ("module.use_lstm=true", "module.lstm_cell_size=8", "algorithm.n_step=1")),
        ("dqn_cartpole_iqn", VECTOR, ()),
        ("rainbow_cartpole", VECTOR, ()),
        ("rainbow_cartpole", MASKED, ("module.action_mask_key=mask", "module.dueling=false")),
        ("td3_pendulum", VECTOR, ()),
        ("crossq_pendulum", VECTOR, ()),
        ("tqc_pendulum", VECTOR, ()),
    ],
    ids=["vector", "masked", "lstm", "iqn", "rainbow", "masked_rainbow", "td3", "crossq", "tqc"],
)
def test_a_policy_that_explores_by_itself_is_greedy_in_a_file(
    experiment: str, observation_space: gym.Space[Any], overrides: tuple[str, ...]
) -> None:
    actions = ARM if experiment.endswith("pendulum") else spaces.Discrete(3)
    parts, config = make_parts(observation_space, actions, *overrides, experiment=experiment)
    weights = random_weights(parts)
    model = OnnxPolicy.of_module(parts, config).to_bytes(weights, {})
    assert difference(model, parts, weights, {}) < 1e-5


def test_a_torch_program() -> None:
    """The same policy as `.pt2`, for torch."""
    connectors = [prepended("MeanStdFilter")]
    parts, config = make_parts(NESTED, NESTED_ACTIONS, "module.use_lstm=true", env_to_module=connectors)
    weights, shared_state = random_weights(parts), seen_state(parts)
    graph = PolicyGraph(parts)
    graph.load(weights, shared_state)
    program = ProgramPolicy(save_pt2(graph, make_manifest(graph, parts, config)))
    assert largest_difference(program, parts, weights, shared_state) < 1e-5


def test_connectors_change_what_the_policy_does() -> None:
    """The comparison above can fail: other statistics are another policy."""
    parts, config = make_parts(VECTOR, TWO, env_to_module=[prepended("MeanStdFilter")])
    weights, shared_state = random_weights(parts), seen_state(parts)
    policy = OnnxPolicy.of_module(parts, config)
    other_statistics = policy.to_bytes(weights, seen_state(parts, num_rows=5, seed=9))
    assert difference(other_statistics, parts, weights, shared_state) > 1e-3
    other_weights = policy.to_bytes(random_weights(parts, 7), shared_state)
    assert difference(other_weights, parts, weights, shared_state) > 1e-3
    without = policy.to_bytes(weights, {})
    assert difference(without, parts, weights, shared_state) > 1e-3


def test_statistics_far_from_zero_keep_their_precision() -> None:
    """A mean of a million with a deviation of 0.1: float32 would lose it."""
    space = spaces.Box(1e6 - 0.1, 1e6 + 0.1, (3,), np.float64)
    parts, config = make_parts(space, TWO, env_to_module=[prepended("MeanStdFilter")])
    weights, shared_state = random_weights(parts), seen_state(parts)
    model = OnnxPolicy.of_module(parts, config).to_bytes(weights, shared_state)
    assert difference(model, parts, weights, shared_state) < 1e-5


def test_the_run_goes_on_after_an_export() -> None:
    """The parts are copied: neither their parameters nor what they are views of change."""
    parts, config = make_parts(VECTOR, TWO, env_to_module=[prepended("MeanStdFilter")])
    flat = FlatParameters(parts.module)
    before, state = flat.to_numpy(), json.dumps(parts.env_to_module.get_state(), default=np.ndarray.tolist)
    OnnxPolicy.of_module(parts, config).to_bytes(random_weights_of(before), {})
    np.testing.assert_array_equal(flat.to_numpy(), before)
    assert json.dumps(parts.env_to_module.get_state(), default=np.ndarray.tolist) == state
    flat.load(before + 1)
    parameters = torch.cat([p.detach().reshape(-1) for p in parts.module.parameters()])
    np.testing.assert_array_equal(parameters.numpy(), before + 1)


def random_weights_of(like: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).normal(size=like.shape).astype(np.float32)


def test_the_manifest_is_in_the_file() -> None:
    connectors = [prepended("MeanStdFilter"), prepended("FrameStacking", num_frames=2)]
    parts, config = make_parts(spaces.Dict({"position": VECTOR}), ARM, env_to_module=connectors)
    policy = OnnxPolicy.of_module(parts, config)
    shared_state = seen_state(parts)
    model = onnx.load_from_string(policy.to_bytes(random_weights(parts), shared_state, weights_seq_no=7))
    text = {one.key: one.value for one in model.metadata_props}[METADATA_KEY]
    manifest = json.loads(text)
    assert manifest == policy.manifest
    assert manifest["weights_seq_no"] == 7
    assert manifest["experiment"] == "ppo_cartpole"
    assert [one["name"] for one in manifest["inputs"]] == ["obs/position", "state_in/FrameStacking/frames/position"]
    assert manifest["inputs"][1] == {
        "name": "state_in/FrameStacking/frames/position",
        "role": "state",
        "dtype": "float32",
        "shape": [1, 4],
        "path": [],
        "initial": 0.0,
        "next_from": "state_out/FrameStacking/frames/position",
    }
    assert [one["name"] for one in manifest["outputs"]] == [
        "actions", "action_dist_inputs", "state_out/FrameStacking/frames/position",
    ]  # fmt: skip
    assert manifest["distribution"]["name"] == "diag_gaussian"
    assert manifest["action_scaling"] == {"kind": "unsquash", "low": [-2.0, 0.0], "high": [2.0, 10.0]}
    statistics = manifest["statistics"]["env_to_module.connectors.MeanStdFilter.mean"]
    merged = shared_state["MeanStdFilter"]["merged_mean"]
    np.testing.assert_array_equal(statistics, merged)
    graph_inputs = {one.name: one for one in model.graph.input}
    assert list(graph_inputs) == [one["name"] for one in manifest["inputs"]]
    assert graph_inputs["obs/position"].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_nothing_of_this_machine_is_in_the_file() -> None:
    parts, config = make_parts(VECTOR, TWO)
    model = OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), {})
    assert b".py" not in model
    assert b"/site-packages/" not in model


@pytest.mark.parametrize("count", [0, 3, 10**6])
def test_weights_of_another_module(count: int) -> None:
    parts, config = make_parts(VECTOR, TWO)
    policy = OnnxPolicy.of_module(parts, config)
    with pytest.raises(ValueError, match=rf"weights have {count} values, this module has \d+"):
        policy.to_bytes(np.zeros(count, np.float32), {})


# -- connectors of a user's own ----------------------------------------------------------------------------------------


class WithoutGraph(ObservationConnector):
    """A connector that nobody has told how to be exported."""

    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        """The same."""
        return obs


class Halves(ObservationConnector):
    """A connector with a graph of one line."""

    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        """A half."""
        return obs * np.float32(0.5)

    def to_graph(self) -> ConnectorGraph:
        """The same on tensors."""
        return ObservationGraph(lambda obs: obs * 0.5)


class BreaksInTheGraph(Halves):
    """A connector whose graph asks for what tensors do not have."""

    def to_graph(self) -> ConnectorGraph:
        """Wrong."""
        return ObservationGraph(lambda obs: obs.no_such_method())


class LooksAtValues(Halves):
    """A connector whose graph branches on the values, which cannot be traced."""

    def to_graph(self) -> ConnectorGraph:
        """Wrong."""
        return ObservationGraph(lambda obs: obs if obs.sum() > 0 else -obs)


class NegatesActions(Connector):
    """A connector that changes actions for the environment."""

    requires = Requirements(reads=("actions_for_env",))

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        """The other sign."""
        return {**batch, "actions_for_env": -batch["actions_for_env"]}

    def to_graph(self) -> ConnectorGraph:
        """The same on tensors."""
        return NegatesActionsGraph()


class NegatesActionsGraph(ConnectorGraph):
    """Of `NegatesActions`."""

    def forward(self, columns: Any, step: Any) -> Any:
        """The other sign."""
        return {**columns, "actions_for_env": -columns["actions_for_env"]}


def own(connector: type[Connector]) -> dict[str, Any]:
    return {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "connector": {"_target_": f"{connector.__module__}.{connector.__name__}"},
    }


def test_a_connector_of_ones_own() -> None:
    parts, config = make_parts(VECTOR, TWO, env_to_module=[own(Halves)])
    weights = random_weights(parts)
    assert difference(OnnxPolicy.of_module(parts, config).to_bytes(weights, {}), parts, weights, {}) < 1e-5


def test_a_connector_of_ones_own_behind_the_module() -> None:
    edit = {"insert_after": "NormalizeAndClipActions", "connector": own(NegatesActions)["connector"]}
    parts, config = make_parts(VECTOR, ARM, module_to_env=[edit])
    weights = random_weights(parts)
    policy = OnnxPolicy.of_module(parts, config)
    assert difference(policy.to_bytes(weights, {}), parts, weights, {}) < 1e-5
    assert policy.manifest["action_scaling"] is None
    with pytest.raises(ValueError, match="use explore=False"):
        LocalPolicy(policy.to_bytes(weights, {})).act(np.zeros(4, np.float32), explore=True)


@pytest.mark.parametrize("connector", [WithoutGraph, BreaksInTheGraph, LooksAtValues])
def test_a_connector_that_cannot_be_exported_is_named(connector: type[Connector]) -> None:
    parts, config = make_parts(VECTOR, TWO, env_to_module=[own(connector)])
    with pytest.raises(ConfigError, match=connector.__name__):
        OnnxPolicy.of_module(parts, config)


def test_keys_that_give_one_name() -> None:
    space = spaces.Dict({"a/b": VECTOR, "a": spaces.Dict({"b": VECTOR})})
    parts, config = make_parts(space, TWO)
    with pytest.raises(ConfigError, match="obs/a/b"):
        OnnxPolicy.of_module(parts, config)
