"""From module outputs to actions: GetActions and NormalizeAndClipActions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runner.config.schemas import ModuleConfig
from runner.modules.gaussian import SquashedGaussian
from runner.modules.rl_module import RLModule
from runner.pipelines import GetActions, NormalizeAndClipActions
from runner.rllink.client.local_policy import _scale
from runner.streams import random_stream
from tests.pipelines.fixed_episodes import FixedEpisodes, pipeline_of

OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE, GAUSSIAN = gym.spaces.Discrete(4), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
LOGITS = torch.tensor([[0.0, 1.0, -1.0, 0.5]])


def module_for(action_space: gym.Space[Any]) -> RLModule:
    return RLModule(OBS_SPACE, action_space, ModuleConfig())


def make_connector(index: int = 0) -> GetActions:
    connector = GetActions()
    connector.use_stream(random_stream(3, "env_runner/module_to_env", index))
    return connector


def act(connector: GetActions, module: RLModule, dist_inputs: torch.Tensor, explore: bool = True) -> Any:
    batch = {"action_dist_inputs": dist_inputs}
    return connector(rl_module=module, batch=batch, episodes=FixedEpisodes(), explore=explore)["actions"].numpy()


def test_samples_follow_the_softmax() -> None:
    module, connector, rows = module_for(DISCRETE), make_connector(), 64
    counts = sum(np.bincount(act(connector, module, LOGITS.expand(rows, 4)), minlength=4) for _ in range(600))
    expected = LOGITS.softmax(-1)[0].numpy() * rows * 600
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 16.3  # 99.9 % quantile with 3 degrees of freedom


def test_rows_and_steps_are_independent() -> None:
    """Pairs of neighbours, in the vector step and in time, hit all 16 pairs as often as independent draws would."""
    module, connector = module_for(DISCRETE), make_connector()
    actions = np.stack([act(connector, module, LOGITS.expand(32, 4)) for _ in range(600)])
    probabilities = LOGITS.softmax(-1)[0].numpy()
    for first, second in ((actions[:, :-1:2], actions[:, 1::2]), (actions[:-1:2], actions[1::2])):
        counts = np.bincount((first * 4 + second).ravel(), minlength=16)
        expected = np.outer(probabilities, probabilities).ravel() * counts.sum()
        assert float(((counts - expected) ** 2 / expected).sum()) < 37.7  # 99.9 %, 15 degrees of freedom


def test_gaussian_samples_have_the_moments_of_the_inputs() -> None:
    module, connector = module_for(GAUSSIAN), make_connector()
    dist_inputs = torch.tensor([[1.0, -2.0, np.log(0.5), np.log(2.0)]]).expand(64, 4)
    actions = np.concatenate([act(connector, module, dist_inputs) for _ in range(600)])
    np.testing.assert_allclose(actions.mean(axis=0), [1.0, -2.0], atol=0.04)
    np.testing.assert_allclose(actions.std(axis=0), [0.5, 2.0], rtol=0.02)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.02


@pytest.mark.parametrize("space", [DISCRETE, GAUSSIAN], ids=["discrete", "gaussian"])
def test_same_stream_same_actions(space: gym.Space[Any]) -> None:
    module = module_for(space)
    dist_inputs = torch.zeros(8, 4)
    first, same, other = make_connector(), make_connector(), make_connector(index=1)
    actions = [
        np.stack([act(connector, module, dist_inputs) for _ in range(300)]) for connector in (first, same, other)
    ]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert (actions[0] != actions[2]).any()


@pytest.mark.parametrize("space", [DISCRETE, GAUSSIAN], ids=["discrete", "gaussian"])
@pytest.mark.parametrize("steps", [0, 1, 100, 255, 256, 257, 600])
def test_state_in_the_middle_of_a_block_of_noise(space: gym.Space[Any], steps: int) -> None:
    module, connector = module_for(space), GetActions()
    pipeline = pipeline_of(connector)
    dist_inputs = torch.zeros(3, 4)
    for _ in range(steps):
        act(connector, module, dist_inputs)
    state = pipeline.get_state()
    expected = [act(connector, module, dist_inputs).tolist() for _ in range(300)]
    restored, again = GetActions(), GetActions()
    pipeline = pipeline_of(restored, index=9)
    pipeline.set_state(state)
    assert pipeline.get_state() == state
    pipeline_of(again, index=8).set_state(pipeline.get_state())  # saved again before its first step
    for one in (restored, again):
        assert [act(one, module, dist_inputs).tolist() for _ in range(300)] == expected


def test_state_is_not_touched_by_what_follows() -> None:
    module, connector = module_for(DISCRETE), GetActions()
    pipeline = pipeline_of(connector)
    act(connector, module, LOGITS)
    state = pipeline.get_state()
    before = repr(state)
    for _ in range(600):
        act(connector, module, LOGITS)
    assert repr(state) == before


def test_greedy_actions_are_the_mode_and_use_no_noise() -> None:
    module, connector, other = module_for(DISCRETE), make_connector(), make_connector()
    assert act(
        connector, module, torch.tensor([[0.0, 3.0, 1.0, 2.0], [9.0, 3.0, 1.0, 2.0]]), explore=False
    ).tolist() == [
        1,
        0,
    ]
    assert act(connector, module, LOGITS.expand(64, 4)).tolist() == act(other, module, LOGITS.expand(64, 4)).tolist()
    gaussian = act(make_connector(), module_for(GAUSSIAN), torch.tensor([[0.25, -0.5, 1.0, 1.0]]), explore=False)
    assert gaussian.tolist() == [[0.25, -0.5]]


def test_another_number_of_sub_environments_draws_anew() -> None:
    module, connector = module_for(DISCRETE), make_connector()
    assert act(connector, module, LOGITS.expand(3, 4)).shape == (3,)
    assert act(connector, module, LOGITS.expand(5, 4)).shape == (5,)


@pytest.mark.parametrize("space", [DISCRETE, GAUSSIAN], ids=["discrete", "gaussian"])
def test_logp_of_a_fragment_is_that_of_its_actions(space: gym.Space[Any]) -> None:
    module, connector = module_for(space), make_connector()
    dist_inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32))
    columns = {"action_dist_inputs": dist_inputs.numpy(), "actions": act(connector, module, dist_inputs)}
    connector.complete_fragment(columns, module)
    actions = torch.from_numpy(columns["actions"])
    if space is DISCRETE:
        expected = torch.distributions.Categorical(logits=dist_inputs).log_prob(actions)
    else:
        mean, log_std = dist_inputs.chunk(2, -1)
        expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(actions).sum(-1)
    assert columns["action_logp"].dtype == np.float32
    np.testing.assert_allclose(columns["action_logp"], expected.numpy(), rtol=1e-4, atol=1e-5)


# -- NormalizeAndClipActions -------------------------------------------------------------------------------------------

BOUNDED = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
UNBOUNDED = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
HALF_BOUNDED = gym.spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([np.inf, 1.0], np.float32))
ACTIONS = [[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [-3.0, 7.0]]


@pytest.mark.parametrize(
    ("space", "normalize", "clip", "expected"),
    [
        (BOUNDED, True, False, [[-2, 0], [0, 7.5], [2, 10], [-2, 10]]),
        (BOUNDED, False, True, [[-1, 0], [0, 0.5], [1, 1], [-2, 7]]),
        (BOUNDED, True, True, [[-2, 0], [0, 7.5], [2, 10], [-2, 10]]),
        (BOUNDED, False, False, ACTIONS),
        (UNBOUNDED, True, False, ACTIONS),
        (UNBOUNDED, False, True, ACTIONS),
        (HALF_BOUNDED, True, False, [[0, -1], [0, 0.5], [1, 1], [0, 1]]),
    ],
)
def test_actions_for_the_environment(space: Any, normalize: bool, clip: bool, expected: Any) -> None:
    connector = NormalizeAndClipActions(normalize, clip)
    assert connector.recompute_output_action_space(OBS_SPACE, space) == space
    given = np.array(ACTIONS, np.float32)
    batch = connector(batch={"actions": given})
    assert batch["actions_for_env"].tolist() == expected
    assert batch["actions_for_env"].dtype == np.float32
    assert batch["actions"] is given  # what is learned from stays what the module did
    assert given.tolist() == ACTIONS


def test_discrete_actions_pass() -> None:
    connector = NormalizeAndClipActions(True, True)
    connector.recompute_output_action_space(OBS_SPACE, DISCRETE)
    actions = np.array([0, 3, 1])
    assert connector(batch={"actions": actions})["actions_for_env"] is actions


# -- actions stay within the bounds of their Box -----------------------------------------------------------------------

FLOATS = [np.float16, np.float32, np.float64]
UNITS = [-1.5, -1.0, -0.9999999, -0.5, 0.0, 0.3, 0.9999999, 1.0, 1.5]


def one_decimal(low: int, width: int, dtype: Any) -> gym.spaces.Box:
    return gym.spaces.Box(np.asarray([low / 10], dtype), np.asarray([(low + width) / 10], dtype), dtype=dtype)


@st.composite
def float_boxes(draw: st.DrawFn) -> gym.spaces.Box:
    dtype = draw(st.sampled_from(FLOATS))
    if draw(st.booleans()):
        return one_decimal(draw(st.integers(-200, 200)), draw(st.integers(0, 200)), dtype)
    numbers = hnp.arrays(dtype, 3, elements=hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False))
    low, high = np.sort(np.stack([draw(numbers), draw(numbers)]), 0)
    return gym.spaces.Box(low, high, dtype=dtype)


def widest(dtype: Any) -> gym.spaces.Box:
    return gym.spaces.Box(np.finfo(dtype).min, np.finfo(dtype).max, (2,), dtype)


def scaled_everywhere(space: gym.spaces.Box, units: Any, normalize: bool) -> list[Any]:
    """Actions by the connector, by the graph of an exported policy, and by a client with a stored policy."""
    connector = NormalizeAndClipActions(normalize, True)
    connector.recompute_output_action_space(OBS_SPACE, space)
    kind = "unsquash" if normalize else "clip"
    described = {"kind": kind, "low": space.low.tolist(), "high": space.high.tolist()}
    in_graph = connector.to_graph().scalings.of_tensors(torch.from_numpy(units)).numpy()
    return [connector(batch={"actions": units})["actions_for_env"], in_graph, _scale(described, units, clips=True)]


@given(space=float_boxes(), normalize=st.booleans())
@example(space=widest(np.float32), normalize=True)
@example(space=widest(np.float64), normalize=True)
@example(space=widest(np.float16), normalize=True)
@example(space=one_decimal(-3, 4, np.float32), normalize=True)
@settings(max_examples=300, deadline=None)
def test_actions_never_leave_their_box(space: gym.spaces.Box, normalize: bool) -> None:
    units = np.repeat(np.array(UNITS, space.dtype)[:, None], space.shape[0], 1)
    for actions in scaled_everywhere(space, units, normalize):
        assert actions.dtype == space.dtype
        assert all(space.contains(action) for action in actions), (space, actions)
        assert (actions[1] <= actions[-2]).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_widest_box_is_scaled_evenly(dtype: Any) -> None:
    space = widest(dtype)
    units = np.array([[-0.5, 0.25]], dtype)
    for actions in scaled_everywhere(space, units, normalize=True):
        np.testing.assert_allclose(actions, units * space.high)
    connector = NormalizeAndClipActions()
    connector.recompute_output_action_space(OBS_SPACE, space)
    np.testing.assert_allclose(connector.to_module(units * space.high), units)


def test_float32_actions_are_cast_to_the_dtype_of_the_box() -> None:
    connector = NormalizeAndClipActions()
    connector.recompute_output_action_space(OBS_SPACE, one_decimal(1, 2, np.float16))
    actions = connector(batch={"actions": np.array([[1.0]], np.float32)})["actions_for_env"]
    assert actions.dtype == np.float16


@given(space=float_boxes().filter(lambda space: (space.low < space.high).all()))
@example(space=widest(np.float32))
@example(space=widest(np.float64))
@settings(max_examples=200, deadline=None)
def test_squashed_actions_never_leave_their_box(space: gym.spaces.Box) -> None:
    dist = SquashedGaussian(space)
    inputs = torch.tensor([[x] * space.shape[0] + [0.0] * space.shape[0] for x in (-50.0, -1.0, 0.0, 1.0, 50.0)])
    noise = torch.full((5, space.shape[0]), 3.0)
    for actions in (dist.mode(inputs), dist.sample(inputs, noise), dist.mode_with_noise(inputs, noise)):
        assert all(space.contains(action) for action in actions.numpy()), (space, actions)


@given(low=st.integers(-130, 120), width=st.integers(0, 7), dtype=st.sampled_from([np.int8, np.int32, np.int64]))
@settings(max_examples=50, deadline=None)
def test_integer_actions_never_leave_their_box(low: int, width: int, dtype: Any) -> None:
    low = max(low, -128)
    space = gym.spaces.Box(low, low + width, (2,), dtype)
    module = module_for(space)
    connector = NormalizeAndClipActions(True, True)
    connector.recompute_output_action_space(OBS_SPACE, space)
    sampled = act(make_connector(), module, torch.randn(20, module.action_dist.num_inputs))
    assert all(space.contains(action) for action in connector(batch={"actions": sampled})["actions_for_env"])
