"""Faults of clients: in none of them does the server stop serving others, hang, or grow (tests/rllink/README.md)."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import ipaddress
import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pytest

from runner.cli.main import main
from runner.config.errors import ConfigError
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import make_module_specs
from runner.rllink.client import Client, RLlinkError, ServerGone
from runner.rllink.client.frames import frame
from runner.rllink.client.packing import pack
from runner.rllink.messages import _REQUESTS as REQUESTS
from runner.rllink.messages import Columns, Episode, NewObservation, decode_request
from tests.conftest import wait_until
from tests.rllink.conftest import (
    EXPERIMENT,
    OFF,
    Connect,
    Serve,
    Served,
    columns,
    episode,
    served_for_long,
    wait_until_watched,
)
from tests.support.configs import config_from

SHORT = "rllink.frame_timeout_s=0.4"
EPISODES = {"type": "EPISODES", "episodes": [episode(1)]}


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    served = Served(OFF, SHORT)
    served.sample(10**6)
    yield served
    served.close()


def is_empty(served: Served) -> bool:
    """Whether the server holds nothing of any connection."""
    connections = served.runner.server.connections
    is_gone = not connections.open and connections.num_clients == 0 and connections.admission.num_unseated == 0
    return is_gone and connections.memory.num_bytes == 0


class Neighbour:
    """A well-behaved client that asks all the time; `worst_s`: its slowest answer."""

    def __init__(self, served: Served, token: str | None = None) -> None:
        self._client = Client(*served.address, token=token, extensions={"actions": {}}, reconnect_s=0, timeout_s=10)
        self._is_over = threading.Event()
        self.num_answers, self.worst_s = 0, 0.0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            while not self._is_over.is_set():
                begun = time.monotonic()
                self._client.send_episodes([episode(1)])
                self._client.get_actions([{"id": f"n{self.num_answers}", "obs": [0.0] * 4}])
                self.worst_s = max(self.worst_s, time.monotonic() - begun)
                self._client.get_actions(
                    [{"id": f"n{self.num_answers}", "obs": [0.0] * 4, "reward": 1.0, "is_terminated": True}]
                )
                self.num_answers += 1
                time.sleep(0.005)
        except Exception as error:  # the test says so
            self.error = error

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(20)
        self._client.close()


@contextlib.contextmanager
def served_all_the_time(served: Served, token: str | None = None) -> Iterator[Neighbour]:
    """Serve a neighbour beside the block; afterwards it is the only client."""
    before = set(served.runner.server.connections.open)
    neighbour = Neighbour(served, token)
    try:
        yield neighbour
        count = neighbour.num_answers
        wait_until(lambda: neighbour.num_answers > count or neighbour.error is not None)
    finally:
        neighbour.stop()
    assert neighbour.error is None
    assert neighbour.worst_s < 2.0
    wait_until(lambda: set(served.runner.server.connections.open) <= before)


# -- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        *(b"0000001x", b"0x000010", b"+0000016", b"-0000016", b" 0000016"),
        *(b"        ", b"GET / HT", b"\xff" * 8, b"\x00" * 8),
    ],
)
def test_a_header_that_is_no_number(shared: Served, connect: Connect, header: bytes) -> None:
    with served_all_the_time(shared):
        client = connect(shared)
        client.socket.sendall(header)
        assert client.receive()["code"] == "bad_header"
        assert client.is_closed()


def test_a_length_that_is_too_short_ends_with_a_bad_header(shared: Served, connect: Connect) -> None:
    before = shared.runner._service.counts.num_env_steps_received
    with contextlib.closing(connect(shared)) as client:
        body = json.dumps(EPISODES).encode()
        client.socket.sendall(b"%08d" % (len(body) - 9) + body)
        assert client.receive()["code"] == "bad_body"
        assert client.receive()["code"] == "bad_header"
        assert client.is_closed()
    assert shared.runner._service.counts.num_env_steps_received == before


def test_a_length_that_is_too_long_times_out(shared: Served, connect: Connect) -> None:
    with served_all_the_time(shared):
        client = connect(shared)
        body = b'{"type": "PING"}'
        client.socket.sendall(b"%08d" % (len(body) + 1) + body)
        assert client.receive()["code"] == "timeout"
        assert client.is_closed()


def test_a_length_that_is_too_long_swallows_the_next_frame_and_nothing_else(shared: Served, connect: Connect) -> None:
    client = connect(shared)
    client.socket.sendall(b'00000024{"type": "PING"}00000016{"type": "PING"}')
    assert client.receive()["code"] == "bad_body"
    assert client.receive()["code"] == "bad_header"


def test_a_body_over_the_limit_is_never_held(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, "rllink.max_body_bytes=10000")
    with served_all_the_time(served):
        client = connect(served)
        client.socket.sendall(b"00010001")
        assert client.receive()["code"] == "too_large"
        assert client.is_closed()
        client = connect(served)
        with contextlib.suppress(OSError):  # the server may be gone before all is sent
            client.socket.sendall(b"00010001" + b" " * 5_000_000)
        with contextlib.suppress(ConnectionResetError):
            assert client.receive()["code"] == "too_large"
        assert client.is_closed()


@pytest.mark.parametrize("message", [{"type": "PING"}, EPISODES], ids=["PING", "EPISODES"])
def test_a_connection_that_is_cut_at_every_byte(shared: Served, connect: Connect, message: Any) -> None:
    whole = frame(json.dumps(message).encode())
    before = shared.runner._service.counts.num_env_steps_received
    for position in range(len(whole)):
        client = connect(shared)
        client.socket.sendall(whole[:position])
        if position % 2:  # a reset instead of an end
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert shared.runner._service.counts.num_env_steps_received == before
    with served_all_the_time(shared):
        pass
    wait_until(lambda: is_empty(shared))


def test_a_connection_that_is_cut_within_the_answer(shared: Served, connect: Connect) -> None:
    for position in range(1, 40, 3):
        client = connect(shared)
        client.send({"type": "GET_STATE"})
        client.socket.recv(position)
        client.close()
    with served_all_the_time(shared):
        pass


# -- bodies ------------------------------------------------------------------------------------------------------------

BAD_BODIES = [
    b"",
    b" ",
    b"{",
    b"3",
    b"nul",
    b"[1, 2]",
    b"[" * 100_000,
    b'"PING"',
    b'{"type": "PING"',
    b'{"type": "PING",}',
    b'{"type": "PING"} x',
    b"{'type': 'PING'}",
    b'{"type": "PING"}{"type": "PING"}',
    b'{"type": NaN}',
    b'{"type": "PING", "protocol": Infinity}',
    b'{"type": "PING", "protocol": 1e}',
    b'{"type": "\xc3"}',
    b'{"type": "\\ud800"}',
    b"\xff" * 100,
    b'\xff\xfe{"type": "PING"}',
    b"\0" * 100,
    b'{"type": "PING", "extensions": {"a": {"b": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}}",
    gzip.compress(b'{"type": "PING"}'),
    pack({"type": "PING"}),
]


def test_invalid_json(shared: Served, connect: Connect) -> None:
    with served_all_the_time(shared):
        client = connect(shared)
        for body in BAD_BODIES:
            assert client.ask(body)["code"] == "bad_body", body[:60]
            assert client.ask({"type": "PING"}) == {"type": "PONG"}
        assert client.ask({})["code"] == client.ask({"type": 3})["code"] == "bad_message"
        assert client.ask({"type": "PING", "x": 1})["code"] == "bad_message"
        client.close()


@pytest.mark.parametrize("kind", ["GET_ACTION", "", "ping", "PONG", "SET_STATE", "__class__", "x" * 100_000])
def test_an_unknown_type(shared: Served, connect: Connect, kind: str) -> None:
    client = connect(shared)
    assert client.ask({"type": kind})["code"] == "unknown_type"
    assert client.ask({"type": "PING"}) == {"type": "PONG"}


WRONG: tuple[Any, ...] = (None, True, "x", 1.5, -1, 2**70, [], {}, [None], {"a": 1})
_STEP = episode(1)
_FULL_CHUNK = {
    **_STEP,
    "id": "a",
    "weights_seq_no": 1,
    "action_logp": [0.0],
    "action_dist_inputs": [[0.0, 0.0]],
    "agent_id": "x",
    "env_t": [0, 1],
}
_FULL_COLUMNS = {
    "lengths": [1],
    **{name: _STEP[name] for name in ("obs", "actions", "rewards")},
    "is_terminated": [True],
    "is_truncated": [False],
    "ids": ["a"],
    "action_logp": [0.0],
    "action_dist_inputs": [[0.0, 0.0]],
}
_FULL: dict[str, dict[str, Any]] = {
    "PING": {"protocol": 1, "extensions": {}, "token": "x"},
    "GET_CONFIG": {},
    "GET_STATE": {},
    "EPISODES": {"episodes": [_FULL_CHUNK], "weights_seq_no": 1, "env_steps": 1},
    "GET_ACTIONS": {
        "episodes": [
            {"id": "a", "obs": [0.0] * 4, "reward": 0.0, "is_terminated": False, "is_truncated": False, "agent_id": "x"}
        ],
        "explore": True,
    },
}
_FULL["EPISODES_AND_GET_STATE"] = _FULL["EPISODES"]


def _mistakes(kind: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each field of a message missing, or with a value of another type; and the path that must be named."""
    full = {"type": kind, **_FULL[kind]}
    yield from _mistakes_in(REQUESTS[kind], full, "$", lambda changed: changed)
    if "episodes" in full:
        element = Episode if kind.startswith("EPISODES") else NewObservation
        place = "$.episodes[0]"
        yield from _mistakes_in(element, full["episodes"][0], place, lambda changed: {**full, "episodes": [changed]})
    if kind.startswith("EPISODES"):
        rest = {key: value for key, value in full.items() if key != "episodes"}
        yield from _mistakes_in(Columns, _FULL_COLUMNS, "$.columns", lambda changed: {**rest, "columns": changed})


