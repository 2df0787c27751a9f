"""Placement of the Ray actors of a role: Ray's default, spread over nodes, or packed into few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.blocks import DEFAULT_STRATEGY, PACK, SPREAD


class Placement:
    """Requests resources for the actors of a role from Ray.

    In a process with a placement group, such as a trial of a sweep, actors use its bundles with any strategy, because
    the strategy already determined the group.

    Args:
        each: logical resources of one actor by Ray's names, including CPU and GPU.
        num_actors: number of concurrent actors.
        strategy: DEFAULT, SPREAD (each actor on a different node, while there are enough nodes) or PACK (on as few
            nodes as possible, reserved for all actors together; bundles of a failed node move to another one).
    """

    def __init__(self, each: Mapping[str, float], num_actors: int = 1, strategy: str = DEFAULT_STRATEGY) -> None:
        from ray.util.placement_group import get_current_placement_group

        custom = {name: amount for name, amount in each.items() if name not in ("CPU", "GPU")}
        self._options = {"num_cpus": each.get("CPU", 0.0), "num_gpus": each.get("GPU", 0.0), "resources": custom}
        self._strategy = strategy if get_current_placement_group() is None else DEFAULT_STRATEGY
        self._bundles = [{name: amount for name, amount in each.items() if amount}] * num_actors
        self._group: Any = None
        self._num_placed = 0

    def place(self) -> dict[str, Any]:
        """Return the options of one more actor; the first one of PACK reserves resources for all of them."""
        self._num_placed += 1
        if self._strategy == DEFAULT_STRATEGY:  # Ray's option of this name would leave the group of a trial
            return self._options
        if self._strategy == SPREAD:
            return self._options | {"scheduling_strategy": SPREAD}
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._group = self._group or placement_group(self._bundles, strategy=PACK)
        return self._options | {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group)}

    def leave(self) -> None:
        """Record that an actor has ended; the last one releases the reservation."""
        from ray.util.placement_group import remove_placement_group

        self._num_placed -= 1
        if self._group is not None and self._num_placed == 0:
            remove_placement_group(self._group)
            self._group = None
