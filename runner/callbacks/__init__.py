"""What a run calls at its events: `Callback` is the base of one's own, named by `callbacks` in YAML."""

from runner.callbacks.callback import EPISODE_HOOKS, HOOKS, Callback
from runner.callbacks.callbacks import Callbacks, build_callbacks

__all__ = [
    "EPISODE_HOOKS",
    "HOOKS",
    "Callback",
    "Callbacks",
    "build_callbacks",
]
