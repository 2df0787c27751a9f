"""Construction of aggregators, and the check that learner pipelines can be cut between them and the learner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.config.errors import ConfigError, Problem
from runner.config.module_ids import trained_modules
from runner.config.own_code import is_own_method
from runner.config.schemas import ExperimentConfig
from runner.module_parts import ModuleParts, ModulePlan, build_parts, on_device
from runner.modules.rl_module import RLModule
from runner.pipelines.common_pieces import NumpyToTensor
from runner.pipelines.piece import ConnectorPiece
from runner.pipelines.piece_list import PieceList
from runner.pipelines.pipeline import LearnerConnectorPipeline
from runner.plans.aggregators import Aggregators

_KEY = "learners.num_aggregator_actors"


def build_aggregators(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> Aggregators | None:
    """Make the aggregators that a run asks for; None: it asks for none.

    Raises:
        ConfigError: a learner pipeline cannot be begun in an aggregator.
        RunFailure: an aggregator cannot be made.
    """
    if config.learners.num_aggregator_actors == 0:
        return None
    plans = {module_id: module_parts.plan for module_id, module_parts in parts.items()}
    return Aggregators(PlannedPipelines(config, plans), config.learners, config.ray.actor_start_timeout_s)


def check_aggregated_pipelines(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> None:
    """Refuse learner pipelines that aggregators would make other batches with than the learner.

    Raises:
        ConfigError: names each piece, and why.
    """
    if config.learners.num_aggregator_actors:
        trained = [parts[module_id] for module_id in trained_modules(config, list(parts))]
        problems = [problem for module_parts in trained for problem in _find_problems(config, module_parts)]
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))


def _find_problems(config: ExperimentConfig, parts: ModuleParts) -> Iterator[Problem]:
    where, got = f"connectors.learner, {_KEY}", str(config.learners.num_aggregator_actors)
    num_pieces = parts.learner.num_before_loading
    if num_pieces is None:
        what = "aggregators call the pieces before NumpyToTensor, and the learner pipeline has none of this class"
        yield Problem(what, where, got, "0, or a pipeline with NumpyToTensor")
    for piece in _single_pieces(list(parts.learner)[: num_pieces or 0]):
        reason = _reason_to_refuse(piece)
        if reason is not None:
            name = type(piece).__name__
            yield Problem(f"{name} {reason}", where, got, f"0, or {name} after {NumpyToTensor.__name__}")
    if parts.module.is_stateful and is_own_method(type(parts.module), "get_initial_state"):
        what = f"{type(parts.module).__name__}.get_initial_state may change with updates, which aggregators do not see"
        yield Problem(what, f"module, {_KEY}", got, "0, or a module of runner")


def _single_pieces(pieces: Iterable[ConnectorPiece]) -> Iterator[ConnectorPiece]:
    for piece in pieces:
        yield from piece.single_pieces() if isinstance(piece, PieceList) else (piece,)


def _reason_to_refuse(piece: ConnectorPiece) -> str | None:
    """Return why a piece cannot be called in an aggregator; None if it can."""
    kind = type(piece)
    if piece.reads_module:
        return "computes with the newest weights, which aggregators do not have"
    if kind.get_state is not ConnectorPiece.get_state:
        return "keeps a state, which several aggregators would not share"
    if kind.use_stream is not ConnectorPiece.use_stream:
        return "draws random numbers, which several aggregators would draw in another order"
    if piece.needs_all_rows or piece.needs_other_agents:
        return "needs rows of other samples than the one that an aggregator has"
    return None


@dataclass(frozen=True)
class PlannedPipelines:
    """A plan that makes the learner pipelines of one aggregator there."""

    config: ExperimentConfig
    plans: Mapping[str, ModulePlan]

    def __call__(self) -> tuple[Mapping[str, RLModule], Mapping[str, LearnerConnectorPipeline]]:
        """Return all modules, and the learner pipelines of the ones that are trained, by module id."""
        parts = build_parts(on_device(self.config, "cpu"), self.plans)
        modules = {module_id: module_parts.module for module_id, module_parts in parts.items()}
        return modules, {id_: parts[id_].learner for id_ in trained_modules(self.config, list(parts))}
