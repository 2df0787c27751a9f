"""The number of further actors for which the cluster has resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.cluster.pending_actors import pending_actors
from runner.compat.ray_cluster import available_resources_per_node

_LEAST_AMOUNT = 1e-4  # Ray counts in ten-thousandths


def count_places(each: Mapping[str, float], most: int, others: Sequence[Mapping[str, float]] = ()) -> int:
    """Return the number of actors for which the nodes have resources now; takes two requests to Ray's head node, a few
    ms.

    Pending actors of this process are counted first.

    Args:
        each: logical resources of one actor by Ray's names.
        most: maximum number to return.
        others: resources of further actors and tasks, which stay reserved.
    """
    free = available_resources_per_node()
    for other in (*(actor.resources for actor in pending_actors()), *others):
        _take_place(other, free)
    return next((count for count in range(most) if not _take_place(each, free)), most)


def _take_place(asked: Mapping[str, float], free: Sequence[dict[str, float]]) -> bool:
    """Take the resources from the first node that has them; return whether there is one."""
    for node in free:
        if all(node.get(name, 0.0) > amount - _LEAST_AMOUNT for name, amount in asked.items() if amount):
            for name, amount in asked.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False
