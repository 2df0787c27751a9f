"""The `offline` block: where recorded episodes come from and where they go. Key names follow RLlib's documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.fields import option

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
