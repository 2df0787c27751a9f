"""Problems that several tests of recorded data expect, so that each message stands in one place."""

from __future__ import annotations

from runner.config.errors import ConfigError, Problem
from runner.offline.files.data_error import DataError

# How the columns of two modules differ.
OTHER_SHAPE = "obs: some hold float32 [4], others float32 [3]"
_EPISODE_COLUMNS = (
    *("action_logp", "actions", "agent_id", "episode_return", "eps_id", "length", "module_id"),
    *("multi_agent_episode_id", "obs", "rewards", "t_started", "terminated", "truncated"),
)


def config_error(*problems: Problem) -> ConfigError:
    return ConfigError(problems)


def data_error(*problems: Problem) -> DataError:
    return DataError(problems)


# --- Finding and opening files


def no_path(got: str, nearest: str | None = None, where: str = "offline.input_") -> Problem:
    return Problem("the file or folder does not exist", where, got, nearest=nearest)


def no_data_files(got: str) -> Problem:
    kinds = ".parquet, .pq, .json, .jsonl, .ndjson, .csv, .h5, .hdf5"
    return Problem("folder TMP/data does not contain data files", "offline.input_", got, kinds)


def unknown_filesystem(where: str) -> Problem:
    return Problem("unknown file system", where, "s4", "gcs, s3, abs, local, or a class path")


def damaged_parquet(where: str) -> Problem:
    return Problem(
        "a Parquet file is damaged or truncated: Parquet magic bytes not found in footer. "
        "Either the file is corrupted or this is not a parquet file.",
        where,
    )


def unreadable(kind: str, reason: str, where: str) -> Problem:
    return Problem(f"a {kind} cannot be read: {reason}", where)


def no_json(reason: str, where: str, got: str) -> Problem:
    return Problem(f"this line is not valid JSON: {reason}", where, got)


def pickles_allowed() -> Problem:
    return Problem(
        "objects in recorded data are not unpickled, because that runs code from the files",
        "offline.input_read_method_kwargs.allow_pickle",
        "True",
    )


# --- Columns


def episode_columns(without: str = "") -> str:
    return ", ".join(name for name in _EPISODE_COLUMNS if name != without)


def unnamed_column(name: str, where: str, columns: str, nearest: str) -> Problem:
    return Problem(
        f"there is no column {name}",
        where,
        expected=f"columns: {columns}",
        nearest=nearest,
        fix=f"set offline.input_read_schema.{name}=COLUMN",
    )


def wrongly_named_column(name: str, column: str, where: str, columns: str, nearest: str) -> Problem:
    return Problem(
        f"offline.input_read_schema.{name}: there is no column {column}",
        where,
        expected=f"columns: {columns}",
        nearest=nearest,
    )


def no_column(name: str, where: str, expected: str, *, got: str | None = None, nearest: str | None = None) -> Problem:
    return Problem(f"there is no column {name}", where, got, expected, nearest)


def mixed_columns(difference: str) -> Problem:
    return Problem(
        f"the files have different columns: {difference}",
        "TMP/data/episodes-0-000001.parquet",
        expected="the columns of TMP/data/episodes-0-000000.parquet",
        fix="use a pattern that matches the files of one module, or set "
        "offline.input_read_method_kwargs.columns=[obs,actions,rewards,...]",
    )


def mixed_episodes(kind: str, first: str, where: str) -> Problem:
    return Problem(f"some files contain {kind} and others do not: {first} and this file", where)


# --- Values


def value_missing(where: str) -> Problem:
    return Problem("a value is missing", where)


def not_finite(episode: str, step: int, where: str, got: str = "nan") -> Problem:
    return Problem(f"a reward is not finite in episode {episode}, step {step}", where, got)


def no_number(where: str, got: str) -> Problem:
    return Problem("a reward must be one number per step", where, got)


def other_shape(where: str, got: str, first: str) -> Problem:
    expected = f"{first}, like the first row"
    return Problem("rows of a column must have the same shape", where, f"shape {got}", expected)


# --- Episodes


def no_complete_step(where: str = "TMP/data/a.parquet") -> Problem:
    return Problem("these data do not contain a complete step", where)


def step_twice(step: int, episode: str, where: str) -> Problem:
    return Problem(
        f"step {step} of episode {episode} occurs twice", where, fix="use ids that are unique over all files"
    )


def after_its_end(episode: str, step: int, where: str) -> Problem:
    return Problem(
        f"episode {episode} continues after step {step}, which ends it",
        where,
        fix="set end flags only in the last row of an episode",
    )


def no_trajectories(needs: str, where: str) -> Problem:
    return Problem(
        f"{needs} needs trajectories, but these rows have neither eps_id, t nor end flags, so each is an episode of "
        "one step",
        where,
        fix="add columns eps_id and t, or end flags in the order of the steps, under these names or mapped by "
        "offline.input_read_schema; or use an algorithm for single steps, for example bc without memory",
    )


# --- Environments and agents


def does_not_fit(name: str, where: str, got: str, expected: str) -> Problem:
    space = {"obs": "observation", "actions": "action"}[name]
    return Problem(f"the data do not fit the environment: {name} is not in its {space} space", where, got, expected)


def of_a_single_agent(where: str) -> Problem:
    return Problem(
        "these data come from a single agent, but the experiment has several",
        where,
        expected="data that name the agent of each episode, one of agent_0, agent_1",
    )


# --- Writing


def has_data(file: str, folder: str) -> Problem:
    fix = "use an empty folder, or set offline.output_append=true to add files to these"
    return Problem(f"the folder already contains data: {file}", "offline.output", folder, fix=fix)


def output_is_a_file(path: str) -> Problem:
    return Problem("this is a file, but recording needs a folder", "offline.output", path)


def not_writable(reason: str, folder: str) -> Problem:
    return Problem(f"the folder cannot be written to: {reason}", "offline.output", folder)


def unknown_write_method(got: str, nearest: str) -> Problem:
    return Problem(
        "unknown write method",
        "offline.output_write_method",
        got,
        "write_bigquery, write_clickhouse, write_csv, write_delta, write_iceberg, write_json, write_kafka, "
        "write_lance, write_mongo, write_orc, write_parquet, write_snowflake, write_sql, write_tfrecords, "
        "write_webdataset; or package.module.function that takes a Ray data set",
        nearest,
    )


def unknown_option_of_parquet(got: str) -> Problem:
    return Problem(
        "write_parquet takes no option compresion",
        "offline.output_write_method_kwargs",
        got,
        "column_encoding, compression, compression_level, data_page_version, dictionary_pagesize_limit, "
        "encryption_properties, flavor, max_rows_per_page, row_group_size, sorting_columns, store_decimal_as_integer, "
        "store_schema, use_byte_stream_split, use_compliant_nested_type, use_deprecated_int96_timestamps, "
        "use_dictionary, version, write_batch_size, write_page_checksum, write_page_index, write_statistics, "
        "write_time_adjusted_to_utc, writer_engine_version",
        "compression",
    )


def unknown_compression(got: str, nearest: str) -> Problem:
    where = "offline.output_write_method_kwargs.compression"
    return Problem("unknown compression", where, got, "none, snappy, gzip, brotli, lz4, zstd", nearest)


def no_column_to_compress(where: str, got: str, nearest: str) -> Problem:
    return Problem("there is no such column", where, got, "action_logp, actions, new_obs, obs, rewards", nearest)
