"""Pipelines in pipelines, as YAML names them: a block with `connectors` in a list of edits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.cli.show_pipelines import render_pipelines
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.validation import build_experiment_config
from runner.episodes import nested as nested_values
from runner.module_building import make_connector
from runner.pipelines import Connector, ConnectorPipeline, FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.pipeline import EnvToModulePipeline, PipelineError
from runner.streams import random_stream
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of
from tests.support.configs import config_from

CPU = torch.device("cpu")
SPACES = gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(5)
P = "runner.pipelines"
FILTER = {"_target_": f"{P}.MeanStdFilter", "clip_by_value": 5.0}
PAST = {"_target_": f"{P}.PrevActionsPrevRewards"}
FLATTEN = {"_target_": f"{P}.FlattenObservations"}
CLIP = {"_target_": f"{P}.ClipRewards"}
AFTER_OBS = "AddObservationsFromEpisodesToBatch"


def nested(*connectors: Mapping[str, Any], kind: str = "ConnectorPipeline") -> dict[str, Any]:
    return {"_target_": f"{P}.{kind}", "connectors": [dict(connector) for connector in connectors]}


def env_to_module(*edits: Mapping[str, Any]) -> ConnectorPipeline:
    return env_to_module_pipeline(*SPACES, CPU, edits, make_connector)


INNER = {"insert_after": AFTER_OBS, "connector": nested(FILTER, nested(PAST, FLATTEN))}
FLAT = [
    {"insert_after": AFTER_OBS, "connector": FILTER},
    {"insert_after": "MeanStdFilter", "connector": PAST},
    {"insert_after": "PrevActionsPrevRewards", "connector": FLATTEN},
]


def names(pipeline: ConnectorPipeline) -> list[str]:
    return [type(connector).__name__ for connector in pipeline.single_connectors()]


def test_spaces_columns_and_needs_are_those_of_the_flat_pipeline() -> None:
    inner, flat = env_to_module(INNER), env_to_module(*FLAT)
    assert names(inner) == names(flat)
    assert inner.check_order(()) == flat.check_order(())
    for name in ("observation_space", "action_space", "requires", "reports"):
        assert getattr(inner, name) == getattr(flat, name), name


def test_episodes_hold_what_the_last_writing_connector_made_and_not_what_follows_in_its_pipeline() -> None:
    inner, flat = env_to_module(INNER), env_to_module(*FLAT)
    assert inner.held_observation_space == flat.held_observation_space == gym.spaces.Box(-5.0, 5.0, (3,), np.float32)


def test_a_runner_samples_as_with_the_flat_pipeline_and_its_state_goes_on() -> None:
    def runner_of(edits: list[Any]) -> Any:
        env, _ = coded_envs("batched", 2, [3, 5])
        return make_runner(env, coded_module(), env_to_module_edits=edits)

    edits = [{"insert_after": AFTER_OBS, "connector": nested(nested(FILTER))}]
    inner, flat, other = runner_of(edits), runner_of(FLAT[:1]), runner_of(edits)
    weights = weights_of(inner.module)
    for _ in range(2):
        mine, theirs = (runner.sample(7, True, weights, {}) for runner in (inner, flat))
        for column, rows in theirs.rollout.blocks["default_policy"].columns.items():
            np.testing.assert_array_equal(mine.rollout.blocks["default_policy"].columns[column], rows)
        assert mine.connector_metrics == theirs.connector_metrics
    state = copy.deepcopy(inner.env_to_module.get_state())
    other.env_to_module.set_state(state)
    assert nested_values.equal(other.env_to_module.get_state(), state)
    filtered = state["ConnectorPipeline"]["ConnectorPipeline"]["MeanStdFilter"]
    merged = inner.env_to_module.merge_states([state])["ConnectorPipeline"]["ConnectorPipeline"]["MeanStdFilter"]
    assert merged["merged_count"] == filtered["merged_count"] + filtered["own_count"] > 14


def test_every_nested_connector_has_a_random_stream() -> None:
    class Draws(Connector):
        def use_stream(self, stream: np.random.Generator) -> None:
            self.drawn = stream.integers(2**62)

    def drawn() -> list[int]:
        connectors = [Draws() for _ in range(4)]
        inner = ConnectorPipeline([connectors[1], ConnectorPipeline([connectors[2]], *SPACES)], *SPACES)
        pipeline = ConnectorPipeline([connectors[0], inner, connectors[3]], *SPACES)
        pipeline.give_streams(lambda name, position: random_stream(0, name, position))
        return [connector.drawn for connector in connectors]

    assert len(set(drawn())) == 4
    assert drawn() == drawn()


def test_edits_find_connectors_of_nested_pipelines_by_name() -> None:
    pipeline = env_to_module(
        INNER,
        {"insert_before": "PrevActionsPrevRewards", "connector": {"_target_": f"{P}.WriteObservationsToEpisodes"}},
        {"replace": "FlattenObservations", "connector": nested(FLATTEN)},
        {"remove": "MeanStdFilter"},
        {"insert_after": "FlattenObservations", "connector": FILTER},
    )
    assert names(pipeline)[1:-2] == [
        "WriteObservationsToEpisodes",
        "PrevActionsPrevRewards",
        "FlattenObservations",
        "MeanStdFilter",
    ]
    assert isinstance(pipeline["PrevActionsPrevRewards"], PrevActionsPrevRewards)
    assert pipeline[MeanStdFilter] == [pipeline["MeanStdFilter"]]
    assert pipeline.observation_space == gym.spaces.Box(-5.0, 5.0, (9,), np.float32)
    with pytest.raises(PipelineError, match="not contain a connector PrevActions\n") as caught:
        pipeline.remove("PrevActions")
    assert caught.value.problems[0].nearest == "PrevActionsPrevRewards"


def test_a_pipeline_can_be_edited_before_its_spaces_are_known() -> None:
    inner = ConnectorPipeline([FlattenObservations()])
    inner.append(MeanStdFilter())
    with pytest.raises(ValueError, match="before the first connector are not known"):
        _ = inner.input_spaces
    outer = ConnectorPipeline([inner], *SPACES)
    assert [type(connector) for connector in outer.single_connectors()] == [FlattenObservations, MeanStdFilter]
    assert inner.input_spaces == SPACES
    assert len(inner.spaces_after) == 2


class WithoutSpace(Connector):
    def recompute_output_observation_space(self, *spaces: Any) -> Any:
        return None


def test_a_mistake_in_a_nested_pipeline_is_located_in_the_outer_one() -> None:
    with pytest.raises(PipelineError, match="does not return a space") as caught:
        EnvToModulePipeline([ConnectorPipeline([WithoutSpace()])], *SPACES)
    where = caught.value.problems[0].where
    assert where is not None
    assert where.startswith("connectors.env_to_module, ")


def test_a_nested_connector_may_need_observations_that_the_episodes_hold() -> None:
    env_to_module({"insert_after": AFTER_OBS, "connector": nested({"_target_": f"{P}.FrameStacking", "num_frames": 2})})
    stack = {"_target_": f"{P}.FrameStacking", "num_frames": 2}
    pipeline = env_to_module({"insert_after": AFTER_OBS, "connector": nested(FILTER, nested(stack))})
    with pytest.raises(
        PipelineError, match="FrameStacking reads observations from the episodes, but the earlier MeanStdFilter"
    ):
        pipeline.check_order(())


# -- kinds -------------------------------------------------------------------------------------------------------------

KINDS = {
    "env_to_module": ("EnvToModulePipeline", FILTER),
    "module_to_env": ("ModuleToEnvPipeline", {"_target_": f"{P}.TensorToNumpy"}),
    "learner": ("LearnerConnectorPipeline", CLIP),
}


def pipeline_of(kind: str, connector: Mapping[str, Any], depth: int = 1) -> ConnectorPipeline:
    for _ in range(depth - 1):
        connector = nested(connector)
    anchors = {"env_to_module": AFTER_OBS, "module_to_env": "GetActions", "learner": "NumpyToTensor"}
    edits = [{"insert_before" if kind == "learner" else "insert_after": anchors[kind], "connector": connector}]
    if kind == "env_to_module":
        return env_to_module(*edits)
    if kind == "module_to_env":
        return module_to_env_pipeline(*SPACES, True, False, edits, make_connector)
    return learner_pipeline(*SPACES, CPU, edits, make_connector)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("around", KINDS)
def test_a_nested_pipeline_is_of_the_kind_that_it_is_nested_in(kind: str, around: str, depth: int) -> None:
    name, connector = KINDS[kind]
    pipeline = pipeline_of(around, nested(connector, kind=name), depth)
    available = ("action_dist_inputs",) if around == "module_to_env" else ()
    if kind == around:
        pipeline.check_order(available)
        return
    with pytest.raises(PipelineError, match=f"{name} does not belong in the {around} pipeline"):
        pipeline.check_order(available)


@pytest.mark.parametrize("around", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_validate_tells_the_kind_from_the_source(kind: str, around: str) -> None:
    name, _ = KINDS[kind]
    block = f"{{_target_: {P}.{name}, connectors: []}}"
    for connector in (block, f"{{_target_: {P}.ConnectorPipeline, connectors: [{block}]}}"):
        composed = compose_experiment(["+experiment=ppo_cartpole", f"connectors.{around}=[{{append: {connector}}}]"])
        if kind == around:
            build_experiment_config(composed)
            continue
        with pytest.raises(ConfigError) as caught:
            build_experiment_config(composed)
        (problem,) = caught.value.problems
        assert f"{name} is a pipeline of the kind {kind}, nested in the {around} pipeline" in problem.what


class Standardised(ConnectorPipeline):
    """A pipeline that makes its connectors itself."""

    def __init__(self, clip: float = 3.0) -> None:
        super().__init__([MeanStdFilter(clip_by_value=clip)])


def test_a_pipeline_of_ones_own_may_make_its_connectors() -> None:
    block = f"{{_target_: {__name__}.Standardised, clip: 2.0}}"
    edit = f"connectors.env_to_module=[{{insert_after: {AFTER_OBS}, connector: {block}}}]"
    config = config_from("+experiment=ppo_cartpole", edit)
    pipeline = env_to_module(*config.connectors.env_to_module)
    assert pipeline.observation_space == gym.spaces.Box(-2.0, 2.0, (3,), np.float32)


def test_show_draws_the_connectors_of_nested_pipelines_below_them() -> None:
    connectors = f"[{{_target_: {P}.FlattenObservations}}, {{_target_: {P}.MeanStdFilter}}]"
    block = f"{{_target_: {P}.ConnectorPipeline, connectors: {connectors}}}"
    edit = f"connectors.env_to_module=[{{insert_after: {AFTER_OBS}, connector: {block}}}]"
    config = config_from("+experiment=ppo_cartpole", edit)
    lines = render_pipelines(config).splitlines()
    start = next(number for number, line in enumerate(lines) if "ConnectorPipeline" in line)
    assert lines[start].startswith("   2 ConnectorPipeline")
    assert lines[start + 1].startswith("       FlattenObservations")
    assert lines[start + 2].startswith("       MeanStdFilter")
    assert lines[start + 2].endswith("reports observations_clipped_fraction")
    assert "observations are" in lines[start + 3]
    assert lines[start + 4].startswith("   3 ")
