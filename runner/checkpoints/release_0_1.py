"""Checkpoints of release 0.1.0, whose runs had a dataflow in the place of a plan, as checkpoints of this release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.checkpoints.errors import CheckpointError
from runner.config.errors import Problem
from runner.config.offline import settings_of_reading
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA

SCHEMA_VERSION = 1
_PLANS: Mapping[str, list[str]] = {
    "runner.dataflow.on_policy": ["ParallelRollouts", "ConcatBatches", "TrainOneStep"],
    "runner.dataflow.offline.offline": ["ReadRecorded", "TrainOneStep"],
}
_WITH_Q_FUNCTIONS = ("runner.learners.iql.IQLLoss", "runner.learners.cql.CQLLoss")
_OF_RECORDED_DATA = "offline"  # key in `sources`, beside nothing


def converted_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a run of release 0.1.0 as a run of this release has it: the same parts under new names."""
    if "experience" not in state:
        return dict(state)
    sources = state["sources"]
    if _OF_RECORDED_DATA in sources:
        name, settings = RECORDED_DATA, settings_of_reading(sources[_OF_RECORDED_DATA])
    else:
        name, settings = ENV_RUNNERS, sources
    others = {part: value for part, value in state.items() if part not in ("experience", "sources")}
    plan = {"operators": {}, "rest": {}, "queues": {}, "settings": {name: settings}}
    return {**others, "learners": _converted_learners(state["learners"]), name: state["experience"], "plan": plan}


def _converted_learners(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of learners: the count for target networks was part of the loss."""
    learners = {
        module_id: {**one, "rows_since_target_update": one["loss"].get("rows_since_target_update", 0)}
        for module_id, one in state["learners"].items()
    }
    return {**state, "learners": learners}


def converted_config(config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Return a stored configuration of release 0.1.0 with the plan that does what its dataflow did.

    The weights of IQL and CQL are of Q functions one after another, which are computed together now: they are refused.

    Args:
        config: unresolved.
        where: the checkpoint, for messages.

    Raises:
        CheckpointError: the run had a dataflow of its user's own, or Q functions.
    """
    algorithm = config.get("algorithm")
    if not isinstance(algorithm, Mapping) or "dataflow" not in algorithm:
        return dict(config)
    dataflow = str(algorithm["dataflow"])
    if dataflow not in _PLANS:
        problem = Problem(
            "this checkpoint of release 0.1.0 is of a run with a dataflow of its own; plans have taken their place",
            where=f"algorithm.dataflow\n{where}",
            got=dataflow,
            allowed="a new run with its modules: module.load_state_path, and algorithm.plan as docs/plans.md says",
        )
        raise CheckpointError(problem)
    if str(algorithm.get("loss")) in _WITH_Q_FUNCTIONS:
        problem = Problem(
            "this checkpoint of release 0.1.0 has Q functions, whose weights are in another order now",
            where=f"algorithm.loss\n{where}",
            got=str(algorithm["loss"]),
            allowed="release 0.1.0, or a new run",
        )
        raise CheckpointError(problem)
    others = {name: value for name, value in algorithm.items() if name != "dataflow"}
    converted = {**config, "algorithm": {**others, "plan": _PLANS[dataflow]}}
    module = config.get("module")
    if isinstance(module, Mapping):  # no other module than the refused ones has Q functions that `twin_q` counts
        converted["module"] = {name: value for name, value in module.items() if name != "twin_q"}
    return converted
