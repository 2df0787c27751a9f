"""Connections get memory for partly received messages, wait for it, or are refused."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from runner.config.rllink import RLlinkConfig
from runner.rllink import receive_memory
from runner.rllink.client import frames
from runner.rllink.connection import Connection
from runner.rllink.listener import Admission
from runner.rllink.messages import MessageError
from runner.rllink.receive_memory import Holding, ReceiveMemory, SharedBodies

MB = 1_000_000


@dataclass
class Sender:
    """A connection that receives a message of `length` bytes."""

    memory: ReceiveMemory
    network: str
    length: int
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.holding: Holding = self.memory.hold(self, self.network)
        self.hold(100_000)

    def hold(self, num_bytes: int, now: float = 0.0) -> None:
        self.memory.update(self.holding, num_bytes, self.length, now)

    def release(self) -> None:
        self.memory.release(self.holding, 0.0)

    def continue_reading(self) -> None:
        self.told.append("go on")

    def end(self, error: MessageError) -> None:
        self.told.append(error.code)
        if error.code == "timeout":
            self.release()


def test_an_ordinary_message_finds_room_beside_the_longest() -> None:
    memory = ReceiveMemory(300 * MB, 30.0)
    longest = [Sender(memory, "hostile", 101 * MB) for _ in range(12)]
    assert [sender.holding.is_granted for sender in longest] == [True] + [False] * 11
    ordinary = [Sender(memory, "hostile", 5 * MB) for _ in range(5)]
    assert all(sender.holding.is_granted for sender in ordinary)
    assert memory.num_bytes == 101 * MB + 11 * 100_000 + 5 * 5 * MB


def test_room_goes_to_the_address_that_has_the_least_then_to_the_shorter_then_to_the_older() -> None:
    memory = ReceiveMemory(300 * MB, 30.0)
    first, second = Sender(memory, "a", 150 * MB), Sender(memory, "a", 70 * MB)
    older, newer, shorter = (Sender(memory, "a", length * MB) for length in (99, 90, 60))
    other = Sender(memory, "b", 100 * MB)
    waiting = [older, newer, shorter, other]
    assert [one.told for one in waiting] == [[], [], [], []]
    first.release()
    assert [one.told for one in waiting] == [[], [], ["go on"], ["go on"]]
    second.release()
    assert older.told == []
    shorter.release()
    assert (older.told, newer.told) == (["go on"], [])
    for sender in (other, older, newer):
        sender.release()
    assert memory.num_bytes == 0


def test_a_message_that_stops_gives_way_only_where_others_wait() -> None:
    memory = ReceiveMemory(300 * MB, 30.0)
    stops = Sender(memory, "a", 101 * MB)
    stops.hold(99 * MB, now=1.0)
    memory.check_pace(20.0)
    assert stops.told == ["go on"]
    waits = Sender(memory, "a", 101 * MB)
    memory.check_pace(21.0)  # since 0.0 it has come faster than it had to
    assert (stops.told, waits.told) == (["go on"], [])
    memory.check_pace(22.5)
    assert (stops.told, waits.told) == (["go on", "timeout"], ["go on"])


def test_a_message_that_comes_at_an_even_pace_is_not_given_up() -> None:
    memory = ReceiveMemory(300 * MB, 30.0)
    steady, _ = Sender(memory, "a", 90 * MB), Sender(memory, "a", 110 * MB)
    for second in range(1, 30):
        steady.hold(100_000 + second * 3 * MB + 1, now=float(second))
        memory.check_pace(float(second))
    assert steady.told == ["go on"]


def test_those_that_wait_hold_a_quarter_at_most() -> None:
    memory = ReceiveMemory(4 * MB, 30.0)
    running = Sender(memory, "hostile", MB)
    hostile = [Sender(memory, "hostile", 2 * MB) for _ in range(9)]
    honest = Sender(memory, "honest", 2 * MB)
    hostile += [Sender(memory, "hostile", 2 * MB) for _ in range(30)]
    assert memory.num_bytes == 2 * MB
    assert [sender.told for sender in hostile[9:]] == [["too_many_clients"]] * 30
    assert honest.told == []
    for sender in (running, *hostile):
        sender.release()
    assert honest.told == ["go on"]
    honest.release()
    assert memory.num_bytes == 0


def test_shared_memory_that_is_not_a_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SharedMemory] = []

    def make(**options: Any) -> SharedMemory:
        made.append(SharedMemory(**options))
        return made[-1]

    monkeypatch.setattr(receive_memory, "SharedMemory", make)
    monkeypatch.setattr(receive_memory, "_FOLDER", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        SharedBodies(4096)
    with pytest.raises(FileNotFoundError):
        SharedMemory(made[0].name)


def open_transport() -> MagicMock:
    transport = MagicMock()
    transport.is_closing.return_value = False
    return transport


def test_a_goodbye_to_a_client_that_has_left_unnoticed() -> None:
    """uvloop closes the transport of a client that resets at once, tells the protocol nothing, and refuses to write."""
    config = RLlinkConfig()
    server = MagicMock(config=config, admission=Admission(config))
    connection = Connection(server, 0, server.admission.arrive("127.0.0.1", time.monotonic()))
    transport = open_transport()
    connection.connection_made(transport)
    transport.write.side_effect = RuntimeError("the handler is closed")
    connection.end(MessageError("shutting_down", "the run is over"))
    connection.connection_lost(None)
    server.remove.assert_called_once_with(connection)
    assert server.admission.num_unseated == 0


def test_a_connection_that_is_refused_while_it_asks_for_room_ends() -> None:
    """Where too many wait, the one that asks may be the one that is refused."""
    config = RLlinkConfig()
    server = MagicMock(config=config, memory=ReceiveMemory(100_000, 10.0), admission=Admission(config))
    frame = frames.frame(b"{" + b" " * 90_000 + b"}")
    connections = []
    for number in range(4):
        connection = Connection(server, number, server.admission.arrive("127.0.0.1", time.monotonic()))
        connection.client.name = "x"
        connection.connection_made(open_transport())
        connection.data_received(frame[:20_000])
        connections.append(connection)
    assert [connection._is_closing for connection in connections].count(True) >= 1
    assert not connections[0]._is_closing
