"""BipedalWalker whose episodes follow from their seeds and actions alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from runner.compat.gymnasium_box2d import destroy_bodies


class NewWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives each episode of BipedalWalker a Box2D world of its own, as gymnasium's LunarLander has it.

    gymnasium (1.4) keeps one world, whose earlier episodes change the last bits of later ones: a resumed run, which
    repeats the actions of the running episodes in new worlds, would go on with other numbers.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset in a new world."""
        walker: Any = self.env.unwrapped
        destroy_bodies(walker)  # with the bodies of the old world, which `reset` would look for in the new one
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)
