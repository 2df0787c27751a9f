"""A sampler of the main thread's stack, in the process itself, and the sampled stacks of one process.

The kernel's timer (SIGALRM) interrupts the thread, and Python calls the handler between two of its instructions. A
thread that looks at the stack from outside gets the interpreter's lock mostly where torch and numpy give it away: it
told of 12 % in the environment where two thirds were. pyinstrument looks at each call and return, which makes
programs of small functions slower, and these most; py-spy needs a right to trace that containers rarely give.

A sample stands for the time since the one before, so that a long call of native code, during which Python calls no
handler, counts in full. In an idle Ray actor the handler is called, too.

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
        function: its qualified name.
        file: as it is imported, `gymnasium/core.py`; what is not on `sys.path` has its whole path.
        line: at which the function begins.
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
    """What was sampled in one process.

    Attributes:
        seconds: (stack, from the outermost function to the one that runs; line that runs) -> seconds. Their sum is the
            time from the start of the sampling to its end.
        num_samples: taken.
    """

    seconds: Mapping[tuple[Stack, int], float]
    num_samples: int

    @property
    def wall_s(self) -> float:
        """Seconds that were sampled."""
        return sum(self.seconds.values())

    def by_stack(self) -> dict[Stack, float]:
        """Return seconds by stack, whatever the line."""
        return _added((stack, seconds) for (stack, _), seconds in self.seconds.items())

    def inside_of(self, function: str) -> Samples:
        """Return the samples with the frames of this function, and the ones around it, cut off."""
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
    """Yield the lines that flamegraph.pl and speedscope read: the stack, joined with semicolons, and microseconds.

    Args:
        stacks: by the name of the process, which is the outermost frame.
    """
    for process, samples in stacks.items():
        for stack, seconds in sorted(samples.by_stack().items()):
            names = (str(frame).replace(";", ",") for frame in stack)
            yield f"{';'.join((process, *names))} {round(seconds * 1e6)}"


INTERVAL_S = 0.002  # a sample takes 20 us
_RESUME = opcode.opmap["RESUME"]

_Codes = tuple[tuple[CodeType, ...], int]


class Sampler:
    """Samples the main thread from `start` to `stop`, which it must be called in.

    Args:
        interval_s: of the timer.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._seconds: defaultdict[_Codes, float] = defaultdict(float)
        self._num_samples = 0
        self._last_s = 0.0
        self._before: Any = signal.SIG_DFL

    def start(self) -> None:
        """Begin.

        Raises:
            UserError: there is no such timer, or something else uses it.
        """
        self._check()
        self._before = signal.signal(signal.SIGALRM, self._sample)
        signal.siginterrupt(signal.SIGALRM, False)  # native code sees as few interrupted system calls as possible
        self._last_s = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self._interval_s, self._interval_s)

    def stop(self) -> Samples:
        """End, and return what was sampled."""
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
        while frame is not None and frame.f_code.co_filename == __file__:  # the timer again, while a sample is taken
            frame = frame.f_back
        if frame is not None and frame.f_back is not None and frame.f_lasti in _beginnings(frame.f_code):
            frame = frame.f_back  # Python calls the handler when a function begins: the time before was its caller's
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
            what = "this system has no timer that interrupts a process"
        elif threading.current_thread() is not threading.main_thread():
            what = "only the main thread of a process can be profiled"
        elif signal.getitimer(signal.ITIMER_REAL)[0]:
            what = "the timer of this process is used already (signal.setitimer, signal.alarm)"
        if what is not None:
            raise UserError(Problem(what, "profile").render_alone())


@cache
def _beginnings(code: CodeType) -> frozenset[int]:
    """Return the offsets at which a call begins to run, or a generator goes on."""
    instructions = code.co_code
    return frozenset(offset for offset in range(0, len(instructions), 2) if instructions[offset] == _RESUME)


@cache
def _frame(code: CodeType) -> Frame:
    return Frame(code.co_qualname, _imported_path(code.co_filename), code.co_firstlineno)


@cache
def _imported_path(file: str) -> str:
    """Return the path behind the longest folder of `sys.path`."""
    folders = [folder.rstrip("/") + "/" for folder in sys.path if folder and file.startswith(folder.rstrip("/") + "/")]
    return file.removeprefix(max(folders, key=len, default=""))


# -- in Ray actors ----------------------------------------------------------------------------------------------------

_running: Sampler | None = None


def start_in_actor(_: Any) -> None:
    """Begin to sample this process; for `__ray_call__` of an actor."""
    global _running
    _running = Sampler()
    _running.start()


def stop_in_actor(_: Any) -> Samples | None:
    """Return what was sampled since `start_in_actor`; None where this process is younger than that."""
    global _running
    sampler, _running = _running, None
    return None if sampler is None else sampler.stop()
