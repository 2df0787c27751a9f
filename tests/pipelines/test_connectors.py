"""The contract of connectors: all of ours, some that a user may write, and some that break it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

import runner.pipelines
from runner.episodes.columns import block_from_episodes
from runner.pipelines import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNoiseToBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    AddTimeDimToBatchAndZeroPad,
    AgentToModuleMapping,
    BatchIndividualItems,
    Connector,
    ConnectorPipeline,
    EpsilonGreedyActions,
    GeneralAdvantageEstimation,
    GetActions,
    ListifyDataForVectorEnv,
    MeanStdFilter,
    MonteCarloReturns,
    NormalizeAndClipActions,
    NumpyToTensor,
    ObservationConnector,
    Requirements,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from tests.episodes.test_columns import episode_of
from tests.pipelines import (
    test_history_connectors,
    test_observation_connectors,
    test_reward_connectors,
    test_train_batch_connectors,
)
from tests.pipelines.connector_contract import AFTER_COLUMNS, AFTER_OBS, WITH_MASK, ConnectorCase, check_connector
from tests.pipelines.learner_batches import learner_batch
from tests.support.episode_list import EpisodeList


def replaced(connector_class: type[Connector], pipeline: str, **arguments: Any) -> ConnectorCase:
    """A connector of the default pipeline."""
    return ConnectorCase(lambda: connector_class(**arguments), pipeline, "replace", connector_class.__name__)


OURS = {
    "AddObservationsFromEpisodesToBatch": replaced(AddObservationsFromEpisodesToBatch, "env_to_module"),
    "AddObservationsFromEpisodesToBatch-learner": replaced(AddObservationsFromEpisodesToBatch, "learner"),
    "BatchIndividualItems": replaced(BatchIndividualItems, "env_to_module"),
    "BatchIndividualItems-learner": replaced(BatchIndividualItems, "learner"),
    "AgentToModuleMapping": replaced(AgentToModuleMapping, "learner"),
    "NumpyToTensor": replaced(NumpyToTensor, "env_to_module"),
    "NumpyToTensor-learner": replaced(NumpyToTensor, "learner"),
    "MeanStdFilter": ConnectorCase(MeanStdFilter, "env_to_module", *AFTER_OBS),
    "AddNoiseToBatch": ConnectorCase(AddNoiseToBatch, "env_to_module", *AFTER_OBS),
    "GetActions": replaced(GetActions, "module_to_env"),
    "EpsilonGreedyActions": ConnectorCase(lambda: EpsilonGreedyActions(0.5), "module_to_env", "replace", "GetActions"),
    "TensorToNumpy": replaced(TensorToNumpy, "module_to_env"),
    "UnBatchToIndividualItems": replaced(UnBatchToIndividualItems, "module_to_env"),
    "NormalizeAndClipActions": replaced(NormalizeAndClipActions, "module_to_env"),
    "ListifyDataForVectorEnv": replaced(ListifyDataForVectorEnv, "module_to_env"),
    "AddOneTsToEpisodesAndTruncate": ConnectorCase(AddOneTsToEpisodesAndTruncate, "learner", "prepend"),
    "AddColumnsFromEpisodesToTrainBatch": replaced(AddColumnsFromEpisodesToTrainBatch, "learner"),
    "GeneralAdvantageEstimation": ConnectorCase(
        lambda: GeneralAdvantageEstimation(0.9, 0.8), "learner", "append", edits=WITH_MASK
    ),
    "MonteCarloReturns": ConnectorCase(lambda: MonteCarloReturns(0.9, False), "learner", "append", edits=WITH_MASK),
    "MonteCarloReturns-baseline": ConnectorCase(
        lambda: MonteCarloReturns(0.9, True), "learner", "append", edits=WITH_MASK
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_our_connectors(name: str) -> None:
    check_connector(*OURS[name])


def test_every_exported_connector_is_put_through_the_contract() -> None:
    exported = {name: getattr(runner.pipelines, name) for name in runner.pipelines.__all__}
    connectors = {
        name
        for name, value in exported.items()
        if inspect.isclass(value) and issubclass(value, Connector) and not issubclass(value, ConnectorPipeline)
    }
    elsewhere = (
        test_history_connectors,
        test_observation_connectors,
        test_reward_connectors,
        test_train_batch_connectors,
    )
    cases = [name for module in elsewhere for name in module.CASES] + list(OURS)
    # The memory connectors need a module with memory, the agents' ones several agents, NoisyActions real-valued
    # actions, VTrace and TargetVTrace what the policy gave when it acted. They have tests of their own.
    others = {
        "Connector",
        "EnvToModuleConnector",
        "NetworkConnector",
        "LearnerConnector",
        "ModuleToEnvConnector",
        "MultiAgentObservationPreprocessor",
        "AddObservationsOfAllAgentsToTrainBatch",
        "AddStatesFromEpisodesToBatch",
        "AddStatesFromInfosToTrainBatch",
        "AddTimeDimToBatchAndZeroPad",
        "RemoveSingleTsTimeRankFromBatch",
        "ModuleToAgentUnmapping",
        "NoisyActions",
        "VTrace",
        "TargetVTrace",
    }
    assert connectors - others == {name.partition("-")[0] for name in cases}


# -- connectors as users write them ------------------------------------------------------------------------------------


class LastReward(Connector):
    """Adds the reward of the step before, 0 at a start; loops over episodes."""

    requires = Requirements(writes=("last_reward",))

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        for episode in self.single_agent_episode_iterator(episodes):
            reward = np.float32(episode.get_rewards(-1)) if len(episode) else np.float32(0.0)
            self.add_batch_item(batch, "last_reward", reward, episode)
        return batch


class ReturnToGo(Connector):
    """Adds the undiscounted return from each step to the end of its chunk."""

    requires = Requirements(writes=("return_to_go",))

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        for episode in self.single_agent_episode_iterator(episodes):
            returns = np.cumsum(episode.get_rewards()[::-1])[::-1]
            self.add_n_batch_items(batch, "return_to_go", returns, episode)
        return batch


class CountsRows(Connector):
    """Counts observations over all runners."""

    requires = Requirements(reads=("obs",), writes=("num_rows_seen",))

    def __init__(self) -> None:
        self._merged = self._own = 0

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        self._own += len(batch["obs"])
        batch["num_rows_seen"] = np.full(len(batch["obs"]), self._merged + self._own)
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"merged": self._merged, "own": self._own}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._merged, self._own = state["merged"], state["own"]

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"merged": states[0]["merged"] + sum(state["own"] for state in states), "own": 0}


@pytest.mark.parametrize(
    "case",
    [
        ConnectorCase(LastReward, "env_to_module", *AFTER_OBS),
        ConnectorCase(LastReward, "env_to_module", "prepend"),
        ConnectorCase(ReturnToGo, "learner", "prepend"),
        ConnectorCase(ReturnToGo, "learner", *AFTER_OBS, edits=WITH_MASK),
        ConnectorCase(ReturnToGo, "learner", *AFTER_COLUMNS, edits=WITH_MASK),
        ConnectorCase(CountsRows, "env_to_module", *AFTER_OBS),
    ],
    ids=lambda case: f"{case.make.__name__}-{case.verb}-{len(case.edits)}",
)
def test_connectors_of_users(case: ConnectorCase) -> None:
    check_connector(*case)


NESTED = gym.spaces.Dict(
    {"place": gym.spaces.Box(-1, 1, (2,)), "parts": gym.spaces.Tuple([gym.spaces.Discrete(4)] * 2)}
)


class DoublesAPart(ObservationConnector):
    """Doubles the width of a part of nested observations, and says so if asked to."""

    def __init__(self, is_said: bool) -> None:
        self._is_said = is_said

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        parts = dict(input_observation_space.spaces)
        return gym.spaces.Dict(parts | ({"place": gym.spaces.Box(-1, 1, (4,))} if self._is_said else {}))

    def transform(self, obs: Any, batch: dict[str, Any], episodes: Any) -> Any:
        return obs | {"place": np.concatenate([obs["place"], obs["place"]], -1)}


@pytest.mark.parametrize("pipeline", ["env_to_module", "learner"])
def test_connectors_of_nested_observations(pipeline: str) -> None:
    check_connector(lambda: DoublesAPart(is_said=True), pipeline, observation_space=NESTED)
    with pytest.raises(
        AssertionError, match=r"DoublesAPart breaks 1 rule.*\n\n1\. observations after the connector are not"
    ):
        check_connector(lambda: DoublesAPart(is_said=False), pipeline, observation_space=NESTED)


def test_spaces_of_a_connector_behind_one_that_maps_them() -> None:
    flatten = {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "connector": {"_target_": "runner.pipelines.FlattenObservations"},
    }
    place = ("insert_after", "FlattenObservations", [flatten])
    check_connector(MeanStdFilter, "env_to_module", *place, observation_space=NESTED)


# -- the contract notices what is wrong --------------------------------------------------------------------------------


class WritesInSecret(LastReward):
    def __init__(self) -> None:
        self.requires = replace(self.requires, writes=())


class WritesNothing(Connector):
    requires = Requirements(writes=("promised",))

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return batch


class TakesTooLittle(WritesNothing):
    def __call__(self, *, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return batch


class DropsRows(Connector):
    requires = Requirements(writes=("obs",))

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return batch | {"obs": batch["obs"][1:]}


class ChangesInSecret(Connector):
    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch["obs"] = batch["obs"] + 1
        return batch


class ForgetsItsState(CountsRows):
    def set_state(self, state: Mapping[str, Any]) -> None:
        self._merged = state["merged"]


class CountsTwice(CountsRows):
    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"merged": sum(state["merged"] + state["own"] for state in states), "own": 0}


class StateOfObjects(CountsRows):
    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"self": self}


class DrawsFromElsewhere(Connector):
    requires = Requirements(writes=("noise",))

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return batch | {"noise": np.random.default_rng().random(3)}


class WritesIntoEpisodes(Connector):
    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        episodes.current_obs[:] = 0.0
        return batch


class WritesMoreInEvaluation(Connector):
    def __call__(self, *, batch: dict[str, Any], explore: bool | None = None, **kwargs: Any) -> dict[str, Any]:
        return batch if explore else batch | {"greedy": batch["obs"]}


class DeclaresAList(CountsRows):
    requires = Requirements(
        reads=["obs"],  # type: ignore[assignment]
    )


class KeepsWhatItDrops(CountsRows):
    requires = Requirements(drops=("obs",))


class HasNoSpace(CountsRows):
    def recompute_output_observation_space(self, *spaces: Any) -> Any:
        return "any"


class DoublesTheWidth(ObservationConnector):
    def transform(self, obs: Any, batch: dict[str, Any], episodes: Any) -> Any:
        return np.concatenate([obs, obs], -1)


class RoundsObservations(ObservationConnector):
    def transform(self, obs: Any, batch: dict[str, Any], episodes: Any) -> Any:
        return obs.astype(np.int64)


class NestsObservations(ObservationConnector):
    def transform(self, obs: Any, batch: dict[str, Any], episodes: Any) -> Any:
        return {"place": obs}


class MapsItsSpaceOnly(CountsRows):
    def recompute_output_observation_space(self, *spaces: Any) -> Any:
        return gym.spaces.Box(-1.0, 1.0, (6,), np.float32)


class HasSpacesAtRandom(CountsRows):
    num_calls = 0

    def recompute_output_action_space(self, *spaces: Any) -> Any:
        self.num_calls += 1
        return gym.spaces.Discrete(self.num_calls)


class CompletesInSecret(CountsRows):
    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        columns["secret"] = columns["rewards"]


class CannotBeReset(CountsRows):
    def reset_state(self) -> None:
        raise RuntimeError("no reset")


class ReportsNothing(CountsRows):
    reports: ClassVar = {"seen": ("sum", "rows")}


class ReportsNaN(ReportsNothing):
    def __call__(self, *, batch: dict[str, Any], metrics: Any = None, **kwargs: Any) -> dict[str, Any]:
        if metrics is not None:
            metrics.report("seen", float("nan"))
        return super().__call__(batch=batch)


class DeclaresNoReduction(CountsRows):
    reports: ClassVar = {"seen": "rows"}


class NeedsItsReporter(ReportsNothing):
    def __call__(self, *, batch: dict[str, Any], metrics: Any = None, **kwargs: Any) -> dict[str, Any]:
        metrics.report("seen", 1.0)
        return super().__call__(batch=batch)


class ReturnsNothing(Connector):
    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> Any:
        batch.clear()


class ReadsTooMuch(Connector):
    requires = Requirements(reads=("num_rows_seen",))

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return batch


@pytest.mark.parametrize(
    ("connector_class", "message"),
    [
        (WritesInSecret, "column last_reward is written but not declared in `writes`"),
        (WritesNothing, "column promised is declared in `writes` but not written"),
        (TakesTooLittle, "does not take all keywords"),
        (DropsRows, "the connector changes the number of rows of column obs\n.*\n   got           2 rows\n"),
        (ChangesInSecret, "column obs is changed but not declared in `writes`"),
        (ForgetsItsState, "get_state after set_state returns a different own"),
        (CountsTwice, "counted twice"),
        (StateOfObjects, "state/self: StateOfObjects cannot be part of a checkpoint"),
        (DrawsFromElsewhere, "two connectors with the same stream and input write different noise"),
        (WritesIntoEpisodes, "the connector writes into obs of the episodes"),
        (WritesMoreInEvaluation, "column greedy is written only without exploration"),
        (DeclaresAList, "reads is not a tuple of column names"),
        (KeepsWhatItDrops, "column obs is declared in `drops` but not removed"),
        (HasNoSpace, "does not return a space"),
        (DoublesTheWidth, "(?s)not in its output space.*got           shape \\(3, 6\\) and dtype float32\n"),
        (RoundsObservations, "(?s)not in its output space.*and dtype int64\n"),
        (NestsObservations, "(?s)not in its output space.*{'place': "),
        (MapsItsSpaceOnly, "(?s)not in its output space.*rows of Box\\(-1.0, 1.0, \\(6,\\), float32\\)"),
        (HasSpacesAtRandom, "the second call returns a different space"),
        (CompletesInSecret, "complete_fragment does not add the columns declared in `writes_per_fragment`"),
        (CannotBeReset, "RuntimeError: no reset"),
        (ReportsNothing, "metric seen is declared but not reported"),
        (ReportsNaN, "metric seen is not finite"),
        (DeclaresNoReduction, "reports\\['seen'\\] is"),
        (NeedsItsReporter, "AttributeError: 'NoneType' object has no attribute 'report'"),
        (ReturnsNothing, "ReturnsNothing.__call__ does not return the batch"),
        (ReadsTooMuch, "(?s)num_rows_seen"),
    ],
)
def test_contract_refuses(connector_class: type[Connector], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_connector(connector_class, "env_to_module", *AFTER_OBS)


# -- single connectors -------------------------------------------------------------------------------------------------


def test_learner_batch_without_bootstrap_rows() -> None:
    batch = learner_batch([])
    assert batch["obs"][:, 0].tolist() == [0, 1, 2, 10]
    assert batch["rewards"].tolist() == [0, 1, 2, 10]
    assert batch["number"].tolist() == [0, 1, 2, 10]
    assert batch["terminateds"].tolist() == [False, False, True, False]
    assert batch["truncateds"].tolist() == [False, False, False, True]


def test_learner_batch_with_bootstrap_rows() -> None:
    batch = learner_batch(WITH_MASK)
    assert batch["loss_mask"].tolist() == [True, True, True, False, True, False]
    assert batch["obs"][:, 0].tolist() == [0, 1, 2, 3, 10, 11]
    assert batch["rewards"].tolist() == [0, 1, 2, 0, 10, 0]
    assert batch["number"].tolist() == [0, 1, 2, 2, 10, 10]
    assert batch["terminateds"].tolist() == [False, False, True, False, False, False]
    assert batch["truncateds"].tolist() == [False, False, False, True, True, True]


def test_items_of_a_users_connector_are_in_the_order_of_the_rows() -> None:
    batch = learner_batch([], ("AddColumnsFromEpisodesToTrainBatch", ReturnToGo()))
    assert batch["return_to_go"].tolist() == [3, 3, 2, 10]
    batch = learner_batch(WITH_MASK, ("AddColumnsFromEpisodesToTrainBatch", ReturnToGo()))
    assert batch["return_to_go"].tolist() == [3, 3, 2, 2, 10, 10]  # a bootstrap row repeats the last item


class OwnRewards(Connector):
    """Shapes rewards, by rows or item by item."""

    requires = Requirements(writes=("rewards", "terminateds"))

    def __init__(self, by_items: bool) -> None:
        self._by_items = by_items

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        if self._by_items:
            for episode in episodes:
                self.add_n_batch_items(batch, "rewards", episode.get_rewards() * 2, episode)
                self.add_n_batch_items(batch, "terminateds", [False] * len(episode), episode)
        else:
            num_rows = len(batch["loss_mask"]) if "loss_mask" in batch else episodes.num_rows
            batch["rewards"], batch["terminateds"] = np.arange(num_rows) + 5.0, np.zeros(num_rows, np.bool_)
        return batch


@pytest.mark.parametrize("edits", [[], WITH_MASK], ids=["plain", "with_mask"])
@pytest.mark.parametrize("by_items", [False, True])
def test_columns_that_are_there_already_are_left_as_they_are(edits: Any, by_items: bool) -> None:
    batch = learner_batch(edits, ("AddColumnsFromEpisodesToTrainBatch", OwnRewards(by_items)))
    mask = batch.get("loss_mask", torch.ones(4, dtype=torch.bool))
    expected = np.array([0, 2, 4, 20]) if by_items else (np.arange(len(mask)) + 5)[mask.numpy()]
    assert batch["rewards"][mask].tolist() == expected.tolist()
    assert not batch["terminateds"].any()
    assert batch["truncateds"].tolist()[-1]


def test_rows_of_observations_before_steps() -> None:
    block = block_from_episodes([episode_of("a", 2), episode_of("b", 1), episode_of("c", 3)])
    assert block.obs_rows.tolist() == [0, 1, 3, 5, 6, 7]


@pytest.mark.parametrize("with_bootstrap_rows", [False, True])
def test_items_of_chunks_with_the_same_id_keep_their_places(with_bootstrap_rows: bool) -> None:
    """A buffer may draw the beginning of an episode twice."""
    block = block_from_episodes([episode_of("a", 2), episode_of("b", 1, first=4), episode_of("a", 3, first=7)])
    batch: dict[str, Any] = {}
    if with_bootstrap_rows:
        batch = AddOneTsToEpisodesAndTruncate()(batch=batch, episodes=block)
    for episode in block:
        Connector.add_n_batch_items(batch, "rewards_again", list(episode.get_rewards()), episode)
    batch = AddColumnsFromEpisodesToTrainBatch()(batch=batch, episodes=block)
    again = BatchIndividualItems()(batch=batch, episodes=block)["rewards_again"]
    mask = batch.get("loss_mask", np.ones(6, np.bool_))
    assert len(again) == len(mask)
    assert again[mask].tolist() == batch["rewards"][mask].tolist()
    assert len(set(again[mask].tolist())) == 6


def test_running_episodes_may_be_plain_episodes() -> None:
    episodes = EpisodeList([episode_of("a", 2), episode_of("b", 1, first=7)])
    batch = AddObservationsFromEpisodesToBatch()(batch={}, episodes=episodes)
    batch = NumpyToTensor()(batch=BatchIndividualItems()(batch=batch, episodes=episodes))
    assert batch["obs"].tolist() == [[2, 0], [8, 0]]


def test_observations_that_are_there_already_are_left_as_they_are() -> None:
    batch = {"obs": np.ones((2, 3))}
    assert AddObservationsFromEpisodesToBatch()(batch=batch, episodes=[])["obs"] is batch["obs"]


def test_numpy_to_tensor_goes_one_level_down_and_does_not_copy() -> None:
    rows = np.arange(3.0)
    batch = NumpyToTensor()(batch={"default_policy": {"rows": rows}, "plain": rows, "text": "x"})
    rows[0] = 9
    assert batch["default_policy"]["rows"].tolist() == batch["plain"].tolist() == [9, 1, 2]
    assert batch["text"] == "x"


def test_unbatch_refuses_columns_of_another_length() -> None:
    with pytest.raises(ValueError, match="column 'actions' has 3 rows for 2 acting envs"):
        UnBatchToIndividualItems()(batch={"actions": np.zeros(3)}, episodes=[None, None])


def test_a_time_axis_leaves_lists_as_they_are() -> None:
    episodes = EpisodeList([episode_of("a", 2), episode_of("b", 1)])
    batch: dict[str, Any] = {"obs": np.ones((2, 3)), "infos": [{"x": 1}, {}]}
    batch = AddTimeDimToBatchAndZeroPad()(batch=batch, episodes=episodes)
    assert batch["obs"].shape == (2, 1, 3)
    assert batch["infos"] == [{"x": 1}, {}]


def test_listify_makes_arrays_of_lists_and_items() -> None:
    episodes = [episode_of("a", 1), episode_of("b", 1)]
    batch: dict[str, Any] = {"as_list": [np.zeros(2), np.ones(2)], "as_array": np.arange(2)}
    for number, episode in enumerate(episodes):
        Connector.add_batch_item(batch, "as_items", number + 5, episode)
    batch = ListifyDataForVectorEnv()(batch=batch)
    assert batch["as_list"].tolist() == [[0, 0], [1, 1]]
    assert batch["as_items"].tolist() == [5, 6]
    assert batch["as_array"].tolist() == [0, 1]
