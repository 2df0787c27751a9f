"""The bodies of a Box2D world can be removed; a failure here means that gymnasium has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from runner.compat.gymnasium_box2d import destroy_bodies
from runner.compat.libraries import LibraryChangedError


def test_bodies_are_removed_from_the_world() -> None:
    env = gym.make("BipedalWalker-v3")
    env.reset(seed=0)
    walker: Any = env.unwrapped
    assert walker.world.bodyCount > 5
    destroy_bodies(walker)
    assert walker.world.bodyCount == 0
    env.reset(seed=0)
    env.close()


def test_an_environment_without_the_method_is_reported() -> None:
    with pytest.raises(LibraryChangedError, match=r"gymnasium .* no attribute '_destroy'"):
        destroy_bodies(SimpleNamespace())
