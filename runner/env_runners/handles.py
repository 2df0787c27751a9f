"""Where an env runner lives: in this process or in a Ray actor, behind one interface."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from runner.cluster.pending_actors import find_lack_of_capacity
from runner.cluster.placement import Placement
from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.user_code import problem_of
from runner.creation_failures import creation_failure
from runner.env_runners.sample import Sample
from runner.env_runners.tickets import LocalTicket, RemoteTicket, Ticket
from runner.interrupts import Interrupted, is_interrupted

# (index, generation) -> a new env runner; the generation counts restarts, so that seeds differ.
MakeEnvRunner = Callable[[int, int], Any]

_log = logging.getLogger(__name__)

# Attribute of an error from an actor: the user's line that it came through, and what was given to it.
_OWN_CODE = "line_and_arguments"

START_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 3.0
# Samples of a runner from one whose size is measured to the next: a measurement serialises the sample, 60 us.
_SAMPLES_PER_SIZE = 16
_LOOK_UP_S = 0.2


class RunnerLost(Exception):
    """A remote env runner died or stayed silent; it can be restarted."""


class RunnerHandle(Protocol):
    """Calls methods of one env runner."""

    def submit(self, method: str, *args: Any) -> Ticket:
        """Start the call, and return the claim to its answer; calls are answered in their order."""

    def announce(self, subject: str, method: str, *args: Any) -> None:
        """Start a call whose answer nobody waits for; a later one about the same subject takes its place."""
        self.submit(method, *args)

    def restore(self) -> bool:
        """Put a runner in the place of a lost one that goes on as if it were the same, and answers its calls.

        Returns:
            Whether that can be done: not here, and calls that have not been answered stay lost.
        """
        return False

    def close(self) -> None:
        """Close the environments and free the runner."""

    def abandon(self) -> None:
        """Free the runner without waiting for calls that it has not answered."""
        self.close()


class LocalHandle(RunnerHandle):
    """An env runner in this process; calls run in their order, each when its result or a later one is asked for."""

    def __init__(self, make_runner: MakeEnvRunner, index: int, generation: int) -> None:
        self.runner = make_runner(index, generation)
        self._calls: deque[LocalTicket] = deque()

    def submit(self, method: str, *args: Any) -> Ticket:
        """Return the call, to be run."""
        return LocalTicket(partial(getattr(self.runner, method), *args), self._calls)

    def close(self) -> None:
        """Close the environments."""
        self.runner.close()


class _RunnerActor:
    """The Ray actor around one env runner."""

    def __init__(self, make_runner: MakeEnvRunner, index: int, generation: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._runner = make_runner(index, generation)
        self._waits_since_s = time.monotonic()
        self._num_samples = 0
        self._bytes_per_env_step = 0.0

    def call(self, method: str, *args: Any) -> Any:
        idle_s = time.monotonic() - self._waits_since_s
        try:
            answer = getattr(self._runner, method)(*args)
            if answer is not None:  # announcements come with the call that they are about, and take no time
                self._waits_since_s = time.monotonic()
            return self._sent(answer, idle_s) if isinstance(answer, Sample) else answer
        except Exception as error:
            if not isinstance(error, RunnerError):  # these lines are known here, and their text travels
                problem = problem_of(error)
                vars(error)[_OWN_CODE] = (problem.where, problem.got)
            raise

    def _sent(self, sample: Sample, idle_s: float) -> Sample:
        if self._num_samples % _SAMPLES_PER_SIZE == 0:
            self._bytes_per_env_step = serialised_bytes(sample) / max(1, sample.rollout.num_env_steps)
        self._num_samples += 1
        return sample.sent(idle_s, self._bytes_per_env_step)


def serialised_bytes(value: Any) -> int:
    """Return the bytes that a value takes in Ray's object store: its pickle, and its arrays beside it."""
    from ray import cloudpickle

    arrays: list[Any] = []
    dumps: Any = cloudpickle.dumps
    pickled: bytes = dumps(value, protocol=5, buffer_callback=arrays.append)
    return len(pickled) + sum(int(array.raw().nbytes) for array in arrays)


