"""Rules of replay buffers: construction, storing, replay, and dependent options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.config.algorithms import RECORDED
from runner.config.blocks import DEFAULT_MODULE_ID
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.list_patches import module_algorithm_key
from runner.config.operators import (
    ApplyGradientsConfig,
    BufferConfig,
    CompleteEpisodesConfig,
    MixInReplayConfig,
    OperatorConfig,
    ParallelRolloutsConfig,
    ReplayConfig,
    SelectExperiencesConfig,
    StoreToReplayBufferConfig,
    TrainOneStepConfig,
    UpdatePrioritiesConfig,
)
from runner.config.plans.steps import KEY, Plan, PlanStep, read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from runner.config.targets import REPLAY_BUFFERS, describe_fault, find_target_fault

_BLOCK = "algorithm.replay_buffers"
_STORES = (StoreToReplayBufferConfig, MixInReplayConfig)
_REPLAYS = (ReplayConfig, MixInReplayConfig)


def find_buffer_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield invalid and unknown buffers, and buffers that the plan only stores to or only replays."""
    buffers = config.algorithm.replay_buffers
    for name, block in buffers.items():
        yield from _find_faults(f"{_BLOCK}.{name}", block)
        if isinstance(block, dict) and RECORDED in block:
            yield from _find_unrecorded(f"{_BLOCK}.{name}.{RECORDED}", block[RECORDED], config)
    plan = read_plan(config.algorithm.plan)
    if any(step.is_function for step in plan):
        return
    rows = list(dict.fromkeys(name for algorithm in config.algorithms.values() for name in algorithm.metrics.rows))
    for step in steps_of(plan):
        used = _buffer_of(step)
        if used is not None and used not in buffers:
            what = f"{step.key}: unknown buffer {used} ({_BLOCK})"
            expected = (
                ", ".join(buffers) or f"{_BLOCK}.{used}={{_target_: runner.replay.ReplayBuffer, capacity: 10000}}"
            )
            yield Problem(what, step.key, used, expected, nearest_match(used, buffers))
        yield from _find_useless_priorities(step, rows)
        yield from _find_late_start(step, buffers)
    yield from find_flow_problems(plan)
    for key, algorithm in config.algorithms.items():
        yield from _find_bad_range(f"{key}.n_step", getattr(algorithm, "n_step", 1))
    for name, block in buffers.items():
        for key in _algorithms_of(name, config):
            yield from _find_undiscounted(f"{_BLOCK}.{name}", block, key, config.algorithms[key].gamma)
        if all(step.is_understood for step in steps_of(plan)):  # unknown custom operators may use any buffer
            yield from _find_unused(name, block, plan)
            yield from _find_constant_priorities(name, block, plan)
        yield from _find_unused_shards(name, block, config, plan)


def _find_unrecorded(key: str, value: object, config: ExperimentConfig) -> Iterator[Problem]:
    """Find buffers that cannot be filled with recorded steps."""
    if not isinstance(value, bool):
        yield Problem(f"{key} has the wrong type", key, show_value(value), "true or false")
    elif value and config.offline.input_ is None:
        what = f"{key} needs recorded data, but offline.input_ is not set"
        yield Problem(what, key, "null", "offline.input_=PATH, for example a folder written by `runner record`")
    elif value and config.checkpoint.save_replay_buffers == "none":
        what = f"{key}: a resumed run would start without the recorded steps"
        yield Problem(what, "checkpoint.save_replay_buffers", "none", "full")


def modules_stored_in(buffer: str, config: ExperimentConfig, module_ids: Sequence[str]) -> list[str]:
    """Return the modules whose experiences the plan may store in a buffer."""
    selections = list(_selections(buffer, read_plan(config.algorithm.plan), frozenset(module_ids)))
    stored = frozenset().union(*selections) if selections else module_ids  # a custom operator may store all
    return [module_id for module_id in module_ids if module_id in stored]


def is_replayed(module_id: str, config: ExperimentConfig) -> bool:
    """Return whether a module may learn from a replay buffer."""
    return any(modules_stored_in(buffer, config, [module_id]) for buffer in config.algorithm.replay_buffers)