def _mistakes_in(
    struct: Any, full: dict[str, Any], path: str, put: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], str]]:
    types = get_type_hints(struct, include_extras=True)
    assert set(full) - {"type"} <= set(types)
    yield put({**full, "no_such_key": 1}), f"{path}.no_such_key"
    for field in msgspec.structs.fields(struct):
        if field.required and field.name in full:
            yield put({key: value for key, value in full.items() if key != field.name}), f"{path}.{field.name}"
        for wrong in WRONG:
            if not _is_valid(wrong, types[field.name]):
                yield put({**full, field.name: wrong}), f"{path}.{field.name}"


def _is_valid(value: Any, annotation: Any) -> bool:
    if annotation is msgspec.Raw:
        return False  # none of these is an observation or a list of actions
    try:
        msgspec.json.decode(msgspec.json.encode(value) if value != 2**70 else b"%d" % 2**70, type=annotation)
    except msgspec.ValidationError:
        return False
    return True


def test_the_messages_are_complete() -> None:
    assert set(_FULL) == set(REQUESTS)
    for kind, full in _FULL.items():
        decode_request(json.dumps({"type": kind, **full}).encode(), "json")


@pytest.mark.parametrize("kind", _FULL)
@pytest.mark.parametrize("body_format", ["json", "msgpack"])
def test_every_field_missing_or_of_another_type(shared: Served, connect: Connect, kind: str, body_format: str) -> None:
    counts = shared.runner._service.counts
    before = counts.num_env_steps_received, counts.num_env_steps_acted
    client = connect(shared)
    client.ask({"type": "PING", "extensions": {"actions": {}, "msgpack": {}}})
    tried = 0
    for message, path in _mistakes(kind):
        if body_format == "msgpack" and "1180591620717411303424" in json.dumps(message):
            continue  # MessagePack has no such integers
        client.socket.sendall(frame(json.dumps(message).encode() if body_format == "json" else pack(message)))
        body = client.receive_body()
        answer = json.loads(body) if body[:1] == b"{" else msgspec.msgpack.decode(body)
        assert (answer["type"], answer["code"]) == ("ERROR", _code(path)), (message, answer)
        # What else is wrong in the full message (it names an agent, and has columns and episodes) may come first.
        assert answer["path"].startswith(path) or path in _LATE, (message, answer)
        tried += 1
    assert tried >= 5
    assert (counts.num_env_steps_received, counts.num_env_steps_acted) == before
    client.ask({"type": "PING"})


