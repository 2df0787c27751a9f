"""The central test of sampling: environments whose rows say where they come from, from the step to the train batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.env_runners.sample import Sample
from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.module_building import make_connector
from runner.pipelines.defaults import learner_pipeline
from tests.support.coded_runs import (
    CPU,
    coded_action,
    coded_envs,
    coded_module,
    coded_value,
    make_runner,
    naive_episodes,
    weights_of,
)
from tests.support.environments import CodedEnv, coded_ends, coded_length, coded_reward

GAMMA, LAMBDA = 0.9, 0.8
LEARNER_EDITS = [
    {"prepend": {"_target_": "runner.pipelines.AddOneTsToEpisodesAndTruncate"}},
    {"append": {"_target_": "runner.pipelines.GeneralAdvantageEstimation", "gamma": GAMMA, "lambda_": LAMBDA}},
]


def run(
    kind: str, num_envs: int, lengths: Sequence[int], fragments: Sequence[int], lookback: int, explore: bool
) -> tuple[list[Sample], dict[tuple[int, int, int], int]]:
    """Samples of one runner, and the action of every step as the environment saw it."""
    env, log = coded_envs(kind, num_envs, lengths)
    module = coded_module()
    runner = make_runner(env, module, lookback)
    weights = weights_of(module)
    samples = [runner.sample(steps, explore, weights, {}) for steps in fragments]
    actions = {(n, t, k): action for n, t, k, action in log}
    assert len(actions) == len(log)  # the environment made no step twice
    return samples, actions


runs = given(
    kind=st.sampled_from(["batched", "sync"]),
    num_envs=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    fragments=st.lists(st.integers(1, 14), min_size=1, max_size=5),
    lookback=st.sampled_from([0, 1, 3]),
    explore=st.booleans(),
)
some_runs = settings(max_examples=60, deadline=None, derandomize=True)


@runs
@example(kind="batched", num_envs=3, lengths=[1], fragments=[1, 1, 1, 1, 7], lookback=3, explore=True)
@example(kind="sync", num_envs=2, lengths=[5, 2, 3], fragments=[2, 2, 2, 2, 2, 2, 2, 40], lookback=3, explore=True)
@some_runs
def test_chunks_of_all_fragments_are_the_episodes_of_a_naive_loop(
    kind: str, num_envs: int, lengths: list[int], fragments: list[int], lookback: int, explore: bool
) -> None:
    samples, actions = run(kind, num_envs, lengths, fragments, lookback, explore)
    steps_of = np.bincount([n for n, _, _ in actions], minlength=num_envs)
    whole: dict[str, SingleAgentEpisode] = {}
    for sample in samples:
        for chunk in sample.rollout.blocks["default_policy"]:
            if chunk.id_ in whole:
                whole[chunk.id_].concat_episode(chunk)
            else:
                assert chunk.t_started == 0
                whole[chunk.id_] = chunk
    naive = [e for n in range(num_envs) for e in naive_episodes(n, lengths, int(steps_of[n]), actions)]
    assert sorted(whole) == sorted(episode.id_ for episode in naive)
    for expected in naive:
        assert_same_episode(whole[expected.id_], expected)
    if not explore:
        assert all(action == coded_action(*place) for place, action in actions.items())


def assert_same_episode(got: SingleAgentEpisode, expected: SingleAgentEpisode) -> None:
    assert (got.t_started, got.t, got.is_terminated, got.is_truncated) == (
        expected.t_started,
        expected.t,
        expected.is_terminated,
        expected.is_truncated,
    )
    np.testing.assert_array_equal(got.get_observations(), expected.get_observations())
    np.testing.assert_array_equal(got.get_actions(), expected.get_actions())
    np.testing.assert_array_equal(got.get_rewards(), expected.get_rewards())
    assert set(got.extra_model_outputs) == set(expected.extra_model_outputs)
    for key in expected.extra_model_outputs:
        np.testing.assert_allclose(
            got.get_extra_model_outputs(key), expected.get_extra_model_outputs(key), rtol=1e-6, err_msg=key
        )
    assert got.get_infos() == expected.get_infos()


@runs
@example(kind="sync", num_envs=3, lengths=[5], fragments=[3, 3, 3, 3, 3, 3], lookback=3, explore=True)
@some_runs
def test_lookback_of_chunks_is_what_came_before(
    kind: str, num_envs: int, lengths: list[int], fragments: list[int], lookback: int, explore: bool
) -> None:
    samples, actions = run(kind, num_envs, lengths, fragments, lookback, explore)
    for number, sample in enumerate(samples):
        for chunk in sample.rollout.blocks["default_policy"]:
            past = chunk.rewards.lookback
            assert past == (min(lookback, chunk.t_started) if number else 0)
            n, k = (int(code) for code in chunk.get_observations(0)[[0, 2]])
            places = [(n, t, k) for t in range(chunk.t_started - past, chunk.t + 1)]
            np.testing.assert_array_equal(chunk.observations.data, np.array(places, np.float32))
            np.testing.assert_array_equal(chunk.actions.data, [actions[place] for place in places[:-1]])
            np.testing.assert_array_equal(chunk.rewards.data, [coded_reward(*place) for place in places[1:]])
            logp = chunk.extra_model_outputs["action_logp"].data
            logits = torch.tensor(chunk.extra_model_outputs["action_dist_inputs"].data)
            assert logits.argmax(-1).tolist() == [coded_action(*place) for place in places[:-1]]
            expected = torch.distributions.Categorical(logits=logits).log_prob(torch.tensor(chunk.actions.data))
            np.testing.assert_allclose(logp, expected.numpy(), rtol=1e-5)


@runs
@some_runs
def test_finished_episodes_have_the_whole_returns_and_lengths(
    kind: str, num_envs: int, lengths: list[int], fragments: list[int], lookback: int, explore: bool
) -> None:
    samples, actions = run(kind, num_envs, lengths, fragments, lookback, explore)
    number_of = [0] * num_envs
    for sample in samples:
        finished = sample.finished
        assert len(finished.returns) == int(
            (
                sample.rollout.blocks["default_policy"].is_terminated
                | sample.rollout.blocks["default_policy"].is_truncated
            ).sum()
        )
        for n, episode_return, length in zip(finished.env_of, finished.returns, finished.lengths, strict=True):
            k = number_of[n]
            assert length == coded_length(lengths, n, k)
            assert episode_return == sum(coded_reward(n, t, k) for t in range(1, length + 1))
            number_of[n] += 1
    for n in range(num_envs):  # none is missing
        assert number_of[n] == sum(t + 1 == coded_length(lengths, n, k) for env, t, k in actions if env == n)


@runs
@example(kind="batched", num_envs=4, lengths=[1, 4, 2], fragments=[9, 9, 9], lookback=1, explore=True)
@some_runs
def test_train_batch_has_every_row_once_and_none_shifted(
    kind: str, num_envs: int, lengths: list[int], fragments: list[int], lookback: int, explore: bool
) -> None:
    samples, actions = run(kind, num_envs, lengths, fragments, lookback, explore)
    pipeline = learner_pipeline(CodedEnv.observation_space, CodedEnv.action_space, CPU, LEARNER_EDITS, make_connector)
    seen: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for steps, sample in zip(fragments, samples, strict=True):
        batch = batch_of(pipeline, sample.rollout.blocks["default_policy"])
        rows = [tuple(int(code) for code in row) for row in batch["obs"]]
        is_step = batch["loss_mask"]
        assert steps <= is_step.sum() < steps + num_envs
        assert_rows_follow_from_their_place(batch, rows, is_step, lengths, actions)
        assert_advantages(batch, sample.rollout.blocks["default_policy"], rows, lengths)
        for row, steps_here in zip(rows, is_step, strict=True):
            if steps_here:
                seen[row[0]].append(row)
    for n, places in seen.items():  # in order, without a gap, from the first step of the first episode on
        assert [(k, t) for _, t, k in places] == in_order(n, lengths, len(places))
    assert {place for places in seen.values() for place in places} == set(actions)


def batch_of(pipeline: Any, block: ColumnBlock) -> dict[str, np.ndarray[Any, Any]]:
    batch = pipeline(rl_module={"default_policy": coded_module()}, batch={}, episodes=block, shared_data={})
    assert list(batch) == ["default_policy"]
    columns = {name: column.numpy() for name, column in batch["default_policy"].items()}
    assert {len(column) for column in columns.values()} == {block.num_rows + len(block)}
    return columns


def assert_rows_follow_from_their_place(
    batch: Any, rows: list[Any], is_step: Any, lengths: Sequence[int], actions: Any
) -> None:
    for i, (n, t, k) in enumerate(rows):
        assert batch["vf_preds"][i] == coded_value(n, t, k)
        if not is_step[i]:
            assert rows[i - 1] == (n, t - 1, k)  # the observation after the chunk's last step
            assert batch["rewards"][i] == 0
            assert not batch["terminateds"][i]
            assert batch["truncateds"][i]
            assert i + 1 == len(rows) or is_step[i + 1]
            continue
        assert rows[i + 1] == (n, t + 1, k)
        assert batch["actions"][i] == actions[n, t, k]
        assert batch["rewards"][i] == coded_reward(n, t + 1, k)
        ends = coded_ends(n, k) if t + 1 == coded_length(lengths, n, k) else (False, False)
        assert (batch["terminateds"][i], batch["truncateds"][i]) == ends
        assert batch["action_dist_inputs"][i].argmax() == coded_action(n, t, k)
        logits = batch["action_dist_inputs"][i].astype(np.float64)
        log_probs = logits - np.log(np.exp(logits).sum())
        assert batch["action_logp"][i] == pytest.approx(log_probs[actions[n, t, k]], rel=1e-5)


def assert_advantages(batch: Any, block: ColumnBlock, rows: list[Any], lengths: Sequence[int]) -> None:
    """Against a loop over chunks in float64."""
    targets, raw = np.zeros(len(rows)), np.zeros(len(rows))
    end = 0
    for length in block.lengths:
        bootstrap = end + int(length)
        n, t, k = rows[bootstrap]
        is_terminal = t == coded_length(lengths, n, k) and coded_ends(n, k)[0]
        next_value, advantage = 0.0 if is_terminal else coded_value(n, t, k), 0.0
        targets[bootstrap] = coded_value(n, t, k)
        for i in range(bootstrap - 1, end - 1, -1):
            n, t, k = rows[i]
            delta = coded_reward(n, t + 1, k) + GAMMA * next_value - coded_value(n, t, k)
            advantage = delta + GAMMA * LAMBDA * advantage
            next_value = coded_value(n, t, k)
            raw[i], targets[i] = advantage, advantage + next_value
        end = bootstrap + 1
    is_step = batch["loss_mask"]
    np.testing.assert_allclose(batch["value_targets"], targets, rtol=1e-4, atol=1e-3)
    centred = raw - raw[is_step].mean()
    expected = centred / max(centred[is_step].std(), 1e-4)
    spread = raw[is_step].std()
    if spread > 1.0:  # float32 sums of rewards up to 30,000 leave no digits for a smaller spread
        np.testing.assert_allclose(batch["advantages"][is_step], expected[is_step], rtol=1e-2, atol=2e-2)


def in_order(n: int, lengths: Sequence[int], num_steps: int) -> list[tuple[int, int]]:
    """(k, t) of the first steps of sub-environment n."""
    places: list[tuple[int, int]] = []
    k = 0
    while len(places) < num_steps:
        places += [(k, t) for t in range(coded_length(lengths, n, k))]
        k += 1
    return places[:num_steps]


def test_blocks_of_two_runners_concatenate_to_one_batch() -> None:
    samples, _ = run("batched", 3, [4, 1, 6], [10, 10], 1, True)
    block = concat_blocks([sample.rollout.blocks["default_policy"] for sample in samples])
    pipeline = learner_pipeline(CodedEnv.observation_space, CodedEnv.action_space, CPU, LEARNER_EDITS, make_connector)
    together = batch_of(pipeline, block)
    apart = [batch_of(pipeline, sample.rollout.blocks["default_policy"]) for sample in samples]
    for name in set(together) - {"advantages"}:  # standardised over the batch
        np.testing.assert_array_equal(together[name], np.concatenate([batch[name] for batch in apart]), err_msg=name)


def test_a_new_fragment_leaves_the_blocks_before_it_alone() -> None:
    env, _ = coded_envs("batched", 2, [3, 5])
    module = coded_module()
    runner = make_runner(env, module, num_lookback=3)
    weights = weights_of(module)
    block = runner.sample(9, True, weights, {}).rollout.blocks["default_policy"]
    block = runner.sample(9, True, weights, {}).rollout.blocks["default_policy"]
    before = [episode.observations.data.copy() for episode in block]
    columns = {name: column.copy() for name, column in block.columns.items()}
    runner.sample(30, True, weights, {})
    for name, column in columns.items():
        np.testing.assert_array_equal(block.columns[name], column, err_msg=name)
    for episode, observations in zip(block, before, strict=True):
        np.testing.assert_array_equal(episode.observations.data, observations)
