"""Shards of replay that a run goes on with, when they are lost, as if they had not been."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runner.replay.shards import Answer, MakeBuffer, RemoteShard, ShardLost
from runner.restarts import Restarts

# Calls that a state does not hold; a buffer gets them before its state.
_SETTINGS = ("use_stream", "use_lookback")
_READING = ("__len__", "get_state", "is_full", "metrics")


class RestorableShard(RemoteShard):
    """A shard in a Ray actor that is restored where it is lost: a new actor takes a snapshot of its state, and is
    called again as the lost one was called since.

    What a shard answers follows from its state and its calls, so that a run in which one is lost has the numbers of a
    run in which none is. Snapshots are in Ray's object store, where a lost node takes them with it.

    Args:
        make_buffer: see `RemoteShard`.
        restarts: of lost shards; raises where the run shall end.
        calls_per_snapshot: calls from one snapshot to the next; twice as many are repeated at most.
    """

    def __init__(self, make_buffer: MakeBuffer, restarts: Restarts, calls_per_snapshot: int = 1000) -> None:
        super().__init__(make_buffer)
        self._restarts, self._calls_per_snapshot = restarts, calls_per_snapshot
        self._losses_in_a_row = 0
        self._settings: dict[str, tuple[Any, ...]] = {}
        self._periods = [_Period(None)]  # the newest, and the one before it

    def call(self, method: str, *arguments: Any) -> Answer:
        """Send the call to the actor, and to one that takes its place until a later snapshot is there."""
        if method == "set_state":
            import ray

            arguments = (ray.put(*arguments),)
            self._periods = [_Period(None)]
        claim = _Claim()
        if method in _SETTINGS:
            self._settings[method] = arguments
        else:
            self._periods[-1].calls.append(_Repeatable(method, arguments, weakref.ref(claim)))
        try:
            claim.wait = super().call(method, *arguments)
        except ShardLost as lost:
            self._restore(lost)
        if len(self._periods[-1].calls) >= self._calls_per_snapshot:
            self._periods = [self._periods[-1], _Period(self._actor.call.remote("get_state"))]
        return partial(self._answer_of, claim)

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
            ShardLost: all snapshots are lost.
        """
        super().close()
        period = self._newest_period()
        if period is None:
            raise ShardLost(f"{lost}, and so are the snapshots of its state")
        self._periods = [period]
        while True:
            self._losses_in_a_row += 1
            self._restarts.add(f"a replay shard {lost}", self._losses_in_a_row)
            self._start()
            try:
                return self._repeat(period)
            except ShardLost as again:
                lost = again
                super().close()

    def _newest_period(self) -> _Period | None:
        """Return the period that began with the newest snapshot that there is, with all calls since."""
        import ray

        calls: list[_Repeatable] = []
        for period in reversed(self._periods):
            calls = [*period.calls, *calls]
            try:
                if period.snapshot is not None:
                    ray.get(period.snapshot, timeout=0)  # its arrays stay in the object store
            except ray.exceptions.RayError:
                continue
            return _Period(period.snapshot, calls)
        return None

    def _repeat(self, period: _Period) -> None:
        """Call the new actor as the lost one was called."""
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
        self._periods = [_Period(None)]
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
    """Calls from one snapshot to the next; `snapshot` is Ray's reference to the state before them, None if empty."""

    snapshot: Any
    calls: list[_Repeatable] = field(default_factory=list)
