"""Renamed keys of pipeline edits: `piece` is an alias of `connector`, and `pieces` of a pipeline of `connectors`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.experiment_file import override_values
from runner.config.required_trust import find_trust_requirements
from runner.config.stored import compose_stored
from runner.config.validation import build_experiment_config
from runner.module_building.construction import make_connector
from runner.pipelines.pipeline import ConnectorPipeline
from tests.conftest import Run
from tests.support.configs import config_from

CARTPOLE = "+experiment=ppo_cartpole"
P = "runner.pipelines"
AFTER = "insert_after: AddObservationsFromEpisodesToBatch"
FILTER = f"{{_target_: {P}.MeanStdFilter, clip_by_value: 5.0}}"
FLATTEN = f"{{_target_: {P}.FlattenObservations}}"
PIECE = f"[{{{AFTER}, piece: {FILTER}}}]"
PIECES = (
    f"[{{append: {{_target_: {P}.ConnectorPipeline, pieces: [{FLATTEN}]}}}}, {{{AFTER}, piece: "
    f"{{_target_: {P}.ConnectorPipeline, pieces: [{{_target_: {P}.ConnectorPipeline, pieces: [{FILTER}]}}]}}}}]"
)
KEY = "connectors.env_to_module"
OWN = """
from runner.pipelines import Connector, ConnectorPipeline

class Chess(Connector):
    def __init__(self, pieces):
        self.pieces = pieces

class Earlier(ConnectorPipeline):
    def __init__(self, pieces, scale):
        super().__init__(pieces)
        self.scale = scale