def _algorithms_of(buffer: str, config: ExperimentConfig) -> list[str]:
    """Return the blocks of the algorithms that may learn from a buffer."""
    if not config.multi_agent.is_mapping_complete:
        return ["algorithm"]
    stored = modules_stored_in(buffer, config, config.multi_agent.declared_module_ids or [DEFAULT_MODULE_ID])
    blocks = [module_algorithm_key(module_id) for module_id in stored]
    return list(dict.fromkeys(block if block in config.algorithms else "algorithm" for block in blocks))


def _selections(buffer: str, plan: Plan, selected: frozenset[str]) -> Iterator[frozenset[str]]:
    """Yield the selected modules of each step that stores to a buffer."""
    for step in plan:
        if isinstance(step.config, SelectExperiencesConfig):
            selected &= frozenset(step.config.modules)
        elif isinstance(step.config, _STORES) and _stores(step) and _buffer_of(step) == buffer:
            yield selected
        for branch in step.plans:
            yield from _selections(buffer, branch, selected)


def _buffer_of(step: PlanStep) -> str | None:
    """Return the name of the buffer that a built-in or custom step uses, or None."""
    if isinstance(step.config, BufferConfig):
        return step.config.buffer
    return str(step.arguments.get("buffer", "replay")) if step.is_a(BufferConfig) else None


def _find_late_start(step: PlanStep, buffers: Mapping[str, Any]) -> Iterator[Problem]:
    block = buffers.get(step.config.buffer) if isinstance(step.config, ReplayConfig) else None
    capacity = block.get("capacity") if isinstance(block, dict) else None
    if isinstance(capacity, int) and step.config.learning_starts >= capacity:  # type: ignore[union-attr]
        starts = step.config.learning_starts  # type: ignore[union-attr]
        what = f"{step.key}: the buffer is too small for the {starts} env steps of learning_starts"
        yield Problem(what, step.key, str(starts), f"less than the capacity of {capacity}")


def _find_useless_priorities(step: PlanStep, rows: Sequence[str]) -> Iterator[Problem]:
    if isinstance(step.config, UpdatePrioritiesConfig) and step.config.column not in rows:
        what = f"{step.key}: the loss does not return {step.config.column} per row"
        expected = ", ".join(rows) or "a loss whose record lists it in `rows`"
        yield Problem(what, step.key, step.config.column, expected)


def _find_bad_range(key: str, n_step: int | list[int]) -> Iterator[Problem]:
    if isinstance(n_step, list) and (len(n_step) != 2 or n_step[0] > n_step[1]):
        what = f"{key} is not a valid range"
        yield Problem(what, key, str(n_step), "a number, or [min, max], for example [2, 5]")


def _find_undiscounted(key: str, block: object, algorithm: str, expected: float) -> Iterator[Problem]:
    """Find n-step buffers whose discount differs from the algorithm's."""
    if not isinstance(block, dict) or block.get("n_step", 1) == 1:
        return
    gamma = block.get("gamma", 1.0)
    if gamma != expected:
        what = f"{key} discounts n-step rewards by {gamma}, but the algorithm uses {expected}"
        yield Problem(what, f"{key}.gamma", show_value(gamma), f"gamma: ${{{algorithm}.gamma}}, which is {expected}")


def _find_constant_priorities(name: str, block: object, plan: Plan) -> Iterator[Problem]:
    path = str(block.get("_target_")) if isinstance(block, dict) else ""
    updates = any(step.is_a(UpdatePrioritiesConfig) for step in _steps_on(name, plan))
    if path.rpartition(".")[2] == "PrioritizedReplayBuffer" and not updates:
        what = f"{_BLOCK}.{name}: the plan never updates priorities, so sampling is uniform"
        expected = f"UpdatePriorities with buffer: {name} after TrainOneStep, or runner.replay.ReplayBuffer"
        yield Problem(what, KEY, expected=expected)


