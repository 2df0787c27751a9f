"""A policy in a client: sampling in numpy, and nothing but numpy and onnxruntime imported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces
from onnx import TensorProto, helper

from runner.episodes import nested
from runner.modules.action_distribution import ActionDistribution
from runner.modules.distributions import distribution_for, squashed_distribution
from runner.modules.gaussian import SquashedGaussian
from runner.pipelines.connector import ACTIONS, ACTIONS_FOR_ENV
from runner.pipelines.module_to_env_connectors import NormalizeAndClipActions
from runner.policy import OnnxPolicy
from runner.policy.manifest import describe_distribution
from runner.rllink.client import local_policy
from runner.rllink.client.local_policy import LocalPolicy, PolicyFileError
from tests.conftest import ROOT, run_process
from tests.policy.policies import make_parts, prepended, random_weights

ARM = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
ARMS = spaces.Dict({"b": spaces.Tuple([ARM, spaces.Box(-1.0, 1.0, (2, 2), np.float64)]), "a": ARM})
VECTOR = spaces.Box(-5.0, 5.0, (4,), np.float32)
SPACES: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "shifted": spaces.Discrete(3, start=-5),
    "multi_discrete": spaces.MultiDiscrete([2, 4, 3], start=[0, 5, -1]),
    "integers": spaces.Box(-2, 3, (2, 2), np.int16),
    "bits": spaces.MultiBinary((2, 2)),
    "floats": ARM,
    "doubles": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "nested": spaces.Dict({"b": spaces.Tuple([ARM, spaces.Discrete(2)]), "a": spaces.MultiBinary(3)}),
}
DISTRIBUTIONS: list[tuple[str, gym.Space[Any], ActionDistribution]] = [
    *((name, space, distribution_for(space)) for name, space in SPACES.items()),
    ("squashed", ARM, SquashedGaussian(ARM)),
    ("squashed_parts", ARMS, squashed_distribution(ARMS)),
]
BY_NAME = {name: (space, dist) for name, space, dist in DISTRIBUTIONS}


@pytest.mark.parametrize("name", BY_NAME)
def test_numpy_distributions_are_those_of_torch(name: str) -> None:
    space, dist = BY_NAME[name]
    plain = describe_distribution(dist, space)
    stream = np.random.default_rng(0)
    inputs = stream.normal(size=(500, dist.num_inputs)).astype(np.float32)
    actions = local_policy.sample(plain, inputs, stream)
    tensors = nested.map_leaves(torch.from_numpy, actions)
    expected = dist.log_prob(torch.from_numpy(inputs), tensors).numpy()
    np.testing.assert_allclose(local_policy.log_prob(plain, inputs, actions), expected, rtol=1e-4, atol=1e-4)
    modes = nested.map_leaves(lambda leaf: leaf.numpy(), dist.mode(torch.from_numpy(inputs)))
    for got, own in zip(nested.leaves(local_policy.mode(plain, inputs)), nested.leaves(modes), strict=True):
        assert got.dtype == own.dtype
        np.testing.assert_allclose(got, own, rtol=1e-6, atol=1e-6)
    for got, own in zip(nested.leaves(actions), nested.leaves(modes), strict=True):
        assert (got.dtype, got.shape) == (own.dtype, own.shape)


@pytest.mark.parametrize("name", BY_NAME)
def test_samples_are_distributed_as_their_log_prob_says(name: str) -> None:
    """The mean of -log p over samples is the distribution's entropy, which torch knows."""
    space, dist = BY_NAME[name]
    plain = describe_distribution(dist, space)
    one = np.random.default_rng(1).normal(0.0, 0.5, dist.num_inputs).astype(np.float32)
    inputs = np.repeat(one[None], 20000, axis=0)
    actions = local_policy.sample(plain, inputs, np.random.default_rng(2))
    surprise = -local_policy.log_prob(plain, inputs, actions)
    entropy = float(dist.entropy(torch.from_numpy(one[None]))[0])
    assert surprise.mean() == pytest.approx(entropy, abs=5 * float(surprise.std()) / 20000**0.5 + 1e-3)


