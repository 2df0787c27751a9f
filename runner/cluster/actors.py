"""Actors: objects in this process or in Ray actors, whose methods are called through one interface.

`Actor` runs in the process of a Ray actor. `LocalActor` and `RemoteActor` call an actor from this process.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from runner.closing import close_each
from runner.cluster.creation_failures import creation_failure
from runner.cluster.futures import POLL_INTERVAL_S, UNKNOWN, Future, LocalFuture
from runner.cluster.pending_actors import find_lack_of_capacity
from runner.cluster.placement import Placement
from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.user_code import problem_of
from runner.interrupts import Interrupted, is_interrupted
from runner.restarts import ActorDied, PeerDied

# (index, generation) -> the object that an actor holds; the generation counts replacements, so that seeds differ.
MakeHeld = Callable[[int, int], Any]

START_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 3.0

# Attribute of an error from an actor: the user's line that raised it, and its arguments.
_OWN_CODE = "line_and_arguments"

_log = logging.getLogger(__name__)


class Actor:
    """Holds one object in a process of Ray and calls its methods; each role has a subclass, whose name `ps` shows.

    Args:
        make: makes the object.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.held = make()

    def call(self, method: str, *args: Any) -> Any:
        """Return the result of a method, or the value of an attribute of the object."""
        try:
            return self._answer(method, *args)
        except Exception as error:
            if not isinstance(error, RunnerError):  # the line of the user's code is known only here
                problem = problem_of(error)
                vars(error)[_OWN_CODE] = (problem.where, problem.got)
            raise

    def _answer(self, method: str, *args: Any) -> Any:
        attribute = getattr(self.held, method)
        return attribute(*args) if callable(attribute) else attribute

    def snapshot(self) -> tuple[bool, Any]:
        """Return True, which shows that the snapshot exists, and the state, which stays in Ray's object store."""
        return True, self.call("get_state")

    def node(self) -> str:
        """Return the address of the node on which it runs."""
        import ray

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address


@dataclass(frozen=True)
class Role:
    """Settings shared by the Ray actors of one role.

    Attributes:
        name: name of an actor in messages, such as "env runner".
        actor: class around the objects of the actors.
        placement: decides on which nodes they run.
        answer_timeout_s: longest silence before an actor counts as dead, or None for no limit.
        start_timeout_s: the same until the first answer, if longer. Many actors that start on few cores import torch
            one after the other.
        is_interruptible: whether a request to end the run also ends a wait without a limit. Only for actors that wait
            for clients outside of the run: an abandoned call would change a resumed run.
    """

    name: str
    actor: type[Actor]
    placement: Placement
    answer_timeout_s: float | None = None
    start_timeout_s: float | None = START_TIMEOUT_S
    is_interruptible: bool = False


class Caller(Protocol):
    """Calls methods of the object that one actor holds."""

    def submit(self, method: str, *args: Any) -> Future:
        """Start a call; calls are answered in order."""

    def announce(self, subject: str, method: str, *args: Any) -> Future:
        """Start a call whose result is not used; a later announcement replaces one about the same subject."""
        return self.submit(method, *args)

    def restore(self) -> bool:
        """Replace a dead actor by one that continues from its state and repeats unanswered calls.

        Returns:
            Whether it was restored; if not, unanswered calls are lost.
        """
        return False

    def close(self) -> None:
        """Close the object and end the actor."""

    def abandon(self) -> None:
        """End the actor without waiting for unanswered calls."""
        self.close()


class LocalActor(Caller):
    """An object in this process. Calls run in order, each when its result or a later one is requested."""

    def __init__(self, make: MakeHeld, index: int, generation: int) -> None:
        self.held = make(index, generation)
        self._calls: deque[LocalFuture] = deque()

    def submit(self, method: str, *args: Any) -> Future:
        return LocalFuture(partial(getattr(self.held, method), *args), self._calls)

    def close(self) -> None:
        self.held.close()


class CallFailed(RunFailure):
    """A call of an actor raised an error that is not a `RunnerError`."""


