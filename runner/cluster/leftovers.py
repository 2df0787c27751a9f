"""`python leftovers.py MARK PID`: follow the processes that have a mark, and end them when process PID has ended.

The end of stdin also counts as the end of the process. Uses only the standard library, to start in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

VARIABLE = "RUNNER_RAY_MARK"
LEFT_ALONE_S = 3.0  # Ray's processes end by themselves, and environments may need time to close
BEFORE_KILL_S = 2.0
GIVE_UP_S = 30.0  # a process in uninterruptible sleep cannot be ended
_LOOK_UP_S = 2.0
_LOOK_UP_AT_END_S = 0.1
_DEAD = ("Z", "X")

Process = tuple[int, int]  # pid and start in clock ticks since boot: pids are used again


class MarkedProcesses:
    """The processes with the mark in their environment, and all of their descendants.

    A program may overwrite its environment with its title, as Ray's workers do, and lose its parent. By then it is
    already known.
    """

    def __init__(self, mark: str) -> None:
        self._wanted = f"{VARIABLE}={mark}".encode()
        self._without_mark: set[Process] = set()
        self.alive: set[Process] = set()

    def look_up(self) -> None:
        """Update the processes after starts and ends since the last call."""
        parents = {process: parent for process, parent in _processes()}
        self.alive &= parents.keys()
        self._without_mark &= parents.keys()
        for process in parents.keys() - self.alive - self._without_mark:
            (self.alive if self._has_mark(process[0]) else self._without_mark).add(process)
        while grown := self._descendants(parents):
            self.alive |= grown
            self._without_mark -= grown

    def _descendants(self, parents: dict[Process, int]) -> set[Process]:
        pids = {pid for pid, _ in self.alive}
        return {process for process in self._without_mark if parents[process] in pids}

    def _has_mark(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._wanted in file.read()
        except OSError:  # gone, or owned by another user
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        for pid, _ in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _processes() -> Iterator[tuple[Process, int]]:
    """Yield all living processes, each with its parent's pid."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:  # gone
            continue
        if fields and fields[0].decode() not in _DEAD:
            yield (int(name), int(fields[19])), int(fields[1])


def main(mark: str, pid: int) -> None:
    """Follow the marked processes; at the end wait, then send SIGTERM, then SIGKILL."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    marked = MarkedProcesses(mark)
    watched = [sys.stdin.fileno()]
    with contextlib.suppress(OSError, AttributeError):  # gone already, or a kernel older than 5.3
        watched.append(os.pidfd_open(pid))  # a fork of the process may hold the other end of stdin open
    while os.getppid() == pid and not select.select(watched, [], [], _LOOK_UP_S)[0]:
        marked.look_up()
    end_all(marked)


def end_all(marked: MarkedProcesses) -> None:
    """End the marked processes; return when none is left, or when they do not end."""
    started_s, is_terminated = time.monotonic(), False
    while (waited_s := time.monotonic() - started_s) < GIVE_UP_S:
        marked.look_up()
        if not marked.alive:
            return
        if waited_s >= LEFT_ALONE_S + BEFORE_KILL_S:
            marked.signal(signal.SIGKILL)
        elif waited_s >= LEFT_ALONE_S and not is_terminated:
            marked.signal(signal.SIGTERM)
            is_terminated = True
        time.sleep(_LOOK_UP_AT_END_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
