"""Groups of actors that restore or replace dead actors, and futures that outlive the death of an actor."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from runner.cluster.actors import Caller, RemoteActor, close_actors
from runner.cluster.futures import Future, FutureAfterCalls, LocalFuture
from runner.config.errors import RunFailure, RunnerError
from runner.restarts import ActorDied, Restarts

MakeCaller = Callable[[int, int], Caller]


class ActorGroup:
    """Actors of one role. A dead actor is restored if its caller supports that; otherwise a new generation replaces it.

    Args:
        make: (index, generation) -> an actor, local or remote.
        num_actors: size of the group; indexes are 0, 1, ...
        role: name of the actors in messages.
        restarts: counts dead actors, and ends the run when its limit is reached.
        max_pending: maximum number of unanswered calls of one actor; a further call waits for the oldest one. None
            means no limit.
        repeats_calls: whether an actor of a new generation gets the open calls of the dead one; otherwise their futures
            raise `ActorDied`.

    Attributes:
        generations: by index, the number of actors that had the index before. A generation is never used twice.
    """

    def __init__(
        self,
        make: MakeCaller,
        num_actors: int,
        role: str,
        restarts: Restarts,
        max_pending: int | None = None,
        repeats_calls: bool = True,
    ) -> None:
        self.role, self.restarts, self.repeats_calls = role, restarts, repeats_calls
        self.generations = [0] * num_actors
        self._make = make
        self._callers = {index: make(index, 0) for index in range(num_actors)}
        self._announced: dict[str, tuple[Any, ...]] = {}
        self._sent: dict[Caller, dict[str, tuple[Any, ...]]] = {}  # the announcements that an actor has received
        self._max_pending = max_pending
        self._pending: dict[int, deque[GroupFuture]] = defaultdict(deque)
        self._deaths: dict[int, int] = defaultdict(int)  # by index, deaths since the last answer

    @property
    def indexes(self) -> list[int]:
        """The indexes of the actors, ascending."""
        return list(self._callers)

    @property
    def callers(self) -> list[Caller]:
        """The actors, in the order of their indexes."""
        return list(self._callers.values())

    # -- calls -----------------------------------------------------------------------------------------------------

    def submit(self, index: int, method: str, *arguments: Any) -> GroupFuture:
        """Call a method of one actor, after pending announcements.

        Raises:
            ActorDied: `max_pending` made this call wait for an actor that has died, and calls are not repeated.
        """
        if self._max_pending is None:
            return GroupFuture(self, index, (method, *arguments))
        while len(self._pending[index]) >= self._max_pending:
            self._pending[index].popleft().result()
        future = GroupFuture(self, index, (method, *arguments))
        self._pending[index].append(future)
        return future

    def send(self, index: int, method: str, *arguments: Any) -> Future:
        """Like `submit`, but return a future that fails when the actor dies."""
        caller = self._callers[index]
        sent = self._sent.setdefault(caller, {})
        new = [(subject, one) for subject, one in self._announced.items() if sent.get(subject) is not one]
        announced = [caller.announce(subject, *announcement) for subject, announcement in new]
        sent.update(new)
        future = caller.submit(method, *arguments)
        return FutureAfterCalls(announced, future) if announced else future

    def call_all(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Return the answers of all actors by index, except for actors that leave the group."""
        futures = [self.submit(index, method, *arguments) for index in self.indexes]
        return {future.index: future.result() for future in futures if future.has_answer()}

    def announce(self, subject: str, method: str, *arguments: Any) -> None:
        """Call a method of each actor before its next call, also of actors that replace dead ones.

        Args:
            subject: topic of the call; a later announcement about the same subject replaces it.
            method, arguments: the call. Its result is not used; its error is raised by the next call.
        """
        self._announced[subject] = (method, *arguments)

    def has_announced(self, subject: str) -> bool:
        """Return whether there was an announcement about a subject."""
        return subject in self._announced

    def call_processes(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function with the `Actor` in each process; actors in this process are skipped."""
        remote = [caller for caller in self.callers if isinstance(caller, RemoteActor)]
        return [future.result() for future in [caller.submit_function(function) for caller in remote]]

    # -- dead actors -----------------------------------------------------------------------------------------------

    def note_answer(self, index: int) -> None:
        """Record that an actor has answered, so that its next death does not count as one of several in a row."""
        self._deaths[index] = 0

    def replace_dead(self, index: int, generation: int, died: ActorDied) -> None:
        """Restore or replace a dead actor, unless another of its futures has done so.

        Raises:
            RunFailure: no more restarts are allowed.
        """
        if self.generations[index] != generation:
            return
        self._deaths[index] += 1
        self.restarts.add(str(died), self._deaths[index])
        if not self._callers[index].restore():
            self._remove(index)
            self._put(index, generation + 1)

    def _put(self, index: int, generation: int) -> None:
        self.generations[index] = generation
        self._callers[index] = self._make(index, generation)

    def _remove(self, index: int) -> None:
        caller = self._callers[index]
        self._sent.pop(caller, None)
        self._pending.pop(index, None)
        caller.close()

    def follow_capacity(self) -> Sequence[int]:
        """Adapt the number of actors to the cluster without waiting; return the indexes of new actors."""
        return ()

    def wait_for_first(self) -> Sequence[int]:
        """Wait for a limited time for actors that start in the background; return the indexes of new actors."""
        return ()

    # -- state -----------------------------------------------------------------------------------------------------

    def take_places(self, indexes: Sequence[int], generations: Sequence[int]) -> None:
        """Keep the number of actors, and assign the indexes and generations of a checkpoint first."""
        here = {index: self.generations[index] for index in self.indexes}
        places = range(len(self.generations))
        self.generations = [*generations, *[0] * (len(places) - len(generations))]
        for index in indexes[len(here) :]:  # these do not have an actor now, and their generations have acted
            self.generations[index] += 1
        kept = [*indexes[: len(here)], *(index for index in places if index not in indexes)][: len(here)]
        for index, generation in here.items():
            if index not in kept or self.generations[index] != generation:
                self._remove(index)
                del self._callers[index]
        for index in kept:
            if index not in self._callers:
                self._put(index, self.generations[index])
        self._callers = {index: self._callers[index] for index in sorted(kept)}

    def renew(self, generation: int) -> None:
        """Replace all actors by actors of another generation."""
        self.generations = [generation] * len(self.generations)
        for index in self.indexes:
            self._remove(index)
            self._put(index, generation)

    def abandon(self) -> None:
        """End all actors without waiting for unanswered calls."""
        with ExitStack() as stack:
            for caller in self.callers:
                stack.callback(caller.abandon)

    def close(self) -> None:
        """Close all actors."""
        close_actors(self.callers)


class GroupFuture(Future):
    """The pending result of an actor of a group. If the actor dies, another one replaces it and repeats the call.

    Args:
        group: group of the actor.
        index: index of the actor.
        call: name of a method, and its arguments.
        answer: the answer, if a checkpoint contains it.
    """

    def __init__(self, group: ActorGroup, index: int, call: tuple[Any, ...], answer: Any = None) -> None:
        self.index = index
        self._group, self._call = group, call
        self._death: ActorDied | None = None  # final: the call is not repeated
        self._future: Future = LocalFuture(lambda: answer) if answer is not None else self._sent()
        if not group.repeats_calls:
            self._call = ()  # its arguments may be large

    def _sent(self) -> Future:
        self._generation = self._group.generations[self.index]
        return self._group.send(self.index, *self._call)

    @property
    def has_left(self) -> bool:
        """Whether the actor has died and the call is not repeated, so that there will be no answer."""
        return self._death is not None

    @property
    def reference(self) -> Any:
        return self._future.reference

    def is_ready(self) -> bool:
        """Return whether `result` would not wait; a dead actor is replaced."""
        if self.has_left or self.reference is None or not self._future.is_ready():
            return self.has_left or self._future.is_ready()
        try:
            self._future.result()
        except ActorDied as died:
            self._replace(died)
            return self.has_left
        except RunnerError:
            pass  # `result` raises it
        return True

    def is_silent(self) -> bool:
        return self._future.is_silent()

    def result(self) -> Any:
        """Wait for the answer and return it.

        Raises:
            RunFailure: the call failed, or no more restarts are allowed.
            ActorDied: the actor has died and the call is not repeated.
        """
        while self._death is None:
            try:
                answer = self._future.result()
                self._group.note_answer(self.index)
                return answer
            except ActorDied as died:
                self._replace(died)
            except RunFailure as failure:
                where = ", ".join(filter(None, (f"{self._group.role} {self.index}", failure.problem.where)))
                raise RunFailure(replace(failure.problem, where=where)) from failure
        raise self._death

    def has_answer(self) -> bool:
        """Wait for the answer, and return whether there is one.

        Raises:
            RunFailure: see `result`.
        """
        try:
            self.result()
        except ActorDied:
            return False
        return True

    def _replace(self, died: ActorDied) -> None:
        self._group.replace_dead(self.index, self._generation, died)
        if self.index not in self._group.indexes:
            self._death = died
        elif self._generation != self._group.generations[self.index]:  # else the actor is restored, with its calls
            if self._group.repeats_calls:
                self._future = self._sent()
            else:
                self._death = died
