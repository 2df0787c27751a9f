"""Learner pipelines that cannot be cut between aggregators and the learner are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.validation import build_experiment_config
from runner.experiment.aggregator_builder import check_aggregated_pipelines
from runner.experiment.rehearsal import rehearse
from runner.module_parts import build_parts
from runner.modules import ActorCriticModule

OWN = "tests.aggregated_pieces"
RETURNS = "{_target_: runner.pipelines.ComputeReturnsToGo, gamma: 0.9}"


class LearnedStart(ActorCriticModule):
    """A module with memory whose initial state may be a parameter."""

    def get_initial_state(self) -> dict[str, Any]:
        """Return zeros, as the base does."""
        return {name: torch.zeros_like(state) for name, state in super().get_initial_state().items()}


def check(*overrides: str, experiment: str = "impala_cartpole") -> None:
    overrides = (f"+experiment={experiment}", "learners.num_aggregator_actors=1", *overrides)
    config = build_experiment_config(compose_experiment(list(overrides), None))
    check_aggregated_pipelines(config, build_parts(config))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (f"{{prepend: {{_target_: {OWN}.Counting}}}}", "Counting keeps a state"),
        (f"{{prepend: {{_target_: {OWN}.Drawing}}}}", "Drawing draws random numbers"),
        (
            f"{{insert_after: AddColumnsFromEpisodesToTrainBatch, piece: {RETURNS}}}",
            "ComputeReturnsToGo needs rows of other samples",
        ),
        (
            f"{{prepend: {{_target_: runner.pipelines.ConnectorPipeline, pieces: [{{_target_: {OWN}.Counting}}]}}}}",
            "Counting keeps a state",
        ),
        (
            "{replace: NumpyToTensor, piece: {_target_: runner.pipelines.ConnectorPipeline, "
            "pieces: [{_target_: runner.pipelines.NumpyToTensor}]}}",
            "has none of this class",
        ),
    ],
)
def test_pieces_that_must_not_be_in_an_aggregator(edit: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check(f"connectors.learner=[{edit}]")


def test_a_piece_that_computes_with_the_module() -> None:
    moved = "{insert_before: NumpyToTensor, piece: {_target_: runner.pipelines.VTrace, gamma: 0.9}}"
    with pytest.raises(ConfigError, match="VTrace computes with the newest weights"):
        check(f"connectors.learner=[{{remove: VTrace}}, {moved}]")


@pytest.mark.parametrize("experiment", ["impala_cartpole", "appo_cartpole", "appo_stateless_cartpole_lstm"])
def test_pipelines_that_can_be_cut(experiment: str) -> None:
    check(experiment=experiment)
    check(f"connectors.learner=[{{append: {{_target_: {OWN}.Counting}}}}]", experiment=experiment)


def test_a_memory_whose_beginning_may_be_learned() -> None:
    own = f"module._target_={__name__}.LearnedStart"
    with pytest.raises(ConfigError, match=r"LearnedStart.get_initial_state may change"):
        check("module.use_lstm=true", own)
    check(own)


def test_validate_finds_them_too() -> None:
    overrides = ["+experiment=impala_cartpole", "learners.num_aggregator_actors=1"]
    overrides += [f"connectors.learner=[{{prepend: {{_target_: {OWN}.Counting}}}}]"]
    with pytest.raises(ConfigError, match="Counting keeps a state"):
        rehearse(build_experiment_config(compose_experiment(overrides)))
