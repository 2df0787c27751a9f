"""Locks a folder for one process, on this machine and on file systems that several machines share.

The file `.lock` contains a claim: host, pid and start time of the owner. Its modification time is the heartbeat, which
the owner renews. A claim of this machine is valid as long as its process is alive. A claim of another machine is valid
for `STALE_AFTER_S` after its last heartbeat. The operating system's lock on the file is held only while a claim is
checked and written, because forks inherit it and some shared file systems do not support it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.config.documents import parse_json, read_regular
from runner.config.errors import Problem, RunFailure, UserError
from runner.durable_files import locked

STALE_AFTER_S = 60.0
LOCK_FILE = ".lock"
_MOST_COMMAND_CHARS = 200
_MOST_BYTES = 2**16
_DEAD = ("Z", "X")


@dataclass(frozen=True)
class Claim:
    """The owner of a folder.

    Attributes:
        token: unique id of this claim.
        member_of: token of the sweep whose trials hand the folder to each other, or None for a single run.
        host: name of the machine.
        machine: scope of `pid`: host, boot and pid namespace.
        pid: process id.
        started: start of the process in clock ticks after boot, because pids are reused; None if it is not known.
        since: Unix time.
        command: command line.
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
        host, pid = socket.gethostname(), os.getpid()
        command = " ".join(sys.argv)[:_MOST_COMMAND_CHARS]
        return cls(
            secrets.token_hex(16), member_of, host, _this_machine(host), pid, _start_of(pid), time.time(), command
        )

    @property
    def is_well_formed(self) -> bool:
        """Whether all fields have the right types; anybody can write a file with this name."""
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
        """Whether this process made the claim, and not a fork of it."""
        return self.is_of_this_machine and self.pid == os.getpid()

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the claim was made on this machine, so that its pid can be checked."""
        return self.machine == _this_machine(socket.gethostname())

    def describe(self, age_s: float | None = None) -> str:
        """Describe the owner, with the age of the last heartbeat."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        beat = "" if age_s is None else f", last heartbeat {age_s:.0f} s ago"
        return f"host {self.host}, pid {self.pid}, since {since}{beat}: {self.command}"


