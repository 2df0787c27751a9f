"""The `offline` block (reading and recording episodes), and its rules.

Key names follow RLlib's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.algorithms import AlgorithmConfig, algorithm_name
from runner.config.blocks import DEFAULT_STRATEGY, SPREAD
from runner.config.callables import PARTIAL, TARGET, find_callable_faults
from runner.config.checks import find_resource_problems, find_value_problems
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.fields import Option, option
from runner.config.operators import RECORDED_DATA
from runner.config.recorded_columns import find_schema_faults
from runner.config.targets import Given, describe_fault, find_target_fault, find_target_problems

# Methods that write without Ray Data.
OWN_WRITE_METHODS = ("write_parquet", "write_json", "write_csv")
# Suffixes of Ray Data functions that read and write files.
_FILE_KINDS = (
    *("parquet", "json", "csv", "numpy", "images", "videos", "audio", "text", "binary_files"),
    *("tfrecords", "webdataset", "avro", "orc"),
)


def settings_of_reading(offline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the `offline` block for reading data."""
    return {name: value for name, value in offline.items() if not name.startswith("output")}


def names_files(offline: Mapping[str, Any], direction: str) -> bool:
    """Return whether `input_` or `output` are local files or URLs, instead of values that only a function interprets.

    Args:
        offline: the block.
        direction: "input" or "output".
    """
    method = offline.get("input_read_method" if direction == "input" else "output_write_method")
    is_of_files = method in (None, "auto") or str(method).partition("_")[2] in _FILE_KINDS
    return is_of_files and offline.get(f"{direction}_filesystem") in (None, "local")


