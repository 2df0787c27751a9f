"""Frame stacking and past actions and rewards: the same in the env and in the learner pipeline, for every episode."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.pipelines import FrameStacking, PrevActionsPrevRewards, WriteObservationsToEpisodes
from runner.pipelines.connector import Batch, Connector
from tests.pipelines.connector_contract import AFTER_OBS, WITH_MASK, ConnectorCase, check_connector
from tests.pipelines.fixed_episodes import FixedEpisodes
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of
from tests.support.environments import NUM_CODED_ACTIONS, CodedEnv, coded_reward

SPACES = CodedEnv.observation_space, CodedEnv.action_space
Place = tuple[int, int, int]


def stacking() -> FrameStacking:
    return FrameStacking(2)


CASES = {
    "FrameStacking": ConnectorCase(stacking, "env_to_module", *AFTER_OBS),
    "FrameStacking-first": ConnectorCase(stacking, "env_to_module", "prepend"),
    "FrameStacking-learner": ConnectorCase(lambda: FrameStacking(2, as_learner_connector=True), "learner", "prepend"),
    "FrameStacking-learner-mask": ConnectorCase(stacking, "learner", *AFTER_OBS, edits=WITH_MASK),
    "PrevActionsPrevRewards": ConnectorCase(PrevActionsPrevRewards, "env_to_module", *AFTER_OBS),
    "PrevActionsPrevRewards-first": ConnectorCase(PrevActionsPrevRewards, "env_to_module", "prepend"),
    "PrevActionsPrevRewards-learner": ConnectorCase(PrevActionsPrevRewards, "learner", *AFTER_OBS),
    "PrevActionsPrevRewards-learner-mask": ConnectorCase(
        PrevActionsPrevRewards, "learner", *AFTER_OBS, edits=WITH_MASK
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    check_connector(*CASES[name])


# -- on real episodes --------------------------------------------------------------------------------------------------


class Recorder(Connector):
    """Keeps what a connector makes of the running episodes, by the place (n, t, k) of the newest observation."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.rows: dict[Place, Any] = {}

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        obs = nested.unstack(self._connector(rl_module=None, batch={}, episodes=episodes)["obs"])
        for place, row in zip(episodes.current_obs.copy().tolist(), obs, strict=True):
            self.rows[tuple(place)] = copy.deepcopy(row)
        return batch


def recorded(connector: Connector, lengths: Sequence[int], fragments: Sequence[int]) -> Any:
    """What the connector made in the env pipeline, the fragments' blocks and the log of steps."""
    connector.recompute_output_observation_space(*SPACES)
    env, log = coded_envs("batched", 2, lengths)
    module = coded_module()
    runner = make_runner(env, module, connector.requires.num_lookback)
    recorder = Recorder(connector)
    runner.env_to_module.prepend(recorder)
    blocks = [
        runner.sample(steps, True, weights_of(module), {}).rollout.blocks["default_policy"] for steps in fragments
    ]
    return recorder.rows, blocks, {(n, t, k): action for n, t, k, action in log}


def assert_learner_rows(connector: Connector, blocks: Sequence[ColumnBlock], expected: dict[Place, Any]) -> None:
    """The connector makes the same rows in a learner pipeline, with and without bootstrap rows."""
    for block in [*blocks, concat_blocks(blocks)]:
        places = block.columns["obs"]
        is_step = np.ones(len(places), np.bool_)
        is_step[block.first_obs_rows + block.lengths] = False
        for batch, rows in (({"loss_mask": is_step}, places), ({}, places[is_step])):
            got = nested.unstack(connector(rl_module=None, batch=batch, episodes=block)["obs"])
            assert len(got) == len(rows)
            for place, row in zip(rows.tolist(), got, strict=True):
                assert nested.equal(row, expected[tuple(place)]), f"{place}: {row}, not {expected[tuple(place)]}"


runs = {
    "lengths": st.lists(st.integers(1, 6), min_size=1, max_size=4),
    "fragments": st.lists(st.integers(1, 9), min_size=1, max_size=4),
}


@given(num_frames=st.integers(1, 4), **runs)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_stacks_of_env_and_learner_pipeline(num_frames: int, lengths: list[int], fragments: list[int]) -> None:
    rows, blocks, _ = recorded(FrameStacking(num_frames), lengths, fragments)
    for (n, t, k), row in rows.items():
        frames = [(n, s, k) if s >= 0 else (0, 0, 0) for s in range(int(t) - num_frames + 1, int(t) + 1)]
        assert row.tolist() == [float(x) for frame in frames for x in frame]
    assert_learner_rows(FrameStacking(num_frames), blocks, rows)


