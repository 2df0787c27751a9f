"""Pipelines: edits by name, the order check, spaces, states, pipelines in pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.errors import ConfigError, Problem
from runner.module_building import make_connector
from runner.pipelines import (
    Connector,
    ConnectorPipeline,
    EnvToModulePipeline,
    GetActions,
    MeanStdFilter,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
    Requirements,
)
from runner.pipelines.common_connectors import AddObservationsFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor
from runner.pipelines.defaults import edited, env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.pipeline import PipelineError
from tests.pipelines.fixed_episodes import FixedEpisodes

OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(3)
CPU = torch.device("cpu")


class Marker(Connector):
    """Notes its name when it is called."""

    requires = Requirements(writes=("calls",))

    def __init__(self, name: str = "marker") -> None:
        self.marker = name

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch.setdefault("calls", []).append(self.marker)
        return batch


class A(Marker):
    pass


class B(Marker):
    pass


class C(Marker):
    pass


class New(Marker):
    def __init__(self) -> None:
        super().__init__("new")


def make_abc() -> ConnectorPipeline:
    return ConnectorPipeline([A("a"), B("b"), C("c")], OBS_SPACE, ACTION_SPACE)


def calls_of(pipeline: ConnectorPipeline) -> str:
    calls = pipeline(batch={}, episodes=FixedEpisodes())["calls"]
    assert len(pipeline) == len(calls) == len(pipeline.spaces_after)
    return " ".join(calls)


EDITS = [
    ({"prepend": {}}, "new a b c"),
    ({"append": {}}, "a b c new"),
    ({"insert_before": "B", "connector": {}}, "a new b c"),
    ({"insert_after": "B", "connector": {}}, "a b new c"),
    ({"insert_before": "A", "connector": {}}, "new a b c"),
    ({"insert_after": "C", "connector": {}}, "a b c new"),
    ({"connector": {}, "insert_after": "A"}, "a new b c"),
    ({"replace": "B", "connector": {}}, "a new c"),
    ({"connector": {}, "replace": "C"}, "a b new"),
    ({"remove": "A"}, "b c"),
    ({"remove": "C"}, "a b"),
]


@pytest.mark.parametrize(("edit", "expected"), EDITS, ids=lambda value: str(value))
def test_every_edit_by_name(edit: Mapping[str, Any], expected: str) -> None:
    assert calls_of(edited(make_abc(), [edit], lambda block, where: New())) == expected


def test_edits_by_class() -> None:
    pipeline = make_abc()
    pipeline.insert_before(B, New())
    pipeline.remove(C)
    pipeline.insert_after(B, C("x"))
    pipeline.replace(A, A("y"))
    assert calls_of(pipeline) == "y new b x"


def test_edits_are_applied_in_order() -> None:
    edits = [{"insert_after": "A", "connector": {}}, {"remove": "A"}, {"insert_before": "New", "connector": {}}]
    assert calls_of(edited(make_abc(), edits, lambda block, where: New())) == "new new b c"


def test_an_anchor_means_the_first_of_its_name() -> None:
    pipeline = ConnectorPipeline([A("1"), B("2"), A("3")], OBS_SPACE, ACTION_SPACE)
    pipeline.insert_after("A", New())
    assert calls_of(pipeline) == "1 new 2 3"


def test_reading_a_pipeline() -> None:
    pipeline = make_abc()
    assert [type(connector) for connector in pipeline] == [A, B, C]
    assert pipeline[1] is pipeline["B"]
    assert pipeline[Marker] == list(pipeline)
    assert pipeline[New] == []


@pytest.mark.parametrize("verb", ["insert_before", "insert_after", "replace", "remove"])
def test_unknown_anchor_leaves_the_pipeline_as_it_is(verb: str) -> None:
    pipeline = make_abc()
    with pytest.raises(PipelineError, match="pipeline does not contain a connector Nowhere"):
        edited(pipeline, [{verb: "Nowhere", "connector": {}}], lambda block, where: New())
    assert calls_of(pipeline) == "a b c"


# -- messages ----------------------------------------------------------------------------------------------------------


def connector_block(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"runner.pipelines.{name}", **arguments}


class CountsCalls(Connector):
    state = ("_num_calls",)

    def __init__(self) -> None:
        self._num_calls = 0

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        self._num_calls += 1
        return batch


def test_the_state_that_a_connector_declares_is_saved() -> None:
    pipelines = [ConnectorPipeline([CountsCalls(), Marker("a")]) for _ in range(2)]
    pipelines[0](batch={}, episodes=[])
    pipelines[1].set_state(pipelines[0].get_state())
    assert pipelines[1].get_state()["CountsCalls"] == {"num_calls": 1}


class ReadsLogp(Connector):
    requires = Requirements(reads=("action_logp",))


class ReadsNothingThatIs(Connector):
    requires = Requirements(reads=("hidden_state",))


def problems_of(pipeline_name: str, edits: Sequence[Mapping[str, Any]]) -> tuple[Problem, ...]:
    makers = {"ReadsLogp": ReadsLogp, "ReadsNothingThatIs": ReadsNothingThatIs}

    def make(block: Mapping[str, Any], where: str) -> Connector:
        name = block["_target_"]
        return makers[name]() if name in makers else make_connector(block, where)

    def build() -> ConnectorPipeline:
        if pipeline_name == "env_to_module":
            return env_to_module_pipeline(OBS_SPACE, ACTION_SPACE, CPU, edits, make)
        if pipeline_name == "module_to_env":
            return module_to_env_pipeline(OBS_SPACE, ACTION_SPACE, True, False, edits, make)
        return learner_pipeline(OBS_SPACE, ACTION_SPACE, CPU, edits, make)

    available = ("action_dist_inputs",) if pipeline_name == "module_to_env" else ()
    with pytest.raises(PipelineError) as caught:
        build().check_order(available)
    return caught.value.problems


def no_connector(pipeline: str, connector: str, expected: str, nearest: str | None = None) -> Problem:
    where = f"connectors.{pipeline}"
    return Problem(
        f"the {pipeline} pipeline does not contain a connector {connector}", where, connector, expected, nearest
    )


def not_written(connector: str, column: str, place: str, got: str, columns: str, *, note: str = "") -> Problem:
    return Problem(
        f"{connector} reads the column '{column}', which no earlier connector writes{note}",
        where=f"connectors.{place}",
        got=got,
        expected=f"one of the columns at this place: {columns}",
    )


MESSAGES = [
    pytest.param(
        "env_to_module",
        [{"remove": "AddObservationFromEpisodesToBatch"}],
        no_connector(
            "env_to_module",
            "AddObservationFromEpisodesToBatch",
            "AddObservationsFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor",
            "AddObservationsFromEpisodesToBatch",
        ),
        id="unknown_anchor",
    ),
    pytest.param(
        "learner",
        [{"insert_after": "Zzz", "connector": connector_block("MeanStdFilter")}],
        no_connector(
            "learner",
            "Zzz",
            "AddObservationsFromEpisodesToBatch, AddColumnsFromEpisodesToTrainBatch, "
            "AgentToModuleMapping, BatchIndividualItems, NumpyToTensor",
        ),
        id="unknown_anchor_like_no_other",
    ),
    pytest.param(
        "module_to_env",
        [{"prepend": connector_block("NormalizeAndClipActions")}],
        not_written(
            "NormalizeAndClipActions",
            "actions",
            "module_to_env, connector 1 of 6",
            "NormalizeAndClipActions -> GetActions -> TensorToNumpy -> UnBatchToIndividualItems "
            "-> NormalizeAndClipActions -> ListifyDataForVectorEnv",
            "action_dist_inputs",
            note="; the later GetActions writes it",
        ),
        id="reads_what_a_later_connector_writes",
    ),
    pytest.param(
        "module_to_env",
        [{"insert_after": "GetActions", "connector": {"_target_": "ReadsLogp"}}],
        not_written(
            "ReadsLogp",
            "action_logp",
            "module_to_env, connector 2 of 6",
            "GetActions -> ReadsLogp -> TensorToNumpy -> UnBatchToIndividualItems -> "
            "NormalizeAndClipActions -> ListifyDataForVectorEnv",
            "action_dist_inputs, actions",
            note="; GetActions writes it once per fragment, not at every step",
        ),
        id="reads_what_is_written_once_per_fragment",
    ),
    pytest.param(
        "learner",
        [{"append": {"_target_": "ReadsNothingThatIs"}}],
        not_written(
            "ReadsNothingThatIs",
            "hidden_state",
            "learner, connector 6 of 6",
            "AddObservationsFromEpisodesToBatch -> AddColumnsFromEpisodesToTrainBatch -> "
            "AgentToModuleMapping -> BatchIndividualItems -> NumpyToTensor -> ReadsNothingThatIs",
            "obs, actions, rewards, terminateds, truncateds",
        ),
        id="reads_what_nothing_writes",
    ),
    pytest.param(
        "module_to_env",
        [{"remove": "GetActions"}],
        not_written(
            "NormalizeAndClipActions",
            "actions",
            "module_to_env, connector 3 of 4",
            "TensorToNumpy -> UnBatchToIndividualItems -> NormalizeAndClipActions -> ListifyDataForVectorEnv",
            "action_dist_inputs",
        ),
        id="removed_connector_was_needed",
    ),
    pytest.param(
        "learner",
        [{"append": connector_block("GeneralAdvantageEstimation", gamma=0.99, lambda_=0.95)}],
        not_written(
            "GeneralAdvantageEstimation",
            "loss_mask",
            "learner, connector 6 of 6",
            "AddObservationsFromEpisodesToBatch -> AddColumnsFromEpisodesToTrainBatch -> "
            "AgentToModuleMapping -> BatchIndividualItems -> NumpyToTensor -> "
            "GeneralAdvantageEstimation",
            "obs, actions, rewards, terminateds, truncateds",
        ),
        id="gae_without_loss_mask",
    ),
]


@pytest.mark.parametrize(("pipeline_name", "edits", "expected"), MESSAGES)
def test_messages(pipeline_name: str, edits: list[dict[str, Any]], expected: Problem) -> None:
    assert problems_of(pipeline_name, edits) == (expected,)


def test_a_connector_that_cannot_be_made_is_told_with_its_pipeline() -> None:
    with pytest.raises(ConfigError, match="num_frames must be at least 1, got 0") as caught:
        problems_of("learner", [{"append": connector_block("FrameStacking", num_frames=0)}])
    (problem,) = caught.value.problems
    assert problem.where == "connectors.learner"


def test_default_pipelines_pass_the_order_check() -> None:
    env_to_module = env_to_module_pipeline(OBS_SPACE, ACTION_SPACE, CPU, [], make_connector)
    assert env_to_module.check_order(()) == ("obs",)
    module_to_env = module_to_env_pipeline(OBS_SPACE, ACTION_SPACE, True, False, [], make_connector)
    assert set(module_to_env.check_order(("action_dist_inputs",))) == {
        "action_dist_inputs",
        "actions",
        "actions_for_env",
    }
    assert module_to_env.requires.writes_per_fragment == ("action_logp",)


def test_state_of_a_missing_connector() -> None:
    pipeline = env_to_module_pipeline(OBS_SPACE, ACTION_SPACE, CPU, [], make_connector)
    with pytest.raises(PipelineError) as caught:
        pipeline.set_state({"MeanStdFilter": {}})
    assert caught.value.problems == (
        Problem(
            "the env_to_module pipeline does not contain the connector MeanStdFilter of the saved state",
            where="connectors.env_to_module",
            got="MeanStdFilter",
            expected="AddObservationsFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor",
        ),
    )


# -- spaces ------------------------------------------------------------------------------------------------------------


class Doubles(Connector):
    """Pretends to put a second copy of the observation behind the first."""

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        assert isinstance(input_observation_space, gym.spaces.Box)
        low, high = input_observation_space.low, input_observation_space.high
        return gym.spaces.Box(np.concatenate((low, low)), np.concatenate((high, high)), dtype=np.float32)


def test_each_connector_infers_from_the_one_before() -> None:
    pipeline = ConnectorPipeline([Doubles(), MeanStdFilter(clip_by_value=5.0), Doubles()], OBS_SPACE, ACTION_SPACE)
    shapes = [(space.shape, float(space.high.max())) for space, _ in pipeline.spaces_after]  # type: ignore[attr-defined]
    assert shapes == [((4,), 1.0), ((4,), 5.0), ((8,), 5.0)]
    assert pipeline.observation_space.shape == (8,)
    assert pipeline.action_space == ACTION_SPACE
    pipeline.remove(Doubles)
    assert pipeline.observation_space.shape == (4,)
    pipeline.prepend(Doubles())
    assert pipeline.observation_space.shape == (8,)
    pipeline.replace(MeanStdFilter, Doubles())
    assert pipeline.observation_space.shape == (16,)


# -- states ------------------------------------------------------------------------------------------------------------


def test_two_connectors_of_one_class_keep_separate_states() -> None:
    def make() -> ConnectorPipeline:
        connectors = [MeanStdFilter(clip_by_value=None), A("a"), MeanStdFilter(clip_by_value=0.1)]
        return ConnectorPipeline(connectors, OBS_SPACE, ACTION_SPACE)

    pipeline, other = make(), make()
    pipeline(batch={"obs": np.array([[0.0, 10.0], [4.0, 30.0]])}, episodes=FixedEpisodes())
    state = pipeline.get_state()
    assert list(state) == ["MeanStdFilter", "MeanStdFilter#2"]
    assert state["MeanStdFilter"]["own_mean"].tolist() == [2.0, 20.0]
    np.testing.assert_allclose(state["MeanStdFilter#2"]["own_mean"], [0.0, 0.0], atol=1e-7)
    other.set_state(state)
    rows = np.array([[1.0, 2.0]])
    expected = pipeline(batch={"obs": rows}, episodes=FixedEpisodes())["obs"]
    np.testing.assert_array_equal(other(batch={"obs": rows}, episodes=FixedEpisodes())["obs"], expected)
    merged = pipeline.merge_states([state, state])
    assert merged["MeanStdFilter"]["merged_count"] == merged["MeanStdFilter#2"]["merged_count"] == 4
    pipeline.reset_state()
    assert [connector["own_count"] for connector in pipeline.get_state().values()] == [0, 0]


def test_connectors_that_share_nothing_are_left_out_of_merged_states() -> None:
    pipeline = module_to_env_pipeline(OBS_SPACE, ACTION_SPACE, True, False, [], make_connector)
    state = pipeline.get_state()
    assert list(state) == ["GetActions"]
    assert pipeline.merge_states([state, state]) == {}


class LearnsLate(Connector):
    """Does not have a state before it has learned anything."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_state(self) -> dict[str, int]:
        return {"count": self._count} if self._count else {}

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"count": sum(state["count"] for state in states)}


