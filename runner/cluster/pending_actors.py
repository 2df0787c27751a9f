"""Actors of this process that wait for resources, and the number of further actors that fit into the cluster."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from runner.cluster.node_polling import polled
from runner.compat.ray_cluster import PendingActor, actor_id, available_resources_per_node, rows_of_pending_actors
from runner.config.errors import Problem

INTERVAL_S = 10.0
_POLLS_PER_INTERVAL = 10
_LEAST_AMOUNT = 1e-4  # Ray counts in ten-thousandths
_ALWAYS_SHOWN = ("CPU", "GPU")
_TITLES = {"EnvRunnerActor": "env runner", "LearnerActor": "learner", "ReplayShardActor": "replay shard"}
_IN_GROUP = "_group_"  # between a resource's name and its placement group's id

_log = logging.getLogger(__name__)


def waits_reported(note: Callable[[str], None], interval_s: float = INTERVAL_S) -> AbstractContextManager[None]:
    """Within the block, call `note` every `interval_s` with the actors that wait for resources, as long as some do.

    A thread polls; each poll is one request to Ray's head node and takes a millisecond.
    """
    since_s: dict[bytes, float] = {}
    noted_s = -interval_s

    def poll() -> bool:
        nonlocal since_s, noted_s
        now_s = time.monotonic()
        try:
            waiting = pending_actors()
            since_s = {actor.actor_id: since_s.get(actor.actor_id, now_s) for actor in waiting}
            longest_s = now_s - min(since_s.values(), default=now_s)
            if longest_s >= interval_s and now_s - noted_s >= interval_s:
                noted_s = now_s
                note(waiting_text(waiting, longest_s))
        except Exception as error:  # private API of Ray: training continues, whatever another version does
            _log.debug("Ray does not report waiting actors: %s: %s", type(error).__name__, error)
        return False

    return polled(poll, interval_s / _POLLS_PER_INTERVAL, "ray-waits")


def pending_actors() -> list[PendingActor]:
    """Return the actors of this process for which no node has resources at the moment."""
    return [replace(row, resources=_needed(row.resources)) for row in rows_of_pending_actors()]


def count_places(each: Mapping[str, float], most: int, others: Sequence[Mapping[str, float]] = ()) -> int:
    """Return the number of actors for which the nodes have resources now, after the pending actors.

    Takes two requests to Ray's head node, a few ms.

    Args:
        each: logical resources of one actor by Ray's names.
        most: maximum number to return.
        others: resources of further actors and tasks, which stay reserved.
    """
    free = available_resources_per_node()
    for other in (*(actor.resources for actor in pending_actors()), *others):
        _take_place(other, free)
    return next((count for count in range(most) if not _take_place(each, free)), most)


def _take_place(asked: Mapping[str, float], free: Sequence[dict[str, float]]) -> bool:
    """Take the resources from the first node that has them; return whether there is one."""
    for node in free:
        if all(node.get(name, 0.0) > amount - _LEAST_AMOUNT for name, amount in asked.items() if amount):
            for name, amount in asked.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False


def find_lack_of_capacity(actors: Sequence[Any], seconds: float) -> Problem | None:
    """Return a problem if no node has had resources for one of these actors.

    Args:
        actors: handles.
        seconds: time that they have waited.
    """
    try:
        ids = {actor_id(actor) for actor in actors}
        waiting = [actor for actor in pending_actors() if actor.actor_id in ids]
        if not waiting:
            return None
        what = f"the Ray cluster has not had enough free resources for {seconds:g} s: {_needs_text(waiting)}"
        fix = "use a larger cluster, fewer or smaller actors, or a longer time"
        return Problem(what, "ray.actor_start_timeout_s", f"free: {_free_text(waiting)}", fix=fix)
    except Exception as error:  # private API of Ray, as below
        _log.debug("Ray does not report waiting actors: %s: %s", type(error).__name__, error)
        return None


def waiting_text(waiting: list[PendingActor], seconds: float) -> str:
    """Return a line with the waiting actors, the resources that each needs, and the free ones."""
    return f"waiting for resources for {seconds:.0f} s: {_needs_text(waiting)}; free: {_free_text(waiting)}"


def _needed(required: Mapping[str, float]) -> dict[str, float]:
    """Return resources under names without placement groups and their bundles."""
    plain = {name.partition(_IN_GROUP)[0]: amount for name, amount in required.items()}
    return {name: amount for name, amount in plain.items() if name != "bundle"}


def _needs_text(waiting: Sequence[PendingActor]) -> str:
    counts = Counter((_TITLES.get(actor.class_name, actor.class_name), _amounts(actor.resources)) for actor in waiting)
    return "; ".join(
        f"{count} {title}{'' if count == 1 else 's'}{' needs' if count == 1 else ', each needs'} {amounts}"
        for (title, amounts), count in counts.items()
    )


def _free_text(waiting: Sequence[PendingActor]) -> str:
    import ray

    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    names = dict.fromkeys((*_ALWAYS_SHOWN, *(name for actor in waiting for name in actor.resources)))
    return ", ".join(f"{name} {free.get(name, 0.0):g} of {there.get(name, 0.0):g}" for name in names)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items())) or "nothing"