@given(num_actions=st.integers(0, 3), num_rewards=st.integers(0, 3), **runs)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_past_actions_of_env_and_learner_pipeline(
    num_actions: int, num_rewards: int, lengths: list[int], fragments: list[int]
) -> None:
    if num_actions == num_rewards == 0:
        return
    connector = PrevActionsPrevRewards(num_actions, num_rewards)
    rows, blocks, actions = recorded(connector, lengths, fragments)
    one_hot = np.vstack([np.eye(NUM_CODED_ACTIONS), np.zeros(NUM_CODED_ACTIONS)])
    for place, row in rows.items():
        n, t, k = map(int, place)
        past = [actions.get((n, s, k), -1) for s in range(t - num_actions, t)]
        expected: dict[str, Any] = {"_orig_obs": np.array(place)}
        if num_actions:
            expected["prev_n_actions"] = one_hot[past].reshape(-1)
        if num_rewards:
            rewards = [coded_reward(n, s, k) if s > 0 else 0.0 for s in range(t - num_rewards + 1, t + 1)]
            expected["prev_n_rewards"] = np.array(rewards)
        assert nested.equal(row, expected), f"{place}: {row}, not {expected}"
        assert all(leaf.dtype == np.float32 for leaf in nested.leaves(row))
    assert_learner_rows(connector, blocks, rows)


def test_written_stacks_are_what_the_learner_gets() -> None:
    env, _ = coded_envs("sync", 2, [3, 1, 4])
    module = coded_module()
    forward = module.forward_train
    module.forward_train = lambda batch: forward({"obs": batch["obs"][:, -3:]})  # type: ignore[method-assign]
    runner = make_runner(env, module, num_lookback=2)
    runner.env_to_module.prepend(WriteObservationsToEpisodes())
    runner.env_to_module.prepend(FrameStacking(3))
    block = runner.sample(11, True, weights_of(module), {}).rollout.blocks["default_policy"]
    n, t, k = block.columns["obs"][:, -3:].T
    before = [np.stack([n, t - back, k], -1) * (t >= back)[:, None] for back in (2, 1, 0)]
    np.testing.assert_array_equal(block.columns["obs"], np.concatenate(before, -1))


# -- shapes and spaces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "stacked_shape"),
    [
        ((), (3,)),
        ((2,), (6,)),
        ((4, 5), (4, 5, 3)),
        ((4, 5, 1), (4, 5, 3)),
        ((4, 5, 2), (4, 5, 6)),
        ((1, 2, 3, 4), (1, 2, 3, 12)),
    ],
)
def test_shapes(shape: tuple[int, ...], stacked_shape: tuple[int, ...]) -> None:
    space = gym.spaces.Box(10, 200, shape, np.uint8)
    connector = FrameStacking(3)
    stacked_space = connector.recompute_output_observation_space(space, gym.spaces.Discrete(2))
    assert stacked_space.shape == stacked_shape
    assert stacked_space.dtype == np.uint8
    frames = np.random.default_rng(0).integers(10, 200, (2, 3, *shape), np.uint8)
    frames[0, 0] = 0  # before the start: outside of the space of one frame, but not of the stack's
    stacks = connector(batch={}, episodes=FixedEpisodes(obs=frames))["obs"]
    assert stacks.shape == (2, *stacked_shape)
    assert stacks.flags.c_contiguous
    assert all(stacked_space.contains(stack) for stack in stacks)
    num_channels = shape[-1] if len(shape) not in (0, 2) else 1
    for number in range(3):
        part = stacks[..., number * num_channels : (number + 1) * num_channels]
        np.testing.assert_array_equal(part.reshape(2, *shape), frames[:, number])
    low = stacked_space.low.reshape(*stacked_shape[:-1], 3, num_channels)
    assert (low[..., :2, :] == 0).all()
    assert (low[..., 2, :] == 10).all()


@pytest.mark.parametrize("shape", [(3, 16, 20), (4, 16, 20, 3), (4, 3, 16, 20)])
def test_images_with_channels_or_frames_first_are_stacked_along_that_axis(shape: tuple[int, ...]) -> None:
    space = gym.spaces.Dict({"camera": gym.spaces.Box(0, 255, shape, np.uint8), "x": gym.spaces.Box(-1, 1, (2,))})
    connector = FrameStacking(2)
    stacked_space = connector.recompute_output_observation_space(space, gym.spaces.Discrete(2))
    frames = {
        "camera": np.random.default_rng(0).integers(0, 255, (5, 2, *shape), np.uint8),
        "x": np.ones((5, 2, 2), np.float32),
    }
    stacks = connector(batch={"obs": nested.take(frames, (slice(None), -1))}, episodes=FixedEpisodes(obs=frames))["obs"]
    assert all(stacked_space.contains(stack) for stack in nested.unstack(stacks))
    np.testing.assert_array_equal(stacks["camera"], np.concatenate([frames["camera"][:, 0], frames["camera"][:, 1]], 1))
    assert stacks["x"].shape == (5, 4)