"""
NOTES = {"piece": "piece was renamed to connector", "pieces": "pieces was renamed to connectors"}
# Overrides with old names -> names that notes report.
OVERRIDES = {
    "a list": ([f"{KEY}={PIECE}"], ["piece"]),
    "pipelines": ([f"{KEY}={PIECES}"], ["pieces", "piece"]),
    "a block of lists": ([f"connectors={{env_to_module: {PIECE}}}"], ["piece"]),
    "a block around a list": ([f"connectors.modules={{default_policy: {{env_to_module: {PIECE}}}}}"], ["piece"]),
    "lists that add up": ([f"{KEY}={PIECE}", f"{KEY}=[{{prepend: {FLATTEN}}}]"], ["piece"]),
    "a list that discards": ([f"{KEY}={PIECE}", f"{KEY}=[{{discard: earlier_edits}}]"], ["piece"]),
    "an edit of the algorithm": ([f"algorithm.learner_pipeline={PIECE}"], ["piece"]),
    "edits of one module's algorithm": (
        [f"multi_agent.algorithm_config_overrides_per_module={{a: {{learner_pipeline: {PIECE}}}}}"],
        ["piece"],
    ),
    "an edit": (["connectors=mean_std_filter", f"{KEY}.0={{piece: {FILTER}}}"], ["piece"]),
}
# Overrides of single values in `PIECES`.
ITEMS = (
    f"{KEY}.1.piece.pieces.0.pieces.0.clip_by_value=3",
    f"{KEY}.1.connector.pieces.0.connectors.0.clip_by_value=3",
    f"{KEY}.1.piece.pieces.0.pieces=[{FLATTEN}]",
    f"{KEY}.1.piece.pieces=[{FLATTEN}]",
    f"{KEY}.0.append.pieces.0._target_={P}.MeanStdFilter",
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "renamed_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "renamed_own"


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_override_with_old_names_is_one_with_new_names(name: str) -> None:
    overrides, names = OVERRIDES[name]
    composed = compose_experiment([CARTPOLE, *overrides])
    expected = compose_experiment([CARTPOLE, *map(renamed, overrides)])
    assert composed.unresolved == expected.unresolved
    assert places(composed) == places(expected)
    assert {note.partition(" (")[0] for note in composed.notes} == {NOTES[name] for name in names}
    assert all("(override " in note for note in composed.notes)
    assert not expected.notes


@pytest.mark.parametrize("item", ITEMS)
def test_an_override_of_one_value_may_have_old_names(item: str) -> None:
    composed = compose_experiment([CARTPOLE, f"{KEY}={renamed(PIECES)}", item])
    expected = compose_experiment([CARTPOLE, f"{KEY}={renamed(PIECES)}", renamed(item)])
    assert not expected.problems
    assert composed.unresolved == expected.unresolved
    assert places(composed) == places(expected)
    assert composed.notes
    stored = compose_experiment([CARTPOLE, f"{KEY}={PIECES}"]).unresolved
    resumed = compose_stored(stored, [item], (), "ppo_cartpole")
    assert resumed.unresolved["connectors"] == expected.unresolved["connectors"]
    assert resumed.notes


def test_a_file_with_old_names_is_one_with_new_names(tmp_path: Path) -> None:
    composed, expected = (in_file(tmp_path, edits) for edits in (PIECES, renamed(PIECES)))
    assert composed.unresolved == expected.unresolved
    assert composed.sources == expected.sources
    assert not composed.problems
    assert [note.partition(" (")[0] for note in composed.notes] == [NOTES["pieces"], NOTES["piece"]]
    assert all(note.endswith("mine.yaml:4)") for note in composed.notes)
    assert not expected.notes


def test_a_stored_configuration_may_have_old_names() -> None:
    stored = compose_experiment([CARTPOLE, f"{KEY}={renamed(PIECES)}"]).unresolved
    before = json.loads(with_old_names(json.dumps(stored)))
    assert before != stored
    composed = compose_stored(before, [f"{KEY}=[{{prepend: {FLATTEN}}}]"], (), "ppo_cartpole")
    assert composed.unresolved["connectors"]["env_to_module"][:-1] == stored["connectors"]["env_to_module"]
    assert not composed.notes  # nobody can change a checkpoint
    build_experiment_config(composed)
    assert not list(find_trust_requirements(composed.values))


def test_a_custom_algorithm_may_have_old_names_in_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old_defaults.py").write_text(
        "from dataclasses import dataclass, field\n"
        "from runner.config.algorithms import PPOConfig\n"
        f"EDITS = [{{'append': {{'_target_': '{P}.ConnectorPipeline', 'pieces': []}}}}]\n"
        "@dataclass(frozen=True)\n"
        "class Config(PPOConfig):\n"
        "    learner_pipeline: list[dict[str, object]] = field(default_factory=lambda: EDITS)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm" / "old.yaml").write_text("schema: old_defaults.Config\n")
    edits = compose_experiment(["algorithm=old"], tmp_path).values["algorithm"]["learner_pipeline"]
    assert edits == [{"append": {"_target_": f"{P}.ConnectorPipeline", "connectors": []}}]


def test_an_argument_of_another_connector_keeps_its_name(own: str) -> None:
    chess = f"{KEY}=[{{append: {{_target_: {own}.Chess, pieces: [{{x: 1}}]}}}}]"
    composed = compose_experiment([CARTPOLE, chess, f"{KEY}.0.append.pieces.0.x=3"])
    assert composed.values["connectors"]["env_to_module"][0]["append"]["pieces"] == [{"x": 3}]
    assert not composed.notes


def test_a_pipeline_class_may_have_the_argument_by_its_old_name(own: str) -> None:
    for name in ("pieces", "connectors"):
        block = f"{{_target_: {own}.Earlier, {name}: [{FLATTEN}], scale: 2}}"
        config = config_from(CARTPOLE, f"{KEY}=[{{append: {block}}}]")
        pipeline = make_connector(config.connectors.env_to_module[0]["append"], KEY)
        assert isinstance(pipeline, ConnectorPipeline)
        assert [type(one).__name__ for one in pipeline.single_connectors()] == ["FlattenObservations"]


def test_both_names_in_an_edit_are_a_mistake(run_main: Run) -> None:
    outcome = run_main("validate", CARTPOLE, f"{KEY}=[{{{AFTER}, piece: {FILTER}, connector: {FILTER}}}]")
    assert outcome.code == 2
    assert ": unknown edit piece" in outcome.err


def test_an_experiment_that_a_program_writes_has_the_new_names() -> None:
    assert override_values([f"{KEY}={PIECES}"], None) == override_values([f"{KEY}={renamed(PIECES)}"], None)


def renamed(text: str) -> str:
    return text.replace("pieces", "connectors").replace("piece", "connector")


def with_old_names(text: str) -> str:
    return text.replace('"connectors": [', '"pieces": [').replace('"connector": {', '"piece": {')


def places(composed: Composed) -> dict[str, str]:
    """Return the place of each value, with new names in the texts of overrides."""
    return {key: renamed(place) for key, place in composed.sources.items()}


def in_file(folder: Path, edits: str) -> Composed:
    (folder / "experiment").mkdir(exist_ok=True)
    text = f"# @package _global_\ndefaults: [ppo_cartpole]\nconnectors:\n  env_to_module: {edits}\n"
    (folder / "experiment" / "mine.yaml").write_text(text)
    return compose_experiment(["+experiment=mine"], folder)
