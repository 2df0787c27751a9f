"""What is wrong with the options that recorded data are read with."""

from __future__ import annotations

from runner.config.errors import Problem
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import DataError
from runner.offline.files.raw_rows import RawReader
from runner.offline.formats.recorded_format import RecordedFormat, Row


def check_options(config: OfflineConfig) -> None:
    """Refuse options that contradict each other."""
    if config.input_read_episodes and config.input_read_sample_batches:
        what = "rows are either episodes or SampleBatches"
        raise DataError([Problem(what, "offline.input_read_sample_batches", "true", "one of both is false")])


def check_flags(config: OfflineConfig, found: type[RecordedFormat], where: str) -> None:
    """Refuse a configuration that says the rows are something else than they are."""
    problem: tuple[str, str, str] | None = None
    if config.input_read_sample_batches and found.row is not Row.BATCH:
        problem = ("input_read_sample_batches", "true", "these data are no SampleBatches")
    elif config.input_read_episodes is True and found.row in (Row.STEP, Row.BATCH):
        problem = ("input_read_episodes", "true", "the rows of these data are no episodes")
    elif config.input_read_episodes is False and found.row is Row.EPISODE:
        problem = ("input_read_episodes", "false", "the rows of these data are episodes")
    mapping = {name: column for name, column in config.input_read_schema.items() if name != column}
    if mapping and found.row is not Row.STEP:
        what = f"data of the format {found.name} have no columns to be named: {where}"
        raise DataError([Problem(what, "offline.input_read_schema", str(mapping), "{}")])
    if problem is not None:
        name, got, what = problem
        allowed = f"leave it out: it is seen from the files ({found.name})"
        raise DataError([Problem(f"{what}: {where}", f"offline.{name}", got, allowed)])


def check_filter(config: OfflineConfig, found: type[RecordedFormat], reader: RawReader | None) -> None:
    """Refuse a row filter where none can be applied."""
    is_filtered = reader is not None and reader.row_filter is not None
    if config.input_read_method_kwargs.get("filter") is not None and not is_filtered:
        where = "offline.input_read_method_kwargs.filter"
        raise DataError([Problem(f"data of the format {found.name} are read without a filter", where)])
