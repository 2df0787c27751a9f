"""Where the Ray actors of a role run: where Ray puts them, spread over nodes, or packed into few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.blocks import DEFAULT_STRATEGY, PACK, SPREAD


class Placement:
    """Asks Ray for places for the actors of a role.

    In a process that has a placement group, as a trial of a sweep, actors take its bundles, whatever the strategy: the
    group has been made by it.

    Args:
        each: logical resources of one actor by Ray's names, CPU and GPU among them.
        num_actors: actors at a time.
        strategy: DEFAULT, SPREAD (an actor of its own on each node, as far as there are nodes) or PACK (as few nodes as
            have room, reserved for all actors together; bundles of a lost node move to another one).
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
        """Return the options of one more actor; the first one of PACK reserves places for all."""
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
        """Note that an actor has ended; the last one gives back what is reserved."""
        from ray.util.placement_group import remove_placement_group

        self._num_placed -= 1
        if self._group is not None and self._num_placed == 0:
            remove_placement_group(self._group)
            self._group = None
