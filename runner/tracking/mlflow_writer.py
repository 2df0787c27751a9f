"""Write one MLflow run in batches. Only used in the child process, because importing MLflow takes seconds."""

from __future__ import annotations

import getpass
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from runner.durable_files import locked
from runner.tracking.known_run import error_line, sqlite_path
from runner.tracking.plain_values import MLFLOW_NAMES, escaped_name

Item = TypeVar("Item")

MAX_BATCH_ITEMS = {"metrics": 1000, "params": 100, "tags": 100}
MAX_BATCH_BYTES = 900_000  # MLflow rejects requests of 1 MB and more
MAX_RUN_NAME_CHARS = 250
MAX_PARAM_CHARS = 6000
MAX_TAG_CHARS = 8000
MAX_DATASET_NAME_CHARS = 500
MAX_DATASET_SOURCE_CHARS = 65_535
MAX_DATASET_SCHEMA_CHARS = 1_000_000
MAX_WAITING_METRICS = 500_000  # while the store cannot be written
OVERRIDE_PREFIX = "override."
DATASET_CONTEXT_TAG = "mlflow.data.context"
LOCK_TIMEOUT_S = 60.0
CONNECT_ATTEMPTS = 3

_ITEM_OVERHEAD_BYTES = 120
_LOGGER = logging.getLogger(__name__)


class RunWriter:
    """Creates or continues a run, and writes to it. Methods except `flush` may raise MLflow's errors.

    `report_written` is called with the number of metric values that have reached the store. `warn` is called with the
    reason if MLflow rejects a metric, param or tag, or if the run to continue no longer exists.
    """

    def __init__(
        self, settings: Mapping[str, Any], report_written: Callable[[int], None], warn: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._report_written, self._warn = report_written, warn
        self._waiting: deque[Metric] = deque(maxlen=MAX_WAITING_METRICS)
        self.last_error: str | None = None
        experiment_id = self._connect()
        run = self._continue_run() or self._create_run(experiment_id)
        self.run_id: str = run.info.run_id
        self._log_params(settings["params"], run)
        self._log_tags(settings["tags"])

    def add_metrics(self, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Add metrics for the next `flush`."""
        timestamp_ms = _milliseconds(time_s)
        for name, value in metrics.items():
            self._waiting.append(Metric(escaped_name(name, MLFLOW_NAMES), value, timestamp_ms, step))

    def flush(self) -> bool:
        """Write pending metrics; a failed write keeps them. Return whether none is pending."""
        while self._waiting:
            batch = next(_batches(self._waiting, "metrics", lambda metric: len(metric.key)))
            try:
                num_written = self._log("metrics", batch)
            except Exception as error:
                self.last_error = error_line(error)
                _LOGGER.warning("metrics were not written: %s", self.last_error)
                return False
            self._report_written(num_written)
            for _ in batch:
                self._waiting.popleft()
        return True

    def _log(self, kind: str, batch: Sequence[Any]) -> int:
        """Write a batch. If MLflow rejects it, write all items that it accepts. Return the number of written items."""
        try:
            self._client.log_batch(self.run_id, **{kind: batch}, synchronous=True)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            if len(batch) == 1:
                text = f"MLflow rejects the {kind[:-1]} {batch[0].key}: {error_line(error)}"
                _LOGGER.warning("%s", text)
                self._warn(text)
                return 0
            half = len(batch) // 2
            return self._log(kind, batch[:half]) + self._log(kind, batch[half:])
        return len(batch)

    def describe(self, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Add params and tags."""
        self._log_params(params, self._client.get_run(self.run_id))
        self._log_tags(tags)

    def log_artifact(self, path: str, artifact_path: str | None) -> None:
        """Copy a file or folder to the run's artifacts, as it is now."""
        if Path(path).is_dir():
            target = "/".join(part for part in (artifact_path, Path(path).name) if part)
            self._client.log_artifacts(self.run_id, path, target)
        else:
            self._client.log_artifact(self.run_id, path, artifact_path)

    def log_data_sets(self, data_sets: Sequence[Mapping[str, Any]]) -> None:
        """Record `DataSet`s as inputs of the run. MLflow skips known ones, by name and digest."""
        contexts: dict[tuple[str, str], list[str]] = {}
        for data_set in data_sets:
            contexts.setdefault((data_set["name"], data_set["digest"]), []).append(data_set["context"])
        different = {(data_set["name"], data_set["digest"]): data_set for data_set in data_sets}
        inputs = [
            DatasetInput(_dataset(data_set), [InputTag(DATASET_CONTEXT_TAG, ", ".join(dict.fromkeys(contexts[key])))])
            for key, data_set in different.items()
        ]
        self._client.log_inputs(self.run_id, datasets=inputs)

    def end(self, status: str, time_s: float, patience_s: float) -> bool:
        """Write pending metrics for about `patience_s` seconds, and end the run at `time_s`. Return False on a loss."""
        give_up_at = time.monotonic() + patience_s
        while not (is_flushed := self.flush()) and time.monotonic() < give_up_at:
            time.sleep(0.5)
        self._client.set_terminated(self.run_id, status, _milliseconds(time_s))
        return is_flushed

    def _connect(self) -> str:
        """Open the store and the experiment, creating both if necessary. Return the experiment's id."""
        uri = self._settings["tracking_uri"]
        for attempt in range(1, CONNECT_ATTEMPTS + 1):
            try:
                with _creation_lock(uri):
                    self._client = MlflowClient(tracking_uri=uri)
                    return self._find_or_create_experiment()
            except MlflowException as error:  # a process without our lock may create the same tables
                if attempt == CONNECT_ATTEMPTS or sqlite_path(uri) is None:
                    raise
                _LOGGER.warning("the store did not open, attempt %d: %s", attempt, error_line(error))
                time.sleep(1.0)
        raise AssertionError("unreachable")

    def _find_or_create_experiment(self) -> str:
        name = self._settings["experiment_name"]
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, self._settings["artifact_location"]))
            except MlflowException as error:  # another run has created it meanwhile
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = self._client.get_experiment_by_name(name)
                assert experiment is not None
        if experiment.lifecycle_stage == "deleted":
            _LOGGER.warning("experiment %r had been deleted and is restored", name)
            self._client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def _create_run(self, experiment_id: str) -> Run:
        tags = {"mlflow.source.name": "runner", "mlflow.source.type": "LOCAL"}
        with suppress(Exception):  # some containers lack a user name
            tags["mlflow.user"] = getpass.getuser()
        start_time_ms, name = _milliseconds(self._settings["start_time_s"]), self._settings["run_name"]
        name = None if name is None else _cut(name, MAX_RUN_NAME_CHARS)
        return self._client.create_run(experiment_id, start_time_ms, tags, name)

    def _continue_run(self) -> Run | None:
        """Open the run to continue; return None without one, or if it no longer exists in the store."""
        run_id = self._settings["run_id"]
        if run_id is None:
            return None
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            self._warn(f"starting a new run, because run {run_id} no longer exists in the store")
            return None
        if run.info.lifecycle_stage == "deleted":
            _LOGGER.warning("run %s had been deleted and is restored", run_id)
            self._client.restore_run(run_id)
        self._client.update_run(run_id, status="RUNNING")
        return run

    def _log_params(self, params: Mapping[str, str], run: Run) -> None:
        """Log new params, and changed ones as tags, because MLflow's params cannot change."""
        logged, tags = run.data.params, run.data.tags
        keys = {name: escaped_name(name, MLFLOW_NAMES) for name in params}
        wanted = {name: _cut(str(value), MAX_PARAM_CHARS) for name, value in params.items()}
        new = [Param(keys[name], value) for name, value in wanted.items() if keys[name] not in logged]
        for batch in _batches(new, "params", _size_of_entry):
            self._log("params", batch)
        changed = {name: value for name, value in wanted.items() if logged.get(keys[name], value) != value}
        self._log_tags({f"{OVERRIDE_PREFIX}{name}": value for name, value in changed.items()})
        for name in wanted:
            tag = escaped_name(f"{OVERRIDE_PREFIX}{name}", MLFLOW_NAMES)
            if tag in tags and name not in changed:  # an earlier resume's override is undone
                self._client.delete_tag(self.run_id, tag)

    def _log_tags(self, tags: Mapping[str, str]) -> None:
        items = [
            RunTag(escaped_name(name, MLFLOW_NAMES), _cut(str(value), MAX_TAG_CHARS)) for name, value in tags.items()
        ]
        for batch in _batches(items, "tags", _size_of_entry):
            self._log("tags", batch)


