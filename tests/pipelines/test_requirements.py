"""What connectors require: declared, inherited, joined, and in the form of earlier versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import runner.pipelines
import runner.testing
from runner.pipelines import Connector, ConnectorPipeline, LearnerConnector, Requirements
from runner.pipelines.connector import Batch


class Reads(LearnerConnector):
    requires = Requirements(reads=("a",), num_lookback=2)


class Writes(Reads):
    requires = Requirements(writes=("b",), num_lookback=1)

    def __init__(self, is_last: bool = False) -> None:
        self.requires = replace(self.requires, needs_all_rows=is_last)


class Earlier(Connector):
    reads = ("b",)
    drops = ("b",)

    def __init__(self) -> None:
        self.num_lookback = 3

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        del batch["b"]
        return batch


def test_a_subclass_inherits_the_fields_that_it_leaves_at_their_defaults() -> None:
    assert Requirements.of(Writes()) == Requirements(("a",), ("b",), belongs_in=("learner",), num_lookback=1)
    assert Requirements.of(Writes(is_last=True)).needs_all_rows
    assert Reads.requires == Requirements(reads=("a",), belongs_in=("learner",), num_lookback=2)


class Draws(Connector):
    """A base that declares nothing."""


class DrawsAndReads(Draws, Reads):
    requires = Requirements(drops=("a",))


def test_requirements_of_several_bases_are_joined() -> None:
    assert DrawsAndReads.requires == Requirements(("a",), drops=("a",), belongs_in=("learner",), num_lookback=2)


def test_attributes_with_the_names_of_fields_replace_them() -> None:
    assert Requirements.of(Earlier()) == Requirements(reads=("b",), drops=("b",), num_lookback=3)


def test_connectors_together() -> None:
    together = ConnectorPipeline([Writes(is_last=True), Earlier()]).requires
    assert together == Requirements(reads=("a",), drops=("b",), num_lookback=3, needs_all_rows=True)


@pytest.mark.parametrize(
    ("earlier", "name"),
    [
        ("ConnectorPiece", "Connector"),
        ("EnvToModulePiece", "EnvToModuleConnector"),
        ("LearnedConnector", "NetworkConnector"),
        ("LearnerPiece", "LearnerConnector"),
        ("ModuleToEnvPiece", "ModuleToEnvConnector"),
        ("ObservationPiece", "ObservationConnector"),
        ("PieceGraph", "ConnectorGraph"),
        ("PieceMetrics", "CustomMetrics"),
    ],
)
def test_earlier_names(earlier: str, name: str) -> None:
    assert getattr(runner.pipelines, earlier) is getattr(runner.pipelines, name)
    assert earlier not in runner.pipelines.__all__


def test_the_check_of_a_connector_has_its_earlier_name() -> None:
    assert runner.testing.check_piece is runner.testing.check_connector
