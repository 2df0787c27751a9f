"""MeanStdFilter: its moments are those of all rows of all runners, each counted once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import nested
from runner.episodes.columns import block_from_episodes
from runner.module_building import make_connector
from runner.pipelines.mean_std_filter import MeanStdFilter
from runner.pipelines.recorded_episodes import ObservationRows
from tests.episodes.test_columns import episode_of
from tests.pipelines.fixed_episodes import FixedEpisodes
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of
from tests.support.environments import CodedEnv

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
EDITS = [
    {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "connector": {"_target_": "runner.pipelines.MeanStdFilter", "clip_by_value": None},
    }
]

BEFORE = [{"prepend": EDITS[0]["connector"]}]


def make_filter(**options: Any) -> MeanStdFilter:
    connector = MeanStdFilter(**options)
    connector.recompute_output_observation_space(SPACE, gym.spaces.Discrete(2))
    return connector


def filtered(connector: MeanStdFilter, rows: Any) -> Any:
    return connector(batch={"obs": np.array(rows, np.float32)}, episodes=FixedEpisodes())["obs"]


def moments(state: Any, name: str = "merged") -> tuple[float, Any, Any]:
    return state[f"{name}_count"], state[f"{name}_mean"], state[f"{name}_m2"]


@given(
    rounds=st.lists(
        st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_merged_states_are_the_moments_of_all_rows(rounds: list[list[list[int]]], seed: int) -> None:
    random = np.random.default_rng(seed)
    runners, merger = [make_filter() for _ in range(3)], make_filter()
    seen: list[np.ndarray[Any, Any]] = []
    for samples in rounds:
        for connector, batches in zip(runners, samples, strict=True):
            for size in batches:
                rows = random.normal(1000.0, [1.0, 50.0], (size, 2)).astype(np.float32)
                seen.append(rows)
                filtered(connector, rows)
        merged = merger.merge_states([connector.get_state() for connector in runners])
        for connector in runners:
            connector.set_state(merged)
    everything = np.concatenate([np.zeros((0, 2)), *seen]).astype(np.float64)
    count, mean, m2 = moments(merged)
    assert count == len(everything)
    assert moments(merged, "own")[0] == 0
    if len(everything):
        np.testing.assert_allclose(mean, everything.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(m2, ((everything - everything.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-6, atol=1e-6)


def test_output_is_standardised_by_all_rows_so_far() -> None:
    connector = make_filter(clip_by_value=None)
    rows = np.random.default_rng(0).normal(3.0, 2.0, (40, 2)).astype(np.float32)
    filtered(connector, rows[:15])
    got = filtered(connector, rows[15:])
    expected = (rows[15:] - rows.mean(axis=0, dtype=np.float64)) / rows.std(axis=0, ddof=1, dtype=np.float64)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_options() -> None:
    rows = np.array([[0.0, 0.0], [4.0, 100.0]])
    std = rows.std(axis=0, ddof=1)
    only_centred = filtered(make_filter(de_std_to_one=False, clip_by_value=None), rows)
    np.testing.assert_allclose(only_centred, rows - rows.mean(axis=0))
    only_scaled = filtered(make_filter(de_mean_to_zero=False, clip_by_value=None), rows)
    np.testing.assert_allclose(only_scaled, rows / std, rtol=1e-6)
    clipped = filtered(make_filter(clip_by_value=0.5), rows)
    np.testing.assert_allclose(clipped, [[-0.5, -0.5], [0.5, 0.5]])


def test_a_constant_observation_stays_finite() -> None:
    connector = make_filter()
    assert filtered(connector, [[5.0, 5.0]]).tolist() == [[0.0, 0.0]]
    assert filtered(connector, [[5.0, 5.0]]).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("how", ["freeze", "update_stats"])
def test_frozen_filter_learns_nothing(how: str) -> None:
    learner = make_filter()
    filtered(learner, [[0.0, 1.0], [2.0, 5.0]])
    connector = make_filter(update_stats=how != "update_stats")
    if how == "freeze":
        connector.freeze()
    connector.set_state(learner.get_state())
    first = filtered(connector, [[7.0, 7.0]])
    assert filtered(connector, [[7.0, 7.0]]).tolist() == first.tolist()
    assert connector.get_state()["own_count"] == 2
    filtered(learner, [[7.0, 7.0]])
    assert learner.get_state()["own_count"] == 3


def test_state_round_trip_and_reset() -> None:
    connector, other = make_filter(), make_filter()
    filtered(connector, [[0.0, 1.0], [2.0, 5.0]])
    connector.set_state(connector.merge_states([connector.get_state()]))
    filtered(connector, [[3.0, 3.0]])  # both merged and own rows
    other.set_state(connector.get_state())
    assert filtered(other, [[9.0, 1.0]]).tolist() == filtered(connector, [[9.0, 1.0]]).tolist()
    assert moments(other.get_state(), "own")[0] == 2
    assert moments(other.get_state())[0] == 2
    other.reset_state()
    fresh = make_filter()
    assert filtered(other, [[1.0, 2.0], [3.0, 5.0]]).tolist() == filtered(fresh, [[1.0, 2.0], [3.0, 5.0]]).tolist()


def test_output_space_and_spaces_it_cannot_filter() -> None:
    space = MeanStdFilter(clip_by_value=3.0).recompute_output_observation_space(SPACE, gym.spaces.Discrete(2))
    assert space == gym.spaces.Box(-3.0, 3.0, (2,), np.float32)
    for wrong in (gym.spaces.Discrete(4), gym.spaces.Box(0, 255, (2,), np.uint8)):
        with pytest.raises(TypeError, match="MeanStdFilter needs float observations") as caught:
            MeanStdFilter().recompute_output_observation_space(wrong, gym.spaces.Discrete(2))
        assert str(wrong) in str(caught.value)


def test_a_float64_box_becomes_float32() -> None:
    connector = MeanStdFilter()
    space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    assert connector.recompute_output_observation_space(space, gym.spaces.Discrete(2)).dtype == np.float32
    assert connector(batch={"obs": np.ones((3, 2))}, episodes=FixedEpisodes())["obs"].dtype == np.float32


# -- nested observations -----------------------------------------------------------------------------------------------

NESTED_SPACE = gym.spaces.Dict(
    {
        "image": gym.spaces.Box(0, 255, (2, 2), np.uint8),
        "far": gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        "parts": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1.0, 1.0, (1,), np.float32)]),
    }
)


def nested_rows(num_rows: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "parts": (random.integers(3, size=num_rows), random.normal(size=(num_rows, 1)).astype(np.float32)),
        "image": random.integers(256, size=(num_rows, 2, 2)).astype(np.uint8),
        "far": random.normal(1e6, 3.0, (num_rows, 2, 3)),
    }


def test_each_float_leaf_is_filtered_as_if_it_were_alone() -> None:
    connector = MeanStdFilter(clip_by_value=2.0)
    space = connector.recompute_output_observation_space(NESTED_SPACE, gym.spaces.Discrete(2))
    far, small = MeanStdFilter(clip_by_value=2.0), MeanStdFilter(clip_by_value=2.0)
    far.recompute_output_observation_space(NESTED_SPACE["far"], gym.spaces.Discrete(2))
    small.recompute_output_observation_space(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2))
    for seed in range(3):
        obs = nested_rows(5, seed)
        got = connector(batch={"obs": obs}, episodes=FixedEpisodes())["obs"]
        assert got["image"] is obs["image"]
        assert got["parts"][0] is obs["parts"][0]
        np.testing.assert_allclose(
            got["far"], far(batch={"obs": obs["far"]}, episodes=FixedEpisodes())["obs"], rtol=1e-6
        )
        expected = small(batch={"obs": obs["parts"][1]}, episodes=FixedEpisodes())["obs"]
        np.testing.assert_allclose(got["parts"][1], expected, rtol=1e-6)
        assert all(space.contains(item) for item in nested.unstack(got))
    other = MeanStdFilter(clip_by_value=2.0)
    other.recompute_output_observation_space(NESTED_SPACE, gym.spaces.Discrete(2))
    other.set_state(connector.merge_states([connector.get_state()]))
    obs = nested_rows(1, 9)
    for filter_ in (connector, other):
        filter_.freeze()
    results = [filter_(batch={"obs": obs}, episodes=FixedEpisodes())["obs"] for filter_ in (connector, other)]
    assert nested.equal(*results)


def test_nested_spaces_without_floats_are_refused() -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Tuple([gym.spaces.MultiBinary(2)])})
    with pytest.raises(TypeError, match="MeanStdFilter needs float observations"):
        MeanStdFilter().recompute_output_observation_space(space, gym.spaces.Discrete(2))


def test_observations_that_are_masked_are_filtered_but_not_counted() -> None:
    block = block_from_episodes([episode_of("a", 2), episode_of("b", 1, first=10)])
    mask = np.array([True, True, False, True, False])
    connector = make_filter(clip_by_value=None)
    rows = connector(batch={"loss_mask": mask}, episodes=ObservationRows(block))["obs"]
    assert moments(connector.get_state(), "own")[0] == 3
    np.testing.assert_allclose(
        rows[:, 0], (np.array([0, 1, 2, 10, 11]) - 11 / 3) / np.std([0, 1, 10], ddof=1), rtol=1e-6
    )


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("kind", ["batched", "sync"])
def test_episodes_hold_what_the_module_saw_and_each_observation_counts_once(kind: str, place: str) -> None:
    lengths = [3, 1, 6]
    env, log = coded_envs(kind, 3, lengths)
    module = coded_module()
    runner = make_runner(env, module, env_to_module_edits=EDITS if place == "after" else BEFORE)
    seen: list[np.ndarray[Any, Any]] = []
    forward = module.forward_train

    def spy(batch: Any) -> Any:
        seen.append(batch["obs"].numpy().copy())
        return forward({"obs": batch["obs"].abs()})

    module.forward_train = spy  # type: ignore[method-assign]
    merger = make_filter()
    merger.recompute_output_observation_space(CodedEnv.observation_space, CodedEnv.action_space)
    shared: dict[str, Any] = {}
    rows_of_block: list[np.ndarray[Any, Any]] = []
    for steps in (1, 7, 1, 12):
        sample = runner.sample(steps, True, weights_of(module), shared)
        for chunk in sample.rollout.blocks["default_policy"]:
            rows_of_block.append(chunk.get_observations(slice(0, len(chunk))))
        own = sample.shared_state["default_policy"]["MeanStdFilter"]
        shared = {"default_policy": {"MeanStdFilter": merger.merge_states([own])}}
    # Each row that an action was taken on is in the batches of the forward passes, bit for bit.
    batches = {row.tobytes() for row in np.concatenate(seen)}
    rows = np.concatenate(rows_of_block)
    assert len(rows) == len(log)
    assert all(row.tobytes() in batches for row in rows)
    # The moments are those of all raw observations: before each step, and the last one of each episode or cut.
    raw = {(n, t, k) for n, t, k, _ in log} | {(n, t + 1, k) for n, t, k, _ in log}
    for n in range(3):
        last = max((k, t) for env_n, t, k, _ in log if env_n == n)
        is_over = last[1] + 1 == lengths[(3 * n + last[0]) % 3]
        was_reset = is_over and (n, 0, last[0] + 1) in places_of(env, n)
        raw |= {(n, 0, last[0] + 1)} if was_reset else set()
    state = shared["default_policy"]["MeanStdFilter"]
    rows64 = np.array(sorted(raw), np.float64)
    assert state["merged_count"] == len(rows64)
    np.testing.assert_allclose(state["merged_mean"], rows64.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(state["merged_m2"], ((rows64 - rows64.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-9)


def places_of(env: Any, n: int) -> set[tuple[int, int, int]]:
    """Where sub-environment n stands now."""
    sub_env = (env._env._envs if hasattr(env, "_env") else env._envs)[n].unwrapped
    return {(sub_env.n, sub_env.t, sub_env.k)}


def test_blocks_without_the_filter_hold_raw_observations() -> None:
    connector = make_connector({"_target_": "runner.pipelines.MeanStdFilter"}, "connectors.learner")
    assert connector.requires.writes == ("obs",)
    env, _ = coded_envs("sync", 1, [9])
    module = coded_module()
    block = make_runner(env, module).sample(4, True, weights_of(module), {}).rollout.blocks["default_policy"]
    assert block.columns["obs"][:, 1].tolist() == [0, 1, 2, 3, 4]


def test_evaluation_runs_with_the_merged_state_and_leaves_it_alone() -> None:
    env, _ = coded_envs("sync", 2, [3])
    module = coded_module()
    runner = make_runner(env, module, env_to_module_edits=EDITS)
    runner.env_to_module.freeze()
    learned = make_filter()
    learned.recompute_output_observation_space(CodedEnv.observation_space, CodedEnv.action_space)
    learned(batch={"obs": np.array([[0, 0, 0], [1, 4, 2]], np.float32)}, episodes=FixedEpisodes())
    merged = learned.merge_states([learned.get_state()])
    runner.evaluate(4, False, weights_of(module), {"default_policy": {"MeanStdFilter": merged}})
    after = runner.env_to_module.get_state()["MeanStdFilter"]
    assert after["merged_count"] == 2
    assert after["own_count"] == 0
    np.testing.assert_array_equal(after["merged_mean"], merged["merged_mean"])


@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(4), gym.spaces.Box(0, 255, (2,), np.uint8), gym.spaces.Dict(a=gym.spaces.Discrete(3))]
)
def test_observations_without_floats_may_pass(space: gym.Space[Any]) -> None:
    connector = MeanStdFilter(needs_floats=False)
    assert connector.recompute_output_observation_space(space, gym.spaces.Discrete(2)) == space
    obs = nested.stack([space.sample() for _ in range(3)])
    assert nested.equal(connector(batch={"obs": obs}, episodes=FixedEpisodes())["obs"], obs)
    assert connector.to_graph() is None
    merged = connector.merge_states([connector.get_state(), connector.get_state()])
    connector.set_state(merged)
    assert nested.equal(connector(batch={"obs": obs}, episodes=FixedEpisodes())["obs"], obs)