@dataclass(frozen=True)
class OfflineConfig:
    """Recorded data for training (`input_...`), the pipeline to the learner, and recording (`output...`)."""

    input_: str | list[str] | dict[str, Any] | None = option(
        None,
        "file, folder, pattern or URI of recorded data, or a list of them; {_target_: FUNCTION, ...}: a function that "
        "yields episodes; null trains online",
        is_path=True,
    )
    offline_data_class: str | None = option(None, "dotted path of a custom OfflineData class")
    input_read_method: str = option(
        "auto",
        "function of ray.data that reads input_, for example read_parquet or read_sql; or dotted path of a custom "
        "function that returns a Ray dataset; auto: chosen by the file names",
    )
    input_read_method_kwargs: dict[str, Any] = option(
        {},
        "columns: names; filter: 'column >= value and ...' or a pyarrow list of rules; for CSV: delimiter, skip_rows, "
        "...; for a function: its keyword arguments, for example {_target_: CALLABLE, _partial_: true, ...}",
    )
    input_read_schema: dict[str, Any] = option(
        {},
        "tables: runner's name: name in the files (obs: o_t), or a list of columns with one feature each (obs: [x, "
        "y]); other columns keep their names",
    )
    input_read_episodes: bool | None = option(
        None, "rows are episodes of runner or RLlib (false: rows are steps); null: detected from the files"
    )
    input_read_sample_batches: bool = option(False, "rows are SampleBatches of RLlib's old stack")
    input_read_batch_size: int | None = option(
        None,
        "rows (episodes or steps) that one pre-learner call receives and shuffles; null: complete blocks, or with "
        "materialize_data the rows of eight train batches",
        minimum=1,
    )
    input_filesystem: str | None = option(
        None, "gcs, s3, abs, local, or dotted path of a pyarrow or fsspec filesystem class; null: chosen by the path"
    )
    input_filesystem_kwargs: dict[str, Any] = option(
        {}, "arguments of the filesystem; {_target_: CLASS, ...} as an argument is an underlying filesystem"
    )
    input_compress_columns: list[str] = option(
        ["obs", "new_obs"], "columns of tables that RLlib may have packed with LZ4"
    )
    input_max_unpacked_ratio: float = option(
        100.0,
        "largest compression ratio of packed data larger than 64 MiB; data beyond it are rejected",
        minimum=1,
    )
    materialize_data: bool = option(False, "keep the data in the object store after reading")
    materialize_mapped_data: bool = option(
        True, "keep the train batches in the object store, so that connectors run once instead of once per pass"
    )
    map_batches_kwargs: dict[str, Any] = option(
        {},
        "options of Dataset.map_batches for the pre-learners: concurrency (a number or [min, max]), num_cpus, "
        "num_gpus, ...",
    )
    iter_batches_kwargs: dict[str, Any] = option(
        {}, "options of the iteration over train batches: prefetch_batches, ..."
    )
    prelearner_class: str | None = option(None, "dotted path of a custom OfflinePreLearner class")
    prelearner_kwargs: dict[str, Any] = option({}, "keyword arguments of the pre-learner class")
    prelearner_buffer_class: str | None = option(
        None,
        "dotted path of a buffer from which each pre-learner samples train batches; null: "
        "runner.replay.EpisodeReplayBuffer if prelearner_buffer_kwargs is set, else no buffer; with several "
        "pre-learners, the batches depend on timing",
    )
    prelearner_buffer_kwargs: dict[str, Any] = option(
        {}, "keyword arguments of the buffer: capacity (env steps), batch_length_T (env steps of a sampled chunk)"
    )
    prelearner_module_synch_period: int = option(
        10, "updates between two transfers of weights to pre-learners that use the module", unit="updates", minimum=1
    )
    dataset_num_iters_per_learner: int | None = option(
        None, "updates per iteration; null: one pass over the data", unit="updates", minimum=1
    )
    output: str | None = option(None, "folder or URI for recorded episodes; null: no recording", is_path=True)
    output_write_episodes: bool = option(True, "one row per episode; false: one row per step")
    output_episode_format: str = option(
        "columns",
        "format of rows that are episodes; columns: runner's format, one list per column; rllib: RLlib's format, the "
        "msgpack state of a SingleAgentEpisode",
        choices=("columns", "rllib"),
    )
    output_compress_columns: list[str] = option(
        ["obs", "new_obs"], "columns that Parquet compresses with LZ4, which is faster to read; other columns use zstd"
    )
    output_max_file_size: int | None = option(
        64 * 2**20, "approximate maximum file size; null: no limit", unit="bytes", minimum=1
    )
    output_max_rows_per_file: int | None = option(
        None, "maximum rows (episodes or steps) per file; null: no limit", minimum=1
    )
    output_write_method: str = option(
        "write_parquet",
        "write_parquet, write_json, write_csv; another write_... method of ray.data.Dataset, for example write_orc; or "
        "dotted path of a custom function f(dataset, output)",
    )
    output_write_method_kwargs: dict[str, Any] = option(
        {},
        "for Parquet: compression, row_group_size, ...; for JSON: compression; for CSV: compression, delimiter, ...; "
        "for a function: its keyword arguments, and columns: ordered names",
    )
    output_filesystem: str | None = option(
        None, "gcs, s3, abs, local, or dotted path of a pyarrow or fsspec filesystem class; null: chosen by the path"
    )
    output_filesystem_kwargs: dict[str, Any] = option({}, "arguments of the filesystem, as for input_filesystem")
    output_run_folders: bool = option(
        False,
        "write each file to its own folder like RLlib: <output>/<environment>/run-<env runner>-<file>, both counted "
        "from 1; false: write all files to output",
    )
    output_append: bool = option(
        False, "add files to a folder that already contains data; false reports an error instead"
    )

    @property
    def is_written_by_ray(self) -> bool:
        """Whether a function of Ray Data or a custom function writes the recorded data."""
        return self.output is not None and self.output_write_method not in OWN_WRITE_METHODS

    @property
    def names_data(self) -> bool:
        """Whether recorded data is configured."""
        return self.input_ is not None or self.offline_data_class is not None


DEFAULT_BUFFER = "runner.replay.EpisodeReplayBuffer"
# Resources of a Ray actor.
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
# Options of Ray Data's map_batches and iter_batches that users may set.
_MAP_OPTIONS = (
    "concurrency",
    *_RESOURCES,
    "ray_remote_args",
    "zero_copy_batch",
)
# Options of Ray's actors for `ray_remote_args`.
_REMOTE_OPTIONS = (
    *_RESOURCES,
    "enable_task_events",
    "max_concurrency",
    "max_restarts",
    "max_task_retries",
    "object_store_memory",
    "scheduling_strategy",
)
# Option -> its type and bounds. Ray Data cannot pack its actors into a placement group.
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
# Constructor arguments of pre-learners that runner provides.
_RUNNER_ARGUMENTS = ("config", "module_spec", "decode", "newest_module_state")


