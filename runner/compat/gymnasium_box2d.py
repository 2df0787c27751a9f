"""A private method of gymnasium's Box2D environments."""

from __future__ import annotations

from typing import Any

from runner.compat.libraries import Library

GYMNASIUM = Library("gymnasium", ">=1.1,<1.5")


def destroy_bodies(env: Any) -> None:
    """Remove the bodies from an environment's Box2D world; a `reset` option for a new world would replace this.

    Raises:
        LibraryChangedError: this version of gymnasium does not have the method.
    """
    with GYMNASIUM.expected():
        destroy = env._destroy
    destroy()
