"""Env runners whose number follows the cluster: more where it has room, fewer where nodes are lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.closing import close_each
from runner.config.errors import RunnerError
from runner.env_runners.env_runner_group import EnvRunnerGroup, MakeHandle
from runner.env_runners.handles import RunnerHandle, RunnerLost
from runner.env_runners.sample import Sample
from runner.env_runners.tickets import Ticket
from runner.interrupts import is_interrupted

_LOOK_S = 2.0
_PAUSE_S = 60.0  # after a runner that could not be started
_FIRST_WAIT_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Size:
    """How many runners a group has.

    Attributes:
        fewest: runners without which the run does not go on: a lost one is replaced, and waited for.
        most: runners at most.
        count_places: how many places are looked for -> how many the cluster has now.
    """

    fewest: int
    most: int
    count_places: Callable[[int], int]


@dataclass(frozen=True)
class _StartingRunner:
    handle: RunnerHandle
    ticket: Ticket


class ElasticEnvRunnerGroup(EnvRunnerGroup):
    """Env runners in Ray actors, as many as the cluster has room for.

    A new runner starts in the background, and takes part once it is ready. A lost one leaves, and its index is free for
    a new runner, of another generation. Indexes need not be contiguous.

    Args:
        make_handle: (index, generation) -> a remote runner.
        size: of the group.
        num_runners: runners at first.
        arguments: further ones of `EnvRunnerGroup`.
    """

    def __init__(self, make_handle: MakeHandle, size: Size, num_runners: int, *arguments: Any, **options: Any) -> None:
        super().__init__(make_handle, size.fewest, *arguments, **options)
        self.generations = [0] * size.most
        self._size = size
        self._starting: dict[int, _StartingRunner] = {}
        self._lost: dict[int, str] = {}  # index of a runner that has left -> how it was lost
        self._next_look_s = self._next_start_s = 0.0
        self._start(num_runners - size.fewest)

    # -- more runners ----------------------------------------------------------------------------------------------

    def follow_room(self) -> None:
        """Take in runners that have started, and start more where the cluster has room; waits for nothing.

        Calls within two seconds do nothing.
        """
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_S
        self._take_in_started()
        num_missing = self._size.most - self.num_runners - len(self._starting)
        if num_missing > 0 and now_s >= self._next_start_s:
            self._start(self._size.count_places(num_missing))

    def _start(self, num_runners: int) -> None:
        used = {*self.indexes, *self._starting}
        for index in [index for index in range(self._size.most) if index not in used][:num_runners]:
            if index in self._lost:
                if self._restarts.are_used_up:
                    continue
                self._restarts.add(self._lost.pop(index), 1)
            handle = self._make_handle(index, self.generations[index])
            self._starting[index] = _StartingRunner(handle, handle.submit("address"))

    def _take_in_started(self) -> None:
        for index, starting in list(self._starting.items()):
            if starting.ticket.is_ready():
                del self._starting[index]
                self._take_in_or_close(index, starting)

    def _take_in_or_close(self, index: int, starting: _StartingRunner) -> None:
        try:
            starting.ticket.result()
        except (RunnerLost, RunnerError) as failure:
            _log.warning("%s %d cannot be started: %s", self.role, index, failure)
            self.generations[index] += 1
            starting.handle.close()
            self._next_start_s = time.monotonic() + _PAUSE_S
            return
        self._handles = dict(sorted((self._handles | {index: starting.handle}).items()))
        self._sent[index] = self._newest
        _log.info("%s %d has joined, there are %d", self.role, index, self.num_runners)

    def addresses(self) -> list[str]:
        """Wait until the first runners have started, as far as they have a place; none has an address."""
        found = super().addresses()
        deadline_s = time.monotonic() + _FIRST_WAIT_S
        while self._starting and time.monotonic() < deadline_s and not is_interrupted():
            time.sleep(_FIRST_WAIT_S / 100)
            self._take_in_started()
        return found

    # -- fewer runners ---------------------------------------------------------------------------------------------

    def replace_lost(self, index: int, generation: int, lost: RunnerLost, losses_in_a_row: int) -> None:
        """Go on without a lost runner; where there are too few others, put a new one in its place."""
        if self.num_runners <= self._size.fewest or self._restarts.are_off:
            super().replace_lost(index, generation, lost, losses_in_a_row)
        elif self.generations[index] == generation:
            self._lost[index] = f"{self.role} {lost}"
            self._handles.pop(index).close()
            del self._sent[index]
            self.generations[index] += 1
            _log.warning("%s %s: going on with %d", self.role, lost, self.num_runners)

    def sample(self, num_env_steps: int, explore: bool, num_env_steps_sampled: int = 0) -> list[Sample]:
        """Sample at least `num_env_steps` env steps; the others make what a lost runner owes."""
        self.follow_room()
        samples = super().sample(num_env_steps, explore, num_env_steps_sampled)
        while (num_missing := num_env_steps - sum(sample.rollout.num_env_steps for sample in samples)) > 0:
            samples += super().sample(num_missing, explore, num_env_steps_sampled)
        return samples

    # -- state -----------------------------------------------------------------------------------------------------

    def _take_places(self, state: Mapping[str, Any]) -> None:
        """Have as many runners as before, first of all of the state's indexes; a generation is never used again."""
        self._close_starting()
        there = {index: self.generations[index] for index in self.indexes}
        saved = sorted(map(int, state["runners"]))
        self.generations = [int(generation) for generation in state["generations"]]
        self.generations += [0] * (self._size.most - len(self.generations))
        kept, left_out = saved[: self.num_runners], saved[self.num_runners :]
        for index in left_out:
            self.generations[index] += 1
        others = [index for index in range(self._size.most) if index not in saved]
        places = sorted([*kept, *others[: self.num_runners - len(kept)]])
        for index, generation in there.items():
            if index not in places or self.generations[index] != generation:
                self._handles.pop(index).close()
        for index in places:
            if index not in self._handles:
                self._make(index, self.generations[index])
        self._handles = {index: self._handles[index] for index in places}

    def reset(self, old_state: Mapping[str, Any]) -> None:
        """Replace all runners by ones with seeds that `old_state` has not used; they start new episodes."""
        self._close_starting()
        super().reset(old_state)

    def restore_notes(self, old_state: Mapping[str, Any], is_reset: bool) -> list[str]:
        """Return also how many env runners there are now, if the checkpoint has another number."""
        notes = super().restore_notes(old_state, is_reset)
        num_before, num_now = len(old_state.get("runners", ())), self.num_runners
        if is_reset or num_now == num_before or not num_before:
            return notes
        rest = (
            f"{num_before} go on, {num_now - num_before} begin new episodes"
            if num_now > num_before
            else f"episodes of {num_before - num_now} are broken off"
        )
        runners = f"{num_before} env runner{'' if num_before == 1 else 's'}"
        return [*notes, f"the checkpoint has {runners}, and the cluster has room for {num_now}: {rest}"]

    def _close_starting(self) -> None:
        handles = [starting.handle for starting in self._starting.values()]
        self._starting.clear()
        close_each(handles)

    def close(self) -> None:
        """Close all runners."""
        try:
            self._close_starting()
        finally:
            super().close()
