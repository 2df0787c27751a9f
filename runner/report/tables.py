"""Cells of tables, as text and as what they are ordered by."""

from __future__ import annotations

from runner.pages.page import Cell
from runner.tracking.headline import count_text, duration_text, number_text
from runner.tracking.plain_values import finite_number


def number_cell(value: object) -> Cell:
    """Return a number with four digits."""
    return Cell(number_text(value), finite_number(value))


def count_cell(value: object) -> Cell:
    """Return a whole number."""
    return Cell(count_text(value), finite_number(value))


def duration_cell(seconds: object) -> Cell:
    """Return a duration as hours, minutes, seconds."""
    number = finite_number(seconds)
    return Cell("-" if number is None else duration_text(number), number)


def text_cell(text: str) -> Cell:
    """Return text as it is."""
    return Cell(text, text or None)


def value_cell(value: object) -> Cell:
    """Return the value of a key; ordered as a number where it is one. Numbers that were drawn have four digits."""
    if value is None:
        return Cell("-")
    number = as_number(value)
    text = number_text(value) if isinstance(value, float) else str(value)
    return Cell(text, str(value) if number is None else number)


def as_number(value: object) -> float | None:
    """Return a number, also where it stands as text; None for all else."""
    if isinstance(value, str):
        try:
            return finite_number(float(value))
        except ValueError:
            return None
    return finite_number(value)
