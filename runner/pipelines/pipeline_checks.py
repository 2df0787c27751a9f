"""Checks of pipelines in addition to their columns: the positions of connectors, the rows they leave, and whether the
module learns from the observations that it acts on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from torch import Tensor

from runner.config.errors import Problem, RunFailure
from runner.config.user_code import is_user_defined, place_of
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.pipelines.common_connectors import AddObservationsFromEpisodesToBatch
from runner.pipelines.connector import LOSS_MASK, OBS, SEQ_LENS, Connector, Items
from runner.pipelines.connector_list import ConnectorList
from runner.pipelines.requirements import Requirements

_ARRAYS = (np.ndarray, Tensor)


def find_misplaced_connector(connectors: Sequence[Connector], pipeline: str) -> Problem | None:
    """Return a problem for the first connector that belongs in another pipeline, or that comes after a connector that
    changes the observations it reads.

    Args:
        connectors: connectors in the order of their calls, nested pipelines before their connectors.
        pipeline: name of the pipeline.
    """
    changer: str | None = None
    for connector in connectors:
        name, requires = type(connector).__name__, Requirements.of(connector)
        if requires.belongs_in is not None and pipeline not in requires.belongs_in:
            return Problem(
                f"{name} does not belong in the {pipeline} pipeline",
                where=f"connectors.{pipeline}",
                got=_order_of(connectors),
                fix=f"move it to connectors.{' or connectors.'.join(requires.belongs_in)}",
            )
        if isinstance(connector, ConnectorList):  # its connectors come next
            continue
        if requires.needs_episode_obs and changer is not None:
            return Problem(
                f"{name} reads observations from the episodes, but the earlier {changer} changes column 'obs'",
                where=f"connectors.{pipeline}",
                got=_order_of(connectors),
                fix=f"put {name} before the connectors that change observations",
            )
        if changes_observations(connector):
            changer = name
    return None


def changes_observations(connector: Connector) -> bool:
    """Return whether the connector declares that column `obs` differs from the episodes' observations after it."""
    return OBS in Requirements.of(connector).writes and not isinstance(connector, AddObservationsFromEpisodesToBatch)


def find_unmatched_connector(
    acting: Iterable[Connector], learning: Iterable[Connector], may_augment: bool
) -> Problem | None:
    """Return a problem for the first connector that changes the observations for acting or for learning, but not both.

    Connectors match by their classes, in order. The learner gets the observations in the episodes unchanged, so
    connectors up to the last one that writes observations to the episodes do not need a match.

    Args:
        acting, learning: connectors of the env-to-module and of the learner pipeline, in the order of their calls.
        may_augment: whether the learner pipeline may change observations that are not changed for acting, to augment
            recorded data.
    """
    to_match: list[str] = []
    for connector in acting:
        if Requirements.of(connector).writes_obs_to_episodes:
            to_match = []
        elif changes_observations(connector):
            to_match.append(type(connector).__name__)
    matches = [type(connector).__name__ for connector in learning if changes_observations(connector)]
    for acted, learned in zip_longest(to_match, matches):
        if acted != learned and acted is not None:
            return _unmatched(acted, "acts on", "connectors.env_to_module", to_match, matches)
        if acted != learned and not may_augment:
            return _unmatched(learned, "learns from", "connectors.learner", to_match, matches)
    return None


def _unmatched(connector: str, what: str, where: str, acting: Sequence[str], learning: Sequence[str]) -> Problem:
    other = "learns from" if what == "acts on" else "acts on"
    return Problem(
        f"{connector} changes the observations that the module {what}, but not the observations that it {other}",
        where=where,
        got=f"changed for acting by: {', '.join(acting) or 'none'}; for learning by: {', '.join(learning) or 'none'}",
        fix="put WriteObservationsToEpisodes after the connectors in connectors.env_to_module, or put the same "
        "connectors in the same order into connectors.learner",
    )


def _order_of(connectors: Sequence[Connector]) -> str:
    return " -> ".join(type(connector).__name__ for connector in connectors)


def rows_to_learn_from(columns: Mapping[str, Any], block: ColumnBlock) -> int:
    """Return the current number of rows: S sequences, R + E rows with bootstrap rows, or R env steps."""
    if SEQ_LENS in columns:
        return len(columns[SEQ_LENS])
    has_bootstrap_rows = LOSS_MASK in columns and len(columns[LOSS_MASK]) != block.num_rows
    return block.num_rows + len(block) * has_bootstrap_rows


def check_rows(pipeline: str, connector: Connector, columns: Mapping[str, Any], num_rows: int) -> None:
    """Check that a connector has left every column with `num_rows` rows; lists and items are not arrays yet.

    Raises:
        RunFailure: the number of rows differs; the message names the connector and the column.
    """
    for column, rows in columns.items():
        if type(rows) in _ARRAYS and rows.shape[:1] == (num_rows,):  # the usual case, at a fifth of the cost
            continue
        if isinstance(rows, (list, Items)):
            continue
        for leaf in nested.leaves(rows):
            shape = tuple(getattr(leaf, "shape", ()))
            if shape[:1] != (num_rows,):
                place = (
                    f", {place_of(type(connector), 'transform', '__call__')}"
                    if is_user_defined(type(connector))
                    else ""
                )
                problem = Problem(
                    f"{type(connector).__name__} returns column {column!r} with a wrong number of rows",
                    where=f"connectors.{pipeline}{place}",
                    got=f"an array of shape {shape}" if hasattr(leaf, "shape") else repr(leaf),
                    expected=f"arrays with {num_rows} rows, the number of rows in the batch",
                )
                raise RunFailure(problem)
