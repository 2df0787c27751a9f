"""Who has a folder: the claim in its lock file, and whether its owner is alive."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.config.documents import parse_json, read_regular

STALE_AFTER_S = 60.0
LOCK_FILE = ".lock"
_MOST_COMMAND_CHARS = 200
_MOST_BYTES = 2**16
_DEAD = ("Z", "X")


@dataclass(frozen=True)
class Claim:
    """Who has a folder.

    Attributes:
        token: of this claim alone.
        member_of: token of the sweep whose trials hand the folder to each other; None for a run of its own.
        host: name of the machine.
        machine: where `pid` means something: host, boot and pid namespace.
        pid: of the process.
        started: its start in clock ticks after boot, since pids are used again; None where that is not known.
        since: Unix time.
        command: what was typed.
    """

    token: str
    member_of: str | None
    host: str
    machine: str
    pid: int
    started: int | None
    since: float
    command: str

    @classmethod
    def of_this_process(cls, member_of: str | None) -> Claim:
        """Make a new claim."""
        host, pid = socket.gethostname(), os.getpid()
        command = " ".join(sys.argv)[:_MOST_COMMAND_CHARS]
        return cls(
            secrets.token_hex(16), member_of, host, _this_machine(host), pid, _start_of(pid), time.time(), command
        )

    @property
    def is_well_formed(self) -> bool:
        """Whether all fields have their types: anybody may write a file of this name."""
        texts = (self.token, self.host, self.machine, self.command)
        return (
            all(isinstance(text, str) for text in texts)
            and isinstance(self.member_of, str | None)
            and type(self.pid) is int
            and 0 < self.pid < 2**31
            and isinstance(self.started, int | None)
            and isinstance(self.since, int | float)
            and 0 <= self.since < 2**33
        )

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process made it, and not a fork of it."""
        return self.is_of_this_machine and self.pid == os.getpid()

    @property
    def is_of_this_machine(self) -> bool:
        """Whether its pid means something here."""
        return self.machine == _this_machine(socket.gethostname())

    def describe(self, age_s: float | None = None) -> str:
        """Return who that is, with the age of the last heartbeat."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        beat = "" if age_s is None else f", last heartbeat {age_s:.0f} s ago"
        return f"host {self.host}, pid {self.pid}, since {since}{beat}: {self.command}"


def read_claim(folder: Path) -> Claim | None:
    """Return what the lock file says; None where nobody has claimed the folder, or the claim cannot be understood.

    Raises:
        OSError: it may not be read.
    """
    try:
        content = read_regular(folder / LOCK_FILE, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        claim = Claim(**parse_json(content))
    except (ValueError, TypeError):  # empty: let go of; or of another version
        return None
    return claim if claim.is_well_formed else None


def is_alive(claim: Claim, folder: Path) -> bool:
    """Return whether the owner lives: a process of this machine by itself, any other one by its heartbeat."""
    if claim.is_of_this_machine and claim.started is not None and not _is_hidden(claim.pid):
        return _start_of(claim.pid) == claim.started
    return heartbeat_age_s(folder) < STALE_AFTER_S


def heartbeat_age_s(folder: Path) -> float:
    """Return the seconds since the last heartbeat by the clock of the file system, as clocks of machines differ."""
    with (folder / LOCK_FILE).open("rb") as file:  # opening asks the server anew where attributes are cached
        beat_at = os.fstat(file.fileno()).st_mtime
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:  # no permission to write, or no room
        now = time.time()
    return max(0.0, now - beat_at)


def _this_machine(host: str) -> str:
    """Return where a pid of this process means something; containers of one machine have pids of their own."""
    parts = [host]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(pid: int) -> int | None:
    """Return when a living process started, in clock ticks after boot; None if it is dead or the time is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if not fields or fields[0].decode() in _DEAD else int(fields[19])


def _is_hidden(pid: int) -> bool:
    """Return whether a process of another user is there whose state may not be read (`/proc` with `hidepid`)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.path.exists(f"/proc/{pid}/stat")
    except OSError:
        return False
    return False
