"""From module outputs to actions: GetActions and NormalizeAndClipActions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.schemas import ModuleConfig
from runner.modules.rl_module import RLModule
from runner.pipelines import GetActions, NormalizeAndClipActions
from runner.streams import random_stream
from tests.pipelines.fixed_episodes import FixedEpisodes, pipeline_of

OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE, GAUSSIAN = gym.spaces.Discrete(4), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
LOGITS = torch.tensor([[0.0, 1.0, -1.0, 0.5]])


def module_for(action_space: gym.Space[Any]) -> RLModule:
    return RLModule(OBS_SPACE, action_space, ModuleConfig())


def make_piece(index: int = 0) -> GetActions:
    piece = GetActions()
    piece.use_stream(random_stream(3, "env_runner/module_to_env", index))
    return piece


def act(piece: GetActions, module: RLModule, dist_inputs: torch.Tensor, explore: bool = True) -> Any:
    batch = {"action_dist_inputs": dist_inputs}
    return piece(rl_module=module, batch=batch, episodes=FixedEpisodes(), explore=explore)["actions"].numpy()


def test_samples_follow_the_softmax() -> None:
    module, piece, rows = module_for(DISCRETE), make_piece(), 64
    counts = sum(np.bincount(act(piece, module, LOGITS.expand(rows, 4)), minlength=4) for _ in range(600))
    expected = LOGITS.softmax(-1)[0].numpy() * rows * 600
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 16.3  # 99.9 % quantile with 3 degrees of freedom


def test_rows_and_steps_are_independent() -> None:
    """Pairs of neighbours, in the vector step and in time, hit all 16 pairs as often as independent draws would."""
    module, piece = module_for(DISCRETE), make_piece()
    actions = np.stack([act(piece, module, LOGITS.expand(32, 4)) for _ in range(600)])
    probabilities = LOGITS.softmax(-1)[0].numpy()
    for first, second in ((actions[:, :-1:2], actions[:, 1::2]), (actions[:-1:2], actions[1::2])):
        counts = np.bincount((first * 4 + second).ravel(), minlength=16)
        expected = np.outer(probabilities, probabilities).ravel() * counts.sum()
        assert float(((counts - expected) ** 2 / expected).sum()) < 37.7  # 99.9 %, 15 degrees of freedom


def test_gaussian_samples_have_the_moments_of_the_inputs() -> None:
    module, piece = module_for(GAUSSIAN), make_piece()
    dist_inputs = torch.tensor([[1.0, -2.0, np.log(0.5), np.log(2.0)]]).expand(64, 4)
    actions = np.concatenate([act(piece, module, dist_inputs) for _ in range(600)])
    np.testing.assert_allclose(actions.mean(axis=0), [1.0, -2.0], atol=0.04)
    np.testing.assert_allclose(actions.std(axis=0), [0.5, 2.0], rtol=0.02)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.02


@pytest.mark.parametrize("space", [DISCRETE, GAUSSIAN], ids=["discrete", "gaussian"])
def test_same_stream_same_actions(space: gym.Space[Any]) -> None:
    module = module_for(space)
    dist_inputs = torch.zeros(8, 4)
    first, same, other = make_piece(), make_piece(), make_piece(index=1)
    actions = [np.stack([act(piece, module, dist_inputs) for _ in range(300)]) for piece in (first, same, other)]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert (actions[0] != actions[2]).any()


@pytest.mark.parametrize("space", [DISCRETE, GAUSSIAN], ids=["discrete", "gaussian"])
@pytest.mark.parametrize("steps", [0, 1, 100, 255, 256, 257, 600])
def test_state_in_the_middle_of_a_block_of_noise(space: gym.Space[Any], steps: int) -> None:
    module, piece = module_for(space), GetActions()
    pipeline = pipeline_of(piece)
    dist_inputs = torch.zeros(3, 4)
    for _ in range(steps):
        act(piece, module, dist_inputs)
    state = pipeline.get_state()
    expected = [act(piece, module, dist_inputs).tolist() for _ in range(300)]
    restored, again, old = GetActions(), GetActions(), GetActions()
    pipeline = pipeline_of(restored, index=9)
    pipeline.set_state(state)
    assert pipeline.get_state() == state
    pipeline_of(again, index=8).set_state(pipeline.get_state())  # saved again before its first step
    before = state["GetActions"] | {"stream": state["#streams"]["GetActions"]}  # as older checkpoints have it
    pipeline_of(old, index=7).set_state({"GetActions": before})
    for one in (restored, again, old):
        assert [act(one, module, dist_inputs).tolist() for _ in range(300)] == expected


def test_state_is_not_touched_by_what_follows() -> None:
    module, piece = module_for(DISCRETE), GetActions()
    pipeline = pipeline_of(piece)
    act(piece, module, LOGITS)
    state = pipeline.get_state()
    before = repr(state)
    for _ in range(600):
        act(piece, module, LOGITS)
    assert repr(state) == before


def test_greedy_actions_are_the_mode_and_use_no_noise() -> None:
    module, piece, other = module_for(DISCRETE), make_piece(), make_piece()
    assert act(piece, module, torch.tensor([[0.0, 3.0, 1.0, 2.0], [9.0, 3.0, 1.0, 2.0]]), explore=False).tolist() == [
        1,
        0,
    ]
    assert act(piece, module, LOGITS.expand(64, 4)).tolist() == act(other, module, LOGITS.expand(64, 4)).tolist()
    gaussian = act(make_piece(), module_for(GAUSSIAN), torch.tensor([[0.25, -0.5, 1.0, 1.0]]), explore=False)
    assert gaussian.tolist() == [[0.25, -0.5]]


def test_another_number_of_sub_environments_draws_anew() -> None:
    module, piece = module_for(DISCRETE), make_piece()
    assert act(piece, module, LOGITS.expand(3, 4)).shape == (3,)
    assert act(piece, module, LOGITS.expand(5, 4)).shape == (5,)


@pytest.mark.parametrize("space", [DISCRETE, GAUSSIAN], ids=["discrete", "gaussian"])
def test_logp_of_a_fragment_is_that_of_its_actions(space: gym.Space[Any]) -> None:
    module, piece = module_for(space), make_piece()
    dist_inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32))
    columns = {"action_dist_inputs": dist_inputs.numpy(), "actions": act(piece, module, dist_inputs)}
    piece.complete_fragment(columns, module)
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
    piece = NormalizeAndClipActions(normalize, clip)
    assert piece.recompute_output_action_space(OBS_SPACE, space) == space
    given = np.array(ACTIONS, np.float32)
    batch = piece(batch={"actions": given})
    assert batch["actions_for_env"].tolist() == expected
    assert batch["actions_for_env"].dtype == np.float32
    assert batch["actions"] is given  # what is learned from stays what the module did
    assert given.tolist() == ACTIONS


def test_discrete_actions_pass() -> None:
    piece = NormalizeAndClipActions(True, True)
    piece.recompute_output_action_space(OBS_SPACE, DISCRETE)
    actions = np.array([0, 3, 1])
    assert piece(batch={"actions": actions})["actions_for_env"] is actions
