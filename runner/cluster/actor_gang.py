"""Ray actors that are restarted together: if one dies, all of them are restarted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from runner.cluster.actors import CallFailed, MakeHeld, RemoteActor, Role
from runner.cluster.futures import Future
from runner.cluster.pending_actors import find_lack_of_capacity
from runner.config.errors import Problem, RunFailure, RunnerError
from runner.restarts import ActorDied, PeerDied, Restarts

# An actor that misses a peer often fails before Ray reports which one died.
_NAMING_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class ActorGang:
    """Ray actors that cannot finish their calls without each other.

    Args:
        role: role of the actors.
        make: makes the object of one actor; it is pickled.
        num_actors: number of actors.
        restarts: counts restarts of all actors together.
        prepare: restores the newest state of actors that have just started.

    Attributes:
        actors: actors by index; empty if they have to be started.
        generation: number of starts so far.
    """

    def __init__(
        self, role: Role, make: MakeHeld, num_actors: int, restarts: Restarts, prepare: Callable[[], None]
    ) -> None:
        self.restarts = restarts
        self.actors: list[RemoteActor] = []
        self.generation = 0
        self._role, self._make, self._num_actors = role, make, num_actors
        self._prepare = prepare

    def until_done(self, attempt: Callable[[], list[Any]]) -> list[Any]:
        """Return the answers that `attempt` gets from all actors; after a death, repeat it with new actors.

        Raises:
            RunFailure: no more restarts are allowed.
            RunnerError: an actor failed, and would fail again after a restart.
        """
        deaths_in_a_row = 0
        while True:
            try:
                if not self.actors:
                    self._start()
                return attempt()
            except ActorDied as died:
                deaths_in_a_row += 1
                self.close()
                self.restarts.add(str(died), deaths_in_a_row)
                _log.warning("restarting all %ss in the state after the last update", self._role.name)
            except BaseException:
                self.close()  # the other actors may wait for the failed one
                raise

    def _start(self) -> None:
        self.generation += 1
        for index in range(self._num_actors):
            self.actors.append(RemoteActor(self._role, self._make, index))
        self._prepare()

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], timeout_s: float | None = None) -> list[Any]:
        """Call all actors, each with its arguments, and return their answers; see `answers`."""
        return self.answers(self.begin(method, arguments), timeout_s)

    def begin(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Future]:
        """Call all actors, each with its arguments; return no futures if they have to be started."""
        if not self.actors:
            return []
        return [actor.submit(method, *own) for actor, own in zip(self.actors, arguments, strict=True)]

    def answers(self, futures: Sequence[Future], timeout_s: float | None = None) -> list[Any]:
        """Wait for the answers of several actors.

        Args:
            futures: futures of `begin`.
            timeout_s: seconds after which actors count as not started, or None for no limit.

        Raises:
            ActorDied: an actor has died; others may wait for it until they are closed.
            RunnerError: an actor failed, and would fail again after a restart.
        """
        import ray

        answers: dict[int, Any] = {}
        failures: list[Exception] = []
        pending = {future.reference: number for number, future in enumerate(futures)}
        while pending:
            wait_s = _NAMING_TIMEOUT_S if failures else timeout_s
            done, _ = ray.wait(list(pending), num_returns=1, timeout=wait_s)
            if not done:
                break
            number = pending.pop(done[0])
            try:
                answers[number] = futures[number].result()
            except (PeerDied, CallFailed) as failure:  # may be caused by the death of another actor, raised instead
                failures.append(failure)
        if failures:
            raise next((failure for failure in failures if isinstance(failure, RunnerError)), failures[0])
        if pending:
            raise self._not_started(len(pending), timeout_s or 0.0)
        return [answers[number] for number in range(len(futures))]

    def _not_started(self, num_missing: int, timeout_s: float) -> RunFailure:
        lack = find_lack_of_capacity([actor.actor for actor in self.actors], timeout_s)
        if lack is not None:
            return RunFailure(lack)
        what = f"{num_missing} of {self._num_actors} {self._role.name}s did not start within {timeout_s:g} s"
        return RunFailure(Problem(what, "ray.actor_start_timeout_s"))

    def call_processes(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function with the `Actor` in each process."""
        return self.until_done(lambda: self.answers([actor.submit_function(function) for actor in self.actors]))

    def close(self) -> None:
        """Kill the actors, also if they are busy."""
        actors, self.actors = self.actors, []
        for actor in actors:
            actor.abandon()
