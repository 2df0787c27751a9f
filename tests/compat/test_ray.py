"""The private state of Ray says what it said before; a failure here means that Ray has changed."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

import pytest

from runner.compat.libraries import LibraryChangedError
from runner.compat.ray_cluster import (
    actor_id,
    available_resources_per_node,
    lost_process,
    replace_message_printer,
    rows_of_pending_actors,
)
from tests.conftest import wait_until

ray_test = pytest.mark.ray


class Occupant:
    """Has a place."""

    def name(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_actor_id())


@ray_test
def test_pending_actors_and_free_resources(ray_cluster: None) -> None:
    import ray

    assert lost_process() is None
    assert rows_of_pending_actors() == []
    [_] = available_resources_per_node()
    wait_until(lambda: available_resources_per_node()[0]["CPU"] == 4.0)  # actors of other tests have left
    actor = ray.remote(Occupant).options(num_cpus=3).remote()
    assert actor_id(actor).hex() == ray.get(actor.name.remote())
    wait_until(lambda: available_resources_per_node()[0]["CPU"] == 1.0)
    pending = ray.remote(Occupant).options(num_cpus=2).remote()
    wait_until(lambda: len(rows_of_pending_actors()) == 1)
    [shown] = rows_of_pending_actors()
    assert (shown.actor_id, shown.class_name, shown.resources) == (actor_id(pending), "Occupant", {"CPU": 2.0})
    for one in (actor, pending):
        ray.kill(one)


@ray_test
def test_the_node_of_this_process_tells_which_processes_have_ended(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import worker

    ended = SimpleNamespace(process_type="raylet", returncode=1)
    assert worker._global_node is not None
    assert worker._global_node.dead_processes() == []
    monkeypatch.setattr(worker._global_node, "dead_processes", lambda: [("raylet", ended)])
    assert lost_process() == "Ray's raylet (exit code 1)"


def test_messages_go_to_another_printer() -> None:
    def printer(*_: Any) -> None: ...

    before = replace_message_printer(printer)
    assert before is not None
    assert replace_message_printer(before) is printer


def test_a_changed_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LibraryChangedError, match=r"ray .* no attribute '_actor_id'; pip install 'ray>=2\.54"):
        actor_id(SimpleNamespace())
    monkeypatch.delattr("ray._private.state.available_resources_per_node")
    with pytest.raises(LibraryChangedError, match="available_resources_per_node"):
        available_resources_per_node()
    monkeypatch.delattr("ray._private.worker.print_worker_logs")
    assert replace_message_printer(builtins.print) is None
