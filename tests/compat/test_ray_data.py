"""What Ray Data keeps about a running execution; a failure here means that Ray Data has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runner.compat.ray_data import PipelineStatus, end_execution, executor_of, status_of

ray_test = pytest.mark.ray
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray Data


@ray_test
def test_status_of_a_running_execution(ray_cluster: None) -> None:
    import ray.data

    dataset = ray.data.range(400, override_num_blocks=20).map_batches(
        lambda batch: batch, batch_size=None, num_cpus=0.5
    )
    assert executor_of(dataset) is None
    batches = iter(dataset.iter_batches(batch_size=50))
    next(batches)
    status = status_of(executor_of(dataset))
    assert status is not None
    assert status.queued_read is not None  # reading asks for another share of a CPU: a stage of its own
    waiting = (status.queued_read, status.queued_prelearner, status.queued_learner)
    assert min(waiting) >= 0
    assert sum(waiting) <= 20
    assert 0 < status.num_rows <= 400
    assert sum(1 for _ in batches) == 7
    assert status_of(executor_of(dataset)) == PipelineStatus(400, 0, 0, 0)


@ray_test
def test_an_execution_has_ended_when_data_are_closed(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.data

    monkeypatch.setattr("runner.compat.ray_data._PATIENCE_S", 1.0)  # nobody closes the iterator below

    dataset = ray.data.range(400, override_num_blocks=20)
    batches = iter(dataset.iter_batches(batch_size=10))
    next(batches)
    executor = executor_of(dataset)
    assert executor is not None
    end_execution(dataset)
    assert not executor.is_alive()
    end_execution(dataset)
    end_execution("another Ray")


@ray_test
def test_pre_learners_that_read_by_themselves(ray_cluster: None) -> None:
    """Ray fuses the stages where both ask for the same resources: what waits, waits to be read."""
    import ray.data

    dataset = ray.data.range(40, override_num_blocks=4).map_batches(lambda batch: batch, batch_size=None)
    for _ in dataset.iter_batches(batch_size=40):
        pass
    assert status_of(executor_of(dataset)) == PipelineStatus(40, 0, None, 0)


@pytest.mark.parametrize("executor", [None, SimpleNamespace(), SimpleNamespace(_topology={}), "another Ray"])
def test_a_ray_that_does_not_tell_stops_nothing(executor: Any) -> None:
    assert status_of(executor) is None
    assert executor_of(executor) is None
