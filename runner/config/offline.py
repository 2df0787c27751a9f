"""The `offline` block: where recorded episodes come from and where they go; its rules.

Key names follow RLlib's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.config.algorithms import AlgorithmConfig, algorithm_name
from runner.config.blocks import DEFAULT_STRATEGY, SPREAD
from runner.config.callables import PARTIAL, TARGET, find_callable_faults
from runner.config.checks import find_resource_problems, find_value_problems
from runner.config.errors import Problem, Where, nearest_match, show_value
from runner.config.fields import Option, option
from runner.config.operators import RECORDED_DATA
from runner.config.recorded_columns import find_schema_faults
from runner.config.targets import Given, describe_fault, find_target_fault, find_target_problems

# What writes without Ray Data.
OWN_WRITE_METHODS = ("write_parquet", "write_json", "write_csv")
# Ends of the functions of Ray Data that read and write files.
_FILE_KINDS = (
    *("parquet", "json", "csv", "numpy", "images", "videos", "audio", "text", "binary_files"),
    *("tfrecords", "webdataset", "avro", "orc"),
)


def settings_of_reading(offline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the `offline` block that say how data are read, not how they are recorded."""
    return {name: value for name, value in offline.items() if not name.startswith("output")}


def names_files(offline: Mapping[str, Any], direction: str) -> bool:
    """Return whether `input_` or `output` are files of this machine or URLs, and not what only a function knows.

    Args:
        offline: the block.
        direction: "input" or "output".
    """
    method = offline.get("input_read_method" if direction == "input" else "output_write_method")
    is_of_files = method in (None, "auto") or str(method).partition("_")[2] in _FILE_KINDS
    return is_of_files and offline.get(f"{direction}_filesystem") in (None, "local")


