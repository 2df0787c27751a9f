"""Warnings of MuJoCo, which it otherwise prints for each environment and writes to MUJOCO_LOG.TXT."""

from __future__ import annotations

import logging
from functools import cache

_log = logging.getLogger(__name__)
_ENTRY_POINTS = "gymnasium.envs.mujoco"
_TIME = " Time = "  # before the time of the simulation, which differs from warning to warning
_OF_MODEL_FILES = "compiler attribute 'settotalmass' is deprecated"  # Gymnasium's, which users cannot change


def log_mujoco_warnings(env_id: str) -> None:
    """Log the warnings of MuJoCo in this process, each one once, if a Gymnasium id belongs to a MuJoCo environment.

    A handler that user code has set is kept.
    """
    import gymnasium  # takes a tenth of a second

    spec = gymnasium.registry.get(env_id)
    if spec is not None and str(spec.entry_point).startswith(_ENTRY_POINTS):
        _set_handler()


@cache
def _set_handler() -> None:
    try:
        import mujoco
    except ImportError:  # reported by the environment
        return
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lambda text: _log_once(text.partition(_TIME)[0]))


@cache
def _log_once(text: str) -> None:
    if not text.startswith(_OF_MODEL_FILES):
        _log.warning("MuJoCo: %s", text)