def read_claim(folder: Path) -> Claim | None:
    """Return the claim in the lock file, or None if the folder is free or the claim cannot be parsed.

    Raises:
        OSError: the file may not be read.
    """
    try:
        content = read_regular(folder / LOCK_FILE, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        claim = Claim(**parse_json(content))
    except (ValueError, TypeError):  # empty (released), or written by another version
        return None
    return claim if claim.is_well_formed else None


def is_alive(claim: Claim, folder: Path) -> bool:
    """Return whether the owner is alive: a process of this machine, or another machine with a recent heartbeat."""
    if claim.is_of_this_machine and claim.started is not None and not _is_hidden(claim.pid):
        return _start_of(claim.pid) == claim.started
    return heartbeat_age_s(folder) < STALE_AFTER_S


def heartbeat_age_s(folder: Path) -> float:
    """Return the seconds since the last heartbeat by the file system's clock, because the clocks of machines differ."""
    with (folder / LOCK_FILE).open("rb") as file:  # opening refreshes cached attributes from the server
        beat_at = os.fstat(file.fileno()).st_mtime
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:  # no permission to write, or the disk is full
        now = time.time()
    return max(0.0, now - beat_at)


def _this_machine(host: str) -> str:
    """Return the scope of this process's pid; each container of a machine has separate pids."""
    parts = [host]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(pid: int) -> int | None:
    """Return the start of a live process in clock ticks after boot, or None if it is dead or the time is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if not fields or fields[0].decode() in _DEAD else int(fields[19])


def _is_hidden(pid: int) -> bool:
    """Return whether the process belongs to another user and its state may not be read (`/proc` with `hidepid`)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.path.exists(f"/proc/{pid}/stat")
    except OSError:
        return False
    return False


BEAT_S = 10.0
_CLAIM_BYTES = 4096  # written in one call, so that readers see a complete claim or none
_MUTEX_PATIENCE_S = 2.0
_SETTLE_S = 1.0


class FolderHeld(UserError):
    """The folder belongs to a live process."""


class FolderLost(RunFailure):
    """The folder no longer belongs to this process: it was deleted, or another process has taken it over."""


class FolderLock:
    """A folder that this process owns; created by `held`.

    Args:
        folder: the folder.
        claim: claim in its lock file.
        descriptor: open file descriptor of the lock file.
    """

    def __init__(self, folder: Path, claim: Claim, descriptor: int) -> None:
        self._folder = folder
        self._claim = claim
        self._descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino
        self._beat_at = time.time()
        self._other: Claim | None = None  # the process that has taken it over
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_over, name="folder-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `FolderLost` if the folder was deleted or belongs to another process by now. Takes microseconds."""
        if time.time() - self._beat_at > STALE_AFTER_S / 2:  # this process or its machine was suspended
            with suppress(OSError):
                self._beat()
        if self._other is not None:
            what = "another process has taken over the folder, because this process sent no heartbeat"
            fix = f"the other process continues the run; never suspend a run for more than {STALE_AFTER_S:g} s"
            raise FolderLost(Problem(what, str(self._folder), self._other.describe(), fix=fix))
        if self._lock_file_inode() != self._inode:
            there = self._folder.is_dir()
            what = "the lock file of the folder was deleted" if there else "the folder no longer exists"
            got = f"no {LOCK_FILE} of this process" if there else "deleted, moved or unmounted"
            fix = "do not touch the folder until the run has ended; continue with `resume` from its new location"
            raise FolderLost(Problem(what, str(self._folder), got, fix=fix))

    def _lock_file_inode(self) -> int | None:
        try:
            return (self._folder / LOCK_FILE).stat().st_ino
        except OSError:
            return None

    def _beat_until_over(self) -> None:
        while not self._is_over.wait(BEAT_S):
            with suppress(OSError):  # `check` reports it before the next write
                self._beat()

    def _beat(self) -> None:
        claim = read_claim(self._folder)
        if claim is None or claim.token == self._claim.token:
            os.utime(self._descriptor)
            self._beat_at = time.time()
        else:
            self._other = claim

    def release(self) -> None:
        """Release the folder."""
        self._is_over.set()
        self._thread.join(BEAT_S)
        with suppress(OSError):
            claim = read_claim(self._folder)
            if self._claim.is_of_this_process and claim is not None and claim.token == self._claim.token:
                os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


@contextmanager
def held(
    folder: Path, title: str = "run dir", member_of: str | None = None, patience_s: float = 0.0
) -> Iterator[FolderLock]:
    """Hold an existing folder for this process in this context. If the process dies, the folder is released.

    Args:
        folder: the folder.
        title: name of the folder in messages.
        member_of: token of the sweep that this process works for; its processes may hand folders to each other.
        patience_s: seconds to wait for a process that holds the folder.

    Raises:
        FolderHeld: another process holds the folder or its parent.
        OSError: the folder cannot be written.
    """
    lock = _wait_for(folder, title, member_of, patience_s)
    try:
        yield lock
    finally:
        lock.release()


def owner_of(folder: Path) -> Claim | None:
    """Return the claim of the live process that holds a folder, or None."""
    try:
        claim = read_claim(folder)
        return claim if claim is not None and is_alive(claim, folder) else None
    except OSError:  # no permission to read it
        return None


def _wait_for(folder: Path, title: str, member_of: str | None, patience_s: float) -> FolderLock:
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            return _take(folder, title, member_of)
        except FolderHeld:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(0.2)


def _take(folder: Path, title: str, member_of: str | None) -> FolderLock:
    around = owner_of(folder.parent)
    if around is not None and around.token != member_of:
        raise _refusal(folder, f"{title} is part of a folder that belongs to another process", folder.parent, around)
    claim = Claim.of_this_process(member_of)
    # Do not follow links: an untrusted folder may contain a link to a file of the user.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(folder / LOCK_FILE, flags, 0o666)
    try:
        with locked(descriptor, _MUTEX_PATIENCE_S) as is_exclusive:
            other = read_claim(folder)
            is_ours = other is None or (member_of is not None and other.member_of == member_of)
            if other is not None and not is_ours and is_alive(other, folder):
                raise _refusal(folder, f"{title} belongs to another process", folder, other)
            os.pwrite(descriptor, json.dumps(asdict(claim)).encode().ljust(_CLAIM_BYTES), 0)
            os.fsync(descriptor)
        if not is_exclusive:  # another machine may have written in the same moment; the last one counts
            time.sleep(_SETTLE_S)
            other = read_claim(folder)
            if other is not None and other.token != claim.token:
                raise _refusal(folder, f"{title} belongs to another process", folder, other)
    except BaseException:
        os.close(descriptor)
        raise
    return FolderLock(folder, claim, descriptor)


def _refusal(folder: Path, what: str, held_folder: Path, claim: Claim) -> FolderHeld:
    age_s = None
    with suppress(OSError):
        age_s = heartbeat_age_s(held_folder)
    end = f"end it with `kill {claim.pid}`" + ("" if claim.host == socket.gethostname() else f" on {claim.host}")
    fix = f"wait until it ends, {end}, or use another folder"
    if not claim.is_of_this_machine:
        fix += f"; if it is dead, the folder is free {STALE_AFTER_S:g} s after its last heartbeat"
    return FolderHeld(Problem(f"the {what}", str(folder), claim.describe(age_s), fix=fix))
