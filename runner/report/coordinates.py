"""Where values of a searched key lie on an axis: by their size, by its logarithm, or evenly one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.report.tables import as_number
from runner.sweep.space import Value
from runner.tracking.headline import number_text

_NUM_TICKS = 5
_LONGEST_TEXT = 28


@dataclass(frozen=True)
class Axis:
    """The values of a key, or of a metric.

    Attributes:
        title: what stands at it.
        start, end: the numbers at its ends; logarithms for `is_log`.
        is_log: equal factors are equally far apart.
        is_integer: whole numbers only.
        categories: values as text, evenly apart; None where they are numbers.
    """

    title: str
    start: float = 0.0
    end: float = 1.0
    is_log: bool = False
    is_integer: bool = False
    categories: tuple[str, ...] | None = None

    @classmethod
    def of_key(cls, title: str, domain: Any, values: Iterable[Value | None]) -> Axis:
        """Return the axis of a searched key.

        Args:
            title: what stands at it.
            domain: what is searched, as in sweep.json; None where that is not known.
            values: what trials have.
        """
        tried = [value for value in values if value is not None]
        if isinstance(domain, dict) and "interval" in domain:
            numbers = [number for number in (as_number(value) for value in tried) if number is not None]
            start, end = min([*domain["interval"], *numbers]), max([*domain["interval"], *numbers])
            is_log, is_integer = bool(domain.get("log")) and start > 0, bool(domain.get("int"))
            place = math.log if is_log else float
            return cls(title, place(start), place(end), is_log, is_integer)
        texts = dict.fromkeys([*(domain or ()), *map(str, tried)])
        return cls(title, categories=tuple(sorted(texts, key=_rank) if all(map(_is_number, texts)) else texts))

    @classmethod
    def of_metric(cls, title: str, numbers: Sequence[float]) -> Axis:
        """Return the axis of a metric; there is at least one number."""
        return cls(title, min(numbers), max(numbers))

    def position(self, value: Value) -> float | None:
        """Return a position from 0 to 1; None for what does not lie on the axis."""
        if self.categories is not None:
            text = str(value)
            if text not in self.categories:
                return None
            return 0.5 if len(self.categories) == 1 else self.categories.index(text) / (len(self.categories) - 1)
        number = as_number(value)
        if number is None or (self.is_log and number <= 0):
            return None
        place = math.log(number) if self.is_log else number
        return 0.5 if self.end == self.start else (place - self.start) / (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return positions with their texts."""
        if self.categories is not None:
            step = 1 + len(self.categories) // 24
            return [(self.position(text) or 0.0, shorten(text)) for text in self.categories[::step]]
        if self.end == self.start:
            return [(0.5, number_text(self._number_at(0.5)))]
        numbers = [self._number_at(number / (_NUM_TICKS - 1)) for number in range(_NUM_TICKS)]
        if self.is_log:
            lowest, highest = (round(end / math.log(10), 9) for end in (self.start, self.end))
            powers = [10.0**power for power in range(math.ceil(lowest), math.floor(highest) + 1)]
            numbers = [numbers[0], *powers, numbers[-1]] if len(powers) > 1 else numbers
        if self.is_integer:
            numbers = [float(round(number)) for number in numbers]
        texts = {f"{number:.3g}": number for number in numbers}
        return [(self.position(number) or 0.0, text) for text, number in texts.items()]

    def _number_at(self, position: float) -> float:
        place = self.start + position * (self.end - self.start)
        return math.exp(place) if self.is_log else place


def shorten(text: str, length: int = _LONGEST_TEXT) -> str:
    """Return the text, cut where it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def value_label(value: Value) -> str:
    """Return a value for a label."""
    return f"{value:.4g}" if isinstance(value, float) else shorten(str(value), 60)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each key where no other key ends in it too, else the key."""
    lasts = [key.lstrip("+").rpartition(".")[2] for key in keys]
    return {key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)}


def _is_number(text: str) -> bool:
    return as_number(text) is not None


def _rank(text: str) -> float:
    return as_number(text) or 0.0
