"""The Ray cluster of a process: which one it uses, who waits for a place in it, and what is left of it at the end."""

from runner.cluster.connection import connected, ensure_connected, start_local_ray, stop_ray
from runner.cluster.pending_actors import waits_told

__all__ = ["connected", "ensure_connected", "start_local_ray", "stop_ray", "waits_told"]