class RemoteActor(Caller):
    """An object in a Ray actor.

    Args:
        role: role of the actor.
        make: makes the object; it is pickled.
        index, generation: identify the actor.
    """

    def __init__(self, role: Role, make: MakeHeld, index: int, generation: int = 0) -> None:
        self._role, self._index = role, index
        self._make = partial(make, index, generation)
        self._start_timeout_s = role.start_timeout_s
        if role.start_timeout_s is not None:
            self._start_timeout_s = max(role.answer_timeout_s or 0.0, role.start_timeout_s)
        self._start()

    def _start(self) -> None:
        import ray

        options = self._role.placement.place()
        actor_class: Any = ray.remote(self._role.actor)
        self.actor: Any = actor_class.options(**options, max_restarts=0).remote(self._make)
        self._node = self.actor.node.remote()
        self._answered_s = 0.0  # time.monotonic() of the newest answer

    @property
    def name(self) -> str:
        """Role and index, and the node once it is known."""
        import ray

        name = f"{self._role.name} {self._index}"
        try:
            return f"{name} on {ray.get(self._node, timeout=0)}"
        except ray.exceptions.RayError:
            return name

    def submit(self, method: str, *args: Any) -> Future:
        return RemoteFuture(self, method, self.actor.call.remote(method, *args))

    def submit_function(self, function: Callable[[Any], Any]) -> Future:
        """Call a function with the `Actor` in its process."""
        return RemoteFuture(self, function.__name__, self.actor.__ray_call__.remote(function))

    @property
    def _timeout_s(self) -> float | None:
        return self._role.answer_timeout_s if self._answered_s else self._start_timeout_s

    def deadline_s(self, submitted_s: float) -> float | None:
        """Return the `time.monotonic()` after which the actor counts as silent, or None for no limit."""
        return None if self._timeout_s is None else max(submitted_s, self._answered_s) + self._timeout_s

    def receive(self, method: str, reference: Any, is_late: bool = False) -> Any:
        """Wait for the result of a call, unless the actor has been silent for too long, and return it."""
        import ray

        try:
            answer = ray.get(reference, timeout=0) if is_late else self._get(reference)
            self._answered_s = time.monotonic()
            return answer
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RunnerError):
                raise error.cause from None
            if isinstance(error.cause, PeerDied):
                raise PeerDied(f"{self.name} lost its peers ({error.cause})") from None
            raise self._failure(method, error) from error
        except ray.exceptions.GetTimeoutError as error:
            lack = None if self._answered_s else find_lack_of_capacity([self.actor], self._start_timeout_s or 0.0)
            if lack is not None:
                raise RunFailure(lack) from error
            raise ActorDied(f"{self.name} did not answer {method} within its timeout") from error
        except ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                _log.error("%s: %s", self.name, error)
                raise creation_failure(error, f"{self._role.name} {self._index} cannot be created") from error
            raise ActorDied(f"{self.name} died ({type(error).__name__} in {method})") from error

    def _get(self, reference: Any) -> Any:
        import ray

        if self._timeout_s is not None or not self._role.is_interruptible:
            return ray.get(reference, timeout=self._timeout_s)
        while not ray.wait([reference], timeout=POLL_INTERVAL_S)[0]:
            if is_interrupted():
                raise Interrupted
        return ray.get(reference)

    def _failure(self, method: str, error: Any) -> CallFailed:
        _log.error("%s: %s", self.name, error)
        place, got = getattr(error.cause, _OWN_CODE, (None, None))
        what = f"{self._role.name} {self._index} failed in {method}: {type(error.cause).__name__}: {error.cause}"
        where = ", ".join(filter(None, (place, "its Ray actor; the stack trace is in runner.log")))
        return CallFailed(Problem(what, where, got))

    def close(self) -> None:
        close_actors([self])

    def abandon(self) -> None:
        self._kill()
        self._role.placement.leave()

    def _kill(self) -> None:
        import ray

        ray.kill(self.actor)


class RemoteFuture:
    """A call of a Ray actor; see `Future`.

    Args:
        actor: actor that receives the result.
        method: name of the called method.
        reference: Ray's reference to the result.

    Attributes:
        reference: current reference, which changes when the call is repeated.
    """

    def __init__(self, actor: RemoteActor, method: str, reference: Any) -> None:
        self._actor, self._method = actor, method
        self._answer: Any = UNKNOWN
        self.wait_for(reference)

    def wait_for(self, reference: Any) -> None:
        """Wait for this reference, which belongs to the repeated call."""
        self.reference = reference
        self._submitted_s = time.monotonic()
        self._is_late = False

    @property
    def is_answered(self) -> bool:
        """Whether the result has been taken."""
        return self._answer is not UNKNOWN

    def is_ready(self) -> bool:
        import ray

        if self.is_answered or ray.wait([self.reference], timeout=0)[0]:
            return True
        self._is_late = self.is_silent()
        return self._is_late

    def is_silent(self) -> bool:
        deadline_s = self._actor.deadline_s(self._submitted_s)
        return deadline_s is not None and time.monotonic() > deadline_s

    def result(self) -> Any:
        if not self.is_answered:
            self._answer = self._actor.receive(self._method, self.reference, self._is_late)
        return self._answer


def close_actors(actors: Iterable[Caller]) -> None:
    """Close actors; Ray actors close at the same time, and are killed together if they hang."""
    actors = list(actors)
    remote = [actor for actor in actors if isinstance(actor, RemoteActor)]
    with ExitStack() as stack:
        stack.callback(close_each, [actor for actor in actors if not isinstance(actor, RemoteActor)])
        for actor in remote:
            stack.callback(actor.abandon)
        if remote:
            _wait_until_closed([actor.actor.call.remote("close") for actor in remote])


def _wait_until_closed(pending: list[Any]) -> None:
    """Wait until all Ray actors have closed, or until none has closed for some seconds."""
    import ray

    num_before = len(pending) + 1
    with suppress(ray.exceptions.RayError):
        while 0 < len(pending) < num_before:
            num_before = len(pending)
            _, pending = ray.wait(pending, timeout=_CLOSE_TIMEOUT_S)
