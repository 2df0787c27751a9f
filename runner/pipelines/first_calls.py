"""Check the first call of each user-defined connector against its declarations. Later calls are not checked and cost
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
    calls: list[Call], connectors: list[Connector], spaces: Sequence[gym.Space[Any] | None], pipeline: str
) -> None:
    """Replace the calls of user-defined connectors by checked ones; each original call is restored once it passes.

    Args:
        calls: calls of the connectors, changed in place.
        connectors: connectors of a pipeline.
        spaces: space of the observations after each connector, or None if unknown.
        pipeline: name of the pipeline.
    """
    for index, (connector, space) in enumerate(zip(connectors, spaces, strict=True)):
        if not isinstance(connector, ConnectorList):
            use = partial(calls.__setitem__, index)
            use_checked(connector, calls[index], partial(_contract_of, connector, space, f"connectors.{pipeline}"), use)


def _contract_of(connector: Connector, space: gym.Space[Any] | None, pipeline: str) -> Contract[Batch]:
    """Return the contract for the first call of a connector, made from its declarations."""
    where = f"{pipeline}, {place_of(type(connector), 'transform', '__call__')}"

    def find_problems(
        before: tuple[list[str], Any], result: Any, *, episodes: Any = None, **_: Any
    ) -> Iterator[Problem]:
        name = type(connector).__name__
        if not isinstance(result, dict):
            got = "None" if result is None else outline(result) or type(result).__name__
            yield Problem(f"{name}.__call__ does not return a batch", where, got, fix="return batch")
            return
        columns_before, held = before
        columns, requires = _columns_of(result, episodes), Requirements.of(connector)
        yield from _undeclared(name, requires, columns_before, columns, where)
        if OBS in columns and OBS in requires.writes and not _is_of_space(columns[OBS], space):
            yield Problem(
                f"{name} returns observations that are not in its output space",
                where,
                f"{OBS} {outline(columns[OBS]) or type(columns[OBS]).__name__}",
                f"rows of {space}",
                fix=f"return the space of these rows from {name}.recompute_output_observation_space",
            )
        if not requires.writes_obs_to_episodes and not nested.equal(held, _copy_of(episodes)):
            what = f"{name} changes the observations of the episodes in place"
            yield Problem(what, where, fix="change the batch, or call `episodes.write_obs`")

    return Contract(where, "__call__(self, *, batch, episodes, **kwargs)", find_problems, _remember)


def _remember(*, batch: Batch, episodes: Any = None, **_: Any) -> tuple[list[str], Any]:
    """Return the columns before a call, and a copy of the observations in the episodes."""
    return list(_columns_of(batch, episodes)), _copy_of(episodes)


def _undeclared(
    name: str, requires: Requirements, before: Sequence[str], after: Collection[str], where: str
) -> Iterator[Problem]:
    """Yield columns that a connector writes or drops without declaring it, or declares but does not write or drop."""
    undeclared = [column for column in after if column not in (*before, *requires.writes)]
    for column in requires.writes:
        if column not in after:
            what = f"{name} does not write column {column!r}, which its `writes` declares"
            near = nearest_match(column, undeclared)
            yield Problem(what, where, f"columns after it: {', '.join(after)}", nearest=near)
    for column in undeclared:
        what = f"{name} writes column {column!r}, which its `writes` does not declare"
        declared = f"writes: {', '.join(requires.writes) or 'none'}"
        yield Problem(what, where, declared, fix=f"requires = Requirements(writes={(*requires.writes, column)!r})")
    for column in before:
        if column not in (*after, *requires.drops):
            what = f"{name} removes column {column!r}, which its `drops` does not declare"
            yield Problem(what, where, fix=f"requires = Requirements(drops={(*requires.drops, column)!r})")


def _is_of_space(obs: Any, space: gym.Space[Any] | None) -> bool:
    """Return whether observations have the shapes and dtypes of a space; also true for items and unknown spaces."""
    if space is None or isinstance(obs, (list, Items)):
        return True
    try:
        return all(nested.leaves(nested.map_leaves(_fits, blank_item(space), obs)))
    except ValueError:  # the structures differ
        return False


def _fits(blank: Any, leaf: Any) -> bool:
    if blank is None:  # for some spaces, Text for example, any array is valid
        return True
    shape = np.shape(blank)
    if not hasattr(leaf, "dtype") or str(leaf.dtype).removeprefix("torch.") != str(np.asarray(blank).dtype):
        return False
    return bool(leaf.ndim > len(shape) and tuple(leaf.shape[leaf.ndim - len(shape) :]) == shape)


def _columns_of(batch: Mapping[str, Any], episodes: Any) -> Mapping[str, Any]:
    """Return the columns of a batch; in a learner pipeline grouped by module, the columns of the block's module."""
    columns: Mapping[str, Any] = batch.get(episodes.module_id, batch) if isinstance(episodes, ColumnBlock) else batch
    return columns


def _copy_of(episodes: Any) -> Any:
    """Return a copy of the newest observations of running episodes.

    Blocks of learner pipelines are not copied, because connectors may write into them, for example with `set_rewards`.
    """
    held = () if isinstance(episodes, ColumnBlock) else getattr(episodes, "current_obs", ())
    return nested.map_leaves(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, held)
