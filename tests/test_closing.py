"""Closing goes on after a part that fails at it, and loses no error."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from runner.closing import close_each


@dataclass
class Part:
    error: BaseException | None = None
    closed: list[int] = field(default_factory=list)

    def close(self) -> None:
        self.closed.append(1)
        if self.error is not None:
            raise self.error


def test_all_parts_are_closed_and_the_first_error_is_raised() -> None:
    parts = [Part(), None, Part(OSError("one")), Part(ValueError("two")), Part()]
    with pytest.raises(OSError, match="one") as caught:
        close_each(parts)
    assert [len(part.closed) for part in parts if part is not None] == [1, 1, 1, 1]
    assert caught.value.__notes__ == ["closing another part also failed: ValueError: two"]


def test_an_interrupt_comes_before_errors() -> None:
    with pytest.raises(KeyboardInterrupt):
        close_each([Part(OSError("one")), Part(KeyboardInterrupt()), Part()])


def test_the_error_before_is_the_context() -> None:
    def fail() -> None:
        try:
            raise RuntimeError("the run failed")
        finally:
            close_each([Part(OSError("one"))])

    with pytest.raises(OSError, match="one") as caught:
        fail()
    assert str(caught.value.__context__) == "the run failed"
