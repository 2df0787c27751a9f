"""Groups of actors whose size follows the cluster: they grow with free capacity, and shrink when nodes fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.cluster.actor_group import ActorGroup, MakeCaller
from runner.cluster.actors import Caller, close_actors
from runner.cluster.futures import Future
from runner.config.errors import RunnerError
from runner.interrupts import is_interrupted
from runner.restarts import ActorDied, Restarts

_POLL_INTERVAL_S = 2.0
_PAUSE_S = 60.0  # after an actor could not be started
_FIRST_WAIT_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Size:
    """The size of a group of actors.

    Attributes:
        fewest: minimum number of actors; below it, a dead actor is replaced, and the run waits for it.
        most: maximum number of actors.
        count_places: number of actors to place -> number for which the cluster has resources now.
        first_call: method of a new actor; its answer shows that the actor has started.
    """

    fewest: int
    most: int
    count_places: Callable[[int], int]
    first_call: str


class ElasticGroup(ActorGroup):
    """Ray actors whose number follows the resources of the cluster.

    A new actor starts in the background, and joins once it has started. A dead actor leaves, and its index may be used
    by a new actor of another generation. Indexes need not be contiguous.

    Args:
        make: (index, generation) -> a remote actor.
        size: bounds of the group.
        num_actors: number at the start.
        role, restarts: see `ActorGroup`.
    """

    def __init__(self, make: MakeCaller, size: Size, num_actors: int, role: str, restarts: Restarts) -> None:
        super().__init__(make, size.fewest, role, restarts)
        self.generations = [0] * size.most
        self._size = size
        self._starting: dict[int, tuple[Caller, Future]] = {}
        self._dead: dict[int, str] = {}  # index of an actor that has left -> cause of its death
        self._next_poll_s = self._next_start_s = 0.0
        self._start(num_actors - size.fewest)

    # -- more actors -----------------------------------------------------------------------------------------------

    def follow_capacity(self) -> Sequence[int]:
        """Add actors that have started, and start more, at most every two seconds; return the indexes of new actors."""
        now_s = time.monotonic()
        if now_s < self._next_poll_s:
            return ()
        self._next_poll_s = now_s + _POLL_INTERVAL_S
        joined = self._take_in_started()
        num_missing = self._size.most - len(self.indexes) - len(self._starting)
        if num_missing > 0 and now_s >= self._next_start_s:
            self._start(self._size.count_places(num_missing))
        return joined

    def _start(self, num_actors: int) -> None:
        most = len(self._starting) + num_actors
        for index in sorted({*range(self._size.most)} - {*self.indexes, *self._starting}):
            if len(self._starting) >= most:
                return
            if index in self._dead:
                if self.restarts.are_used_up:
                    continue
                self.restarts.add(self._dead.pop(index), 1)
            caller = self._make(index, self.generations[index])
            self._starting[index] = (caller, caller.submit(self._size.first_call))

    def _take_in_started(self) -> list[int]:
        started = [index for index, (_, future) in self._starting.items() if future.is_ready()]
        return [index for index in started if self._take_in_or_close(index, *self._starting.pop(index))]

    def _take_in_or_close(self, index: int, caller: Caller, future: Future) -> bool:
        try:
            future.result()
        except (ActorDied, RunnerError) as failure:
            _log.warning("%s %d cannot be started: %s", self.role, index, failure)
            self.generations[index] += 1
            caller.close()
            self._next_start_s = time.monotonic() + _PAUSE_S
            return False
        self._callers = dict(sorted((self._callers | {index: caller}).items()))
        _log.info("%s %d has joined, there are now %d", self.role, index, len(self.indexes))
        return True

    def wait_for_first(self) -> Sequence[int]:
        """Wait up to ten seconds for actors that are starting; return the indexes of new actors."""
        joined: list[int] = []
        deadline_s = time.monotonic() + _FIRST_WAIT_S
        while self._starting and time.monotonic() < deadline_s and not is_interrupted():
            time.sleep(_FIRST_WAIT_S / 100)
            joined += self._take_in_started()
        return joined

    # -- fewer actors ----------------------------------------------------------------------------------------------

    def replace_dead(self, index: int, generation: int, died: ActorDied) -> None:
        """Continue without a dead actor, or replace it if too few others are left."""
        if len(self.indexes) <= self._size.fewest or self.restarts.are_off:
            super().replace_dead(index, generation, died)
        elif self.generations[index] == generation:
            self._dead[index] = str(died)
            self._remove(index)
            del self._callers[index]
            self.generations[index] += 1
            _log.warning("%s: continuing with %d", died, len(self.indexes))

    # -- state -----------------------------------------------------------------------------------------------------

    def take_places(self, indexes: Sequence[int], generations: Sequence[int]) -> None:
        self._close_starting()
        super().take_places(indexes, generations)

    def renew(self, generation: int) -> None:
        self._close_starting()
        super().renew(generation)

    def _close_starting(self) -> None:
        starting, self._starting = self._starting, {}
        close_actors(caller for caller, _ in starting.values())

    def close(self) -> None:
        try:
            self._close_starting()
        finally:
            super().close()
