"""Sub-environments in processes of their own: how the processes end, and what can be asked of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.cluster.actors import LocalActor
from runner.config.errors import Problem, RunFailure
from runner.config.metrics import NUM_ENV_RESTARTS
from runner.config.schemas import EnvConfig
from runner.episodes import nested
from runner.experiment.trainer import Trainer
from tests.conftest import WAIT_S, wait_until, without_times
from tests.env_runners.separate_runs import CONFIGS, NAME, N, actions_for, failing, failure_of, seed_of
from tests.env_runners.test_separate_envs import assert_same_steps


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


class NotesClose(gym.Wrapper[Any, Any, Any, Any]):
    """Takes a moment to close, and then makes a file with the number of its process as name."""

    def __init__(self, env: gym.Env[Any, Any], folder: str) -> None:
        super().__init__(env)
        self._folder = folder

    def close(self) -> None:
        time.sleep(0.2)
        Path(self._folder, str(os.getpid())).touch()
        super().close()


def test_after_a_failure_the_others_are_closed_before_their_processes_end(made: Any, tmp_path: Path) -> None:
    config = failing("raise", {(0, 0): 2})
    notes = {"_target_": f"{__name__}.NotesClose", "folder": str(tmp_path)}
    env = made(replace(config, wrappers=[*config.wrappers, notes]), "async")
    assert "the arm has left its rail" in failure_of(env).what
    others = pids_of(env)[1:]
    env.close()  # they have answered, but nobody has read it
    assert {str(pid) for pid in others} <= {file.name for file in tmp_path.iterdir()}


def test_a_hung_process_is_killed_and_another_one_takes_its_place(made: Any) -> None:
    env = made(failing("sleep", {(1, 0): 2}), "async", True, 1.0)
    env.reset(NAME)
    pids = pids_of(env)
    for action in actions_for(env, 3):
        env.step(action)
    now = pids_of(env)
    assert [pid == other for pid, other in zip(pids, now, strict=True)] == [True, False, True]
    assert not is_there(pids[1])
    assert env.counts == {NUM_ENV_RESTARTS: 1}


def killed(env: Any, n: int) -> None:
    """Kill the process of one, and wait for its end."""
    pid = pids_of(env)[n]
    os.kill(pid, signal.SIGKILL)
    while is_there(pid):
        time.sleep(0.01)


def test_a_process_that_was_killed_before_a_checkpoint_loses_its_episode_alone(made: Any) -> None:
    env, restored, other = (made(CONFIGS["cartpole"], "async", True) for _ in range(3))
    actions = actions_for(env, 30)
    for one in (env, other):
        one.reset(NAME)
        for action in actions[:5]:
            one.step(action)
    killed(env, 1)
    state = env.get_state()
    assert_same_states(env.get_state(), state)  # another one, before a step
    restored.set_state(state)
    for number, action in enumerate(actions[5:]):
        got, again, undisturbed = (one.step(action) for one in (env, restored, other))
        assert_same_steps(again, got)
        assert env.recreated == restored.recreated == ([1] if number == 0 else [])
        for row in (0, 2):
            assert (got[0][row] == undisturbed[0][row]).all()
    assert restored.counts == env.counts == {NUM_ENV_RESTARTS: 1}
    assert env.get_state()["episode_numbers"] == restored.get_state()["episode_numbers"]
    assert "lost" not in env.get_state()


def assert_same_states(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        nested.map_leaves(np.testing.assert_array_equal, got[key], value)


def test_a_process_that_was_killed_before_a_checkpoint_ends_a_run_without_restarts(made: Any) -> None:
    env = made(CONFIGS["cartpole"], "async")
    env.reset(NAME)
    killed(env, 1)
    with pytest.raises(RunFailure, match="the process of the environment CartPole-v1 ended in get_state"):
        env.get_state()


def test_where_none_is_made_anew_a_state_with_a_lost_one_is_refused(made: Any) -> None:
    env = made(CONFIGS["cartpole"], "async", True)
    env.reset(NAME)
    killed(env, 2)
    with pytest.raises(RunFailure, match="had failed when the checkpoint was written"):
        made(CONFIGS["cartpole"], "sync").set_state(env.get_state())


def test_a_run_writes_its_checkpoint_although_a_process_was_killed() -> None:
    overrides = ["env_runners.gym_env_vectorize_mode=async", "env_runners.restart_failed_sub_environments=true"]
    overrides += ["env_runners.num_envs_per_env_runner=3", "evaluation=none", "tracking=none"]
    overrides += ["algorithm.train_batch_size_per_learner=60", "algorithm.minibatch_size=20"]
    make = partial(Trainer.from_experiment, "ppo_cartpole", [*overrides, "module.fcnet_hiddens=[4]"])
    with make() as trainer, make() as resumed:
        trainer.train()
        [caller] = trainer.env_runners.actors.callers
        assert isinstance(caller, LocalActor)
        killed(caller.held.env, 0)
        resumed.set_state(trainer.get_state())
        results = [without_times(one.train()) for one in (trainer, resumed)]
    assert results[0] == results[1]
    assert results[0][NUM_ENV_RESTARTS] == 1


ORPHANS = """
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_vector_env
import numpy as np, time
wrapper = {"_target_": "tests.support.environments.FailsAt", "fault": "sleep", "steps": {"%d": 1}}
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
    wait_until(lambda: not any(map(is_there, pids)))


def test_a_process_that_cannot_be_started(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RunFailure, match="the environment's process cannot be started: "):
        made(CONFIGS["cartpole"], "async")


def test_methods_of_the_environment_can_be_called(made: Any) -> None:
    env = made(EnvConfig(env="CartPole-v1"), "async")
    assert env.environments[1].call("has_wrapper_attr", "gravity") is True
    with pytest.raises(RunFailure, match="no_such_method"):
        env.environments[1].call("no_such_method")


class Ponders(gym.Env[Any, Any]):
    """One of its methods takes forever."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, np.float32), 1.0, False, False, {}

    def ponder(self) -> None:
        time.sleep(10 * WAIT_S)


def test_a_method_that_hangs_fails_alone(made: Any) -> None:
    env = made(EnvConfig(_target_=f"{__name__}.Ponders"), "async", True, 1.0)
    env.reset(NAME)
    with pytest.raises(RunFailure, match="hung in ponder"):
        env.environments[1].call("ponder")
    obs, *_ = env.step(np.zeros(N, np.int64))
    assert env.recreated == [1]
    assert obs[:, 0].tolist() == [1.0, 0.0, 1.0]


class InfoWithALock(gym.Env[Any, Any]):
    """Its infos hold what no other process can have."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        import threading

        return np.zeros(1, np.float32), {"lock": threading.Lock()}


def test_infos_that_cannot_be_sent(made: Any) -> None:
    assert failure_of(made(EnvConfig(_target_=f"{__name__}.InfoWithALock"), "async")) == Problem(
        "the result of the environment's reset cannot be sent to the env runner: cannot pickle '_thread.lock' object",
        where="env_runners.gym_env_vectorize_mode",
        expected="numbers, arrays, strings, and lists and dicts of these; or gym_env_vectorize_mode=sync",
    )
