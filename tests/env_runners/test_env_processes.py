"""Sub-environments in processes of their own: how the processes end, and what can be asked of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.config.metrics import NUM_ENV_RESTARTS
from runner.config.schemas import EnvConfig
from tests.conftest import WAIT_S
from tests.env_runners.separate_runs import CONFIGS, NAME, N, actions_for, failing, message_of, seed_of

AssertGolden = Callable[[str, str], None]


def pids_of(env: Any) -> list[int]:
    return [one._process.pid for one in env.environments]


def is_there(pid: int) -> bool:
    try:
        return "Z" not in re.sub(r".*\)", "", Path(f"/proc/{pid}/stat").read_text()).split()[0]
    except FileNotFoundError:
        return False


def test_close_ends_all_processes(made: Any) -> None:
    env = made(CONFIGS["cartpole"], "async")
    env.reset(NAME)
    pids = pids_of(env)
    assert len(set(pids)) == N
    assert all(map(is_there, pids))
    env.close()
    assert not any(map(is_there, pids))


def test_a_hung_process_is_killed_and_another_one_takes_its_place(made: Any) -> None:
    env = made(failing("sleep", {(1, 0): 2}), "async", True, 1.0)
    env.reset(NAME)
    pids = pids_of(env)
    started_s = time.monotonic()
    for action in actions_for(env, 3):
        env.step(action)
    assert time.monotonic() - started_s < WAIT_S
    now = pids_of(env)
    assert [pid == other for pid, other in zip(pids, now, strict=True)] == [True, False, True]
    assert not is_there(pids[1])
    assert env.counts == {NUM_ENV_RESTARTS: 1}


ORPHANS = """
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_vector_env
import numpy as np, time
wrapper = {"_target_": "tests.environments.FailsAt", "fault": "sleep", "steps": {"%d": 1}}
env = make_vector_env(EnvConfig(env="CartPole-v1", wrappers=[wrapper]), 2, "async", 4)
env.reset(("env_runner", 0, 0))
print(*[one._process.pid for one in env.environments], flush=True)
env.step(np.zeros(2, np.int64))
"""


def test_processes_end_with_the_one_that_made_them() -> None:
    command = [sys.executable, "-c", ORPHANS % seed_of(1, 0)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)  # while one of them sleeps in a step
    parent.wait()
    parent.stdout.close()
    until_s = time.monotonic() + WAIT_S
    while any(map(is_there, pids)) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not any(map(is_there, pids))


def test_a_process_that_cannot_be_started(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RunFailure, match="the environment's process cannot be started: "):
        made(CONFIGS["cartpole"], "async")


def test_methods_of_the_environment_can_be_called(made: Any) -> None:
    env = made(EnvConfig(env="CartPole-v1"), "async")
    assert env.environments[1].call("has_wrapper_attr", "gravity") is True
    with pytest.raises(RunFailure, match="no_such_method"):
        env.environments[1].call("no_such_method")


class InfoWithALock(gym.Env[Any, Any]):
    """Its infos hold what no other process can have."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        import threading

        return np.zeros(1, np.float32), {"lock": threading.Lock()}


def test_infos_that_cannot_be_sent(made: Any, assert_golden: AssertGolden) -> None:
    assert_golden("info_with_a_lock", message_of(made(EnvConfig(_target_=f"{__name__}.InfoWithALock"), "async")))
