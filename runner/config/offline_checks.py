"""Checks of the `offline` block against the algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner.config.algorithms import algorithm_name
from runner.config.callables import PARTIAL, TARGET, find_callable_faults
from runner.config.checks import find_value_problems
from runner.config.composed import Composed
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.fields import Option
from runner.config.list_patch_checks import describe_fault
from runner.config.offline import OfflineConfig
from runner.config.operators import RECORDED_DATA
from runner.config.placement_checks import find_resource_problems
from runner.config.plans import names_recorded_data, needs_of, recorded_buffers
from runner.config.recorded_columns import find_schema_faults
from runner.config.schemas import DEFAULT_STRATEGY, SPREAD, ExperimentConfig
from runner.config.targets import Given, find_target_fault

DEFAULT_BUFFER = "runner.replay.EpisodeReplayBuffer"
# What an actor of Ray may ask for.
_RESOURCES = (
    "num_cpus",
    "num_gpus",
    "memory",
    "resources",
    "accelerator_type",
    "label_selector",
    "fallback_strategy",
    "runtime_env",
)
# Options of Ray Data's map_batches and iter_batches that are left to the user.
_MAP_OPTIONS = (
    "concurrency",
    *_RESOURCES,
    "ray_remote_args",
    "zero_copy_batch",
)
# Options of Ray's actors: what `ray_remote_args` may hold.
_REMOTE_OPTIONS = (
    *_RESOURCES,
    "enable_task_events",
    "max_concurrency",
    "max_restarts",
    "max_task_retries",
    "object_store_memory",
    "scheduling_strategy",
)
# Option -> its type and bounds; Ray Data knows no group that packs its actors.
_PLACING: dict[str, tuple[Any, Option]] = {
    "num_cpus": (float, Option("", minimum=0)),
    "num_gpus": (float, Option("", minimum=0)),
    "resources": (dict[str, float], Option("")),
    "scheduling_strategy": (str, Option("", choices=(DEFAULT_STRATEGY, SPREAD))),
}
_ITER_OPTIONS = ("prefetch_batches", "local_shuffle_buffer_size", "local_shuffle_seed", "drop_last")
_SET_ELSEWHERE = {
    "batch_size": "; see offline.input_read_batch_size and algorithm.train_batch_size_per_learner",
    "compute": "; see its concurrency",
}
# Arguments of a pre-learner's constructor that runner itself gives.
_RUNNER_ARGUMENTS = ("config", "module_spec", "decode", "module_state", "newest_module_state")


def find_offline_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield missing data, data that an algorithm would not use, and options that contradict each other."""
    offline, algorithm = config.offline, config.algorithm
    name = algorithm_name(algorithm)
    reads_data, names_data = RECORDED_DATA in needs_of(config), names_recorded_data(config)
    if reads_data and not names_data:
        what = f"{name} learns from recorded data, and offline.input_ names none"
        yield Problem(what, composed.where("offline.input_"), "null", "offline.input_=PATH, for example of `record`")
    if names_data and not reads_data and not recorded_buffers(config):
        what = f"{name} learns from what it samples, recorded data would have no effect"
        yield Problem(what, composed.where("offline.input_"), str(offline.input_), "null, or algorithm=bc, marwil, ...")
    if offline.materialize_data and offline.materialize_mapped_data and names_data:
        what = "the data would be held twice, as they are read and as train batches"
        allowed = "one of offline.materialize_data and offline.materialize_mapped_data"
        yield Problem(what, composed.where("offline.materialize_data"), "true", allowed)
    if reads_data and not offline.materialize_mapped_data and offline.dataset_num_iters_per_learner is None:
        what = "an iteration on streamed data needs a number of updates, a stream has no passes"
        yield Problem(what, composed.where("offline.dataset_num_iters_per_learner"), "null", "1 or more")
    for key in ("offline_data_class", "prelearner_class"):
        path = getattr(offline, key)
        fault = None if path is None else find_target_fault(path)
        if fault is not None:
            yield describe_fault(f"offline.{key}", fault, composed.where(f"offline.{key}"), path)
    yield from _check_input(offline, composed)
    yield from _check_output(offline, composed)
    yield from _check_prelearner_arguments(offline, composed)
    for key, known in (("map_batches_kwargs", _MAP_OPTIONS), ("iter_batches_kwargs", _ITER_OPTIONS)):
        for option, value in getattr(offline, key).items():
            if option not in known:
                where = composed.where(f"offline.{key}.{option}") or composed.where(f"offline.{key}")
                what = f"offline.{key} has no {option}" + _SET_ELSEWHERE.get(option, "")
                yield Problem(what, where, show_value(value), ", ".join(known), nearest_match(option, known))
    yield from _check_workers(offline, composed)