@pytest.fixture(scope="module")
def arm_policy() -> tuple[LocalPolicy, bytes]:
    """Continuous actions, normalised."""
    parts, config = make_parts(spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}), ARM)
    model = OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), {})
    return LocalPolicy(model), model


OBS = {"a": np.zeros(4, np.float32), "b": 1}


def test_sampled_actions_are_scaled_as_the_connector_scales_them(arm_policy: tuple[LocalPolicy, bytes]) -> None:
    policy, _ = arm_policy
    batch = {"a": np.ones((30, 4), np.float32), "b": np.ones(30, np.int64)}
    actions, extra = policy.act(batch, explore=True, rng=np.random.default_rng(0))
    connector = NormalizeAndClipActions()
    connector.recompute_output_action_space(VECTOR, ARM)
    expected = connector(batch={ACTIONS: extra["module_actions"]})[ACTIONS_FOR_ENV]
    np.testing.assert_array_equal(actions, expected)
    assert actions.shape == (30, 2)
    assert len({*extra["module_actions"][:, 0].tolist()}) == 30
    greedy, extra = policy.act(batch, explore=False)
    np.testing.assert_allclose(greedy, connector(batch={ACTIONS: extra["module_actions"]})[ACTIONS_FOR_ENV], atol=1e-6)


def test_one_observation_and_a_batch(arm_policy: tuple[LocalPolicy, bytes]) -> None:
    policy, _ = arm_policy
    single, extra = policy.act(OBS, explore=False)
    batch, extras = policy.act({"a": OBS["a"][None], "b": np.array([1])}, explore=False)
    assert single.shape == (2,)
    np.testing.assert_array_equal(single, batch[0])
    assert extra["action_dist_inputs"].shape == (4,)
    assert extra["action_logp"] == extras["action_logp"][0]
    assert extra["state_out"] == {}


