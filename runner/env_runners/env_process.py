"""The process of one sub-environment, which `ProcessSubEnvironment` starts.

It receives `ProcessSettings`, and then (method, arguments) for `SyncEnvironments`, or for the environment if the method
is `call`. It sends (None, result) or (error, None) for each, first for making the environment. Observations are
written to shared memory. At the end of the connection it closes the environment and exits.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.user_code import problem_of
from runner.env_runners.env_makers import make_environment
from runner.env_runners.shared_rows import map_rows
from runner.env_runners.sub_environment import ProcessSettings, answer
from runner.env_runners.vector_envs import SyncEnvironments
from runner.episodes import nested
from runner.episodes.spaces import blank_item

_PARENT_CHECK_INTERVAL_S = 1.0


def main(connection_file: int, memory: int, parent_pid: int) -> None:
    """Serve one sub-environment until the connection or the parent ends."""
    threading.Thread(target=_end_with_parent, args=(parent_pid,), daemon=True).start()
    with Connection(connection_file) as connection, suppress(EOFError, ConnectionError):
        try:
            envs = _make(connection.recv(), memory)
        except Exception as error:
            connection.send((_to_send(error), None))
            return
        try:
            connection.send((None, None))
            while True:
                _serve(connection, envs)
        except (EOFError, ConnectionError):
            envs.close()


def _make(settings: ProcessSettings, memory: int) -> SyncEnvironments:
    n = settings.number
    make_env, limit = partial(make_environment, settings.config, 1, "sync"), settings.config.max_replayed_steps
    envs = SyncEnvironments(make_env, 1, settings.seed, n, limit)
    like = nested.zeros(blank_item(envs.single_observation_space), (settings.num_envs,))
    envs.write_obs_to(nested.take(map_rows(memory, like), slice(n, n + 1)))
    return envs


def _serve(connection: Connection, envs: SyncEnvironments) -> None:
    method, arguments = connection.recv()
    try:
        result = _call(envs, *arguments) if method == "call" else answer(envs, method, *arguments)
    except Exception as error:
        connection.send((_to_send(error), None))
        return
    try:
        connection.send((None, result))
    except OSError:  # the other side is gone
        raise
    except Exception as error:  # pickling an object may raise anything
        what = f"the result of the environment's {method} cannot be sent to the env runner: {error}"
        expected = "numbers, arrays, strings, and lists and dicts of these; or gym_env_vectorize_mode=sync"
        connection.send((RunFailure(Problem(what, "env_runners.gym_env_vectorize_mode", expected=expected)), None))


def _call(envs: SyncEnvironments, name: str, *arguments: Any) -> Any:
    return envs.environments[0].get_wrapper_attr(name)(*arguments)


def _to_send(error: Exception) -> RunnerError:
    """Return an error that the other process can unpickle, unlike a user-defined class."""
    return error if isinstance(error, RunnerError) else RunFailure(problem_of(error))


def _end_with_parent(parent_pid: int) -> None:
    """End when the env runner's process is gone, even during a step that hangs."""
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_CHECK_INTERVAL_S)
    os.killpg(0, signal.SIGKILL)
