"""Threads that poll a cluster."""

from __future__ import annotations

import threading

import pytest

from runner.cluster import node_polling


def test_a_poll_that_blocks_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ray's head node is lost, requests to it block until Ray ends the process."""
    monkeypatch.setattr(node_polling, "_LONGEST_WAIT_S", 0.01)
    is_polling, may_return, has_ended = threading.Event(), threading.Event(), threading.Event()

    def poll() -> bool:
        is_polling.set()
        may_return.wait()
        return True

    def use() -> None:
        with node_polling.polled(poll, 0.001, "polling"):
            is_polling.wait()
        has_ended.set()

    threading.Thread(target=use, daemon=True).start()
    try:
        assert has_ended.wait(30)
    finally:
        may_return.set()
