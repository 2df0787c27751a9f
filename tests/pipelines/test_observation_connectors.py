"""Connectors that transform observations: flat vectors are gymnasium's own, and the learner gets what the policy
saw.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import block_from_episodes
from runner.episodes.spaces import leaf_spaces
from runner.pipelines import (
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    FlattenObservations,
    MultiAgentObservationPreprocessor,
    ObservationConnector,
    SingleAgentObservationPreprocessor,
    WriteObservationsToEpisodes,
)
from runner.pipelines.connector import Connector
from runner.pipelines.flat_encoding import FlatEncoding
from runner.pipelines.pipeline import LearnerConnectorPipeline, PipelineError
from tests.episodes.test_columns import episode_of
from tests.pipelines.connector_contract import AFTER_OBS, WITH_MASK, ConnectorCase, check_connector
from tests.pipelines.fixed_episodes import FixedEpisodes
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of
from tests.support.environments import CodedEnv
from tests.support.episode_list import EpisodeList

ACTION_SPACE = gym.spaces.Discrete(2)
FLATTEN = {"prepend": {"_target_": "runner.pipelines.FlattenObservations"}}


class Negated(ObservationConnector):
    """As a user may write it."""

    def transform(self, obs: Any, batch: dict[str, Any], episodes: Any) -> Any:
        return -obs


class Relative(SingleAgentObservationPreprocessor):
    """The observation and the time since the episode's start."""

    def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        return np.append(observation, episode.t).astype(np.float32)

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        low, high = (
            np.append(bound, limit).astype(np.float32)
            for bound, limit in ((input_observation_space.low, 0), (input_observation_space.high, np.inf))
        )
        return gym.spaces.Box(low, high)


class Nested(MultiAgentObservationPreprocessor):
    """A dict of what was one array."""

    def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        return {"place": observation[:2], "k": (np.int64(observation[2]),)}

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        place = gym.spaces.Box(0.0, 1e6, (2,), np.float32)
        return gym.spaces.Dict(place=place, k=gym.spaces.Tuple([gym.spaces.Discrete(1000)]))


CASES = {
    "FlattenObservations": ConnectorCase(FlattenObservations, "env_to_module", *AFTER_OBS),
    "FlattenObservations-first": ConnectorCase(FlattenObservations, "env_to_module", "prepend"),
    "FlattenObservations-learner": ConnectorCase(FlattenObservations, "learner", "prepend"),
    "FlattenObservations-learner-mask": ConnectorCase(FlattenObservations, "learner", *AFTER_OBS, edits=WITH_MASK),
    "WriteObservationsToEpisodes": ConnectorCase(WriteObservationsToEpisodes, "env_to_module", *AFTER_OBS),
    "SingleAgentObservationPreprocessor": ConnectorCase(Relative, "env_to_module", *AFTER_OBS),
    "ObservationConnector": ConnectorCase(Negated, "env_to_module", "prepend"),
    "ObservationConnector-learner": ConnectorCase(Negated, "learner", "insert_before", "AgentToModuleMapping"),
}


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    check_connector(*CASES[name])


# -- flat vectors ------------------------------------------------------------------------------------------------------

leaf_strategy = st.one_of(
    st.tuples(st.integers(0, 4), st.integers(1, 3)).map(
        lambda s: gym.spaces.Box(-s[1], s[1], (s[0], s[1]), np.float32)  # also one without a number
    ),
    st.just(gym.spaces.Box(np.array([0.0, -np.inf]), np.array([1.0, 7.0]), dtype=np.float64)),
    st.just(gym.spaces.Box(-2.0, 2.0, (), np.float32)),
    st.just(gym.spaces.Box(0, 255, (2, 2, 1), np.uint8)),
    st.tuples(st.integers(1, 5), st.integers(-3, 3)).map(lambda s: gym.spaces.Discrete(s[0], start=s[1])),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(gym.spaces.MultiDiscrete),
    st.just(gym.spaces.MultiDiscrete(np.array([[2, 3], [1, 4]]))),
    st.just(gym.spaces.MultiDiscrete([3, 2], start=[-1, 5])),
    st.sampled_from([3, (2, 2)]).map(gym.spaces.MultiBinary),
)
space_strategy = st.recursive(
    leaf_strategy,
    lambda part: st.one_of(
        st.dictionaries(st.sampled_from(["z", "a", "m"]), part, min_size=1).map(gym.spaces.Dict),
        st.lists(part, min_size=1, max_size=3).map(gym.spaces.Tuple),
    ),
    max_leaves=6,
)


def samples(space: gym.Space[Any], num_items: int, seed: int) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(num_items)]


