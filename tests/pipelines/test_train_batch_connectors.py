"""Infos, next observations and returns to go: each row's own, with and without bootstrap rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import block_from_episodes
from runner.pipelines import (
    AddColumnsFromEpisodesToTrainBatch,
    AddInfosFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    ComputeReturnsToGo,
)
from tests.episodes.test_columns import episode_of
from tests.pipelines.connector_contract import AFTER_COLUMNS, AFTER_OBS, WITH_MASK, ConnectorCase, check_connector
from tests.pipelines.learner_batches import learner_batch
from tests.plans.hand_made import block_of
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of
from tests.support.environments import coded_info


def returns_to_go() -> ComputeReturnsToGo:
    return ComputeReturnsToGo(0.5)


CASES = {
    "AddInfosFromEpisodesToTrainBatch": ConnectorCase(AddInfosFromEpisodesToTrainBatch, "learner", *AFTER_OBS),
    "AddInfosFromEpisodesToTrainBatch-mask": ConnectorCase(
        AddInfosFromEpisodesToTrainBatch, "learner", *AFTER_OBS, edits=WITH_MASK
    ),
    "AddNextObservationsFromEpisodesToTrainBatch": ConnectorCase(
        AddNextObservationsFromEpisodesToTrainBatch, "learner", *AFTER_OBS
    ),
    "AddNextObservationsFromEpisodesToTrainBatch-mask": ConnectorCase(
        AddNextObservationsFromEpisodesToTrainBatch, "learner", *AFTER_OBS, edits=WITH_MASK
    ),
    "ComputeReturnsToGo": ConnectorCase(returns_to_go, "learner", *AFTER_COLUMNS),
    "ComputeReturnsToGo-mask": ConnectorCase(returns_to_go, "learner", *AFTER_COLUMNS, edits=WITH_MASK),
}


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    check_connector(*CASES[name])


def mask_of(block: Any) -> Any:
    mask = np.ones(block.num_rows + len(block), np.bool_)
    mask[block.first_obs_rows + block.lengths] = False
    return mask


@pytest.mark.parametrize("has_mask", [False, True])
def test_infos_are_those_of_the_rows_observations(has_mask: bool) -> None:
    env, _ = coded_envs("batched", 3, [4, 2, 7])
    module = coded_module()
    runner = make_runner(env, module, num_lookback=2)
    for steps in (7, 20):
        block = runner.sample(steps, True, weights_of(module), {}).rollout.blocks["default_policy"]
        mask = mask_of(block)
        batch = {"loss_mask": mask} if has_mask else {}
        infos = AddInfosFromEpisodesToTrainBatch()(batch=batch, episodes=block)["infos"]
        places = block.columns["obs"].astype(int)
        assert isinstance(infos, list)
        assert infos == [coded_info(*place) for place in (places if has_mask else places[mask]).tolist()]


def test_infos_of_episodes_without_any() -> None:
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 0], rewards=[0.0, 0.0], len_lookback_buffer=0)
    infos = AddInfosFromEpisodesToTrainBatch()(batch={}, episodes=block_from_episodes([episode]))["infos"]
    assert infos == [{}, {}]
    assert infos[0] is not infos[1]


def test_infos_of_given_episodes() -> None:
    batch = learner_batch([], ("AddColumnsFromEpisodesToTrainBatch", AddInfosFromEpisodesToTrainBatch()))
    assert batch["infos"] == [{"i": 0}, {"i": 1}, {"i": 2}, {"i": 10}]


def test_next_observations() -> None:
    connector = AddNextObservationsFromEpisodesToTrainBatch
    batch = learner_batch([], ("AddColumnsFromEpisodesToTrainBatch", connector()))
    assert batch["new_obs"][:, 0].tolist() == [1, 2, 3, 11]
    batch = learner_batch(WITH_MASK, ("AddColumnsFromEpisodesToTrainBatch", connector()))
    assert batch["new_obs"][:, 0].tolist() == [1, 2, 3, 3, 11, 11]


def test_next_observations_are_transformed_like_the_others() -> None:
    block = block_from_episodes([episode_of("a", 2), episode_of("b", 1, first=10)])
    mask = mask_of(block)
    obs = {"x": (-block.columns["obs"],)}
    connector = AddNextObservationsFromEpisodesToTrainBatch()
    batch = connector(batch={"loss_mask": mask, "obs": obs}, episodes=block)
    assert batch["new_obs"]["x"][0][:, 0].tolist() == [-1, -2, -2, -11, -11]
    with pytest.raises(
        RuntimeError, match=r"a connector has changed column 'obs'.* prepend AddOneTsToEpisodesAndTruncate"
    ):
        connector(batch={"obs": -block.columns["obs"][mask]}, episodes=block)


def test_next_observations_of_tensors_are_refused() -> None:
    block = block_from_episodes([episode_of("a", 2)])
    with pytest.raises(TypeError, match=r"AddNextObservationsFromEpisodesToTrainBatch needs arrays .* NumpyToTensor"):
        AddNextObservationsFromEpisodesToTrainBatch()(
            batch={"loss_mask": mask_of(block), "obs": torch.zeros(3)}, episodes=block
        )


@pytest.mark.parametrize("edits", [[], WITH_MASK], ids=["plain", "with_mask"])
def test_returns_to_go(edits: Any) -> None:
    batch = learner_batch(edits, ("AgentToModuleMapping", ComputeReturnsToGo(0.5)))
    assert batch["rewards"].tolist() == ([0, 1, 2, 0, 10, 0] if edits else [0, 1, 2, 10])
    assert batch["returns_to_go"].tolist() == ([1, 2, 2, 0, 10, 0] if edits else [1, 2, 2, 10])
    assert batch["returns_to_go"].dtype == torch.float32


@pytest.mark.parametrize("rewards", [None, torch.zeros(3)], ids=["none", "tensor"])
def test_returns_to_go_need_an_array(rewards: Any) -> None:
    batch = {} if rewards is None else {"rewards": rewards}
    with pytest.raises(
        TypeError, match=r"ComputeReturnsToGo needs column 'rewards' as an array, got .* place it after"
    ):
        ComputeReturnsToGo(0.9)(batch=batch, episodes=block_from_episodes([episode_of("a", 3)]))


@pytest.mark.parametrize("has_bootstrap_rows", [False, True])
def test_columns_that_are_one_where_the_episodes_do_not_have_them(has_bootstrap_rows: bool) -> None:
    block = block_of(5, [2, 3])
    weighted = block.with_columns({"weights": np.arange(5, dtype=np.float32)})
    connector = AddColumnsFromEpisodesToTrainBatch(ones={"n_step": np.int64, "weights": np.float32})
    assert connector.requires.writes[-2:] == ("n_step", "weights")
    for episodes in (block, weighted):
        batch = AddOneTsToEpisodesAndTruncate()(batch={}, episodes=episodes) if has_bootstrap_rows else {}
        columns = connector(batch=batch, episodes=episodes)
        num_rows = 7 if has_bootstrap_rows else 5
        np.testing.assert_array_equal(columns["n_step"], np.ones(num_rows))
        assert (columns["n_step"].dtype, columns["weights"].dtype) == (np.int64, np.float32)
        given = [0, 1, 1, 2, 3, 4, 4] if has_bootstrap_rows else [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(columns["weights"], given if episodes is weighted else np.ones(num_rows))


@pytest.mark.parametrize("lengths", [[1, 1, 1], [0, 2, 1], [2, 0], [3]])
def test_rows_of_chunks_that_are_single_steps_and_of_ones_that_add_up_to_as_many(lengths: list[int]) -> None:
    block = block_of(5, lengths)
    assert block.offsets.tolist() == [sum(lengths[:chunk]) for chunk in range(len(lengths) + 1)]
    batch = AddNextObservationsFromEpisodesToTrainBatch()(
        batch={"obs": np.concatenate([chunk.get_observations()[:-1] for chunk in block])}, episodes=block
    )
    np.testing.assert_array_equal(batch["new_obs"], np.concatenate([one.get_observations()[1:] for one in block]))
    columns = AddColumnsFromEpisodesToTrainBatch()(batch={}, episodes=block)
    ends = {offset - 1 for offset, length in zip(block.offsets[1:].tolist(), lengths, strict=True) if length}
    assert set(np.flatnonzero(columns["terminateds"]).tolist()) == ends
