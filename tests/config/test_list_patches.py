"""Lists of pipeline edits are concatenated in order, unless a list discards the earlier edits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.cli.show import render_config
from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.experiment_file import experiment_text
from runner.config.stored import compose_stored, compose_variant
from runner.config.validation import build_experiment_config
from tests.config.conftest import ReportOf, WriteConfig
from tests.support.configs import config_from

KEY = "connectors.env_to_module"
FILTER = {
    "insert_after": "AddObservationsFromEpisodesToBatch",
    "connector": {"_target_": "runner.pipelines.MeanStdFilter"},
}
EXPERIMENT = """# @package _global_
defaults:
  - ppo_pendulum
connectors:
  env_to_module:
    - remove: BatchIndividualItems
    - {remove: NumpyToTensor}
"""
LATER = """# @package _global_
defaults:
  - mine
connectors: {env_to_module: [{remove: Third}]}
"""
ANEW = """# @package _global_
defaults:
  - mine
connectors:
  env_to_module:
    - discard: earlier_edits
    - remove: Alone
"""


@pytest.fixture
def config_dir(write_config: WriteConfig) -> Path:
    write_config("experiment/mine", EXPERIMENT)
    write_config("experiment/later", LATER)
    return write_config("experiment/anew", ANEW)


def removals(*names: str) -> list[dict[str, str]]:
    return [{"remove": name} for name in names]


def edits_of(composed: Composed, key: str = KEY) -> list[Any]:
    assert composed.problems == ()
    block, name = key.split(".")
    edits: list[Any] = composed.values[block][name]
    return edits


def places_of(composed: Composed, key: str = KEY) -> list[str | None]:
    return [composed.where(f"{key}.{index}") for index in range(len(edits_of(composed, key)))]


def test_edits_of_a_group_an_experiment_and_the_command_line(config_dir: Path) -> None:
    override = f"{KEY}=[{{remove: Fourth}}]"
    composed = compose_experiment(["+experiment=later", override], config_dir)
    assert edits_of(composed) == [FILTER, *removals("BatchIndividualItems", "NumpyToTensor", "Third", "Fourth")]
    assert places_of(composed) == [
        "conf/connectors/mean_std_filter.yaml:3",
        "my_conf/experiment/mine.yaml:6",
        "my_conf/experiment/mine.yaml:7",
        "my_conf/experiment/later.yaml:4",
        f"override {override}",
    ]
    assert composed.where(f"{KEY}.0.connector") == "conf/connectors/mean_std_filter.yaml:4"


def test_edits_of_an_algorithm(config_dir: Path) -> None:
    key = "algorithm.learner_pipeline"
    composed = compose_experiment(["+experiment=mine", f"{key}=[{{remove: Last}}]"], config_dir)
    edits = edits_of(composed, key)
    assert [list(edit) for edit in edits] == [["prepend"], ["append"], ["remove"]]
    assert edits[1]["append"]["gamma"] == composed.values["algorithm"]["gamma"]
    assert places_of(composed, key)[:2] == ["conf/algorithm/ppo.yaml:9", "conf/algorithm/ppo.yaml:10"]


def test_a_list_that_discards_earlier_edits(config_dir: Path) -> None:
    composed = compose_experiment(["+experiment=anew", f"{KEY}=[{{remove: More}}]"], config_dir)
    assert edits_of(composed) == removals("Alone", "More")
    assert places_of(composed) == ["my_conf/experiment/anew.yaml:7", f"override {KEY}=[{{remove: More}}]"]


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([f"{KEY}=[{{discard: earlier_edits}}]"], ()),
        ([f"{KEY}=[{{discard: earlier_edits}}, {{remove: A}}]", f"{KEY}=[{{remove: B}}]"], ("A", "B")),
        ([f"~{KEY}"], ()),
        ([f"~{KEY}", f"+{KEY}=[{{remove: A}}]"], ("A",)),
        (["connectors={env_to_module: [{discard: earlier_edits}, {remove: A}]}"], ("A",)),
        (["connectors=default"], ("BatchIndividualItems", "NumpyToTensor")),
    ],
)
def test_discarded_on_the_command_line(config_dir: Path, overrides: list[str], names: tuple[str, ...]) -> None:
    assert edits_of(compose_experiment(["+experiment=mine", *overrides], config_dir)) == removals(*names)


def test_one_edit_of_the_composed_list(config_dir: Path) -> None:
    override = f"{KEY}.0.connector.clip_by_value=3"
    composed = compose_experiment(["+experiment=mine", f"{KEY}.2.remove=Else", override], config_dir)
    assert edits_of(composed)[0]["connector"]["clip_by_value"] == 3
    assert edits_of(composed)[1:] == removals("BatchIndividualItems", "Else")
    assert composed.where(f"{KEY}.0.connector.clip_by_value") == f"override {override}"


@pytest.mark.parametrize("override", [f"{KEY}.7.remove=A", f"~{KEY}.0"])
def test_an_edit_that_is_not_there_or_cannot_go(config_dir: Path, report_of: ReportOf, override: str) -> None:
    assert f"where         override {override}" in report_of(["+experiment=mine", override], config_dir)


@pytest.mark.parametrize("edits", ["[{remove: A}, {discard: earlier_edits}]", "[{discard: everything}]"])
def test_discard_stands_first_and_means_one_thing(report_of: ReportOf, edits: str) -> None:
    report = report_of(["+experiment=ppo_cartpole", f"{KEY}={edits}"])
    assert "discard must be the first item of a list" in report
    assert "expected      - discard: earlier_edits" in report


@pytest.mark.parametrize("edits", ["{append: {x: 1}}", "3", "{0: {remove: A}}", "null"])
def test_a_file_with_something_else_than_a_list(write_config: WriteConfig, report_of: ReportOf, edits: str) -> None:
    text = f"# @package _global_\ndefaults:\n  - ppo_pendulum\nconnectors:\n  env_to_module: {edits}\n"
    report = report_of(["+experiment=odd"], write_config("experiment/odd", text))
    assert "my_conf/experiment/odd.yaml" in report


def test_a_stored_configuration_and_an_override(config_dir: Path) -> None:
    stored = compose_experiment(["+experiment=anew"], config_dir)
    override = f"{KEY}=[{{remove: More}}]"
    composed = compose_stored(stored.unresolved, [override], (), "anew")
    assert edits_of(composed) == removals("Alone", "More")
    assert places_of(composed) == ["checkpoint", f"override {override}"]
    assert composed.unresolved["connectors"]["env_to_module"] == removals("Alone", "More")


def test_a_variant_is_what_composing_gives(config_dir: Path) -> None:
    shared, searched = ["+experiment=mine"], [f"{KEY}=[{{remove: More}}]", f"{KEY}.3.remove=Other"]
    composed, variant = (
        compose_experiment([*shared, *searched], config_dir),
        compose_variant(shared, searched, config_dir),
    )
    assert edits_of(variant) == edits_of(composed)
    assert places_of(variant) == places_of(composed)


@pytest.mark.parametrize("edits", ["[{remove: A}]", "[{discard: earlier_edits}, {remove: A}]"])
def test_an_experiment_file_that_is_written_of_overrides(write_config: WriteConfig, edits: str) -> None:
    write_config("experiment/mine", EXPERIMENT)
    overrides = ["+experiment=mine", f"{KEY}={edits}", f"{KEY}=[{{remove: B}}]"]
    config_dir = write_config("experiment/emitted", experiment_text(overrides, "Mine.", Path("my_conf")))
    assert edits_of(compose_experiment(["+experiment=emitted"], config_dir)) == edits_of(
        compose_experiment(overrides, config_dir)
    )


def test_edits_of_one_module_come_after_those_of_all() -> None:
    from runner.module_building import make_module_specs

    own = "{p0: {learner_pipeline: [{remove: A}]}, p1: {learner_pipeline: [{discard: earlier_edits}, {remove: B}]}}"
    overrides = ["+experiment=ppo_multi_agent_cartpole", f"multi_agent.algorithm_config_overrides_per_module={own}"]
    plans = make_module_specs(config_from(*overrides))
    assert [list(edit) for edit in plans["p0"].algorithm.learner_pipeline] == [["prepend"], ["append"], ["remove"]]
    assert plans["p1"].algorithm.learner_pipeline == removals("B")


def test_odd_edits_of_one_module(report_of: ReportOf) -> None:
    own = "multi_agent.algorithm_config_overrides_per_module={p0: {learner_pipeline: [{remov: A}]}}"
    report = report_of(["+experiment=ppo_multi_agent_cartpole", own])
    assert "learner_pipeline.0: unknown edit remov" in report


def test_show_says_where_each_edit_came_from(config_dir: Path) -> None:
    composed = compose_experiment(["+experiment=mine"], config_dir)
    lines = [line.split("  # ") for line in render_config(composed, build_experiment_config(composed)).splitlines()]
    places = {text.strip(): rest[0] for text, *rest in lines if rest}
    assert places["- insert_after: AddObservationsFromEpisodesToBatch"] == "conf/connectors/mean_std_filter.yaml:3"
    assert places["- remove: BatchIndividualItems"] == "my_conf/experiment/mine.yaml:6"
    assert places["- remove: NumpyToTensor"] == "my_conf/experiment/mine.yaml:7"


def test_a_run_writes_down_the_edits_that_it_makes(run_main: Callable[..., Any], tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    from tests.conftest import QUICK

    connector = (
        "{insert_after: AddObservationsFromEpisodesToBatch, connector: {_target_: runner.pipelines.MeanStdFilter}}"
    )
    edits = (f"{KEY}=[{connector}]", f"{KEY}.1.connector.clip_by_value=3", f"hydra.run.dir={tmp_path / 'run'}")
    outcome = run_main(
        "+experiment=ppo_cartpole", "connectors=mean_std_filter", *QUICK, "stop.training_iteration=1", *edits
    )
    assert outcome.code == 0, outcome.err
    written = OmegaConf.load(tmp_path / "run" / ".hydra" / "config.yaml")
    added = {**FILTER, "connector": {**FILTER["connector"], "clip_by_value": 3}}  # type: ignore[dict-item]
    assert written.connectors.env_to_module == [FILTER, added]
    assert f"{edits[0]}" in (tmp_path / "run" / ".hydra" / "overrides.yaml").read_text().replace("\n  ", " ")