@dataclass(frozen=True)
class OfflineConfig:
    """Recorded data to train on (`input_...`), the pipeline from it to the learner, and recording (`output...`)."""

    input_: str | list[str] | dict[str, Any] | None = option(
        None,
        "file, folder, pattern or URI of recorded data, or a list of them; {_target_: FUNCTION, ...}: episodes that a "
        "function of your own yields; null trains online",
        is_path=True,
    )
    offline_data_class: str | None = option(None, "dotted path of your own OfflineData class; null: runner's")
    input_read_method: str = option(
        "auto",
        "ray.data function that reads input_, its first argument, for example read_parquet or read_sql; or dotted path "
        "of a function of your own that returns a Ray data set; auto follows the files' names",
    )
    input_read_method_kwargs: dict[str, Any] = option(
        {},
        "columns: names; filter: 'column >= value and ...' or pyarrow's list of rules; of CSV: delimiter, skip_rows, "
        "...; of a function: its keyword arguments, among them {_target_: CALLABLE, _partial_: true, ...}",
    )
    input_read_schema: dict[str, Any] = option(
        {},
        "tables only, name in runner: name in the files (obs: o_t), or a list of columns with one feature each "
        "(obs: [x, y]); other columns keep their names",
    )
    input_read_episodes: bool | None = option(
        None, "rows are episodes, runner's or RLlib's (false: rows are steps); null: told by the files"
    )
    input_read_sample_batches: bool = option(False, "rows are SampleBatches of RLlib's old stack")
    input_read_batch_size: int | None = option(
        None,
        "rows of the files (episodes or steps) that one pre-learner call gets and shuffles; null: whole blocks, with "
        "materialize_data as many as eight train batches need",
        minimum=1,
    )
    input_filesystem: str | None = option(
        None, "gcs, s3, abs, local, or dotted path of a pyarrow or fsspec filesystem class; null: from the path"
    )
    input_filesystem_kwargs: dict[str, Any] = option(
        {}, "arguments of the filesystem; {_target_: CLASS, ...} as an argument is a filesystem that it is built on"
    )
    input_compress_columns: list[str] = option(
        ["obs", "new_obs"], "columns of tables to unpack where RLlib has packed them with LZ4"
    )
    input_max_unpacked_ratio: float = option(
        100.0,
        "most bytes that a packed byte may hold, beyond 64 MiB; data that hold more are refused, unread",
        minimum=1,
    )
    materialize_data: bool = option(False, "keep the data in the object store as they were read")
    materialize_mapped_data: bool = option(
        True, "keep the train batches in the object store: connectors run once, not for each pass"
    )
    map_batches_kwargs: dict[str, Any] = option(
        {},
        "of Dataset.map_batches for the pre-learners: concurrency (a number or [min, max]), num_cpus, num_gpus, ...",
    )
    iter_batches_kwargs: dict[str, Any] = option(
        {}, "arguments of the iteration over train batches: prefetch_batches, ..."
    )
    prelearner_class: str | None = option(None, "dotted path of your own OfflinePreLearner; null: runner's")
    prelearner_kwargs: dict[str, Any] = option({}, "keyword arguments of its constructor")
    prelearner_buffer_class: str | None = option(
        None,
        "dotted path of the buffer from which each pre-learner samples a train batch whenever it has read; null: "
        "runner.replay.EpisodeReplayBuffer if prelearner_buffer_kwargs has arguments for it, else no buffer; with "
        "several pre-learners batches depend on which is faster",
    )
    prelearner_buffer_kwargs: dict[str, Any] = option(
        {}, "its keyword arguments: capacity (env steps), batch_length_T (env steps of a sampled fragment)"
    )
    prelearner_module_synch_period: int = option(
        10, "pre-learners that need the module get its weights after so many updates", unit="updates", minimum=1
    )
    dataset_num_iters_per_learner: int | None = option(
        None, "updates of an iteration; null: one pass over the data", unit="updates", minimum=1
    )
    output: str | None = option(None, "folder or URI to record episodes in; null records nothing", is_path=True)
    output_write_episodes: bool = option(True, "a row is an episode; false: a row is a step")
    output_episode_format: str = option(
        "columns",
        "of a row that is an episode; columns: runner's, a list for each column; rllib: RLlib's, msgpack of a "
        "SingleAgentEpisode's state",
        choices=("columns", "rllib"),
    )
    output_compress_columns: list[str] = option(
        ["obs", "new_obs"], "columns that Parquet compresses with LZ4, which is faster to read; other columns with zstd"
    )
    output_max_file_size: int | None = option(
        64 * 2**20, "size of a file, about, after which a new one begins; null: no limit", unit="bytes", minimum=1
    )
    output_max_rows_per_file: int | None = option(
        None, "rows (episodes or steps) of a file after which a new one begins; null: no limit", minimum=1
    )
    output_write_method: str = option(
        "write_parquet",
        "write_parquet, write_json, write_csv; another write_... of ray.data.Dataset, for example write_orc, or dotted "
        "path of a function of your own: they get the steps as a Ray data set, then output",
    )
    output_write_method_kwargs: dict[str, Any] = option(
        {},
        "of Parquet: compression (none: of no column), row_group_size, ...; of JSON: compression; of CSV: compression, "
        "delimiter, ...; of a function: its keyword arguments, and columns: names, in this order",
    )
    output_filesystem: str | None = option(
        None, "gcs, s3, abs, local, or dotted path of a pyarrow or fsspec filesystem class; null: from the path"
    )
    output_filesystem_kwargs: dict[str, Any] = option({}, "arguments of the filesystem, as for input_filesystem")
    output_run_folders: bool = option(
        False,
        "each file has a folder of its own, as RLlib's have: <output>/<environment>/run-<env runner>-<file>, both "
        "counted from 1; false: all files are in output",
    )
    output_append: bool = option(False, "add files to a folder that already has data; false refuses such a folder")

    @property
    def is_written_by_ray(self) -> bool:
        """Whether a function of Ray Data, or of one's own, writes what is recorded."""
        return self.output is not None and self.output_write_method not in OWN_WRITE_METHODS

    @property
    def names_data(self) -> bool:
        """Whether there is data to learn from."""
        return self.input_ is not None or self.offline_data_class is not None


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


