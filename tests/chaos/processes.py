"""Commands in processes of their own, whose processes can be found and killed one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, WAIT_S

RUNNER = ("-m", "runner")
_PAUSE_S = 0.002
_ENDED = "ZX"  # zombie, dead


@dataclass(frozen=True)
class Process:
    """A process of this machine; `started` (clock ticks since boot) tells it from a later one with its number."""

    pid: int
    parent: int
    started: int
    state: str

    @property
    def name(self) -> str:
        """The command line; empty where it has ended."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        now = find_process(self.pid)
        return now is not None and now.started == self.started and now.state not in _ENDED

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def find_process(pid: int) -> Process | None:
    """Return the process with this number, None where there is none."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = content[content.rindex(")") + 2 :].split()  # a name may hold blanks and parentheses
    return Process(pid, parent=int(fields[1]), started=int(fields[19]), state=fields[0])


def descendants(pid: int) -> list[Process]:
    """Return all processes that this one started, and that these started in turn."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    everything = [process for process in map(find_process, numbers) if process is not None]
    family, found = {pid}, []
    while more := [process for process in everything if process.parent in family and process.pid not in family]:
        family |= {process.pid for process in more}
        found += more
    return found


def wait_until_gone(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Return the processes that still run after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    left = list(processes)
    while (left := [process for process in left if process.is_alive]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


class Command:
    """`python ARGUMENTS` in a process of its own; what it prints goes to a file.

    Args:
        folder: the current folder of the process.
        arguments: of Python.
        environment: variables beside the ones of this process.
    """

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("command-*.txt")))
        self._output = folder / f"command-{number:03d}.txt"
        self._family: dict[int, Process] = {}
        with self._output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=variables | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it printed so far, errors too."""
        return self._output.read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        """Whether the command is over, in whichever way."""
        return self._process.poll() is not None

    @property
    def peak_bytes(self) -> int:
        """The most memory that it has had, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (kilobytes,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(kilobytes) * 1024

    def processes(self, name: str = "") -> list[Process]:
        """Return the living processes below it whose command line holds `name`."""
        found = descendants(self.pid)
        self._family |= {process.pid: process for process in found}
        return [process for process in found if name in process.name]

    def reaches(self, is_there: Callable[[], object], timeout_s: float = WAIT_S) -> bool:
        """Wait for a state; false where the command ends before it.

        Raises:
            AssertionError: neither happens within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not is_there():
            if self.has_ended:
                return bool(is_there())
            assert time.monotonic() < deadline, f"this state was not reached in {timeout_s:g} s:\n{self.output}"
            time.sleep(_PAUSE_S)
        return True

    def kill(self) -> None:
        """SIGKILL; what it started is left to itself."""
        self.processes()
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Return the exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended in {timeout_s:g} s:\n{self.output}") from None

    def survivors(self, timeout_s: float) -> list[Process]:
        """Return processes that it started, were seen, and still run so long after its end."""
        return wait_until_gone(self._family.values(), timeout_s)

    def close(self) -> None:
        """Kill it and everything that it started."""
        self.processes()
        self._process.kill()
        self._process.wait()
        for process in self._family.values():
            process.kill()
