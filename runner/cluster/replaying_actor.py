"""Ray actors that are restored after they die, so that the results of a run do not change."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from runner.cluster.actors import MakeHeld, RemoteActor, RemoteFuture, Role
from runner.cluster.futures import Future, LocalFuture
from runner.config.errors import RunnerError
from runner.restarts import ActorDied

# After this many failed snapshots in a row, the actor cannot be restored until one succeeds.
_MOST_FAILED_SNAPSHOTS = 3

_log = logging.getLogger(__name__)

Call = tuple[Any, ...]  # name of a method, and its arguments
_Repeatable = tuple[Call, Callable[[], RemoteFuture | None]]  # a weak reference: the future may be gone


@dataclass(frozen=True)
class ReplayRules:
    """Properties of the methods of a role that `ReplayingActor` needs to know.

    Attributes:
        calls_per_snapshot: number of calls between two snapshots. At most these are repeated, and a few more that have
            not been answered.
        settings: methods that a new actor receives before its state, which does not contain all of their effects.
        reading: methods that change nothing: they are repeated only if their answer is still awaited.
        put_once: methods with large arguments, which are put into Ray's object store once for the call and its
            repetition.
        restores_unanswered: whether to restore an actor that has not answered since it was last restored; its calls may
            be fatal.
    """

    calls_per_snapshot: int = 16
    settings: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()
    put_once: tuple[str, ...] = ()
    restores_unanswered: bool = False


class ReplayingActor(RemoteActor):
    """A Ray actor that is restored after it dies: a new one receives a snapshot of its state, and all later calls.

    Answers depend only on the state and the calls, so a run in which an actor dies gives the same results as an
    undisturbed run. Snapshots are in Ray's object store: if a node dies, its large ones are lost. An actor does nothing
    else while it makes a snapshot.

    Args:
        role, make, index, generation: see `RemoteActor`.
        replay: which calls are repeated, and how often snapshots are made.
    """

    def __init__(
        self, role: Role, make: MakeHeld, index: int, generation: int = 0, replay: ReplayRules = ReplayRules()
    ) -> None:
        super().__init__(role, make, index, generation)
        self._replay = replay
        self._first_timeout_s = self._start_timeout_s
        self._settings: dict[str, Call] = {}
        self._announced: dict[str, Call] = {}
        self._periods = [_Period()]
        self._restoring: Any = None  # Ray's reference to the pending answer of `set_state`
        self._has_answered = True

    def submit(self, method: str, *args: Any) -> Future:
        if method in self._replay.put_once:
            import ray

            args = tuple(map(ray.put, args))
        future = RemoteFuture(self, method, self.actor.call.remote(method, *args))
        if method in self._replay.settings:
            self._settings[method] = (method, *args)
            return LocalFuture(lambda: None)
        calls = self._periods[-1].calls
        calls.append(((method, *args), weakref.ref(future)))
        if len(calls) >= self._replay.calls_per_snapshot:
            is_made, snapshot = self.actor.snapshot.options(num_returns=2).remote()
            self._periods.append(_Period(is_made, snapshot, dict(self._announced)))
            self._forget_old()
        return future

    def announce(self, subject: str, method: str, *args: Any) -> Future:
        self._announced[subject] = (method, *args)  # first: a snapshot right after this call does not contain it
        return self.submit(method, *args)

    def restore(self) -> bool:
        """Restore the actor; return False if it has not answered since the last time, or no snapshot is left."""
        self._kill()  # an actor that is only silent would keep snapshots that are awaited
        may_be_restored = self._has_answered or self._replay.restores_unanswered
        period = self._newest_snapshot() if may_be_restored else None
        if period is None:
            what = "%s %d cannot be restored: a new one replaces it, which changes the results of the run"
            _log.warning(what, self._role.name, self._index)
            return False
        self._role.placement.leave()
        self._start()
        if self._first_timeout_s is not None:
            self._start_timeout_s = self._first_timeout_s + len(period.calls) * (self._role.answer_timeout_s or 0.0)
        self._has_answered = False
        self._periods = [period]
        for setting in self._settings.values():
            self.actor.call.remote(*setting)
        self._restoring = None if period.is_made is None else self.actor.call.remote("set_state", period.snapshot)
        for announcement in period.announced.values():
            self.actor.call.remote(*announcement)
        for call, find_future in period.calls:
            self._repeat(call, find_future())
        return True

    def _repeat(self, call: Call, future: RemoteFuture | None) -> None:
        if future is not None and not future.is_answered:
            future.wait_for(self.actor.call.remote(*call))
        elif call[0] not in self._replay.reading:
            self.actor.call.remote(*call)

    def _newest_snapshot(self) -> _Period | None:
        """Return the period that began with the newest readable snapshot, with all later calls.

        All answers before it have been taken: an answer on the node of a dead actor may be lost.
        """
        import ray

        last = self._first_awaited(len(self._periods) - 1)
        calls = [call for period in self._periods[last + 1 :] for call in period.calls]
        for period in reversed(self._periods[: last + 1]):
            calls = [*period.calls, *calls]
            with suppress(ActorDied, RunnerError, ray.exceptions.RayError):
                if period.is_made is not None:
                    super().receive("snapshot", period.is_made)
                    super().receive("snapshot", period.snapshot)
                return replace(period, calls=calls)
        return None

    def receive(self, method: str, reference: Any, is_late: bool = False) -> Any:
        if self._restoring is not None:
            try:
                super().receive("set_state", self._restoring, is_late)
            except RunnerError as error:
                raise ActorDied(f"{self.name} cannot restore a snapshot of its state: {error}") from error
            self._restoring = None
        answer = super().receive(method, reference, is_late)
        self._has_answered = True
        self._forget_old()
        return answer

    def _forget_old(self) -> None:
        """Forget everything before the newest snapshot, or before several failed ones, except for awaited calls."""
        outcomes = [period.has_snapshot() for period in self._periods[1:]]
        newest = max((number for number, is_there in enumerate(outcomes, 1) if is_there), default=0)
        if outcomes[newest:].count(False) > _MOST_FAILED_SNAPSHOTS:
            newest += 1
        del self._periods[: self._first_awaited(newest)]

    def _first_awaited(self, most: int) -> int:
        """Return the number of the first period with a call whose answer has not been taken, but at most `most`."""
        periods = enumerate(self._periods[:most])
        return next((number for number, period in periods if period.has_awaited_call()), most)

    def abandon(self) -> None:
        self._periods = [_Period()]
        super().abandon()


@dataclass(eq=False)
class _Period:
    """Calls from one snapshot to the next.

    Attributes:
        is_made, snapshot: Ray's references to the results of `Actor.snapshot`, or None for a newly made object.
        announced: the newest earlier announcement about each subject.
        calls: calls in order, including announcements.
    """

    is_made: Any = None
    snapshot: Any = None
    announced: dict[str, Call] = field(default_factory=dict)
    calls: list[_Repeatable] = field(default_factory=list)

    def has_awaited_call(self) -> bool:
        """Return whether someone still waits for the answer of a call."""
        futures = (find_future() for _, find_future in self.calls)
        return any(future is not None and not future.is_answered for future in futures)

    def has_snapshot(self) -> bool | None:
        """Return whether the snapshot has been made, or None if this is not known yet, or will never be."""
        import ray

        if not ray.wait([self.is_made], timeout=0)[0]:
            return None
        try:
            return bool(ray.get(self.is_made))
        except ray.exceptions.RayTaskError:  # the object does not have a state
            return False
        except ray.exceptions.RayError:  # the actor died
            return None