def find_offline_problems(
    offline: OfflineConfig, algorithm: AlgorithmConfig, needs: frozenset[str], where: Where
) -> Iterator[Problem]:
    """Yield missing data, data that an algorithm would not use, and options that contradict each other."""
    name = algorithm_name(algorithm)
    reads_data, names_data = RECORDED_DATA in needs, offline.names_data
    if reads_data and not names_data:
        what = f"{name} learns from recorded data, and offline.input_ names none"
        yield Problem(what, where("offline.input_"), "null", "offline.input_=PATH, for example of `record`")
    if names_data and not reads_data and not algorithm.recorded_buffers:
        what = f"{name} learns from what it samples, recorded data would have no effect"
        yield Problem(what, where("offline.input_"), str(offline.input_), "null, or algorithm=bc, marwil, ...")
    if offline.materialize_data and offline.materialize_mapped_data and names_data:
        what = "the data would be held twice, as they are read and as train batches"
        expected = "one of offline.materialize_data and offline.materialize_mapped_data"
        yield Problem(what, where("offline.materialize_data"), "true", expected)
    if reads_data and not offline.materialize_mapped_data and offline.dataset_num_iters_per_learner is None:
        what = "an iteration on streamed data needs a number of updates, a stream has no passes"
        yield Problem(what, where("offline.dataset_num_iters_per_learner"), "null", "1 or more")
    for key in ("offline_data_class", "prelearner_class"):
        path = getattr(offline, key)
        yield from () if path is None else find_target_problems(f"offline.{key}", path, where)
    yield from _check_input(offline, where)
    yield from _check_method("input_read_method", ("columns", "filter"), 1, offline, where)
    yield from _check_method("output_write_method", ("columns",), 2, offline, where)
    yield from _check_prelearner_arguments(offline, where)
    for key, known in (("map_batches_kwargs", _MAP_OPTIONS), ("iter_batches_kwargs", _ITER_OPTIONS)):
        for name, value in getattr(offline, key).items():
            if name not in known:
                place = where(f"offline.{key}.{name}") or where(f"offline.{key}")
                what = f"offline.{key} has no {name}" + _SET_ELSEWHERE.get(name, "")
                yield Problem(what, place, show_value(value), ", ".join(known), nearest_match(name, known))
    yield from _check_workers(offline, where)


def _check_input(offline: OfflineConfig, where: Where) -> Iterator[Problem]:
    """Yield what is wrong with the names of columns, and with a function of the user's own that yields episodes."""
    for problem in find_schema_faults(offline.input_read_schema):
        yield replace(problem, where=where(str(problem.where)))
    if not isinstance(offline.input_, dict):
        return
    place, got = where("offline.input_"), show_value(offline.input_)
    if TARGET not in offline.input_:
        expected = "a path; or {_target_: package.module.function, argument: value, ...}"
        yield Problem("offline.input_ is a block that names no function", place, got, expected)
        return
    if PARTIAL in offline.input_:
        yield Problem(f"offline.input_ is called, {PARTIAL} has no meaning there", place, got, "leave it out")
    yield from find_callable_faults(offline.input_, "offline.input_", where)
    for name in ("input_read_method", "input_read_schema", "input_read_sample_batches"):
        given, default = getattr(offline, name), getattr(OfflineConfig(), name)
        if given != default:
            what = f"offline.{name} is for rows, and the function of offline.input_ yields episodes"
            yield Problem(what, where(f"offline.{name}"), show_value(given), show_value(default))
    kept = [name for name in ("materialize_data", "materialize_mapped_data") if getattr(offline, name)]
    if kept:
        what = "episodes that a function yields are streamed: they may have no end, and would never be kept whole"
        yield Problem(what, where(f"offline.{kept[0]}"), "true", f"offline.{kept[0]}=false")


def _check_method(
    name: str, of_runner: Sequence[str], num_positional: int, offline: OfflineConfig, where: Where
) -> Iterator[Problem]:
    """Yield what is wrong with a function of the user's own that reads or writes, or is given to the one that does.

    Args:
        name: of the field that names the function.
        of_runner: arguments that runner itself uses.
        num_positional: number of arguments that runner gives the function.
        offline: the block.
        where: says where values come from.
    """
    key, method, given = f"offline.{name}", getattr(offline, name), getattr(offline, f"{name}_kwargs")
    if "." in method:
        arguments = [argument for argument in given if argument not in of_runner]
        yield from find_target_problems(key, method, where, arguments, given=Given(num_positional))
    yield from find_callable_faults(given, f"{key}_kwargs", where)