def test_the_same_noise_gives_the_same_actions(arm_policy: tuple[LocalPolicy, bytes]) -> None:
    policy, _ = arm_policy
    first, second = (policy.act(OBS, explore=True, rng=np.random.default_rng(5))[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (policy.act(OBS, explore=True, rng=np.random.default_rng(6))[0] != first).all()


def test_it_is_greedy_unless_asked_to_explore(arm_policy: tuple[LocalPolicy, bytes]) -> None:
    """As `evaluate` is."""
    policy, _ = arm_policy
    batch = {"a": np.ones((30, 4), np.float32), "b": np.ones(30, np.int64)}
    actions, extra = policy.act(batch)
    np.testing.assert_array_equal(actions, policy.act(batch, explore=False)[0])
    np.testing.assert_array_equal(extra["module_actions"], np.tile(extra["module_actions"][:1], (30, 1)))
    assert len({*policy.act(batch, explore=True)[0][:, 0].tolist()}) > 1


@pytest.mark.parametrize(
    ("obs", "told"),
    [
        ({"a": np.zeros(4, np.float32)}, "the observation lacks obs/b"),
        ({"a": np.zeros(3, np.float32), "b": 0}, "obs/a has the shape [3], this policy needs [4] or a batch of it"),
        ({"a": np.zeros(4, np.float32), "b": 0.5}, "obs/b needs int64, got float64 with other values"),
        ({"a": np.zeros((2, 4), np.float32), "b": np.zeros(3, int)}, "differ in their number of rows"),
        ({"a": np.zeros((2, 4), np.float32), "b": 0}, "differ in their number of rows"),
    ],
)
def test_observations_that_do_not_fit(arm_policy: tuple[LocalPolicy, bytes], obs: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        arm_policy[0].act(obs)


def test_a_policy_with_memory() -> None:
    """Each row's outputs depend on its own past; rows of new episodes begin with the initial state."""
    connectors = [prepended("PrevActionsPrevRewards")]
    parts, config = make_parts(
        VECTOR, spaces.Discrete(3), "module.use_gru=true", "module.lstm_cell_size=8", env_to_module=connectors
    )
    policy = LocalPolicy(OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), {}))
    obs = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    start = policy.initial_state(2)
    assert {name: value.shape for name, value in start.items()} == {
        "state_in/h": (2, 8),
        "state_in/PrevActionsPrevRewards/has_begun": (2, 1),
        "state_in/PrevActionsPrevRewards/prev_action": (2,),
        "state_in/PrevActionsPrevRewards/prev_reward": (2,),
    }
    _, first = policy.act(obs, start)
    state = first["state_out"]
    assert state["state_in/PrevActionsPrevRewards/prev_action"].tolist() == first["module_actions"].tolist()
    with pytest.raises(ValueError, match="rewards="):
        policy.act(obs, state)
    _, second = policy.act(obs, state, rewards=[1.0, 0.0])
    assert not np.allclose(second["action_dist_inputs"], first["action_dist_inputs"])
    _, other_reward = policy.act(obs, state, rewards=[5.0, 0.0])
    changed = (other_reward["action_dist_inputs"] != second["action_dist_inputs"]).any(-1)
    assert changed.tolist() == [True, False]
    taken = policy.with_actions(state, (first["module_actions"] + 1) % 3)
    _, other_action = policy.act(obs, taken, rewards=[1.0, 0.0])
    assert (other_action["action_dist_inputs"] != second["action_dist_inputs"]).any(-1).all()
    row_starts = {name: np.where(np.arange(2).reshape(-1, *[1] * (value.ndim - 1)) == 0, start[name], value)
                  for name, value in state.items()}  # fmt: skip
    _, half = policy.act(obs, row_starts, rewards=[9.0, 0.0])
    np.testing.assert_allclose(half["action_dist_inputs"][0], first["action_dist_inputs"][0], atol=1e-6)
    np.testing.assert_allclose(half["action_dist_inputs"][1], second["action_dist_inputs"][1], atol=1e-6)
    with pytest.raises(ValueError, match="this step needs"):
        policy.act(obs, policy.initial_state(3), rewards=0.0)


def other_model(model: bytes, **metadata: str) -> bytes:
    proto = onnx.load_from_string(model)
    del proto.metadata_props[:]
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return proto.SerializeToString()


def test_files_that_are_no_policy(arm_policy: tuple[LocalPolicy, bytes]) -> None:
    model = arm_policy[1]
    for content, told in [
        (b"", "cannot load"),
        (b"no model", "cannot load"),
        (model[: len(model) // 2], "cannot load"),
        (other_model(model), "does not contain runner_manifest"),
        (other_model(model, runner_manifest='{"format_version": 99, "inputs": []}'), "format version 99"),
        (other_model(model, runner_manifest="{"), "manifest cannot be read: JSONDecodeError"),
        (other_model(model, runner_manifest="[]"), "manifest cannot be read: AttributeError"),
        (other_model(model, runner_manifest='{"format_version": 1}'), "manifest cannot be read: KeyError: 'inputs'"),
        (
            other_model(model, runner_manifest='{"format_version": 1, "inputs": [], "outputs": []}'),
            r"names the inputs \[\], but the graph has \['obs/a', 'obs/b'\]",
        ),
    ]:
        with pytest.raises(PolicyFileError, match=told):
            LocalPolicy(content)


def test_a_distribution_that_nobody_knows() -> None:
    plain = {"name": "custom", "class": "Mine", "slice": [0, 2]}
    with pytest.raises(ValueError, match="actions of Mine cannot be sampled here"):
        local_policy.sample(plain, np.zeros((1, 2), np.float32), np.random.default_rng())


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "ray", "gymnasium", "onnx", "onnxscript", "mlflow", "msgspec", "omegaconf"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from runner.rllink.client.local_policy import LocalPolicy
policy = LocalPolicy(open(sys.argv[1], "rb").read())
actions, extra = policy.act({"a": [0.0, 0.0, 0.0, 0.0], "b": 1})
assert actions.shape == (2,)
print(sorted(name for name in sys.modules if name.startswith("runner")))
"""


def test_a_client_needs_numpy_and_onnxruntime_only(arm_policy: tuple[LocalPolicy, bytes], tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").write_bytes(arm_policy[1])
    result = run_process(ROOT, str(tmp_path / "policy.onnx"), program=("-c", BLOCKED))
    assert "runner.config" not in result.stdout
    assert "runner.episodes" not in result.stdout


def test_a_model_of_somebody_else() -> None:
    """Any ONNX file may come over the wire."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with pytest.raises(PolicyFileError, match="not written by runner"):
        LocalPolicy(model.SerializeToString())