def _dataset(data_set: Mapping[str, Any]) -> Dataset:
    source = json.dumps(data_set["source"])
    if len(source) > MAX_DATASET_SOURCE_CHARS:  # too many paths; their common folder remains
        source = json.dumps({name: value for name, value in data_set["source"].items() if name != "paths"})
    columns = [{"name": name, "type": type_, "required": True} for name, type_ in data_set["schema"].items()]
    schema = json.dumps({"mlflow_colspec": columns}) if columns else None
    if schema is not None and len(schema) > MAX_DATASET_SCHEMA_CHARS:
        schema = None
    return Dataset(
        name=_cut(data_set["name"], MAX_DATASET_NAME_CHARS),
        digest=data_set["digest"],
        source_type=data_set["source_type"],
        source=source,
        schema=schema,
        profile=json.dumps(data_set["profile"]) if data_set["profile"] else None,
    )


@contextmanager
def _creation_lock(tracking_uri: str) -> Iterator[None]:
    """Allow only one process at a time to create the tables of an SQLite store; parallel MLflow migrations fail."""
    path = sqlite_path(tracking_uri)
    if path is None:
        yield
        return
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # never write through a symbolic link
    with (
        os.fdopen(os.open(path.with_name(path.name + ".lock"), flags, 0o666), "r+") as file,
        locked(file.fileno(), LOCK_TIMEOUT_S),  # if it cannot be locked, continue without
    ):
        yield


def _batches(items: Iterable[Item], kind: str, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield `items` in order, in lists within MLflow's limits on number and request size."""
    batch: list[Item] = []
    num_bytes = 0
    for item in items:
        size = size_of(item) + _ITEM_OVERHEAD_BYTES
        if batch and (len(batch) == MAX_BATCH_ITEMS[kind] or num_bytes + size > MAX_BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(item)
        num_bytes += size
    if batch:
        yield batch


def _size_of_entry(entry: Param | RunTag) -> int:
    return len(json.dumps([entry.key, entry.value]))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _cut(value: str, max_chars: int) -> str:
    return value if len(value) <= max_chars else value[: max_chars - 3] + "..."
