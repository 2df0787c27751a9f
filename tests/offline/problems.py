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
    return Problem("there is no such file or folder", where, got, nearest=nearest)


def no_data_files(got: str) -> Problem:
    kinds = ".parquet, .pq, .json, .jsonl, .ndjson, .csv, .h5, .hdf5"
    return Problem("this folder has no data files: TMP/data", "offline.input_", got, kinds)


def unknown_filesystem(where: str) -> Problem:
    return Problem("unknown file system", where, "s4", "gcs, s3, abs, local, a class")


def damaged_parquet(where: str) -> Problem:
    return Problem(
        "a Parquet file is damaged or truncated: Parquet magic bytes not found in footer. "
        "Either the file is corrupted or this is not a parquet file.",
        where,
    )


def unreadable(kind: str, reason: str, where: str) -> Problem:
    return Problem(f"a {kind} cannot be read: {reason}", where)


def no_json(reason: str, where: str, got: str) -> Problem:
    return Problem(f"a line is no JSON: {reason}", where, got)


def pickles_allowed() -> Problem:
    return Problem(
        "objects in recorded data are not unpickled, as that would run code in the files",
        "offline.input_read_method_kwargs.allow_pickle",
        "True",
    )


# --- Columns


def episode_columns(without: str = "") -> str:
    return ", ".join(name for name in _EPISODE_COLUMNS if name != without)


def unnamed_column(name: str, where: str, columns: str, nearest: str) -> Problem:
    return Problem(
        f"there is no column {name}; name it: offline.input_read_schema.{name}=COLUMN",
        where,
        expected=f"columns: {columns}",
        nearest=nearest,
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
        f"the files do not hold the same columns: {difference}",
        "TMP/data/episodes-0-000001.parquet",
        expected="the columns of TMP/data/episodes-0-000000.parquet; or a pattern that names the files of one module; "
        "or offline.input_read_method_kwargs.columns=[obs,actions,rewards,...]",
    )


def mixed_episodes(kind: str, first: str, where: str) -> Problem:
    return Problem(f"some files hold {kind}, others do not: {first} and this one", where)


# --- Values


def value_missing(where: str) -> Problem:
    return Problem("a value is missing", where)


def not_finite(episode: str, step: int, where: str, got: str = "nan") -> Problem:
    return Problem(f"a reward is not finite in episode {episode}, step {step}", where, got)


def no_number(where: str, got: str) -> Problem:
    return Problem("a reward is one number a step", where, got)


def other_shape(where: str, got: str, first: str) -> Problem:
    expected = f"{first}, the shape of the first row"
    return Problem("rows of one column must have one shape", where, f"shape {got}", expected)


# --- Episodes


def no_complete_step(where: str = "TMP/data/a.parquet") -> Problem:
    return Problem("there is no complete step in these data", where)


def step_twice(step: int, episode: str, where: str) -> Problem:
    return Problem(
        f"step {step} of episode {episode} is there twice", where, expected="ids that are unique over all files"
    )


def after_its_end(episode: str, step: int, where: str) -> Problem:
    return Problem(
        f"episode {episode} goes on after step {step}, which ends it",
        where,
        expected="an end flag in the last row of an episode only",
    )


def no_trajectories(needs: str, where: str) -> Problem:
    return Problem(
        f"{needs} needs whole trajectories, and the rows of these data belong to none: they have neither eps_id nor t "
        "nor end flags, so that each is an episode of one step",
        where,
        expected="columns eps_id and t, or end flags in the order of the steps, under these names or named by "
        "offline.input_read_schema; or what learns from single steps, for example bc without memory",
    )


# --- Environments and agents


def does_not_fit(name: str, where: str, got: str, expected: str) -> Problem:
    space = {"obs": "observation", "actions": "action"}[name]
    return Problem(f"the data do not fit the environment: {name} is not in its {space} space", where, got, expected)


def of_a_single_agent(where: str) -> Problem:
    return Problem(
        "these data are of a single agent, and the experiment has several",
        where,
        expected="data that say whose each episode is, of agent_0, agent_1",
    )


# --- Writing


def has_data(file: str, folder: str) -> Problem:
    expected = "an empty folder, or offline.output_append=true to add files to these"
    return Problem(f"the folder has data already: {file}", "offline.output", folder, expected)


def output_is_a_file(path: str) -> Problem:
    return Problem("a folder is needed to record in, this is a file", "offline.output", path)


def not_writable(reason: str, folder: str) -> Problem:
    return Problem(f"the folder cannot be written to: {reason}", "offline.output", folder)


def unknown_write_method(got: str, nearest: str) -> Problem:
    return Problem(
        "there is no such way to write",
        "offline.output_write_method",
        got,
        "write_bigquery, write_clickhouse, write_csv, write_delta, write_iceberg, write_json, write_kafka, "
        "write_lance, write_mongo, write_orc, write_parquet, write_snowflake, write_sql, write_tfrecords, "
        "write_webdataset; or package.module.function of your own, which takes a Ray data set",
        nearest,
    )


def unknown_option_of_parquet(got: str) -> Problem:
    return Problem(
        "write_parquet has no option compresion",
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
