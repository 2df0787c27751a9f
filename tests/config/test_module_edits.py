"""Edits of one module's pipelines: `connectors.modules`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.config.compose import compose_experiment
from runner.config.declared_metrics import connector_metrics
from runner.config.errors import ConfigError
from runner.config.stored import compose_stored, compose_variant
from tests.config.conftest import ReportOf, WriteConfig
from tests.support.configs import config_from
from tests.support.reporting_connectors import RewardSum

AGENTS = "+experiment=ppo_multi_agent_cartpole"
OF_P0 = "connectors.modules.p0"
EXPERIMENT = """# @package _global_
defaults:
  - ppo_multi_agent_cartpole
connectors:
  learner:
    - remove: AddOneTsToEpisodesAndTruncate
  modules:
    p0:
      learner:
        - remove: BatchIndividualItems
        - {remove: NumpyToTensor}
"""
LATER = """# @package _global_
defaults:
  - mine
connectors: {modules: {p0: {learner: [{remove: Third}]}, p1: {env_to_module: [{remove: Other}]}}}
"""
ANEW = """# @package _global_
defaults:
  - mine
connectors:
  modules:
    p0:
      learner:
        - discard: earlier_edits
        - remove: AddColumnsFromEpisodesToTrainBatch
"""
CLIP = "{insert_after: AddObservationsFromEpisodesToBatch, connector: {_target_: runner.pipelines.MeanStdFilter}}"


@pytest.fixture
def config_dir(write_config: WriteConfig) -> Path:
    write_config("experiment/mine", EXPERIMENT)
    write_config("experiment/later", LATER)
    return write_config("experiment/anew", ANEW)


def removals(*names: str) -> list[dict[str, str]]:
    return [{"remove": name} for name in names]


def test_lists_of_one_module_add_up(config_dir: Path) -> None:
    override = f"{OF_P0}.learner=[{{remove: Fourth}}]"
    composed = compose_experiment(["+experiment=later", override], config_dir)
    assert composed.problems == ()
    assert composed.values["connectors"]["learner"] == removals("AddOneTsToEpisodesAndTruncate")
    assert composed.values["connectors"]["modules"] == {
        "p0": {"learner": removals("BatchIndividualItems", "NumpyToTensor", "Third", "Fourth")},
        "p1": {"env_to_module": removals("Other")},
    }
    assert [composed.where(f"{OF_P0}.learner.{index}") for index in range(4)] == [
        "my_conf/experiment/mine.yaml:10",
        "my_conf/experiment/mine.yaml:11",
        "my_conf/experiment/later.yaml:4",
        f"override {override}",
    ]


def test_edits_of_one_module_come_after_the_edits_of_all(config_dir: Path) -> None:
    connectors = config_from("+experiment=mine", config_dir=config_dir).connectors
    assert connectors.edits_of("p0", "learner") == removals(
        "AddOneTsToEpisodesAndTruncate", "BatchIndividualItems", "NumpyToTensor"
    )
    assert connectors.edits_of("p1", "learner") == removals("AddOneTsToEpisodesAndTruncate")


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([f"{OF_P0}.learner=[{{discard: earlier_edits}}]"], ()),
        ([f"{OF_P0}.learner=[{{discard: earlier_edits}}, {{remove: A}}]"], ("A",)),
        (["connectors={modules: {p0: {learner: [{remove: A}]}}}"], ("AddColumnsFromEpisodesToTrainBatch", "A")),
        (["connectors.modules={p0: {learner: [{discard: earlier_edits}, {remove: A}]}}"], ("A",)),
        ([f"{OF_P0}={{learner: [{{remove: A}}]}}"], ("AddColumnsFromEpisodesToTrainBatch", "A")),
        ([f"~{OF_P0}.learner"], ()),
        ([f"{OF_P0}.learner.0.remove=Else"], ("Else",)),
    ],
)
def test_on_the_command_line(config_dir: Path, overrides: list[str], names: tuple[str, ...]) -> None:
    composed = compose_experiment(["+experiment=anew", *overrides], config_dir)
    assert composed.problems == ()
    assert composed.values["connectors"]["modules"]["p0"]["learner"] == removals(*names)
    assert composed.values["connectors"]["learner"] == removals("AddOneTsToEpisodesAndTruncate")
    stored = compose_experiment(["+experiment=anew"], config_dir)
    assert compose_stored(stored.unresolved, overrides, (), "anew").values["connectors"] == {
        **composed.values["connectors"],
    }
    variant = compose_variant(["+experiment=anew"], overrides, config_dir)
    assert variant.values["connectors"] == composed.values["connectors"]


@pytest.mark.parametrize(
    ("override", "lines"),
    [
        ("connectors.modules.p2.learner=[]", ["connectors.modules contains p2", "expected      p0, p1"]),
        (f"{OF_P0}.lerner=[{{remove: A}}]", [f"{OF_P0}.lerner is not a pipeline", "did you mean  learner"]),
        (f"{OF_P0}.learner=[{{remov: A}}]", [f"{OF_P0}.learner.0: unknown edit remov", "did you mean  remove"]),
        (
            f"{OF_P0}.learner=[{{append: {{_target_: runner.pipelines.MeanStdFiltr}}}}]",
            [f"{OF_P0}.learner.0.append._target_", "did you mean  MeanStdFilter"],
        ),
        (
            f"{OF_P0}.learner=[{{append: {{_target_: runner.pipelines.EnvToModulePipeline, connectors: []}}}}]",
            ["EnvToModulePipeline is a pipeline of the", "or of LearnerConnectorPipeline"],
        ),
        (f"{OF_P0}.learner=3", [f"override {OF_P0}.learner=3"]),
    ],
)
def test_mistakes(report_of: ReportOf, override: str, lines: list[str]) -> None:
    report = report_of([AGENTS, override])
    for line in lines:
        assert line in report


def test_a_misspelt_module_id_has_a_nearest_one(report_of: ReportOf) -> None:
    mapping = "multi_agent.agent_to_module={agent_0: leader, agent_1: follower}"
    report = report_of([AGENTS, mapping, "connectors.modules.folower.learner=[]"])
    assert "did you mean  follower" in report


def test_a_single_agent_has_one_module(report_of: ReportOf) -> None:
    report = report_of(["+experiment=ppo_cartpole", "connectors.modules.p0.learner=[]"])
    assert "expected      default_policy" in report


def test_metrics_of_a_connector_of_one_module() -> None:
    connector = "{prepend: {_target_: tests.support.reporting_connectors.RewardSum}}"
    plain, config = (config_from(AGENTS, *more) for more in ([], [f"{OF_P0}.learner=[{connector}]"]))
    names = connector_metrics(config, ["p0", "p1"]).keys() - connector_metrics(plain, ["p0", "p1"]).keys()
    assert names == {f"connectors/p0/learner/{name}" for name in RewardSum.reports}


def parts_of(*overrides: str) -> Any:
    from runner.module_building import build_modules

    return build_modules(config_from(AGENTS, *overrides))


def test_pipelines_of_one_module() -> None:
    parts = parts_of(f"{OF_P0}.env_to_module=[{CLIP}]", "connectors.modules.p1.module_to_env=[]")
    names = {id_: [type(connector).__name__ for connector in of_one.env_to_module] for id_, of_one in parts.items()}
    assert "MeanStdFilter" in names["p0"]
    assert "MeanStdFilter" not in names["p1"]


def test_an_unknown_anchor_names_the_module() -> None:
    with pytest.raises(ConfigError) as failed:
        parts_of(f"{OF_P0}.env_to_module=[{{remove: NumpyToTensr}}]")
    (problem,) = failed.value.problems
    assert problem.where == f"override {OF_P0}.env_to_module=[{{remove: NumpyToTensr}}]"
    assert problem.nearest == "NumpyToTensor"