def find_offline_problems(
    offline: OfflineConfig, algorithm: AlgorithmConfig, needs: frozenset[str]
) -> Iterator[Problem]:
    """Yield missing data, data that the algorithm would not use, and contradicting options."""
    name = algorithm_name(algorithm)
    reads_data, names_data = RECORDED_DATA in needs, offline.names_data
    if reads_data and not names_data:
        what = f"{name} learns from recorded data, but offline.input_ is not set"
        expected = "offline.input_=PATH, for example a folder written by `runner record`"
        yield Problem(what, "offline.input_", "null", expected)
    if names_data and not reads_data and not algorithm.recorded_buffers:
        what = f"{name} learns from sampled steps, so offline.input_ would have no effect"
        yield Problem(what, "offline.input_", str(offline.input_), "null, or algorithm=bc, marwil, ...")
    if offline.materialize_data and offline.materialize_mapped_data and names_data:
        what = "the object store would hold the data twice: as read, and as train batches"
        expected = "only one of offline.materialize_data and offline.materialize_mapped_data"
        yield Problem(what, "offline.materialize_data", "true", expected)
    if reads_data and not offline.materialize_mapped_data and offline.dataset_num_iters_per_learner is None:
        key = "offline.dataset_num_iters_per_learner"
        what = f"an iteration over streamed data cannot be one pass, so {key} must be set"
        yield Problem(what, key, "null", "1 or more")
    for key in ("offline_data_class", "prelearner_class"):
        path = getattr(offline, key)
        yield from () if path is None else find_target_problems(f"offline.{key}", path)
    yield from _check_input(offline)
    yield from _check_method("input_read_method", ("columns", "filter"), 1, offline)
    yield from _check_method("output_write_method", ("columns",), 2, offline)
    yield from _check_prelearner_arguments(offline)
    yield from _find_unknown_options("offline.map_batches_kwargs", offline.map_batches_kwargs, _MAP_OPTIONS)
    yield from _find_unknown_options("offline.iter_batches_kwargs", offline.iter_batches_kwargs, _ITER_OPTIONS)
    yield from _check_concurrency(offline)
    yield from _check_remote_args(offline)
    yield from _check_placement(offline)


def _find_unknown_options(key: str, given: Mapping[str, Any], known: Sequence[str]) -> Iterator[Problem]:
    for name, value in given.items():
        if name not in known:
            what = f"{key} does not have an option {name}" + _SET_ELSEWHERE.get(name, "")
            yield Problem(what, f"{key}.{name}", show_value(value), ", ".join(known), nearest_match(name, known))


def _check_input(offline: OfflineConfig) -> Iterator[Problem]:
    """Yield problems of column names, and of a custom function that yields episodes."""
    yield from find_schema_faults(offline.input_read_schema)
    if not isinstance(offline.input_, dict):
        return
    key, got = "offline.input_", show_value(offline.input_)
    if TARGET not in offline.input_:
        expected = "a path; or {_target_: package.module.function, argument: value, ...}"
        yield Problem(f"{key} is a block without a function", key, got, expected)
        return
    if PARTIAL in offline.input_:
        yield Problem(f"{PARTIAL} has no effect in {key}, which is called", key, got, fix=f"remove {PARTIAL}")
    yield from find_callable_faults(offline.input_, key)
    for name in ("input_read_method", "input_read_schema", "input_read_sample_batches"):
        given, default = getattr(offline, name), getattr(OfflineConfig(), name)
        if given != default:
            what = f"offline.{name} applies to rows, but the function of offline.input_ yields episodes"
            yield Problem(what, f"offline.{name}", show_value(given), show_value(default))
    kept = [name for name in ("materialize_data", "materialize_mapped_data") if getattr(offline, name)]
    if kept:
        what = "episodes of a function are streamed, possibly without end, and cannot be materialized"
        yield Problem(what, f"offline.{kept[0]}", "true", f"offline.{kept[0]}=false")