def _check_prelearner_arguments(offline: OfflineConfig, where: Where) -> Iterator[Problem]:
    buffer, arguments = offline.prelearner_buffer_class, offline.prelearner_buffer_kwargs
    fault = find_target_fault(buffer or DEFAULT_BUFFER, list(arguments)) if buffer or arguments else None
    if fault is not None:
        is_found = find_target_fault(buffer or DEFAULT_BUFFER) is None
        key = "prelearner_buffer_kwargs" if is_found else "prelearner_buffer_class"
        got = show_value(getattr(offline, key))
        yield describe_fault(f"offline.{key}", fault, where(f"offline.{key}"), got)
    place, got = where("offline.prelearner_kwargs"), show_value(offline.prelearner_kwargs)
    if offline.prelearner_kwargs and offline.prelearner_class is None:
        what = "offline.prelearner_kwargs are for a pre-learner of your own; runner's takes none"
        yield Problem(what, place, got, "{}, or offline.prelearner_class")
    taken = [name for name in offline.prelearner_kwargs if name in _RUNNER_ARGUMENTS]
    if taken:
        what = f"offline.prelearner_kwargs: every pre-learner gets {', '.join(taken)} from runner"
        yield Problem(what, place, got, f"other names than {', '.join(_RUNNER_ARGUMENTS)}")


def _check_workers(offline: OfflineConfig, where: Where) -> Iterator[Problem]:
    """Yield what is wrong with number, resources and places of pre-learners."""
    yield from _check_concurrency(offline, where)
    yield from _check_remote_args(offline, where)
    yield from _check_placement(offline, where)


def _check_remote_args(offline: OfflineConfig, where: Where) -> Iterator[Problem]:
    """Yield what is no option of a pre-learner's actor, and what is given twice."""
    key, given = "offline.map_batches_kwargs.ray_remote_args", offline.map_batches_kwargs.get("ray_remote_args", {})
    place = where(key) or where("offline.map_batches_kwargs")
    if not isinstance(given, dict):
        yield Problem(f"{key} is no block of options", place, show_value(given), "{max_restarts: 3, ...}")
        return
    for name, value in given.items():
        if name not in _REMOTE_OPTIONS:
            nearest = nearest_match(name, _REMOTE_OPTIONS)
            yield Problem(f"{key} has no {name}", place, show_value(value), ", ".join(_REMOTE_OPTIONS), nearest)
        elif name in offline.map_batches_kwargs:
            what = f"{name} is in offline.map_batches_kwargs and in its ray_remote_args"
            yield Problem(what, place, show_value(value), "one of them")


def _check_placement(offline: OfflineConfig, where: Where) -> Iterator[Problem]:
    block = "offline.map_batches_kwargs"
    remote_args = offline.map_batches_kwargs.get("ray_remote_args")
    own_keys = {"CPU": f"{block}.num_cpus", "GPU": f"{block}.num_gpus"}
    for key, given in ((block, offline.map_batches_kwargs), (f"{block}.ray_remote_args", remote_args)):
        if not isinstance(given, dict):
            continue
        for name, (kind, bounds) in _PLACING.items():
            if name in given:
                full = f"{key}.{name}"
                problems = find_value_problems(full, given[name], kind, bounds, where)
                yield from problems
                if not problems and name == "resources":
                    yield from find_resource_problems(full, given[name], own_keys, where)


def _check_concurrency(offline: OfflineConfig, where: Where) -> Iterator[Problem]:
    value = offline.map_batches_kwargs.get("concurrency", 1)
    bounds = value if isinstance(value, list) else [value, value]
    are_numbers = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds)
    if not (len(bounds) == 2 and are_numbers and 1 <= bounds[0] <= bounds[1]):
        place = where("offline.map_batches_kwargs.concurrency") or where("offline.map_batches_kwargs")
        what = "offline.map_batches_kwargs.concurrency is no number of pre-learners"
        yield Problem(what, place, show_value(value), "an integer of 1 or more, or [least, most]")
