"""Sampled stacks of one process, with the seconds that each of them stands for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar


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
