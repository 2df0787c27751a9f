"""Hooks for the events of a run: `Callback` is the base class of the classes that `callbacks` names in YAML."""

from runner.callbacks.callback import EPISODE_HOOKS, HOOKS, Callback
from runner.callbacks.callbacks import Callbacks, build_callbacks

__all__ = [
    "EPISODE_HOOKS",
    "HOOKS",
    "Callback",
    "Callbacks",
    "build_callbacks",
]
