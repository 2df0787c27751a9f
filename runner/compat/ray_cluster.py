"""Private state of Ray: free resources of each node, actors without a node, processes of this machine, and messages.

`ray.util.state` offers some of it publicly, but needs the dashboard, which clusters of `runner` do not start.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.compat.libraries import Library

RAY = Library("ray", ">=2.54,<2.61")

# Argument of `ray.init` for the folder of the session. The environment variable RAY_TMPDIR is public, but inherited by
# child processes.
TEMP_DIR_ARGUMENT = "_temp_dir"
_WORKER = "ray._private.worker"
_NEEDED_PROCESSES = ("raylet", "gcs_server")
_PRINTER = "print_worker_logs"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingActor:
    """An actor of this process that no node has started yet, with its logical resources by Ray's names."""

    actor_id: bytes
    class_name: str
    resources: Mapping[str, float]


def available_resources_per_node() -> list[dict[str, float]]:
    """Return the free resources of each node; the public `ray.available_resources` returns only their sum.

    Raises:
        LibraryChangedError: this version of Ray does not provide them.
    """
    with RAY.expected():
        from ray._private import state

        nodes: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return [dict(node) for node in nodes.values()]


def rows_of_pending_actors() -> list[PendingActor]:
    """Return the actors of this process that no node has started yet; `ray.util.state.list_actors` would replace it.

    Raises:
        LibraryChangedError: this version of Ray does not list them.
    """
    import ray

    if not ray.is_initialized():
        return []
    this_worker = bytes.fromhex(ray.get_runtime_context().get_worker_id())
    with RAY.expected():
        from ray._private.state import state
        from ray.core.generated import gcs_pb2

        row_type: Any = gcs_pb2.ActorTableData  # type: ignore[attr-defined]  # generated without types
        table = state._connect_and_get_accessor().get_actor_table(None, "PENDING_CREATION")
        actors = [row_type.FromString(row) for row in table]
        # An actor that waits at a node already has the node's address, but no worker.
        return [
            PendingActor(actor.actor_id, actor.class_name, dict(actor.required_resources))
            for actor in actors
            if actor.owner_address.worker_id == this_worker and not actor.address.worker_id
        ]


def actor_id(handle: Any) -> bytes:
    """Return the id of the actor behind a handle; publicly, only the actor itself can read it.

    Raises:
        LibraryChangedError: this version of Ray does not have the attribute.
    """
    with RAY.expected():
        id_: bytes = handle._actor_id.binary()
    return id_


def lost_process() -> str | None:
    """Return the ended process of a Ray cluster that this process started, with its exit code, or None.

    Only processes that Ray needs are considered. Ray itself ends this process with exit code 1 afterwards, immediately
    or up to a minute later. A public callback for the end of Ray would replace this function. For versions of Ray with
    a different structure it returns None.
    """
    try:
        node: Any = importlib.import_module(_WORKER)._global_node
        dead = [] if node is None else node.dead_processes()
    except Exception as error:  # training must continue with any version of Ray
        _log.debug("cannot read which processes of Ray have ended: %s: %s", type(error).__name__, error)
        return None
    names = {name: process.returncode for name, process in dead if name in _NEEDED_PROCESSES}
    return next((f"Ray's {name} (exit code {code})" for name, code in names.items()), None)


def replace_message_printer(printer: Callable[..., None]) -> Callable[..., None] | None:
    """Replace the function that prints Ray's messages and workers' output to this process's stdout.

    `ray.init(log_to_driver=False)` is public, but Ray prints some messages nevertheless.

    Returns:
        The previous function, or None if this version of Ray does not have one; then nothing is changed.
    """
    worker: Any = importlib.import_module(_WORKER)
    before: Callable[..., None] | None = getattr(worker, _PRINTER, None)
    if before is not None:
        setattr(worker, _PRINTER, printer)
    return before
