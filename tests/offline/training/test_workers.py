"""The board of module parameters that pre-learners read."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from runner.offline.training.workers import ModuleBoard
from tests.conftest import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def test_a_board_shows_the_newest_parameters_also_after_its_process_died() -> None:
    import ray

    board = ModuleBoard()
    in_worker: ModuleBoard = pickle.loads(ray.cloudpickle.dumps(board))
    assert in_worker(0) is None
    board.post(np.array([1.0], np.float32))
    version, parameters = in_worker(0) or (0, np.zeros(1))
    assert (version, parameters.tolist()) == (1, [1.0])
    assert in_worker(version) is None
    ray.kill(board._actor, no_restart=False)
    wait_until(lambda: in_worker(0) is None)  # a new process has no parameters; workers keep theirs
    board.post(np.array([2.0], np.float32))
    version, parameters = in_worker(version) or (0, np.zeros(1))
    assert (version, parameters.tolist()) == (2, [2.0])
