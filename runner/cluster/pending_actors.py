"""Says which actors of this process wait for a place in the cluster, what they ask for, and what is free."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from runner.cluster.node_polling import run_beside
from runner.compat.ray_cluster import actor_id, rows_of_pending_actors
from runner.config.errors import Problem

INTERVAL_S = 10.0
_LOOKS_AN_INTERVAL = 10
_ALWAYS_SHOWN = ("CPU", "GPU")
_TITLES = {"EnvRunnerActor": "env runner", "LearnerActor": "learner", "ReplayShardActor": "replay shard"}
_IN_GROUP = "_group_"  # between a resource's name and its placement group's id

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingActor:
    """An actor that has no place yet: what it is, and its logical resources by name."""

    actor_id: bytes
    title: str
    asked: Mapping[str, float]


def waits_told(note: Callable[[str], None], interval_s: float = INTERVAL_S) -> AbstractContextManager[None]:
    """Tell `note` within every `interval_s` which actors wait for resources, as long as some do.

    A thread looks; each look is one question to the cluster's head, a millisecond.
    """
    return run_beside(partial(_tell_until, note=note, interval_s=interval_s), "ray-waits")


def _tell_until(is_over: threading.Event, note: Callable[[str], None], interval_s: float) -> None:
    since_s: dict[bytes, float] = {}
    told_s = -interval_s
    while not is_over.wait(interval_s / _LOOKS_AN_INTERVAL):
        now_s = time.monotonic()
        try:
            waiting = pending_actors()
            since_s = {actor.actor_id: since_s.get(actor.actor_id, now_s) for actor in waiting}
            longest_s = now_s - min(since_s.values(), default=now_s)
            if longest_s >= interval_s and now_s - told_s >= interval_s:
                told_s = now_s
                note(waiting_text(waiting, longest_s))
        except Exception as error:  # private to Ray: whatever another version does, training goes on
            _log.debug("Ray does not say who waits: %s: %s", type(error).__name__, error)


def pending_actors() -> list[PendingActor]:
    """Return the actors of this process that no node has a place for at the moment."""
    return [
        PendingActor(row.actor_id, _TITLES.get(row.class_name, row.class_name), _asked(row.resources))
        for row in rows_of_pending_actors()
    ]


def find_lack_of_capacity(actors: Sequence[Any], seconds: float) -> Problem | None:
    """Return a problem if no node has had a place for one of these actors.

    Args:
        actors: handles.
        seconds: time that they have waited.
    """
    try:
        ids = {actor_id(actor) for actor in actors}
        waiting = [actor for actor in pending_actors() if actor.actor_id in ids]
        if not waiting:
            return None
        what = f"the Ray cluster has had no room for {seconds:g} s: {_asked_text(waiting)}"
        expected = "a cluster with more room, fewer or smaller actors, or a longer time"
        return Problem(what, "ray.actor_start_timeout_s", f"free: {_free_text(waiting)}", expected)
    except Exception as error:  # private to Ray, as below
        _log.debug("Ray does not say who waits: %s: %s", type(error).__name__, error)
        return None


def waiting_text(waiting: list[PendingActor], seconds: float) -> str:
    """Return a line that says who waits, what each asks for, and what is free."""
    return f"waiting for resources for {seconds:.0f} s: {_asked_text(waiting)}; free: {_free_text(waiting)}"


def _asked(required: Mapping[str, float]) -> dict[str, float]:
    """Return resources without the names of placement groups and their bundles."""
    plain = {name.partition(_IN_GROUP)[0]: amount for name, amount in required.items()}
    return {name: amount for name, amount in plain.items() if name != "bundle"}


def _asked_text(waiting: Sequence[PendingActor]) -> str:
    counts = Counter((actor.title, _amounts(actor.asked)) for actor in waiting)
    return "; ".join(
        f"{count} {title}{'' if count == 1 else 's'}{' asks' if count == 1 else ', each asks'} for {amounts}"
        for (title, amounts), count in counts.items()
    )


def _free_text(waiting: Sequence[PendingActor]) -> str:
    import ray

    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    names = dict.fromkeys((*_ALWAYS_SHOWN, *(name for actor in waiting for name in actor.asked)))
    return ", ".join(f"{name} {free.get(name, 0.0):g} of {there.get(name, 0.0):g}" for name in names)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items())) or "nothing"