def _code(path: str) -> str:
    return "not_granted" if path == "$.request.valid" else "bad_message"


# Undecoded until the agent is known, and this run has none.
_LATE = {"$.episodes[0].obs", "$.episodes[0].actions", "$.columns.obs", "$.columns.actions"}


def test_integers_that_wrap_around_are_refused(shared: Served, connect: Connect) -> None:
    """What fits a block but not what is made of it."""
    with Client(*shared.address, extensions={"msgpack": {}}, reconnect_s=0) as client:
        good = columns(episode(2))
        client.send_episodes([], columns=good)
        lies = [
            ("lengths", np.array([2**62] * 4 + [2])),  # whose sum is 2 again
            ("lengths", np.array([2**64 - 1, 3], np.uint64)),
            ("actions", np.array([2**64 - 1, 0], np.uint64)),
            ("actions", np.array([2**32, 0], np.uint64)),
            ("rewards", np.array([1e300, 0.0])),
        ]
        for name, lie in lies:
            with pytest.raises(RLlinkError) as refused:
                client.send_episodes([], columns={**good, name: lie})
            assert (refused.value.code, refused.value.path) == ("bad_message", f"$.columns.{name}")
    other = connect(shared)
    for seq_no in (2**63, 2**64 - 1, -(2**63) - 1):
        assert other.ask({**EPISODES, "weights_seq_no": seq_no})["code"] == "bad_message"
    assert other.ask({"type": "EPISODES", "episodes": [episode(1, rewards=[1e300])]})["code"] == "bad_message"


