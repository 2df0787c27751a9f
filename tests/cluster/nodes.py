"""Nodes of a cluster, as processes of this machine, for tests that add and kill some."""

from __future__ import annotations

from typing import Any

CPUS_PER_NODE = 2
# A node that is silent is lost after two seconds; by Ray's default it takes half a minute.
_SOON = {"health_check_period_ms": 500, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 2}


class Nodes:
    """A head without CPUs, which the run is connected to, and nodes beside it."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _SOON}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.workers: dict[str, Any] = {}

    def make(self, num_nodes: int) -> None:
        """Have so many nodes beside the head, or more."""
        while len(self.workers) < num_nodes:
            self.add()

    def add(self, **resources: float) -> str:
        """Have one more node, with these custom resources; returns its id."""
        node = self.cluster.add_node(num_cpus=CPUS_PER_NODE, resources=resources)
        self.workers[node.node_id] = node
        return str(node.node_id)

    def kill(self, node_id: str) -> None:
        """Kill a node's processes."""
        self.cluster.remove_node(self.workers.pop(node_id), allow_graceful=False)

    def kill_idle(self, num_nodes: int) -> None:
        """Kill nodes, on which nothing runs, until there are so many beside the head."""
        while len(self.workers) > num_nodes:
            self.kill(next(iter(self.workers)))

    def of_runners(self) -> list[str]:
        """Return the node of each env runner that is alive."""
        return self._of("EnvRunnerActor")

    def of_learners(self) -> list[str]:
        """Return the node of each learner that is alive."""
        return self._of("LearnerActor")

    def of_prelearners(self) -> list[str]:
        """Return the node of each pre-learner that is alive."""
        return self._of("MapWorker")

    def of_runs(self) -> list[str]:
        """Return the nodes of all of these."""
        return [*self.of_runners(), *self.of_learners(), *self.of_prelearners()]

    def _of(self, actor_class: str) -> list[str]:
        actors = self.cluster.global_state.actor_table(None, None, "ALIVE").values()
        return [actor["Address"]["NodeID"] for actor in actors if actor["ActorClassName"].startswith(actor_class)]
