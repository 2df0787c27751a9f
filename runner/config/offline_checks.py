"""Checks of the `offline` block against the algorithm."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.compose import Composed
from runner.config.edits import describe_fault
from runner.config.errors import Problem
from runner.config.metrics import learns_offline
from runner.config.schemas import ExperimentConfig
from runner.config.targets import find_target_fault

OFFLINE_DATAFLOW = "runner.dataflow.offline.offline"


def find_offline_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Data for an algorithm that learns from recorded episodes, none for others, and options that contradict."""
    offline, algorithm = config.offline, config.algorithm
    name = type(algorithm).__name__.removesuffix("Config")
    reads_data = algorithm.dataflow == OFFLINE_DATAFLOW
    if reads_data and not learns_offline(config):
        what = f"{name} learns from recorded data, and offline.input_ names none"
        yield Problem(what, composed.where("offline.input_"), "null", "offline.input_=PATH, for example of `record`")
    if learns_offline(config) and algorithm.dataflow == "runner.dataflow.on_policy":
        what = f"{name} learns from what it samples, recorded data would have no effect"
        yield Problem(what, composed.where("offline.input_"), str(offline.input_), "null, or algorithm=bc, marwil, ...")
    if offline.materialize_data and offline.materialize_mapped_data and learns_offline(config):
        what = "the data would be held twice, as they are read and as train batches"
        allowed = "one of offline.materialize_data and offline.materialize_mapped_data"
        yield Problem(what, composed.where("offline.materialize_data"), "true", allowed)
    if reads_data and not offline.materialize_mapped_data and offline.dataset_num_iters_per_learner is None:
        what = "an iteration on streamed data needs a number of updates, a stream has no passes"
        yield Problem(what, composed.where("offline.dataset_num_iters_per_learner"), "null", "1 or more")
    for key in ("prelearner_buffer_class", "prelearner_buffer_kwargs"):
        if value := getattr(offline, key):
            what = "pre-learners have no episode buffers yet"
            yield Problem(what, composed.where(f"offline.{key}"), str(value), f"{key} as it is by default")
    for key in ("offline_data_class", "prelearner_class"):
        path = getattr(offline, key)
        fault = None if path is None else find_target_fault(path)
        if fault is not None:
            yield describe_fault(f"offline.{key}", fault, composed.where(f"offline.{key}"), path)
