"""Our connectors by `runner.testing.check_connector`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runner.pipelines.connector import Connector
from runner.testing import check_connector as check_connector

WITH_MASK = [{"prepend": {"_target_": "runner.pipelines.AddOneTsToEpisodesAndTruncate"}}]
AFTER_OBS = ("insert_after", "AddObservationsFromEpisodesToBatch")
AFTER_COLUMNS = ("insert_after", "AddColumnsFromEpisodesToTrainBatch")


class ConnectorCase(NamedTuple):
    """Arguments of `check_connector`."""

    make: Callable[[], Connector]
    pipeline: str
    verb: str
    anchor: str | None = None
    edits: Sequence[Mapping[str, Any]] = ()