def _check_method(
    name: str, of_runner: Sequence[str], num_positional: int, offline: OfflineConfig
) -> Iterator[Problem]:
    """Yield problems of a custom function that reads or writes, or is passed to such a function.

    Args:
        name: field with the function.
        of_runner: arguments that runner uses itself.
        num_positional: number of positional arguments that runner passes.
        offline: the block.
    """
    key, method, given = f"offline.{name}", getattr(offline, name), getattr(offline, f"{name}_kwargs")
    if "." in method:
        arguments = [argument for argument in given if argument not in of_runner]
        yield from find_target_problems(key, method, arguments, given=Given(num_positional))
    yield from find_callable_faults(given, f"{key}_kwargs")


def _check_prelearner_arguments(offline: OfflineConfig) -> Iterator[Problem]:
    buffer, arguments = offline.prelearner_buffer_class, offline.prelearner_buffer_kwargs
    fault = find_target_fault(buffer or DEFAULT_BUFFER, list(arguments)) if buffer or arguments else None
    if fault is not None:
        key = "prelearner_buffer_class" if fault.where is None else "prelearner_buffer_kwargs"
        yield describe_fault(f"offline.{key}", fault, show_value(getattr(offline, key)))
    key, got = "offline.prelearner_kwargs", show_value(offline.prelearner_kwargs)
    if offline.prelearner_kwargs and offline.prelearner_class is None:
        what = f"{key} needs a custom pre-learner class"
        yield Problem(what, key, got, "{}", fix="set offline.prelearner_class")
    taken = [name for name in offline.prelearner_kwargs if name in _RUNNER_ARGUMENTS]
    if taken:
        what = f"{key} must not contain {', '.join(taken)}, which runner passes itself"
        yield Problem(what, key, got, f"names other than {', '.join(_RUNNER_ARGUMENTS)}")


def _check_remote_args(offline: OfflineConfig) -> Iterator[Problem]:
    """Yield unknown options of a pre-learner's actor, and options that are set twice."""
    key, given = "offline.map_batches_kwargs.ray_remote_args", offline.map_batches_kwargs.get("ray_remote_args", {})
    if not isinstance(given, dict):
        yield Problem(f"{key} must be a block of options", key, show_value(given), "{max_restarts: 3, ...}")
        return
    yield from _find_unknown_options(key, given, _REMOTE_OPTIONS)
    for name in [name for name in given if name in _REMOTE_OPTIONS and name in offline.map_batches_kwargs]:
        what = f"{name} is set twice: in offline.map_batches_kwargs and in its ray_remote_args"
        yield Problem(what, key, show_value(given[name]), "only one of them")


def _check_placement(offline: OfflineConfig) -> Iterator[Problem]:
    block = "offline.map_batches_kwargs"
    remote_args = offline.map_batches_kwargs.get("ray_remote_args")
    own_keys = {"CPU": f"{block}.num_cpus", "GPU": f"{block}.num_gpus"}
    for key, given in ((block, offline.map_batches_kwargs), (f"{block}.ray_remote_args", remote_args)):
        if not isinstance(given, dict):
            continue
        for name, (kind, bounds) in _PLACING.items():
            if name in given:
                full = f"{key}.{name}"
                problems = find_value_problems(full, given[name], kind, bounds)
                yield from problems
                if not problems and name == "resources":
                    yield from find_resource_problems(full, given[name], own_keys)


def _check_concurrency(offline: OfflineConfig) -> Iterator[Problem]:
    value = offline.map_batches_kwargs.get("concurrency", 1)
    bounds = value if isinstance(value, list) else [value, value]
    are_numbers = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds)
    if not (len(bounds) == 2 and are_numbers and 1 <= bounds[0] <= bounds[1]):
        key, expected = "offline.map_batches_kwargs.concurrency", "an integer of at least 1, or [min, max]"
        yield Problem(f"{key} is not a valid number of pre-learners", key, show_value(value), expected)
