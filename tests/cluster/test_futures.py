"""Calls in this process."""

from __future__ import annotations

import pytest

from runner.cluster.actors import LocalActor
from runner.interrupts import Interrupted


class Waiting:
    """Waits for simulators, until it has been interrupted often enough."""

    def __init__(self) -> None:
        self.num_interrupts = 2
        self.asked: list[str] = []

    def sample(self, name: str) -> str:
        """Return the name."""
        if self.num_interrupts:
            self.num_interrupts -= 1
            raise Interrupted
        self.asked.append(name)
        return name

    def close(self) -> None: ...


def test_an_interrupted_call_is_made_again_when_its_result_is_requested_again() -> None:
    held = Waiting()
    actor = LocalActor(lambda index, generation: held, 0, 0)
    first, second, third = (actor.submit("sample", name) for name in ("first", "second", "third"))
    for future in (first, second):
        with pytest.raises(Interrupted):
            future.result()
    assert [first.result(), third.result(), second.result()] == ["first", "third", "second"]
    assert first.result() == "first"
    assert held.asked == ["first", "third", "second"]