@given(space=space_strategy, num_items=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_vectors_and_bounds_are_gymnasiums(space: gym.Space[Any], num_items: int, seed: int) -> None:
    items = samples(space, num_items, seed)
    connector = FlattenObservations()
    flat_space = connector.recompute_output_observation_space(space, ACTION_SPACE)
    vectors = connector(batch={"obs": nested.stack(items)}, episodes=None)["obs"]
    expected = gym.spaces.flatten_space(space)
    assert isinstance(expected, gym.spaces.Box)
    np.testing.assert_array_equal(flat_space.low, expected.low.astype(np.float32))
    np.testing.assert_array_equal(flat_space.high, expected.high.astype(np.float32))
    assert vectors.dtype == flat_space.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.stack([gym.spaces.flatten(space, i) for i in items]).astype(np.float32))
    assert all(flat_space.contains(vector) for vector in vectors)


def test_a_float32_box_is_not_copied_and_no_rows_are_fine() -> None:
    connector = FlattenObservations()
    connector.recompute_output_observation_space(gym.spaces.Box(-1, 1, (2, 3), np.float32), ACTION_SPACE)
    rows = np.ones((4, 2, 3), np.float32)
    assert np.shares_memory(connector(batch={"obs": rows}, episodes=None)["obs"], rows)
    assert connector(batch={"obs": rows[:0]}, episodes=None)["obs"].shape == (0, 6)
    encoding = FlatEncoding(
        leaf_spaces(gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)])), "Connector"
    )
    assert encoding.encode((np.zeros(0, np.int64), np.zeros((0, 2), np.int8)), 0).shape == (0, 5)


