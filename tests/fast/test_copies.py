"""`changed_copy` equals `dataclasses.replace`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from runner.fast.copies import changed_copy


@dataclass(frozen=True)
class Record:
    name: str
    values: list[int]

    @cached_property
    def total(self) -> int:
        return sum(self.values)


def test_a_copy_equals_that_of_dataclasses() -> None:
    record = Record("a", [1, 2])
    copy = changed_copy(record, name="b")
    assert copy == replace(record, name="b")
    assert copy.values is record.values
    assert record == Record("a", [1, 2])


def test_cached_properties_stay() -> None:
    record = Record("a", [1, 2])
    assert record.total == 3
    assert "total" in vars(changed_copy(record, name="b"))
    assert "total" not in vars(replace(record, name="b"))
