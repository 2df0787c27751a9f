"""The Ray cluster of a process: the connection, actors that wait for resources, and cleanup at the end."""

from runner.cluster.connection import connected, ensure_connected, start_local_ray, stop_ray

__all__ = ["connected", "ensure_connected", "start_local_ray", "stop_ray"]
