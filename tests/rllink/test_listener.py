"""The listening socket closes each connection that it has accepted, at whatever moment it is closed itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import statistics
import threading
import time

import pytest

from runner.config.rllink import RLlinkConfig
from runner.rllink.client import Client, RLlinkError
from runner.rllink.client.frames import frame
from runner.rllink.listener import Admission, Allowance, Listener, Unseated, network_of
from tests.conftest import wait_until
from tests.rllink.conftest import Connect, RawClient, Serve, Served, episode, served_for_long


class Ending(asyncio.Protocol):
    """Ends its connection as soon as it has one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@pytest.mark.filterwarnings("error:unclosed:ResourceWarning")
@pytest.mark.parametrize("num_turns", range(6))
def test_a_listener_that_closes_leaves_no_accepted_socket(num_turns: int) -> None:
    async def connect_and_close() -> None:
        listener = Listener("127.0.0.1", 0, None, 1.0, Admission(RLlinkConfig()), lambda _: Ending())
        with socket.create_connection(listener.address, 5) as client:
            listener.start()
            for _ in range(num_turns):  # nothing is accepted, accepted, about to be connected, connected
                await asyncio.sleep(0)
            await listener.close()
            await asyncio.sleep(0.01)
            gc.collect()  # an accepted socket that nobody holds warns here, which pytest makes an error
            with contextlib.suppress(ConnectionResetError):  # it was never accepted
                assert client.recv(1) == b""

    asyncio.run(connect_and_close())


TOKEN = "rllink.token=secret"
OTHER_ADDRESS = "127.0.0.2"  # of this machine, like all of 127/8


# -- rules -------------------------------------------------------------------------------------------------------------