def _find_unused_shards(name: str, block: object, config: ExperimentConfig, plan: Plan) -> Iterator[Problem]:
    """Find shards that stay empty: items with running episodes of all env runners belong to the same shard."""
    if not isinstance(block, dict) or not str(block.get("_target_")).endswith(".ShardedReplayBuffer"):
        return
    steps = [step.config for step in steps_of(plan)]
    has_several = block.get("num_shards") != 1 and config.env_runners.max_env_runners > 1
    is_joined = any(isinstance(step, ParallelRolloutsConfig) and step.mode == "bulk_sync" for step in steps)
    if has_several and is_joined and not any(isinstance(step, CompleteEpisodesConfig) for step in steps):
        what = f"{_BLOCK}.{name}: only one shard would be filled, because each item has samples of all env runners"
        expected = "ParallelRollouts with mode: async or raw, or one shard (num_shards: 1)"
        yield Problem(what, KEY, "ParallelRollouts with mode: bulk_sync", expected)


def _steps_on(name: str, plan: Plan) -> list[PlanStep]:
    return [step for step in steps_of(plan) if _buffer_of(step) == name]


def _find_faults(key: str, block: object) -> Iterator[Problem]:
    path = block.get("_target_") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(path, str):
        what = f"{key} needs the class of a replay buffer"
        expected = "{_target_: runner.replay.ReplayBuffer or PrioritizedReplayBuffer, capacity: 10000}"
        yield Problem(what, key, show_value(block), expected)
        return
    arguments = [str(name) for name in block if name not in ("_target_", RECORDED)]
    fault = find_target_fault(path, arguments, kinds=REPLAY_BUFFERS)
    if fault is not None and fault.where is None:
        yield describe_fault(f"{key}._target_", fault, path)
    elif fault is not None:
        yield describe_fault(key, fault, ", ".join(arguments))


def _stores(step: PlanStep) -> bool:
    return step.is_a(*_STORES) and not (isinstance(step.config, MixInReplayConfig) and not step.config.store)


def _find_unused(name: str, block: object, plan: Plan) -> Iterator[Problem]:
    steps = _steps_on(name, plan)
    stores = any(map(_stores, steps)) or (isinstance(block, dict) and block.get(RECORDED) is True)
    replays = any(step.is_a(*_REPLAYS) for step in steps)
    if not (stores and replays):
        done = "stores to" if stores else "replays" if replays else "does not use"
        missing = " and ".join([*([] if stores else ["StoreToReplayBuffer"]), *([] if replays else ["Replay"])])
        what = f"{_BLOCK}.{name}: the plan {done} this buffer" + (" only" if steps else "")
        yield Problem(what, KEY, expected=f"{missing} with buffer: {name}")


def find_flow_problems(plan: Plan) -> Iterator[Problem]:
    """Yield operators that have no effect on their items."""
    for index, step in enumerate(plan):
        before = plan[:index]
        if isinstance(step.config, UpdatePrioritiesConfig):
            yield from _find_lost_rows(step, before)
            yield from _find_other_buffer(step, before)
        if isinstance(step.config, CompleteEpisodesConfig) and _last(before, ReplayConfig, MixInReplayConfig):
            what = f"{step.key}: replayed steps never form complete episodes"
            yield Problem(what, step.key, "Replay -> CompleteEpisodes", "CompleteEpisodes before the buffer")
        for branch in step.plans:
            yield from find_flow_problems(branch)


def _find_lost_rows(step: PlanStep, before: Plan) -> Iterator[Problem]:
    trained = _last(before, TrainOneStepConfig, ApplyGradientsConfig)
    if trained is not None and isinstance(trained.config, ApplyGradientsConfig):
        what = f"{step.key}: gradients do not identify their rows, so priorities cannot be updated"
        yield Problem(what, step.key, "ApplyGradients -> UpdatePriorities", "TrainOneStep -> UpdatePriorities")


def _find_other_buffer(step: PlanStep, before: Plan) -> Iterator[Problem]:
    replayed = [one.config.buffer for one in before if isinstance(one.config, (ReplayConfig, MixInReplayConfig))]
    updated = getattr(step.config, "buffer", None)
    if replayed and updated not in replayed:
        what = f"{step.key}: its rows were not replayed from this buffer"
        yield Problem(what, step.key, f"buffer {updated}", f"buffer: {' or '.join(dict.fromkeys(replayed))}")


def _last(before: Plan, *kinds: type[OperatorConfig]) -> PlanStep | None:
    return next((step for step in reversed(before) if isinstance(step.config, kinds)), None)