def test_open_episodes_in_columns_are_truncated_when_their_client_goes(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    sampling = served.sample(5)
    with Client(*served.address, extensions={"msgpack": {}}, reconnect_s=0) as client:
        client.send_episodes([], columns=columns(episode(2, is_terminated=False)) | {"ids": ["a"]})
    wait_until(lambda: served.runner.server.connections.num_clients == 0)
    assert len(served.runner._service.clients) == 0
    other = connect(served)
    other.ask({"type": "EPISODES", "episodes": [episode(3)]})
    assert sampling.result(30).rollout.blocks["default_policy"].is_truncated.tolist() == [True, False]


# -- clients that stall ------------------------------------------------------------------------------------------------


def test_a_client_that_never_reads(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, SHORT)
    with served_all_the_time(served) as neighbour:
        wait_until(lambda: neighbour.num_answers > 0)
        client = connect(served)
        client.socket.setblocking(False)
        connection = max(served.runner.server.connections.open, key=lambda one: int(one.client.name.split("-")[-1]))
        request = frame(b'{"type": "GET_STATE"}') * 100
        most_held = most_unsent = 0
        deadline = time.monotonic() + 60
        is_open = True
        while is_open and time.monotonic() < deadline:
            try:
                client.socket.send(request)
            except BlockingIOError:
                select.select([], [client.socket], [], 0.02)
            except OSError:
                is_open = False
            most_held = max(most_held, connection._reader.num_bytes)
            most_unsent = max(most_unsent, connection._transport.get_write_buffer_size())
        assert not is_open  # the server has ended it
        assert most_held < 3_000_000
        assert most_unsent < 3_000_000
        client.close()


def test_a_client_that_never_reads_why_it_is_refused(serve: Serve, connect: Connect) -> None:
    """The server drops its requests, too, and does not count it any more."""
    served = served_for_long(serve, SHORT)
    client = connect(served)
    client.ask({"type": "GET_STATE"})
    (connection,) = served.runner.server.connections.open
    transport = connection._transport
    transport.set_write_buffer_limits(high=1 << 30)  # so that requests are still answered when the kernel takes no more
    with served_all_the_time(served):
        while transport.get_write_buffer_size() == 0:
            client.socket.sendall(frame(b'{"type": "GET_STATE"}') * 10)
            time.sleep(0.005)
        client.socket.sendall(b"no digit")
        wait_until(lambda: connection._is_closing)
        assert transport.get_write_buffer_size() > 0
        wait_until(lambda: served.runner.server.connections.num_clients == 1)  # the neighbour


def test_a_client_that_sends_a_byte_now_and_then(shared: Served, connect: Connect) -> None:
    with served_all_the_time(shared):
        client = connect(shared)
        begun = time.monotonic()
        for byte in b'00000016{"type": "PING"}':
            try:
                client.socket.sendall(bytes((byte,)))
            except OSError:
                break
            if select.select([client.socket], [], [], 0.06)[0]:
                break
        assert client.receive()["code"] == "timeout"
        assert time.monotonic() - begun > 0.3
        client.close()


def test_a_client_that_says_nothing(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, "rllink.idle_timeout_s=0.3")
    with served_all_the_time(served):
        idle = [connect(served) for _ in range(20)]
        for client in idle:
            assert client.receive()["code"] == "timeout"
            assert client.is_closed()


def test_who_has_waited_for_the_server_may_take_as_long_as_ever(serve: Serve, connect: Connect) -> None:
    """Neither the idle time nor the time of a half sent frame counts while the server lets a client wait."""
    served = serve(SHORT, "rllink.idle_timeout_s=0.6")
    sampling = served.sample(5)
    client = connect(served)
    client.send({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})
    sampling.result(30)
    (connection,) = served.runner.server.connections.open
    sent = time.monotonic()
    client.socket.sendall(b'00000016{"type"')
    wait_until_watched(connection, sent, seconds=0.8)  # longer than both times
    served.sample(5, update=True)
    assert client.receive()["weights_seq_no"] == 2
    wait_until_watched(connection, time.monotonic(), seconds=0.0)
    client.socket.sendall(b': "PING"}')
    assert client.receive() == {"type": "PONG"}


# -- many --------------------------------------------------------------------------------------------------------------


def test_500_connections_opened_and_dropped(shared: Served) -> None:
    with served_all_the_time(shared):
        for number in range(500):
            client = socket.create_connection(shared.address, 5)
            if number % 3 == 1:
                client.sendall(frame(b'{"type": "GET_CONFIG"}'))
            elif number % 3 == 2:
                client.sendall(frame(b'{"type": "PING", "extensions": {"shared_memory": {}, "session": {"id": null}}}'))
            client.close()
    service = shared.runner._service
    wait_until(lambda: is_empty(shared))
    assert len(service.clients) == 0
    assert len(shared.runner.server.connections._shared) == 0
    assert len(service._waiting) == len(service._actions._waiting) == 0


def test_sessions_that_nobody_comes_back_to_do_not_grow(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, "rllink.max_clients=5")
    for _ in range(60):
        client = connect(served)
        ping = {"type": "PING", "extensions": {"session": {"id": None}}}
        pong = client.ask(ping)
        if pong.get("code") != "too_many_clients":
            assert pong["type"] == "PONG"
        client.close()
        wait_until(lambda: served.runner.server.connections.num_clients == 0)
    wait_until(lambda: len(served.runner.server.connections.sessions) <= 5)


def test_what_episodes_leave_behind_does_not_grow(serve: Serve, connect: Connect) -> None:
    """Episodes that a client begins, and never goes on with, are forgotten with it."""
    served = serve(OFF)
    sampling = served.sample(40)
    for number in range(10):
        with Client(*served.address, extensions={"actions": {}}, reconnect_s=0) as client:
            for name in "abc":
                client.get_actions([{"id": name, "obs": [0.0] * 4}])
                if name != "a":
                    client.get_actions([{"id": name, "obs": [0.0] * 4, "reward": 1.0}])
        if number == 5:
            assert len(served.runner._service.queue._messages) == 0
            for _ in range(50):
                raw_client = connect(served)
                raw_client.ask({"type": "EPISODES", "episodes": []})
                raw_client.close()
            assert len(served.runner._service.queue._messages) == 0
    wait_until(lambda: served.runner.server.connections.num_clients == 0)
    with Client(*served.address, reconnect_s=0) as client:
        client.send_episodes([episode(40)])
    assert sampling.result(30).rollout.num_env_steps == 60
    inference = served.runner._service._actions._inference["default_policy"]
    assert inference._by_id == {}
    assert inference._rows.ids == {}
    assert len(inference._free) == inference._rows.max_rows


def test_too_many_clients(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, "rllink.max_clients=4")
    with served_all_the_time(served):
        welcome = [connect(served) for _ in range(3)]
        for client in welcome:
            assert client.ask({"type": "PING"}) == {"type": "PONG"}
        for _ in range(20):
            one_more = connect(served)
            assert one_more.ask({"type": "PING"})["code"] == "too_many_clients"
            assert one_more.is_closed()
        welcome.pop().close()
        wait_until(lambda: served.runner.server.connections.num_clients == 3)
        again = connect(served)
        assert again.ask({"type": "PING"}) == {"type": "PONG"}
        for client in (*welcome, again):
            client.close()


def test_too_many_open_episodes(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, "rllink.max_open_episodes=3")
    with served_all_the_time(served):
        client = connect(served)
        client.ask({"type": "PING", "extensions": {"actions": {}}})
        chunks = [episode(1, is_terminated=False, id=str(number)) for number in range(4)]
        assert client.ask({"type": "EPISODES", "episodes": chunks})["code"] == "too_many_episodes"
        assert client.ask({"type": "EPISODES", "episodes": chunks[:3]})["type"] == "ACK"
        assert client.ask({"type": "EPISODES", "episodes": chunks[3:]})["code"] == "too_many_episodes"
        asked = [{"id": str(number), "obs": [0.0] * 4} for number in range(4)]
        assert client.ask({"type": "GET_ACTIONS", "episodes": asked})["code"] == "too_many_episodes"
        assert client.ask({"type": "GET_ACTIONS", "episodes": asked[:3]})["type"] == "ACTIONS"
        client.close()


# -- tokens and sessions -----------------------------------------------------------------------------------------------


def test_two_clients_with_one_token_are_two(serve: Serve) -> None:
    served = served_for_long(serve, "rllink.token=secret")
    with served_all_the_time(served, "secret"):
        clients = [Client(*served.address, token="secret", extensions={}, reconnect_s=0) for _ in range(2)]
        for client, seed in zip(clients, (0, 1), strict=True):  # the same id, other episodes
            client.send_episodes([episode(2, seed, is_terminated=False, id="a")])
        for client, seed in zip(clients, (0, 1), strict=True):
            first = episode(2, seed)["obs"][-1]
            rest = episode(1, 7)
            client.send_episodes([{**rest, "obs": [first, rest["obs"][1]], "id": "a"}])
            client.close()


def test_a_wrong_token(serve: Serve, connect: Connect) -> None:
    served = served_for_long(serve, "rllink.token=secret")
    with served_all_the_time(served, "secret"):
        for wrong in ("", "secre", "secret ", "SECRET", "s" * 3_000, "\u0000", "ß"):
            client = connect(served)
            assert client.ask({"type": "PING", "token": wrong})["code"] == "unauthorized"
            assert client.is_closed()
        client = connect(served)
        for kind in ("GET_CONFIG", "GET_STATE"):
            assert client.ask({"type": kind})["code"] == "unauthorized"
        assert client.ask(EPISODES)["code"] == "unauthorized"
        client.close()


def test_the_next_request_does_not_overtake_one_that_waits(serve: Serve, connect: Connect) -> None:
    served = serve()
    sampling = served.sample(5)
    client = connect(served)
    options = client.ask({"type": "PING", "extensions": {"session": {"id": None}, "actions": {}}})["extensions"]
    client.ask({**EPISODES, "episodes": [episode(5)], "request": 1})
    sampling.result(30)
    asking = {"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4}], "request": 2}
    client.send(asking)  # waits for the update
    client.socket.sendall(frame(b'{"type": "PING"}')[:3])
    wait_until(lambda: len(served.runner._service._actions._waiting) == 1)
    client.close()
    client = connect(served)
    client.ask({"type": "PING", "extensions": {"session": {"id": options["session"]["id"]}, "actions": {}}})
    assert client.ask({**asking, "request": 3})["path"] == "$.request"
    client.send(asking)
    served.sample(5, update=True)
    assert client.receive()["type"] == "ACTIONS"
    assert client.ask({"type": "GET_CONFIG", "request": 3})["type"] == "SET_CONFIG"


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rllink test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(signed.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, plain, serialization.NoEncryption()))
    return folder / "certificate.pem", folder / "key.pem"


class TestTls:
    @pytest.fixture
    def served(self, serve: Serve, certificate: tuple[Path, Path]) -> Served:
        files = [f"rllink.tls_certificate={certificate[0]}", f"rllink.tls_key={certificate[1]}"]
        return served_for_long(serve, *files, SHORT, "rllink.handshake_timeout_s=0.4")

    def test_with_the_right_authority(
        self, served: Served, certificate: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        trusted = ssl.create_default_context(cafile=str(certificate[0]))
        with Client(*served.address, tls=trusted, reconnect_s=0) as client:
            client.send_episodes([episode(3)])
            assert client.get_state().seq_no == 1
        host, port = served.address
        code = main(["rllink", "check", f"{host}:{port}", "--tls-ca", str(certificate[0]), "--read-only"])
        assert code == 0, capsys.readouterr().out

    def test_what_is_no_tls_or_trusts_another(
        self, served: Served, connect: Connect, certificate: tuple[Path, Path]
    ) -> None:
        trusted = ssl.create_default_context(cafile=str(certificate[0]))
        with Client(*served.address, tls=trusted, reconnect_s=0) as neighbour:
            for _ in range(5):
                plain = connect(served, 5)
                plain.socket.sendall(b'00000016{"type": "PING"}')
                assert plain.is_closed()
                with pytest.raises(ServerGone):
                    Client(*served.address, tls=ssl.create_default_context(), reconnect_s=0)
                with pytest.raises((ServerGone, OSError)):
                    Client(*served.address, reconnect_s=0, timeout_s=5)
                neighbour.ping()
            silent = connect(served, 5)  # never begins its handshake
            assert silent.is_closed()
            neighbour.ping()
        wait_until(lambda: is_empty(served))


def test_nobody_else_gets_an_address_before_the_server_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = config_from(EXPERIMENT, f"env.port={port}")
    runner = build_env_runner(config, make_module_specs(config), TRAINING, 0, 0)
    try:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            build_env_runner(config, make_module_specs(config), TRAINING, 0, 0)
    finally:
        runner.close()
