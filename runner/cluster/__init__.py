"""The Ray cluster of a process: the connection, actors that wait for resources, and cleanup at the end."""

from runner.cluster.connection import connected, ensure_connected, start_local_ray, stop_ray
from runner.cluster.pending_actors import waits_reported

__all__ = ["connected", "ensure_connected", "start_local_ray", "stop_ray", "waits_reported"]
