"""Conversion of items to plain values and arrays, for the checkpoints of operators and queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runner.config.operators import EXPERIENCES, GRADIENTS, RECORDED_BATCHES, TRAIN_RESULT
from runner.episodes.block_state import rollout_from_state, rollout_to_state
from runner.plans.context import PlanContext
from runner.plans.items import Experiences, Gradients, Item, IterationEnd, Origin, ReplayRows, TrainResult
from runner.plans.recorded_batches import RecordedBatches

_TRAIN_RESULT = ("updates", "num_env_steps_trained", "num_env_steps_read", "rows", "replay_rows", "ends_iteration")
_ITERATION_END = "IterationEnd"
_KINDS = (Experiences, Gradients, TrainResult, IterationEnd)


class UnstorableItem(TypeError):
    """A checkpoint cannot hold a waiting item, because its class is a custom one."""


def can_be_saved(item: object) -> bool:
    """Return whether a checkpoint can hold an item; it cannot hold recorded batches and items of custom classes."""
    return type(item) in _KINDS


def item_to_state(item: Item | IterationEnd) -> dict[str, Any]:
    """Return a counted item as nested dicts and lists of arrays and plain values; raises `UnstorableItem`."""
    if isinstance(item, Experiences):
        return {
            "kind": EXPERIENCES,
            "rollout": rollout_to_state(item.rollout),
            "origins": _origins_to_state(item),
            "replay_rows": {name: dict(rows) for name, rows in item.replay_rows.items()},
            "broken_off": list(item.aborted),
        }
    if isinstance(item, Gradients):
        gradients = item.gradients.get_state()
        steps = item.num_env_steps
        return {"kind": GRADIENTS, "gradients": gradients, "num_env_steps": steps, "origins": _origins_to_state(item)}
    if isinstance(item, TrainResult):
        return {"kind": TRAIN_RESULT, **{name: getattr(item, name) for name in _TRAIN_RESULT}}
    if isinstance(item, RecordedBatches):
        return {"kind": RECORDED_BATCHES, "left": item.left}
    if isinstance(item, IterationEnd):
        return {"kind": _ITERATION_END}
    raise UnstorableItem(f"a checkpoint cannot hold the waiting item of class {type(item).__name__}")


def item_from_state(state: Mapping[str, Any], context: PlanContext) -> Any:
    """Invert `item_to_state`."""
    kind = state["kind"]
    if kind == EXPERIENCES:
        rollout, replay_rows = rollout_from_state(state["rollout"]), _known_rows(state, context)
        return Experiences(rollout, _origins_from_state(state), replay_rows, tuple(state["broken_off"]))
    if kind == GRADIENTS:
        from runner.learners.gradients import GroupGradients

        gradients = GroupGradients.from_state(state["gradients"])
        return Gradients(gradients, int(state["num_env_steps"]), _origins_from_state(state))
    if kind == RECORDED_BATCHES:
        return RecordedBatches(context.recorded_data, state["left"])
    if kind == _ITERATION_END:
        return IterationEnd()
    known = {name: state[name] for name in _TRAIN_RESULT if name in state}
    return TrainResult(**known | {"replay_rows": _known_rows(state, context)})


def _known_rows(state: Mapping[str, Any], context: PlanContext) -> ReplayRows:
    """Return the rows of buffers that were not reset."""
    held = {name for name, buffer in context.replay_buffers.items() if len(buffer)}
    return {name: rows for name, rows in state.get("replay_rows", {}).items() if name in held}


def _origins_to_state(item: Experiences | Gradients) -> list[dict[str, int]]:
    return [asdict(origin) for origin in item.origins]


def _origins_from_state(state: Mapping[str, Any]) -> tuple[Origin, ...]:
    return tuple(Origin(**origin) for origin in state["origins"])
