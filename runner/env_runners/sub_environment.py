"""One sub-environment that can be ended and re-created individually, in this process or in a separate one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

from runner.config.errors import Problem
from runner.config.schemas import EnvConfig
from runner.env_runners.env_answers import EnvFailure
from runner.env_runners.vector_envs import SyncEnvironments
from runner.episodes.columns import Column

# Importing the modules of a user's environment may take long on a busy machine.
START_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 3.0
_MAKING = "its making"
_TIMEOUT_KEY = "env_runners.env_step_timeout_s"
# The module search path is passed on, so that the process finds the same modules from any working directory.
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from runner.env_runners.env_process import main; main(*map(int, sys.argv[2:]))"
)


class SubEnvironment(Protocol):
    """Answers calls in order. The first call makes the sub-environment and returns None.

    Attributes:
        environment: the environment for callbacks.
    """

    environment: Any

    def begin(self, method: str, *arguments: Any) -> None:
        """Start a call of a method of `SyncEnvironments`."""

    def finish(self, timeout_s: float | None) -> Any:
        """Wait for the answer to the oldest call.

        Raises:
            EnvFailure: the environment failed; it can only be ended.
            RunnerError: the call cannot be answered.
        """

    def close(self) -> None:
        """Start to close the environment, and answer no further calls."""

    def end(self, timeout_s: float = 0.0) -> None:
        """Wait until it is closed, but not longer than this, and end it even if it is busy."""


def answer(envs: SyncEnvironments, method: str, *arguments: Any) -> Any:
    """Call a method; return its result without observations and without the axis of sub-environments."""
    result = getattr(envs, method)(*arguments)
    if method == "reset":
        return _only(result[1])
    if method == "step":
        _, rewards, terminateds, truncateds, infos = result
        return float(rewards[0]), bool(terminateds[0]), bool(truncateds[0]), _only(infos), bool(envs.recreated)
    return result


def _only(infos: Any) -> Any:
    return infos[0] if infos else {}


class LocalSubEnvironment:
    """A sub-environment in this process; a call runs when its answer is requested.

    Args:
        make_envs: makes it.
        obs: its row of observations (1, ...).
    """

    def __init__(self, make_envs: Callable[[], SyncEnvironments], obs: Column) -> None:
        self._calls: deque[Callable[[], Any]] = deque([partial(self._make, make_envs, obs)])
        self._envs: SyncEnvironments | None = None
        self.environment: Any = None

    def _make(self, make_envs: Callable[[], SyncEnvironments], obs: Column) -> None:
        self._envs = make_envs()
        self._envs.write_obs_to(obs)
        self.environment = self._envs.environments[0]

    def begin(self, method: str, *arguments: Any) -> None:
        """See `SubEnvironment`."""
        self._calls.append(lambda: answer(self._envs, method, *arguments))  # type: ignore[arg-type]

    def finish(self, timeout_s: float | None) -> Any:
        """See `SubEnvironment`; the timeout is ignored."""
        return self._calls.popleft()()

    def close(self) -> None:
        """Close the environment."""
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()

    def end(self, timeout_s: float = 0.0) -> None:
        """Close the environment if it is not closed."""
        self.close()


@dataclass(frozen=True)
class ProcessSettings:
    """Settings for the process of a sub-environment.

    Attributes:
        config: the `env` block.
        seed: seed of the run.
        number: n, index of the sub-environment.
        num_envs: N, rows in the shared memory of observations.
    """

    config: EnvConfig
    seed: int
    number: int
    num_envs: int


class ProcessSubEnvironment:
    """A sub-environment in a separate process, which ends with this one.

    Args:
        settings: settings of the process.
        memory: descriptor of the memory of observations.
        timeout_s: longest wait for the answer to a `call`, or None for no limit.

    Raises:
        EnvFailure: the process cannot be started.
    """

    def __init__(self, settings: ProcessSettings, memory: int, timeout_s: float | None) -> None:
        self._name, self._timeout_s = settings.config.name, timeout_s
        here, there = socket.socketpair()
        with there, here:
            self._process = _start(there.fileno(), memory)
            self._connection = Connection(here.detach())
        self._methods = deque([_MAKING])
        self._send(settings)
        self.environment = self

    def begin(self, method: str, *arguments: Any) -> None:
        """See `SubEnvironment`."""
        self._methods.append(method)
        self._send((method, arguments))

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # it is gone, which `finish` reports
            self._connection.send(message)

    def finish(self, timeout_s: float | None) -> Any:
        """See `SubEnvironment`."""
        method = self._methods.popleft()
        try:
            if not self._connection.poll(None if timeout_s is None else max(0.0, timeout_s)):
                limit = f"{START_TIMEOUT_S:g} s" if method == _MAKING else _TIMEOUT_KEY
                raise EnvFailure(
                    Problem(f"the environment {self._name} hung in {method}", expected=f"an answer within {limit}")
                )
            error, result = self._connection.recv()
        except (EOFError, ConnectionError) as ended:
            code = self._process.wait()
            self._kill_group()
            what = f"the process of the environment {self._name} ended in {method}"
            raise EnvFailure(Problem(what, got=f"exit code {code}")) from ended
        if error is not None:
            raise error
        return result

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the environment or of a wrapper, and return its result.

        Raises:
            RunnerError: it raised an error, or hung. Then the process is killed, which the next step reports.
        """
        self._methods.append(name)
        self._send(("call", (name, *arguments)))
        try:
            return self.finish(self._timeout_s)
        except EnvFailure:
            self._kill_group()  # otherwise the next step would read the late answer
            raise

    def close(self) -> None:
        """See `SubEnvironment`; at the end of the connection, the process closes the environment and exits."""
        if not self._connection.closed:
            # A forked process may have a copy of the connection, so closing it here would not end it.
            with socket.socket(fileno=os.dup(self._connection.fileno())) as end, suppress(OSError):  # it may be gone
                end.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def end(self, timeout_s: float = 0.0) -> None:
        """See `SubEnvironment`; kills all descendants of the process as well."""
        self.close()
        if self._process.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
            self._kill_group()
            self._process.wait()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # none is left
            os.killpg(self._process.pid, signal.SIGKILL)


def _start(connection: int, memory: int) -> subprocess.Popen[bytes]:
    numbers = [str(number) for number in (connection, memory, os.getpid())]
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps(sys.path), *numbers],
            stdin=subprocess.DEVNULL,
            pass_fds=(connection, memory),
            start_new_session=True,  # interrupts are for the run; and a simulator that it starts ends with it
        )
    except OSError as error:  # for example not enough memory, or a process limit
        raise EnvFailure(Problem(f"the environment's process cannot be started: {error}")) from error


def close_all(sub_environments: list[SubEnvironment]) -> None:
    """Close sub-environments at the same time; kill processes that take too long."""
    for one in sub_environments:
        one.close()
    for one in sub_environments:
        one.end(_CLOSE_TIMEOUT_S)