def test_an_allowance_comes_back_at_its_rate() -> None:
    allowance = Allowance(2.0, 3, 10.0)
    assert [allowance.take(10.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    allowance.give_back()
    assert allowance.take(10.5) == 0.5
    assert not allowance.is_full(12.4)
    assert allowance.is_full(13.0)
    assert [allowance.take(99.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_the_oldest_of_the_heaviest_address_gives_way() -> None:
    refused: list[str] = []
    admission = Admission(RLlinkConfig(max_unauthenticated=4))

    def arrive(host: str, name: str) -> Unseated:
        unseated = admission.arrive(host, 0.0)
        assert unseated is not None
        unseated.reject = lambda: refused.append(name)
        return unseated

    arrive("1.1.1.1", "honest")
    for number in range(6):
        arrive("2.2.2.2", f"hostile {number}")
    assert refused == ["hostile 0", "hostile 1", "hostile 2"]
    assert admission.num_unseated == 4


def test_an_address_that_brings_too_many_is_slowed_down_and_then_refused() -> None:
    admission = Admission(RLlinkConfig(max_unauthenticated=10, max_unauthenticated_per_s=1.0))
    arrived = [admission.arrive("1.1.1.1", 0.0) for _ in range(20)]
    assert [None if one is None else one.since for one in arrived] == [0.0] * 10 + [1.0, 2.0, 3.0, 4.0, 5.0] + [
        None
    ] * 5
    other = admission.arrive("2.2.2.2", 0.0)
    assert other is not None
    assert other.since == 0.0


def test_connections_that_become_clients_do_not_count() -> None:
    admission = Admission(RLlinkConfig(max_unauthenticated=2, max_unauthenticated_per_s=0.1))
    for _ in range(50):
        unseated = admission.arrive("1.1.1.1", 0.0)
        assert unseated is not None
        assert unseated.since == 0.0
        admission.seat(unseated)
    admission.forget(0.0)
    assert admission._peers == {}


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_is_what_one_party_has(host: str, network: str) -> None:
    assert network_of(host) == network


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "secret"])
def test_silent_connections_take_no_seats(serve: Serve, connect: Connect, token: str | None) -> None:
    limits = ("rllink.max_clients=2", "rllink.max_unauthenticated=5", "rllink.handshake_timeout_s=1")
    limits += ("rllink.max_unauthenticated_per_s=100000",)
    served = served_for_long(serve, *limits, *([] if token is None else [TOKEN]))
    silent = [connect(served) for _ in range(30)]
    with Client(*served.address, token=token, reconnect_s=0) as client:
        client.send_episodes([episode(3)])
        assert served.runner.server.connections.num_clients == 1
        assert {one.receive()["code"] for one in silent[:25]} == {"too_many_clients"}
        begun = time.monotonic()
        assert silent[-1].receive()["code"] == "timeout"
        assert silent[-1].is_closed()
        assert time.monotonic() - begun < 3
        client.send_episodes([episode(3)])  # it has a seat, so the deadline does not count any more
    wait_until(lambda: not served.runner.server.connections.open)


def test_requests_without_the_token_give_no_seat_and_no_time(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, TOKEN, "rllink.max_clients=1", "rllink.handshake_timeout_s=0.5")
    asking = connect(served)
    codes = []
    with contextlib.suppress(ConnectionError):
        while True:
            asking.send({"type": "GET_CONFIG"})
            codes.append(asking.receive()["code"])
            time.sleep(0.02)
    assert set(codes[:-1]) == {"unauthorized"}
    assert codes[-1] == "timeout"
    with Client(*served.address, token="secret", reconnect_s=0) as client:
        client.ping()


def test_a_session_goes_on_in_the_seat_of_its_old_connection(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, "rllink.max_clients=1")
    first, second, third = (connect(served) for _ in range(3))
    pong = first.ask({"type": "PING", "extensions": {"session": {"id": None}}})
    assert third.ask({"type": "GET_CONFIG"})["code"] == "too_many_clients"
    session = {"id": pong["extensions"]["session"]["id"]}
    assert second.ask({"type": "PING", "extensions": {"session": session}})["extensions"]["session"]["resumed"]
    assert first.is_closed()
    wait_until(lambda: served.runner.server.connections.num_clients == 1)


def guess(served: Served, seconds: float, results: list[str], host: str) -> None:
    """Try wrong tokens, one connection each, as fast as the server lets one guesser."""
    latest = time.monotonic() + seconds
    while time.monotonic() < latest:
        with contextlib.suppress(OSError), contextlib.closing(RawClient(served.address, source=host)) as client:
            results.append(client.ask({"type": "PING", "token": "wrong"})["code"])


def test_wrong_tokens_are_slowed_down_and_other_addresses_are_not(serve: Serve) -> None:
    served = served_for_long(serve, TOKEN)
    results: list[str] = []
    guessers = [threading.Thread(target=guess, args=(served, 2.0, results, OTHER_ADDRESS)) for _ in range(8)]
    begun = time.monotonic()
    with Client(*served.address, token="secret", reconnect_s=0) as working:
        for guesser in guessers:
            guesser.start()
        waited_s: list[float] = []
        while any(guesser.is_alive() for guesser in guessers):
            started = time.monotonic()
            working.ping()
            with Client(*served.address, token="secret", reconnect_s=0) as newcomer:
                newcomer.ping()
            waited_s.append(time.monotonic() - started)
            time.sleep(0.02)
    seconds = time.monotonic() - begun
    assert set(results) == {"unauthorized"}
    assert len(results) <= 10 + 10 * seconds + 1  # ten at once, ten a second
    assert statistics.median(waited_s) < 0.3, "one wait may be longer on a busy machine"


def test_beside_a_guesser_of_the_same_address_a_session_goes_on_at_once(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, TOKEN, "rllink.max_wrong_tokens_per_s=0.5")
    client = connect(served)
    pong = client.ask({"type": "PING", "token": "secret", "extensions": {"session": {"id": None}}})
    client.close()
    for _ in range(10):
        assert connect(served).ask({"type": "PING", "token": "wrong"})["code"] == "unauthorized"
    guesser, again = connect(served), connect(served)
    begun = time.monotonic()
    guesser.send({"type": "PING", "token": "wrong"})
    session = {"id": pong["extensions"]["session"]["id"]}
    resumed = again.ask({"type": "PING", "token": "secret", "extensions": {"session": session}})
    assert resumed["extensions"]["session"]["resumed"]
    assert time.monotonic() - begun < 1.5
    assert guesser.receive()["code"] == "unauthorized"
    assert time.monotonic() - begun > 1.5
    with Client(*served.address, token="secret", reconnect_s=0) as newcomer:  # waits for its turn, and gets it
        newcomer.ping()
    with pytest.raises(RLlinkError, match="unauthorized"):
        Client(*served.address, token="no", reconnect_s=0)


def test_tokens_that_nobody_waits_for_do_not_make_others_wait(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, TOKEN, "rllink.max_wrong_tokens_per_s=2")
    guessers = [connect(served) for _ in range(60)]
    for guesser in guessers:
        guesser.send({"type": "PING", "token": "wrong"})
    wait_until(lambda: sum(one._pending is not None for one in served.runner.server.connections.open) >= 45)
    for guesser in guessers:
        guesser.close()
    wait_until(lambda: not served.runner.server.connections.open)
    begun = time.monotonic()
    with Client(*served.address, token="secret", reconnect_s=0) as newcomer:
        newcomer.ping()
    assert time.monotonic() - begun < 5  # not 25 s, as for the connections that left


@pytest.mark.slow
def test_long_messages_that_stop_leave_room_for_others(serve: Serve, connect: Connect) -> None:
    """Four bodies that are one byte short: the server holds one of them, and an honest long one gets its turn."""
    limits = ("rllink.max_body_bytes=4000000", "rllink.max_receiving_bytes=12000000", "rllink.frame_timeout_s=20")
    served = served_for_long(serve, *limits)
    memory = served.runner.server.connections.memory
    hostile = [connect(served) for _ in range(4)]
    for client in hostile:
        client.ask({"type": "PING"})
        client.socket.settimeout(0.05)
        with contextlib.suppress(TimeoutError, ConnectionError):
            client.socket.sendall(b"04000000" + b" " * 3_999_999)
    held = sum(one._reader.num_bytes for one in served.runner.server.connections.open)
    assert held <= memory.num_bytes + 4 * 16_384
    assert memory.num_bytes <= 12_000_000
    with Client(*served.address, reconnect_s=0, extensions={}) as honest:
        begun = time.monotonic()
        honest.send_episodes([episode(2_000)])  # about 200 kB of JSON
        assert time.monotonic() - begun < 10  # not 20 s, as for a message that stops
    long = connect(served, 60)
    long.ask({"type": "PING"})
    assert long.ask(b'{"type": "PING"}'.ljust(3_900_000)) == {"type": "PONG"}
    for client in hostile:
        client.close()
    wait_until(lambda: memory.num_bytes == 0)


def test_who_waits_for_room_is_told_that_it_waits(serve: Serve, connect: Connect) -> None:
    limits = ("rllink.max_body_bytes=1000000", "rllink.max_receiving_bytes=3000000", "rllink.frame_timeout_s=0.6")
    served = served_for_long(serve, *limits)
    slow, waiting = connect(served), connect(served)
    slow.ask({"type": "PING"})
    waiting.ask({"type": "PING", "extensions": {"heartbeat": {"interval_s": 0.2}}})
    body = b'{"type": "PING"}'.ljust(1_000_000)
    slow.socket.sendall(frame(body)[:-1])
    wait_until(lambda: served.runner.server.connections.memory.num_bytes > 0)
    sending = threading.Thread(target=waiting.socket.sendall, args=(frame(body),))
    sending.start()
    answers = [waiting.receive()]
    while answers[-1]["type"] == "WAIT":
        answers.append(waiting.receive())
    sending.join(5)
    assert answers[-1] == {"type": "PONG"}
    assert answers[0] == {"type": "WAIT"}
    assert slow.receive()["code"] == "timeout"
