"""Actors that wait for a place are told of, with what they ask for and what is free."""

from __future__ import annotations

import re
import threading
import time
from functools import partial
from typing import Any

import pytest

from runner.cluster import connection
from runner.cluster.pending_actors import waits_reported
from tests.conftest import QUICK, Run, wait_until

pytestmark = pytest.mark.ray
INTERVAL_S = 0.4


class Occupant:
    """Has a place."""

    def is_there(self) -> bool:
        return True


@pytest.fixture
def occupant(ray_cluster: None) -> Any:
    """An actor that takes three of the four CPUs."""
    import ray

    actor = ray.remote(Occupant).options(num_cpus=3).remote()
    assert ray.get(actor.is_there.remote())
    yield actor
    ray.kill(actor)


def test_who_waits_is_told_again_and_again_until_there_is_a_place(occupant: Any) -> None:
    import ray

    notes: list[str] = []
    with waits_reported(notes.append, INTERVAL_S):
        waiting = [ray.remote(Occupant).options(num_cpus=2).remote() for _ in range(2)]
        wait_until(lambda: len(notes) >= 2)
        assert "2 Occupants, each needs CPU 2; free: CPU 1 of 4, GPU 0 of 0" in notes[-1]
        assert notes[0].startswith("waiting for resources for ")
        ray.kill(occupant)
        assert ray.get([actor.is_there.remote() for actor in waiting]) == [True, True]
        num_told = len(notes)
        time.sleep(2 * INTERVAL_S)
        assert len(notes) <= num_told + 1  # one may have been on its way
    for actor in waiting:
        ray.kill(actor)


@pytest.mark.slow
def test_a_run_says_what_its_runners_wait_for(occupant: Any, run_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(connection, "waits_reported", partial(waits_reported, interval_s=INTERVAL_S))
    freed = threading.Timer(4.0, ray.kill, [occupant])
    freed.start()
    more = ("env_runners.num_env_runners=2", "env_runners.num_cpus_per_env_runner=2", "tracking.display=plain")
    outcome = run_main(
        "+experiment=ppo_cartpole", *QUICK[:-1], "tracking.mlflow=false", *more, "stop.training_iteration=1"
    )
    freed.join()
    assert outcome.code == 0, outcome.err
    assert re.search(r"s: 2 env runners, each needs CPU 2; free: CPU [01] of 4, GPU 0 of 0\n", outcome.out)
