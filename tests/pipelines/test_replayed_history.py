"""Connectors that look back get the same of replayed steps as of the steps when they were sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes.block_state import block_from_state, block_to_state
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.episodes.rollout_parts import split_rollout
from runner.module_building import make_connector
from runner.pipelines import FrameStacking, PrevActionsPrevRewards
from runner.pipelines.connector import Connector
from runner.pipelines.defaults import learner_pipeline
from runner.replay import ReplayBuffer
from runner.streams import random_stream
from tests.support.coded_runs import CPU, coded_envs, coded_module, make_runner, weights_of
from tests.support.environments import NUM_CODED_ACTIONS, CodedEnv, coded_reward

ID = "default_policy"
SPACES = CodedEnv.observation_space, CodedEnv.action_space
ADD_ONE = {"prepend": {"_target_": "runner.pipelines.AddOneTsToEpisodesAndTruncate"}}
ADD_NEXT = {"_target_": "runner.pipelines.AddNextObservationsFromEpisodesToTrainBatch"}
Actions = dict[tuple[int, int, int], int]


def filled(buffer: ReplayBuffer, num_lookback: int, lengths: list[int], fragments: list[int]) -> Actions:
    """Fill a buffer; returns the action on each observation (n, t, k)."""
    env, _ = coded_envs("batched", 2, lengths)
    module = coded_module()
    runner = make_runner(env, module, num_lookback=num_lookback)
    buffer.use_lookback({ID: num_lookback})
    buffer.use_stream(random_stream(0, "test"))
    actions: Actions = {}
    for steps in fragments:
        rollout = runner.sample(steps, True, weights_of(module), {}).rollout
        buffer.add(rollout)
        for episode in rollout.blocks[ID]:
            for obs, action in zip(episode.get_observations()[:-1].astype(int), episode.get_actions(), strict=True):
                actions[tuple(obs.tolist())] = int(action)
    return actions


def batch_of(block: ColumnBlock, connector: Connector) -> Any:
    pipeline = learner_pipeline(*SPACES, CPU, [ADD_ONE], make_connector, block.extra_columns)
    pipeline.insert_after("AddObservationsFromEpisodesToBatch", connector)
    pipeline.insert_after(type(connector).__name__, make_connector(ADD_NEXT, "connectors.learner"))
    return pipeline(rl_module={ID: None}, batch={}, episodes=block)[ID]


runs = {
    "lengths": st.lists(st.integers(1, 9), min_size=1, max_size=4),
    "fragments": st.lists(st.integers(1, 25), min_size=1, max_size=6),
    "capacity": st.integers(12, 60),
}


@given(num=st.integers(2, 4), n_step=st.sampled_from([1, 3, [1, 4]]), batch_length=st.sampled_from([1, 5]), **runs)
@settings(max_examples=60, deadline=None)
def test_frames_of_replayed_steps(
    num: int, n_step: Any, batch_length: int, lengths: list[int], fragments: list[int], capacity: int
) -> None:
    buffer = ReplayBuffer(capacity, batch_length, n_step if batch_length == 1 else 1)
    filled(buffer, num - 1, lengths, fragments)
    whole = buffer.sample(30).rollout
    again = block_from_state(block_to_state(whole.blocks[ID]))
    parts = [part.blocks[ID] for part in split_rollout(whole, 3, num - 1)]
    for block in (whole.blocks[ID], again, concat_blocks([again, whole.blocks[ID]]), *parts):
        batch = batch_of(block, FrameStacking(num))
        is_step = batch["loss_mask"].numpy()
        n_steps = block.columns["n_step"]
        for column, steps_on in (("obs", np.zeros_like(n_steps)), ("new_obs", n_steps)):
            newest = batch["obs"].numpy()[is_step, -3:].astype(int)
            for (n, t, k), later, row in zip(newest, steps_on, batch[column].numpy()[is_step], strict=True):
                times = range(t + later - num + 1, t + later + 1)
                assert row.tolist() == [float(x) for s in times for x in ((n, s, k) if s >= 0 else (0, 0, 0))]


@given(n_step=st.sampled_from([1, 2, [2, 3]]), num_actions=st.integers(0, 2), num_rewards=st.integers(1, 3), **runs)
@settings(max_examples=40, deadline=None)
def test_past_actions_and_rewards_of_replayed_steps(
    n_step: Any, num_actions: int, num_rewards: int, lengths: list[int], fragments: list[int], capacity: int
) -> None:
    buffer = ReplayBuffer(capacity, n_step=n_step, gamma=0.5)
    actions = filled(buffer, max(num_actions, num_rewards), lengths, fragments)
    block = buffer.sample(20).rollout.blocks[ID]
    batch = batch_of(block, PrevActionsPrevRewards(num_actions, num_rewards))
    is_step = batch["loss_mask"].numpy()
    one_hot = np.vstack([np.eye(NUM_CODED_ACTIONS), np.zeros(NUM_CODED_ACTIONS)])
    newest = batch["obs"]["_orig_obs"].numpy()[is_step].astype(int)
    for column, steps_on in (("obs", np.zeros(20, int)), ("new_obs", block.columns["n_step"])):
        for row, ((n, t, k), later) in enumerate(zip(newest, steps_on, strict=True)):
            t = t + later
            rewards = [coded_reward(n, s, k) if s > 0 else 0.0 for s in range(t - num_rewards + 1, t + 1)]
            assert batch[column]["prev_n_rewards"].numpy()[is_step][row].tolist() == rewards
            if num_actions:
                past = [actions.get((n, s, k), -1) for s in range(t - num_actions, t)]
                expected = one_hot[past].reshape(-1).tolist()
                assert batch[column]["prev_n_actions"].numpy()[is_step][row].tolist() == expected


def test_rows_without_their_past_are_not_replayed() -> None:
    buffer = ReplayBuffer(20)
    filled(buffer, 3, [40], [60])
    assert set(buffer.sample(200).rollout.blocks[ID].t_started.tolist()) == {3}
