"""The first call of a connector of the user's, checked against what the connector declares; later calls cost
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import Problem, RunFailure, nearest_match
from runner.config.user_code import is_bad_call, is_user_defined, outline, place_of
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.episodes.spaces import blank_item
from runner.pipelines.connector import OBS, Batch, Connector, Items
from runner.pipelines.connector_list import ConnectorList
from runner.pipelines.pipeline_metrics import Call
from runner.pipelines.requirements import Requirements

_FORM = "__call__(self, *, batch, episodes, **kwargs)"


def check_first_calls(
    calls: list[Call], connectors: list[Connector], spaces: list[gym.Space[Any] | None], pipeline: str
) -> None:
    """Put a check into the place of the call of each connector of the user's; after one call it gives way to the call.

    Args:
        calls: of the connectors, changed in place.
        connectors: of a pipeline.
        spaces: of the observations after each connector; None: unknown.
        pipeline: its name.
    """
    for index, (connector, space) in enumerate(zip(connectors, spaces, strict=True)):
        if is_user_defined(type(connector)) and not isinstance(connector, ConnectorList):
            calls[index] = _FirstCall(calls, index, connector, space, f"connectors.{pipeline}")


class _FirstCall:
    """The call of one connector of a pipeline, with a check."""

    def __init__(
        self, calls: list[Call], index: int, connector: Connector, space: gym.Space[Any] | None, where: str
    ) -> None:
        self._calls, self._index, self._call = calls, index, calls[index]
        self._connector, self._space = connector, space
        self._name = type(connector).__name__
        self._where = f"{where}, {place_of(type(connector), 'transform', '__call__')}"

    def __call__(self, *, batch: Batch, episodes: Any = None, **kwargs: Any) -> Batch:
        """Call the connector and check what it did.

        Raises:
            RunFailure: it is no connector, or does not do what it declares.
        """
        before, held = list(_columns_of(batch, episodes)), _copy_of(episodes)
        try:
            result = self._call(batch=batch, episodes=episodes, **kwargs)
        except NotImplementedError as error:
            raise RunFailure(Problem(str(error), self._where)) from error
        except TypeError as error:
            if not is_bad_call(error):
                raise
            raise RunFailure(Problem(str(error), self._where, allowed=_FORM)) from error
        for problem in self._problems(before, held, result, episodes):
            raise RunFailure(problem)
        self._calls[self._index] = self._call
        return result

    def _problems(self, before: list[str], held: Any, result: Any, episodes: Any) -> Iterator[Problem]:
        name, requires = self._name, Requirements.of(self._connector)
        if not isinstance(result, dict):
            got = "None" if result is None else outline(result) or type(result).__name__
            yield Problem(f"{name}.__call__ returns no batch", self._where, got, "the batch: return batch")
            return
        columns = _columns_of(result, episodes)
        added = [column for column in columns if column not in before]
        undeclared = [column for column in added if column not in requires.writes]
        declared = ", ".join(requires.writes) or "none"
        for column in requires.writes:
            if column not in columns:
                what = f"{name} does not write column {column!r}, which its `writes` declares"
                near = nearest_match(column, undeclared)
                yield Problem(what, self._where, f"columns after it: {', '.join(columns)}", nearest=near)
        for column in undeclared:
            what = f"{name} writes column {column!r}, which its `writes` does not declare"
            allowed = f"Requirements(writes={(*requires.writes, column)!r})"
            yield Problem(what, self._where, f"writes: {declared}", allowed)
        for column in before:
            if column not in (*columns, *requires.drops):
                what = f"{name} takes out column {column!r}, which its `drops` does not declare"
                yield Problem(what, self._where, allowed=f"Requirements(drops={(*requires.drops, column)!r})")
        if OBS in columns and OBS in requires.writes:
            yield from self._misfit(columns[OBS])
        if not requires.writes_obs_to_episodes and not nested.equal(held, _copy_of(episodes)):
            what = f"{name} changes the observations of the episodes"
            yield Problem(what, self._where, allowed="changes in the batch, or `episodes.write_obs`")

    def _misfit(self, obs: Any) -> Iterator[Problem]:
        """Yield observations of another shape or dtype than the space after the connector."""
        if self._space is None or isinstance(obs, (list, Items)):
            return
        try:
            fits = all(nested.leaves(nested.map_leaves(_fits, blank_item(self._space), obs)))
        except ValueError:  # another structure
            fits = False
        if not fits:
            yield Problem(
                f"{self._name} leaves observations that are not of the space that it says comes out of it",
                self._where,
                f"{OBS} {outline(obs) or type(obs).__name__}",
                f"rows of {self._space}, or the space of such rows from recompute_output_observation_space",
            )


def _fits(blank: Any, leaf: Any) -> bool:
    if blank is None:  # of a Text, for example, arrays may be anything
        return True
    shape = np.shape(blank)
    if not hasattr(leaf, "dtype") or str(leaf.dtype).removeprefix("torch.") != str(np.asarray(blank).dtype):
        return False
    return bool(leaf.ndim > len(shape) and tuple(leaf.shape[leaf.ndim - len(shape) :]) == shape)


def _columns_of(batch: Mapping[str, Any], episodes: Any) -> Mapping[str, Any]:
    """Return the columns of a batch; in a learner pipeline those of the block's module, once they are by module."""
    columns: Mapping[str, Any] = batch.get(episodes.module_id, batch) if isinstance(episodes, ColumnBlock) else batch
    return columns


def _copy_of(episodes: Any) -> Any:
    """Return a copy of the newest observations that running episodes hold.

    A block of a learner pipeline may be written into: `set_rewards` and the like of its episodes do.
    """
    held = () if isinstance(episodes, ColumnBlock) else getattr(episodes, "current_obs", ())
    return nested.map_leaves(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, held)
