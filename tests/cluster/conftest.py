"""A cluster of several nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Nodes
from tests.conftest import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """A head with as many nodes as the tests before have left."""
    made = Nodes()
    yield made
    made.cluster.shutdown()


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    """Two nodes on which nothing runs."""
    wait_until(lambda: not cluster.of_runs())
    cluster.kill_idle(2)
    cluster.make(2)
    return cluster