@pytest.mark.parametrize("counts", [(0, 3, 4), (3, 0, 4)])
def test_states_that_only_some_runners_have_are_merged(counts: Sequence[int]) -> None:
    pipelines = [ConnectorPipeline([LearnsLate(count)]) for count in counts]
    merged = pipelines[0].merge_states([pipeline.get_state() for pipeline in pipelines])
    assert merged == {"LearnsLate": {"count": 7}}


# -- pipelines in pipelines --------------------------------------------------------------------------------------------


def nested(*inner: Connector) -> ConnectorPipeline:
    return ConnectorPipeline(inner, OBS_SPACE, ACTION_SPACE)


def test_nested_connectors_are_called_in_their_place() -> None:
    pipeline = ConnectorPipeline([A("1"), nested(B("2"), C("3")), A("4")], OBS_SPACE, ACTION_SPACE)
    assert pipeline(batch={}, episodes=FixedEpisodes())["calls"] == ["1", "2", "3", "4"]


def test_nested_columns_count_in_the_order_check() -> None:
    inner = nested(AddObservationsFromEpisodesToBatch(), BatchIndividualItems())
    pipeline = EnvToModulePipeline([inner, MeanStdFilter(), NumpyToTensor()], OBS_SPACE, ACTION_SPACE)
    assert pipeline.check_order(()) == ("obs",)
    assert nested(GetActions()).requires.writes_per_fragment == ("action_logp",)
    assert nested(GetActions(), NormalizeAndClipActions()).requires.reads == ("action_dist_inputs",)
    pipeline = ModuleToEnvPipeline([nested(NormalizeAndClipActions()), GetActions()], OBS_SPACE, ACTION_SPACE)
    with pytest.raises(PipelineError, match="reads the column 'actions', which no earlier connector writes"):
        pipeline.check_order(("action_dist_inputs",))


def test_nested_connectors_infer_spaces() -> None:
    inner = nested(MeanStdFilter(clip_by_value=7.0))
    pipeline = ConnectorPipeline([Doubles(), inner], OBS_SPACE, ACTION_SPACE)
    assert pipeline.observation_space == gym.spaces.Box(-7.0, 7.0, (4,), np.float32)


def test_nested_connectors_keep_states_and_freeze() -> None:
    def make() -> ConnectorPipeline:
        return ConnectorPipeline([nested(MeanStdFilter())], OBS_SPACE, ACTION_SPACE)

    pipeline, other = make(), make()
    pipeline(batch={"obs": np.array([[1.0, 2.0]])}, episodes=FixedEpisodes())
    state = pipeline.get_state()
    other.freeze()
    other.set_state(state)
    other(batch={"obs": np.array([[5.0, 5.0]])}, episodes=FixedEpisodes())
    inner = other.get_state()["ConnectorPipeline"]["MeanStdFilter"]
    assert (inner["own_count"], inner["own_mean"].tolist()) == (1.0, [1.0, 2.0])
    merged = pipeline.merge_states([state, state])
    assert merged["ConnectorPipeline"]["MeanStdFilter"]["merged_count"] == 2
