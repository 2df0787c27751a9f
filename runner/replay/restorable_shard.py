"""Shards of replay that a run goes on with, when they are lost, as if they had not been."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from runner.replay.shards import Answer, MakeBuffer, RemoteShard, ShardLost
from runner.restarts import Restarts

_SETTINGS = ("use_stream", "use_lookback")  # a buffer gets them before its state, which does not hold all of them
_WITH_ROWS = ("add", "set_state")
_READING = ("__len__", "get_state", "is_full", "metrics")


class RestorableShard(RemoteShard):
    """A shard in a Ray actor that is restored where it is lost: a new actor takes a snapshot of its state, and is
    called again as the lost one was called since.

    What a shard answers follows from its state and its calls, so that a run in which one is lost has the numbers of a
    run in which none is. Snapshots are in Ray's object store, where a lost node takes them with it. While a snapshot is
    made the shard does nothing else.

    Args:
        make_buffer: see `RemoteShard`.
        restarts: of lost shards; raises where the run shall end.
        calls_per_snapshot: calls from one snapshot to the next.
    """

    def __init__(self, make_buffer: MakeBuffer, restarts: Restarts, calls_per_snapshot: int = 1000) -> None:
        super().__init__(make_buffer)
        self._restarts, self._calls_per_snapshot = restarts, calls_per_snapshot
        self._losses_in_a_row = 0
        self._settings: dict[str, tuple[Any, ...]] = {}
        self._periods = [_Period()]

    def call(self, method: str, *arguments: Any) -> Answer:
        """Send the call to the actor, and keep it for another one until a snapshot holds what it does."""
        import ray

        if method == "set_state":
            self._periods = [_Period()]
        if method in _WITH_ROWS:  # they are in the object store once, for this call and a repetition
            arguments = tuple(map(ray.put, arguments))
        claim = _Claim()
        if method in _SETTINGS:
            self._settings[method], claim.is_answered = arguments, True
        else:
            self._periods[-1].calls.append(_Repeatable(method, arguments, weakref.ref(claim)))
        try:
            claim.wait = super().call(method, *arguments)
        except ShardLost as lost:
            self._restore(lost)
        if len(self._periods[-1].calls) >= self._calls_per_snapshot:
            self._take_snapshot()
        return partial(self._answer_of, claim)

    def _take_snapshot(self) -> None:
        """Begin a period, and forget what is older than the newest snapshot that has been made."""
        self._periods.append(_Period(*self._actor.snapshot.options(num_returns=2).remote()))
        newest = max(number for number, period in enumerate(self._periods) if period.is_ready())
        del self._periods[:newest]

    def _answer_of(self, claim: _Claim) -> Any:
        while not claim.is_answered:
            try:
                claim.answer = claim.wait()
                claim.is_answered = True
                self._losses_in_a_row = 0
            except ShardLost as lost:
                self._restore(lost)
        return claim.answer

    def _restore(self, lost: ShardLost) -> None:
        """Put another actor into the place of the lost one, in its state.

        Raises:
            RunFailure: restarts are used up.
            ShardLost: no snapshot of its state is left.
        """
        super().close()
        period = self._newest_period()
        if period is None:
            raise ShardLost(f"{lost}, and so are the snapshots of its state")
        self._periods = [period]
        while True:
            self._losses_in_a_row += 1
            self._restarts.add(f"a replay shard {lost}", self._losses_in_a_row)
            try:
                return self._start_as_of(period)
            except ShardLost as again:
                lost = again
                super().close()
            except BaseException:  # an interrupt: an actor with a part of the calls must not go on
                super().close()
                raise

    def _newest_period(self) -> _Period | None:
        """Return the period that began with the newest snapshot that can be read, with all calls since."""
        import ray

        calls: list[_Repeatable] = []
        for period in reversed(self._periods):
            calls = [*period.calls, *calls]
            with suppress(ShardLost, ray.exceptions.RayError):
                if period.is_made is not None:
                    self._receive(period.is_made)
                    self._receive(period.snapshot)
                return replace(period, calls=calls)
        return None

    def _start_as_of(self, period: _Period) -> None:
        """Start an actor, and call it as the lost one was called."""
        self._start()
        for method, arguments in self._settings.items():
            super().call(method, *arguments)
        if period.snapshot is not None:
            super().call("set_state", period.snapshot)
        for repeated in period.calls:
            claim = repeated.claim()
            is_claimed = claim is not None and not claim.is_answered
            if is_claimed or repeated.method not in _READING:
                wait = super().call(repeated.method, *repeated.arguments)
                if claim is not None:
                    claim.wait = wait

    def close(self) -> None:
        """End the actor, and free what it would be restored from."""
        self._periods = [_Period()]
        super().close()


@dataclass(eq=False)
class _Claim:
    """A claim to the answer of whichever actor has the shard's place.

    Attributes:
        wait: waits for the answer of the actor that was called last.
        answer: known if `is_answered`.
    """

    wait: Answer = field(default=lambda: None)
    answer: Any = None
    is_answered: bool = False


@dataclass(frozen=True)
class _Repeatable:
    """A call, and who claims its answer: perhaps nobody any more."""

    method: str
    arguments: tuple[Any, ...]
    claim: Callable[[], _Claim | None]


@dataclass(eq=False)
class _Period:
    """Calls from one snapshot to the next.

    Attributes:
        is_made, snapshot: Ray's references to what `_ReplayShard.snapshot` returns; None: the shard was empty.
        calls: in their order.
    """

    is_made: Any = None
    snapshot: Any = None
    calls: list[_Repeatable] = field(default_factory=list)

    def is_ready(self) -> bool:
        """Return whether the snapshot has been made."""
        import ray

        if self.is_made is None:
            return True
        if not ray.wait([self.is_made], timeout=0)[0]:
            return False
        try:
            return bool(ray.get(self.is_made))
        except ray.exceptions.RayError:  # the shard was lost, or has no room for it
            return False
