"""The processes of the Ray that this process has started: without them nothing goes on."""

from __future__ import annotations

import logging
from typing import Any

_NEEDED = ("raylet", "gcs_server")

_log = logging.getLogger(__name__)


def lost_process() -> str | None:
    """Return the process that has ended of the Ray that this process started, with its exit code; None: all go on.

    Only processes count that Ray cannot do without. Ray itself ends this process with exit code 1 afterwards: at once,
    or a minute later.
    """
    try:
        from ray._private import worker

        node: Any = worker._global_node
        dead = [] if node is None else node.dead_processes()
    except Exception as error:  # private to Ray: whatever another version does, training goes on
        _log.debug("Ray does not say which of its processes have ended: %s: %s", type(error).__name__, error)
        return None
    return next((f"Ray's {name} (exit code {process.returncode})" for name, process in dead if name in _NEEDED), None)