class RemoteHandle(RunnerHandle):
    """An env runner in a Ray actor.

    Args:
        make_runner: pickled to the actor.
        index, generation: of the runner.
        placement: asks Ray for its place.
        timeout_s: longest silence before the runner counts as lost; None: it may wait for others as long as it takes.
        start_timeout_s: the same until its first answer, if longer. Many actors that start on few cores import torch
            one after the other.
    """

    def __init__(
        self,
        make_runner: MakeEnvRunner,
        index: int,
        generation: int,
        placement: Placement,
        timeout_s: float | None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._make_runner, self._index, self._generation = make_runner, index, generation
        self._timeout_s = timeout_s
        self._start_timeout_s = max(timeout_s or 0.0, start_timeout_s)
        self._placement = placement
        self._start()

    def _start(self) -> None:
        import ray

        actor_class = ray.remote(_RunnerActor).options(**self._placement.place(), max_restarts=0)
        self._actor: Any = actor_class.remote(self._make_runner, self._index, self._generation)
        self._answered_s = 0.0  # time.monotonic() of the newest answer

    def submit(self, method: str, *args: Any) -> Ticket:
        """Send the call to the actor."""
        return self._ticket(method, self._actor.call.remote(method, *args))

    def submit_function(self, function: Callable[[Any], Any]) -> Ticket:
        """Call a function in the actor's process, with what holds the runner there."""
        return self._ticket(function.__name__, self._actor.__ray_call__.remote(function))

    def _ticket(self, method: str, reference: Any) -> Ticket:
        submitted_s = time.monotonic()
        receive = partial(self._receive, method)
        return RemoteTicket(reference, lambda: self._deadline_s(submitted_s), receive)

    def _deadline_s(self, submitted_s: float) -> float | None:
        if not self._answered_s:
            return submitted_s + self._start_timeout_s
        return None if self._timeout_s is None else max(submitted_s, self._answered_s) + self._timeout_s

    def _receive(self, method: str, reference: Any, is_late: bool) -> Any:
        import ray

        try:
            answer = ray.get(reference, timeout=0) if is_late else self._get(reference)
            self._answered_s = time.monotonic()
            return answer
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RunnerError):
                raise error.cause from None
            _log.error("env runner %d: %s", self._index, error)
            place, got = getattr(error.cause, _OWN_CODE, (None, None))
            problem = Problem(
                f"env runner {self._index} failed in {method}: {type(error.cause).__name__}: {error.cause}",
                ", ".join(filter(None, (place, "its Ray actor; the stack trace is in runner.log"))),
                got,
            )
            raise RunFailure(problem) from error
        except ray.exceptions.GetTimeoutError as error:
            lack = None if self._answered_s else find_lack_of_capacity([self._actor], self._start_timeout_s)
            if lack is not None:
                raise RunFailure(lack) from error
            raise RunnerLost(f"{self._index} did not answer {method} within its timeout") from error
        except ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                _log.error("env runner %d: %s", self._index, error)
                raise creation_failure(error, f"env runner {self._index} cannot be made") from error
            raise RunnerLost(f"{self._index} is gone ({type(error).__name__} in {method})") from error

    def _get(self, reference: Any) -> Any:
        import ray

        if self._timeout_s is not None or not self._answered_s:
            return ray.get(reference, timeout=self._timeout_s if self._answered_s else self._start_timeout_s)
        while not ray.wait([reference], timeout=_LOOK_UP_S)[0]:
            if is_interrupted():
                raise Interrupted
        return ray.get(reference)

    def close(self) -> None:
        """Close the environments, which may take seconds, and kill the actor."""
        import ray

        with suppress(ray.exceptions.RayError):  # it may be gone already, or hang
            ray.get(self._actor.call.remote("close"), timeout=_CLOSE_TIMEOUT_S)
        self.abandon()

    def abandon(self) -> None:
        """Kill the actor, whatever it does."""
        self._kill()
        self._placement.leave()

    def _kill(self) -> None:
        import ray

        ray.kill(self._actor)
