"""Sample the stack of the main thread from within the process.

The kernel's timer (SIGALRM) interrupts the thread, and Python calls the handler between two instructions. Alternatives
are less accurate or slower: a thread that samples from outside mostly gets the interpreter lock when torch and numpy
release it, and reported 12 % for an environment that took two thirds. pyinstrument traces each call and return, which
slows down programs with small functions most. py-spy needs a tracing permission that containers rarely have.
A sample represents the time since the previous one, so a long native call, during which Python calls no handler, counts
in full. The handler is also called in an idle Ray actor.

Nothing is installed, started or called before `start`, and nothing remains after `stop`.
"""

from __future__ import annotations

import opcode
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from runner.config.errors import Problem, UserError


class Frame(NamedTuple):
    """A function on a stack.

    Attributes:
        function: qualified name.
        file: path relative to `sys.path`, such as `gymnasium/core.py`, or else the full path.
        line: line at which the function begins.
    """

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


T = TypeVar("T")
Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Samples:
    """Samples of one process.

    Attributes:
        seconds: (stack, from the outermost to the running function; running line) -> seconds. Their sum is the
            duration of the sampling.
        num_samples: number of samples.
    """

    seconds: Mapping[tuple[Stack, int], float]
    num_samples: int

    @property
    def wall_s(self) -> float:
        """Sampled time in seconds."""
        return sum(self.seconds.values())

    def by_stack(self) -> dict[Stack, float]:
        """Return seconds by stack, summed over lines."""
        return _added((stack, seconds) for (stack, _), seconds in self.seconds.items())

    def inside_of(self, function: str) -> Samples:
        """Return the samples without the frames of this function and its callers."""
        pairs = (((_inside_of(stack, function), line), seconds) for (stack, line), seconds in self.seconds.items())
        return Samples(_added(pairs), self.num_samples)


def _inside_of(stack: Stack, function: str) -> Stack:
    names = [frame.function for frame in stack]
    return stack[names.index(function) + 1 :] if function in names else stack


def _added(pairs: Iterable[tuple[T, float]]) -> dict[T, float]:
    total: defaultdict[T, float] = defaultdict(float)
    for key, seconds in pairs:
        total[key] += seconds
    return dict(total)


def collapsed_lines(stacks: Mapping[str, Samples]) -> Iterator[str]:
    """Yield lines for flamegraph.pl and speedscope: the stack, joined by semicolons, and microseconds.

    Args:
        stacks: name of the process, used as outermost frame -> samples.
    """
    for process, samples in stacks.items():
        for stack, seconds in sorted(samples.by_stack().items()):
            names = (str(frame).replace(";", ",") for frame in stack)
            yield f"{';'.join((process, *names))} {round(seconds * 1e6)}"


INTERVAL_S = 0.002  # a sample takes 20 us
_RESUME = opcode.opmap["RESUME"]

_Codes = tuple[tuple[CodeType, ...], int]


class Sampler:
    """Samples the main thread from `start` to `stop`, which must be called in it.

    Args:
        interval_s: interval of the timer in seconds.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._seconds: defaultdict[_Codes, float] = defaultdict(float)
        self._num_samples = 0
        self._last_s = 0.0
        self._before: Any = signal.SIG_DFL

    def start(self) -> None:
        """Start sampling.

        Raises:
            UserError: the system lacks this timer, or something else uses it.
        """
        self._check()
        self._before = signal.signal(signal.SIGALRM, self._sample)
        signal.siginterrupt(signal.SIGALRM, False)  # avoids interrupted system calls in native code
        self._last_s = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self._interval_s, self._interval_s)

    def stop(self) -> Samples:
        """Stop sampling, and return the samples."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._add(sys._getframe(1))  # the time since the last sample
        signal.signal(signal.SIGALRM, self._before)
        seconds: defaultdict[tuple[tuple[Frame, ...], int], float] = defaultdict(float)
        for (codes, line), of_stack in self._seconds.items():
            seconds[tuple(map(_frame, codes)), line] += of_stack
        return Samples(dict(seconds), self._num_samples)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        self._num_samples += 1
        self._add(frame)

    def _add(self, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename == __file__:  # the timer fired while taking a sample
            frame = frame.f_back
        if frame is not None and frame.f_back is not None and frame.f_lasti in _beginnings(frame.f_code):
            frame = frame.f_back  # the handler runs when a function begins, so the time before belongs to its caller
        line = 0 if frame is None else frame.f_lineno or 0
        codes = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        now_s = time.perf_counter()
        self._seconds[tuple(reversed(codes)), line] += now_s - self._last_s
        self._last_s = now_s

    def _check(self) -> None:
        what = None
        if not hasattr(signal, "setitimer"):
            what = "this system does not have a timer that interrupts a process"
        elif threading.current_thread() is not threading.main_thread():
            what = "only the main thread of a process can be profiled"
        elif signal.getitimer(signal.ITIMER_REAL)[0]:
            what = "the timer of this process is already in use (signal.setitimer, signal.alarm)"
        if what is not None:
            raise UserError(Problem(what, "profile"))


@cache
def _beginnings(code: CodeType) -> frozenset[int]:
    """Return the offsets at which a call begins or a generator resumes."""
    instructions = code.co_code
    return frozenset(offset for offset in range(0, len(instructions), 2) if instructions[offset] == _RESUME)


@cache
def _frame(code: CodeType) -> Frame:
    return Frame(code.co_qualname, _imported_path(code.co_filename), code.co_firstlineno)


@cache
def _imported_path(file: str) -> str:
    """Return the path relative to the longest matching folder of `sys.path`."""
    folders = [folder.rstrip("/") + "/" for folder in sys.path if folder and file.startswith(folder.rstrip("/") + "/")]
    return file.removeprefix(max(folders, key=len, default=""))


# -- in Ray actors ----------------------------------------------------------------------------------------------------

_running: Sampler | None = None


def start_in_actor(_: Any) -> None:
    """Start sampling this process; for `__ray_call__` of an actor."""
    global _running
    _running = Sampler()
    _running.start()


def stop_in_actor(_: Any) -> Samples | None:
    """Return the samples since `start_in_actor`, or None if this process was started later."""
    global _running
    sampler, _running = _running, None
    return None if sampler is None else sampler.stop()