def test_keys_to_remove() -> None:
    space = gym.spaces.Dict(
        {"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(-1, 1, (2,)), "c": gym.spaces.Discrete(9)}
    )
    connector = FlattenObservations(keys_to_remove=["a", "c"])
    assert connector.recompute_output_observation_space(space, ACTION_SPACE).shape == (2,)
    obs = {"b": np.array([[0.5, 1.0]]), "a": np.zeros(1, np.int64), "c": np.zeros(1, np.int64)}
    assert connector(batch={"obs": obs}, episodes=None)["obs"].tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("space", "removed", "message"),
    [
        (
            gym.spaces.Dict({"a": gym.spaces.Discrete(2)}),
            ["b"],
            r"keys_to_remove contains unknown keys \['b'\].*keys of .* are \['a'\]",
        ),
        (gym.spaces.Discrete(2), ["a"], r"keys_to_remove contains unknown keys \['a'\]"),
        (gym.spaces.Dict({"a": gym.spaces.Discrete(2)}), ["a"], "the space does not contain any values"),
        (gym.spaces.Tuple([gym.spaces.Text(3)]), None, r"FlattenObservations cannot make a vector of Text.* at \[0\]"),
    ],
)
def test_spaces_that_cannot_be_flattened(space: Any, removed: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        FlattenObservations(removed).recompute_output_observation_space(space, ACTION_SPACE)


def test_spaces_come_first() -> None:
    with pytest.raises(RuntimeError, match="FlattenObservations was called before its spaces were set"):
        FlattenObservations()(batch={"obs": np.zeros((1, 1))}, episodes=None)


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_mask", [False, True])
def test_before_or_after_observations_are_added_in_a_learner_pipeline(has_mask: bool) -> None:
    block = block_from_episodes([episode_of("a", 3), episode_of("b", 1, first=10)])
    batches = []
    for connectors in (
        [Negated(), AddObservationsFromEpisodesToBatch()],
        [AddObservationsFromEpisodesToBatch(), Negated()],
    ):
        batch: dict[str, Any] = AddOneTsToEpisodesAndTruncate()(batch={}, episodes=block) if has_mask else {}
        for connector in connectors:
            batch = connector(rl_module=None, batch=batch, episodes=block)
        batches.append(batch["obs"][:, 0].tolist())
    expected = [0, -1, -2, -3, -10, -11] if has_mask else [0, -1, -2, -10]
    assert batches == [expected, expected]
    assert block.columns["obs"][1, 0] == 1


def test_observations_of_plain_episodes_and_items() -> None:
    episodes = EpisodeList([episode_of("a", 2), episode_of("b", 1, first=7)])
    assert Negated()(batch={}, episodes=episodes)["obs"].tolist() == [[-2, 0], [-8, 0]]
    batch: dict[str, Any] = {}
    for number, episode in enumerate(episodes):
        Connector.add_batch_item(batch, "obs", np.array([number + 1.0]), episode)
    assert Negated()(batch=batch, episodes=episodes)["obs"].tolist() == [[-1], [-2]]


@pytest.mark.parametrize(
    "connector", [Negated(), WriteObservationsToEpisodes()], ids=lambda connector: type(connector).__name__
)
@pytest.mark.parametrize("nest", [lambda leaf: leaf, lambda leaf: {"x": leaf}], ids=["plain", "nested"])
def test_tensors_are_refused(connector: Any, nest: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"{type(connector).__name__} needs arrays in column 'obs', got Tensor; place it"
    ):
        connector(batch={"obs": nest(torch.zeros(2))}, episodes=FixedEpisodes())


def test_a_batch_by_module_is_refused() -> None:
    block = block_from_episodes([episode_of("a", 3)])
    with pytest.raises(TypeError, match="Negated: column 'obs' is grouped by module; place it before AgentToModule"):
        Negated()(batch={block.module_id: {"obs": np.zeros(3)}}, episodes=block)


# -- what the learner gets ---------------------------------------------------------------------------------------------


def sampled(*connectors: Connector) -> tuple[Any, Any]:
    """Two fragments of a runner whose env-to-module pipeline has these connectors after the observations, and its
    spy.
    """
    env, _ = coded_envs("sync", 2, [3, 1, 4])
    module = coded_module()
    runner = make_runner(env, module)
    for connector in reversed(connectors):
        runner.env_to_module.insert_after("AddObservationsFromEpisodesToBatch", connector)
    forward = module.forward_train
    seen: list[Any] = []

    def spy(batch: Any) -> Any:
        seen.append(nested.map_leaves(lambda leaf: leaf.numpy().copy(), batch["obs"]))
        return forward({"obs": torch.zeros(2, 3)})

    module.forward_train = spy  # type: ignore[method-assign]
    return [
        runner.sample(steps, True, weights_of(module), {}).rollout.blocks["default_policy"] for steps in (5, 12)
    ], seen


def test_written_observations_are_what_the_episodes_hold() -> None:
    raw, _ = sampled()
    written, seen = sampled(Negated(), WriteObservationsToEpisodes())
    for got, expected in zip(written, raw, strict=True):
        np.testing.assert_array_equal(got.columns["obs"], -expected.columns["obs"])
    assert (seen[0] == -raw[0].columns["obs"][[0, raw[0].first_obs_rows[-1]]]).all()
    unwritten, seen = sampled(Negated())
    np.testing.assert_array_equal(unwritten[1].columns["obs"], raw[1].columns["obs"])
    assert (seen[1] <= 0).all()


def test_preprocessed_observations_are_seen_and_held() -> None:
    raw, _ = sampled()
    blocks, seen = sampled(Relative())
    assert seen[0].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    for got, expected in zip(blocks, raw, strict=True):
        obs = expected.columns["obs"]
        np.testing.assert_array_equal(got.columns["obs"], np.c_[obs, obs[:, 1]])


def test_a_preprocessor_may_make_nested_observations() -> None:
    raw, _ = sampled()
    blocks, seen = sampled(Nested())
    assert seen[0]["place"].tolist() == [[0, 0], [1, 0]]
    assert blocks[1].columns["obs"]["k"][0].tolist() == raw[1].columns["obs"][:, 2].tolist()


def test_connectors_that_write_belong_in_the_env_to_module_pipeline() -> None:
    for connector in (WriteObservationsToEpisodes(), Relative()):
        spaces = CodedEnv.observation_space, ACTION_SPACE
        pipeline = LearnerConnectorPipeline([AddObservationsFromEpisodesToBatch(), connector], *spaces)
        with pytest.raises(PipelineError, match=f"{type(connector).__name__} does not belong in the learner pipeline"):
            pipeline.check_order(())


def test_what_a_preprocessor_must_do() -> None:
    with pytest.raises(TypeError, match="abstract"):
        SingleAgentObservationPreprocessor()  # type: ignore[abstract]

    class Uneven(Relative):
        def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
            return np.zeros(episode.t)

    episodes = EpisodeList([episode_of("a", 2), episode_of("b", 1)])
    with pytest.raises(
        ValueError, match=r"Uneven.preprocess returns values that cannot form column 'obs': .*\(1,\), \(2,\)"
    ):
        Uneven()(batch={}, episodes=FixedEpisodes(episodes, obs=np.zeros((2, 1, 3))))


def test_flattened_observations_of_a_runner() -> None:
    env, _ = coded_envs("batched", 2, [3])
    runner = make_runner(env, coded_module(), env_to_module_edits=[FLATTEN])
    assert runner.env_to_module.observation_space == CodedEnv.observation_space
    block = runner.sample(4, True, weights_of(runner.module), {}).rollout.blocks["default_policy"]
    assert block.columns["obs"].shape == (6, 3)
