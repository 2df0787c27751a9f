"""The first call of a connector of the user's, checked against what the connector declares; later calls cost
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import Problem, nearest_match
from runner.config.first_call import Contract, use_checked
from runner.config.user_code import outline, place_of
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.episodes.spaces import blank_item
from runner.pipelines.connector import OBS, Batch, Connector, Items
from runner.pipelines.connector_list import ConnectorList
from runner.pipelines.pipeline_metrics import Call
from runner.pipelines.requirements import Requirements


def check_first_calls(
    calls: list[Call], connectors: list[Connector], spaces: list[gym.Space[Any] | None], pipeline: str
) -> None:
    """Replace the call of each of the user's connectors by one with a check, which puts the call back once it passes.

    Args:
        calls: of the connectors, changed in place.
        connectors: of a pipeline.
        spaces: of the observations after each connector; None: unknown.
        pipeline: its name.
    """
    for index, (connector, space) in enumerate(zip(connectors, spaces, strict=True)):
        if not isinstance(connector, ConnectorList):
            use = partial(calls.__setitem__, index)
            use_checked(connector, calls[index], partial(_contract_of, connector, space, f"connectors.{pipeline}"), use)


def _contract_of(connector: Connector, space: gym.Space[Any] | None, pipeline: str) -> Contract[Batch]:
    """Return what the first call of a connector must keep to: what it declares."""
    where = f"{pipeline}, {place_of(type(connector), 'transform', '__call__')}"

    def find_problems(
        before: tuple[list[str], Any], result: Any, *, episodes: Any = None, **_: Any
    ) -> Iterator[Problem]:
        name = type(connector).__name__
        if not isinstance(result, dict):
            got = "None" if result is None else outline(result) or type(result).__name__
            yield Problem(f"{name}.__call__ returns no batch", where, got, "the batch: return batch")
            return
        columns_before, held = before
        columns, requires = _columns_of(result, episodes), Requirements.of(connector)
        yield from _undeclared(name, requires, columns_before, columns, where)
        if OBS in columns and OBS in requires.writes and not _is_of_space(columns[OBS], space):
            yield Problem(
                f"{name} leaves observations that are not of the space that it says comes out of it",
                where,
                f"{OBS} {outline(columns[OBS]) or type(columns[OBS]).__name__}",
                f"rows of {space}, or the space of such rows from recompute_output_observation_space",
            )
        if not requires.writes_obs_to_episodes and not nested.equal(held, _copy_of(episodes)):
            what = f"{name} changes the observations of the episodes"
            yield Problem(what, where, expected="changes in the batch, or `episodes.write_obs`")

    return Contract(where, "__call__(self, *, batch, episodes, **kwargs)", find_problems, _remember)


def _remember(*, batch: Batch, episodes: Any = None, **_: Any) -> tuple[list[str], Any]:
    """Return the columns before a call, and a copy of the observations that the episodes hold."""
    return list(_columns_of(batch, episodes)), _copy_of(episodes)


def _undeclared(
    name: str, requires: Requirements, before: Sequence[str], after: Collection[str], where: str
) -> Iterator[Problem]:
    """Yield columns that a connector writes or takes out, and does not declare, or the other way round."""
    undeclared = [column for column in after if column not in (*before, *requires.writes)]
    for column in requires.writes:
        if column not in after:
            what = f"{name} does not write column {column!r}, which its `writes` declares"
            near = nearest_match(column, undeclared)
            yield Problem(what, where, f"columns after it: {', '.join(after)}", nearest=near)
    for column in undeclared:
        what = f"{name} writes column {column!r}, which its `writes` does not declare"
        declared = f"writes: {', '.join(requires.writes) or 'none'}"
        yield Problem(what, where, declared, f"Requirements(writes={(*requires.writes, column)!r})")
    for column in before:
        if column not in (*after, *requires.drops):
            what = f"{name} takes out column {column!r}, which its `drops` does not declare"
            yield Problem(what, where, expected=f"Requirements(drops={(*requires.drops, column)!r})")


def _is_of_space(obs: Any, space: gym.Space[Any] | None) -> bool:
    """Return whether observations have the shapes and dtypes of a space; items and unknown spaces are not judged."""
    if space is None or isinstance(obs, (list, Items)):
        return True
    try:
        return all(nested.leaves(nested.map_leaves(_fits, blank_item(space), obs)))
    except ValueError:  # another structure
        return False


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