def _check_input(offline: OfflineConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with functions of the user's own that read, or are given to the one that reads."""
    key, method = "offline.input_read_method", offline.input_read_method
    if "." in method:
        arguments = [name for name in offline.input_read_method_kwargs if name not in ("columns", "filter")]
        fault = find_target_fault(method, arguments, given=Given(num_positional=1))
        if fault is not None:
            yield describe_fault(key, fault, composed.where(key), method)
    yield from find_callable_faults(offline.input_read_method_kwargs, "offline.input_read_method_kwargs", composed)
    for problem in find_schema_faults(offline.input_read_schema):
        yield replace(problem, where=composed.where(str(problem.where)))
    if not isinstance(offline.input_, dict):
        return
    where, got = composed.where("offline.input_"), show_value(offline.input_)
    if TARGET not in offline.input_:
        allowed = "a path; or {_target_: package.module.function, argument: value, ...}"
        yield Problem("offline.input_ is a block that names no function", where, got, allowed)
        return
    if PARTIAL in offline.input_:
        yield Problem(f"offline.input_ is called, {PARTIAL} has no meaning there", where, got, "leave it out")
    yield from find_callable_faults(offline.input_, "offline.input_", composed)
    for name in ("input_read_method", "input_read_schema", "input_read_sample_batches"):
        given, default = getattr(offline, name), getattr(OfflineConfig(), name)
        if given != default:
            what = f"offline.{name} is for rows, and the function of offline.input_ yields episodes"
            yield Problem(what, composed.where(f"offline.{name}"), show_value(given), show_value(default))
    kept = [name for name in ("materialize_data", "materialize_mapped_data") if getattr(offline, name)]
    if kept:
        what = "episodes that a function yields are streamed: they may have no end, and would never be kept whole"
        yield Problem(what, composed.where(f"offline.{kept[0]}"), "true", f"offline.{kept[0]}=false")


def _check_output(offline: OfflineConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with functions of the user's own that write, or are given to the one that writes."""
    key, method = "offline.output_write_method", offline.output_write_method
    if "." in method:
        arguments = [name for name in offline.output_write_method_kwargs if name != "columns"]
        fault = find_target_fault(method, arguments, given=Given(num_positional=2))
        if fault is not None:
            yield describe_fault(key, fault, composed.where(key), method)
    yield from find_callable_faults(offline.output_write_method_kwargs, f"{key}_kwargs", composed)


def _check_prelearner_arguments(offline: OfflineConfig, composed: Composed) -> Iterator[Problem]:
    buffer, arguments = offline.prelearner_buffer_class, offline.prelearner_buffer_kwargs
    fault = find_target_fault(buffer or DEFAULT_BUFFER, list(arguments)) if buffer or arguments else None
    if fault is not None:
        is_found = find_target_fault(buffer or DEFAULT_BUFFER) is None
        key = "prelearner_buffer_kwargs" if is_found else "prelearner_buffer_class"
        got = show_value(getattr(offline, key))
        yield describe_fault(f"offline.{key}", fault, composed.where(f"offline.{key}"), got)
    where, got = composed.where("offline.prelearner_kwargs"), show_value(offline.prelearner_kwargs)
    if offline.prelearner_kwargs and offline.prelearner_class is None:
        what = "offline.prelearner_kwargs are for a pre-learner of your own; runner's takes none"
        yield Problem(what, where, got, "{}, or offline.prelearner_class")
    taken = [name for name in offline.prelearner_kwargs if name in _RUNNER_ARGUMENTS]
    if taken:
        what = f"offline.prelearner_kwargs: every pre-learner gets {', '.join(taken)} from runner"
        yield Problem(what, where, got, f"other names than {', '.join(_RUNNER_ARGUMENTS)}")


def _check_workers(offline: OfflineConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with number, resources and places of pre-learners."""
    yield from _check_concurrency(offline, composed)
    yield from _check_remote_args(offline, composed)
    yield from _check_placement(offline, composed)


def _check_remote_args(offline: OfflineConfig, composed: Composed) -> Iterator[Problem]:
    """Yield what is no option of a pre-learner's actor, and what is given twice."""
    key, given = "offline.map_batches_kwargs.ray_remote_args", offline.map_batches_kwargs.get("ray_remote_args", {})
    where = composed.where(key) or composed.where("offline.map_batches_kwargs")
    if not isinstance(given, dict):
        yield Problem(f"{key} is no block of options", where, show_value(given), "{max_restarts: 3, ...}")
        return
    for option, value in given.items():
        if option not in _REMOTE_OPTIONS:
            nearest = nearest_match(option, _REMOTE_OPTIONS)
            yield Problem(f"{key} has no {option}", where, show_value(value), ", ".join(_REMOTE_OPTIONS), nearest)
        elif option in offline.map_batches_kwargs:
            what = f"{option} is in offline.map_batches_kwargs and in its ray_remote_args"
            yield Problem(what, where, show_value(value), "one of them")


def _check_placement(offline: OfflineConfig, composed: Composed) -> Iterator[Problem]:
    block = "offline.map_batches_kwargs"
    remote_args = offline.map_batches_kwargs.get("ray_remote_args")
    own_keys = {"CPU": f"{block}.num_cpus", "GPU": f"{block}.num_gpus"}
    for key, given in ((block, offline.map_batches_kwargs), (f"{block}.ray_remote_args", remote_args)):
        if not isinstance(given, dict):
            continue
        for option, (kind, bounds) in _PLACING.items():
            if option in given:
                name = f"{key}.{option}"
                problems = find_value_problems(name, given[option], kind, bounds, composed.where)
                yield from problems
                if not problems and option == "resources":
                    yield from find_resource_problems(name, given[option], own_keys, composed)


def _check_concurrency(offline: OfflineConfig, composed: Composed) -> Iterator[Problem]:
    value = offline.map_batches_kwargs.get("concurrency", 1)
    bounds = value if isinstance(value, list) else [value, value]
    are_numbers = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds)
    if not (len(bounds) == 2 and are_numbers and 1 <= bounds[0] <= bounds[1]):
        where = composed.where("offline.map_batches_kwargs.concurrency") or composed.where("offline.map_batches_kwargs")
        what = "offline.map_batches_kwargs.concurrency is no number of pre-learners"
        yield Problem(what, where, show_value(value), "an integer of 1 or more, or [least, most]")