def test_boxes_in_nested_spaces_are_stacked() -> None:
    space = gym.spaces.Dict({"b": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,))]), "a": gym.spaces.Box(-1, 1, ())})
    connector = FrameStacking(2)
    stacked_space = connector.recompute_output_observation_space(space, gym.spaces.Discrete(2))
    frames = {"a": np.ones((3, 2), np.float32), "b": (np.ones((3, 2, 2), np.float32),)}
    stacks = connector(batch={"obs": nested.take(frames, (slice(None), -1))}, episodes=FixedEpisodes(obs=frames))["obs"]
    assert all(stacked_space.contains(stack) for stack in nested.unstack(stacks))
    assert stacks["b"][0].shape == (3, 4)


@pytest.mark.parametrize("space", [gym.spaces.Discrete(3), gym.spaces.Dict({"a": gym.spaces.MultiBinary(3)})], ids=str)
def test_spaces_that_cannot_be_stacked(space: Any) -> None:
    with pytest.raises(TypeError, match="FrameStacking stacks Box observations, alone or in a Dict or Tuple; got"):
        FrameStacking(2).recompute_output_observation_space(space, gym.spaces.Discrete(2))


ACTION_SPACES: list[tuple[gym.Space[Any], int]] = [
    (gym.spaces.Discrete(3, start=-1), 3),
    (gym.spaces.MultiDiscrete([2, 3]), 5),
    (gym.spaces.MultiBinary(4), 4),
    (gym.spaces.Box(-1, 1, (2, 3), np.float32), 6),
    (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, ())})]), 3),
]


@pytest.mark.parametrize(("space", "size"), ACTION_SPACES, ids=lambda value: str(value)[:20])
def test_actions_of_every_space_become_vectors(space: gym.Space[Any], size: int) -> None:
    connector = PrevActionsPrevRewards(2, 1)
    obs_space = connector.recompute_output_observation_space(gym.spaces.Discrete(4), space)
    assert isinstance(obs_space, gym.spaces.Dict)
    assert obs_space["prev_n_actions"].shape == (2 * size,)
    space.seed(0)
    items = [[space.sample() for _ in range(2)] for _ in range(3)]
    actions = nested.stack([nested.stack(row) for row in items])
    episodes = FixedEpisodes(obs=np.zeros((3, 2), np.int64), actions=actions, rewards=np.ones((3, 2)))
    row = connector(batch={}, episodes=episodes)["obs"]
    flat = [np.concatenate([gym.spaces.flatten(space, item) for item in pair]) for pair in items]
    np.testing.assert_array_equal(row["prev_n_actions"], np.stack(flat).astype(np.float32))
    assert all(obs_space.contains(item) for item in nested.unstack(row))


def test_a_modules_box_actions_may_leave_the_action_space() -> None:
    connector = PrevActionsPrevRewards()
    space = connector.recompute_output_observation_space(gym.spaces.Discrete(4), gym.spaces.Box(-1, 1, (2,)))
    assert isinstance(space, gym.spaces.Dict)
    assert space["prev_n_actions"] == gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_frames_that_another_connector_has_changed_are_not_stacked_by_mistake() -> None:
    frames = np.ones((2, 2, 3), np.float32)
    with pytest.raises(RuntimeError, match="place it before the connectors that change them"):
        FrameStacking(2)(batch={"obs": np.zeros((2, 3), np.float32)}, episodes=FixedEpisodes(obs=frames))
    with pytest.raises(TypeError, match="FrameStacking needs arrays in column 'obs', got Tensor"):
        FrameStacking(2)(batch={"obs": torch.ones(2, 3)}, episodes=FixedEpisodes(obs=frames))


def test_arguments() -> None:
    with pytest.raises(ValueError, match="num_frames must be at least 1, got 0"):
        FrameStacking(0)
    for arguments in ((0, 0), (-1, 2)):
        with pytest.raises(ValueError, match="neither may be negative nor both 0"):
            PrevActionsPrevRewards(*arguments)
    assert FrameStacking(4).requires.num_lookback == 3
    assert PrevActionsPrevRewards(2, 5).requires.num_lookback == 5
    with pytest.raises(TypeError, match="works in learner pipelines only"):
        FrameStacking(2, as_learner_connector=True)(batch={}, episodes=FixedEpisodes(obs=np.zeros((1, 2, 3))))
