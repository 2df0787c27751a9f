"""Mutated and random bytes, into the decoders and into a live server that goes on serving others."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import logging
import random
import resource
import select
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.rllink.client.frames import FrameReader, frame
from runner.rllink.client.packing import pack
from runner.rllink.messages import MessageError, decode_request, format_of
from tests.conftest import wait_until
from tests.rllink.conftest import OFF, RawClient, Served, columns, episode
from tests.rllink.test_faults import Neighbour

_ROUNDS = 150
_SEED = 5
_CODES = {
    "bad_header",
    "too_large",
    "timeout",
    "bad_body",
    "unknown_type",
    "bad_message",
    "not_granted",
    "stale_weights",
    "unknown_weights",
    "too_many_episodes",
}
_STEP = episode(3)
_COLUMNS = {
    **columns(_STEP),
    "ids": ["a"],
    "action_logp": np.zeros(3, np.float32),
    "action_dist_inputs": np.zeros((3, 2), np.float32),
}
MESSAGES: list[dict[str, Any]] = [
    {"type": "PING", "protocol": 1, "token": "x"},
    {"type": "GET_CONFIG"},
    {"type": "GET_STATE"},
    {"type": "EPISODES", "episodes": [{**_STEP, "id": "a", "weights_seq_no": 1}, _STEP], "env_steps": 6},
    {"type": "EPISODES_AND_GET_STATE", "episodes": [_STEP], "weights_seq_no": 1},
    {"type": "EPISODES", "episodes": [_STEP], "weights_seq_no": 2},
    {"type": "EPISODES", "episodes": [{**_STEP, "rewards": [1.0, 1e6, 1.0]}]},
    {"type": "EPISODES", "episodes": [{**_STEP, "obs": [[3e38, 0.0, 0.0, 0.0], *_STEP["obs"][1:]]}]},
    {"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4}, {"id": "b", "obs": [0.0] * 4}]},
]
PACKED: list[dict[str, Any]] = [
    *MESSAGES,
    {"type": "EPISODES", "episodes": [{**_STEP, "obs": np.float32(_STEP["obs"])}]},
    {"type": "EPISODES", "columns": _COLUMNS},
]
BODIES = [json.dumps(message).encode() for message in MESSAGES] + [pack(message) for message in PACKED]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """With one to four small mistakes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 1, 1, 2, 4, 8, 50))
        match rng.randrange(7):
            case 0 if changed:
                changed[place % len(changed)] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[place % len(changed)] = rng.choice(b'\0\x01\x7f\x80\x90\xc0\xdd\xdf\xff{}[]",:0919.-e')
            case 2:
                del changed[place:]
            case 3:
                changed[place:place] = rng.randbytes(size)
            case 4:
                del changed[place : place + size]
            case 5:
                changed[place:place] = changed[place : place + size]
            case _:
                changed[place:place] = rng.choice(_BAD_CONNECTORS)
    return bytes(changed)


_BAD_CONNECTORS = (
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b"18446744073709551616",
    b"9223372036854775808",
    b"[[[[",
    b"\\u0000",
    b'"\xed\xa0\x80"',
    b"\xdd\xff\xff\xff\xff",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\0\0\0\0\0\0\0",
    b"\xca\x7f\xc0\0\0",
)


_VALUES: tuple[Any, ...] = (None, True, "x", "EPISODES", 1.5, -1, 0, 2**63, 1e300, [], {}, [[]], "a" * 300, b"x")


def rebuilt(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The message with one value, at any depth, changed, left out, or twice there."""
    changed: dict[str, Any] = copy.deepcopy(message)
    place: Any = changed
    while True:
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        below = place[key]
        if not (isinstance(below, (dict, list)) and below and rng.random() < 0.8):
            break
        place = below
    match rng.randrange(4):
        case 0:
            del place[key]
        case 1 if isinstance(place, list):
            place.append(below)
        case 2 if isinstance(place, dict):
            place[rng.choice(list(_STEP))] = below
        case _:
            place[key] = rng.choice(_VALUES)
    return changed


def _spoilt_body(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return mutated(rng.choice(BODIES), rng)
    if rng.random() < 0.5:
        return json.dumps(rebuilt(rng.choice(MESSAGES), rng), default=str).encode()
    return pack(rebuilt(rng.choice(PACKED), rng))


# -- decoders ----------------------------------------------------------------------------------------------------------


def _refusal(body: bytes, body_format: Any) -> MessageError | None:
    try:
        decode_request(body, body_format)
    except MessageError as error:
        return error
    return None


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_body_is_a_request_or_a_message_error(body: bytes) -> None:
    for body_format in ("json", "msgpack"):
        refusal = _refusal(body, body_format)
        assert refusal is None or refusal.code in _CODES


@given(st.randoms(use_true_random=False), st.sampled_from(BODIES))
@settings(max_examples=400, deadline=None)
def test_a_mutated_body_is_a_request_or_a_message_error(rng: random.Random, body: bytes) -> None:
    body = mutated(body, rng)
    refusal = _refusal(body, format_of(body))
    assert refusal is None or refusal.code in _CODES
    assert refusal is None or refusal.path is None or refusal.path.startswith("$")


_LAST = frame(b'{"type": "PING", "protocol": 1}')


# -- a live server -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served(OFF, "rllink.frame_timeout_s=1", "rllink.max_open_episodes=50")
    served.sample(10**7)
    yield served
    served.close()


def _stream(rng: random.Random) -> bytes:
    """Some frames, with mistakes in bodies, or in the bytes of frames, or in their order."""
    frames = []
    for _ in range(rng.randint(1, 5)):
        body = _spoilt_body(rng) if rng.random() < 0.8 else rng.choice(BODIES)
        if rng.random() < 0.2:
            body = gzip.compress(body)
            if rng.random() < 0.5:
                body = mutated(body, rng)
        frames.append(frame(body))
    match rng.randrange(6):
        case 0:
            return mutated(b"".join(frames), rng)
        case 1:
            rng.shuffle(frames)
            return b"".join(frames * 2)
        case 2:
            return rng.randbytes(rng.randint(1, 400))
    return b"".join(frames)


def _spoil(served: Served, rng: random.Random) -> list[dict[str, Any]]:
    """Send a spoilt stream; return the answers of the server."""
    client = RawClient(served.address, 5)
    extensions = {name: {} for name in ("msgpack", "large_frames", "actions") if rng.random() < 0.8}
    if rng.random() < 0.5:
        extensions["compression"] = {"methods": ["gzip"]}  # type: ignore[dict-item]
    client.ask({"type": "PING", "extensions": extensions})
    with contextlib.suppress(OSError):
        data = _stream(rng) + _LAST
        while data:
            size = rng.choice((len(data), 1, 7, 100))
            client.socket.sendall(data[:size])
            data = data[size:]
    answers = _answers(client)
    client.close()
    return answers


def _answers(client: RawClient) -> list[dict[str, Any]]:
    """What comes before the answer to the last request, the end, or (a frame is not complete) a moment of silence."""
    reader = FrameReader()
    reader.is_large_granted = True
    answers: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        while not (answers and "limits" in answers[-1]) and select.select([client.socket], [], [], 0.1)[0]:
            data = client.socket.recv(1 << 16)
            if not data:
                break
            reader.feed(data)
            while (body := reader.next_body()) is not None:
                body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
                answers.append(msgspec.json.decode(body) if body[:1] == b"{" else msgspec.msgpack.decode(body))
    return answers


def test_a_server_that_is_sent_nonsense_goes_on_serving(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(_SEED)
    neighbour = Neighbour(served)
    codes: dict[str, int] = {}
    try:
        for number in range(_ROUNDS):
            for answer in _spoil(served, rng):
                code = answer.get("code", answer["type"])
                codes[code] = codes.get(code, 0) + 1
                assert code != "internal", f"round {number} of seed {_SEED}"
            assert neighbour.error is None
            if number == _ROUNDS // 4:
                held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    finally:
        neighbour.stop()
    assert neighbour.error is None
    assert neighbour.num_answers >= 20
    assert neighbour.worst_s < 2.0
    # The mutations reach everything that there is to reach, and not only the first check.
    assert {"bad_header", "bad_body", "unknown_type", "bad_message", "unknown_weights", "ACK", "ACTIONS"} <= set(codes)
    assert set(codes) <= _CODES | {"PONG", "SET_CONFIG", "SET_STATE", "ACK", "ACTIONS"}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
    assert grown < 100_000  # kB
    wait_until(lambda: served.runner.server.connections.num_clients == 0)
    service = served.runner._service
    assert len(service.clients) == len(service._actions._waiting) == len(service._waiting) == 0
    assert service.queue.num_env_steps > 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_what_nonsense_left_can_be_sampled() -> None:
    """The server accepts from a spoilt stream only whole episodes that a learner can use."""
    served = Served(OFF, "rllink.frame_timeout_s=1")
    try:
        sampling = served.sample(50)
        rng = random.Random(_SEED + 1)
        while not sampling.done():
            _spoil(served, rng)
        sample = sampling.result(30)
        block = sample.rollout.blocks["default_policy"]
        assert block.lengths.sum() >= 50
        assert len(block.columns["obs"]) == block.lengths.sum() + len(block.lengths)
        for name in ("obs", "rewards", "action_logp", "action_dist_inputs"):
            assert np.isfinite(block.columns[name]).all(), name
        assert set(np.unique(block.columns["actions"])) <= {0, 1}
        assert np.abs(block.columns["rewards"]).max() <= 4750.0  # ten times CartPole's reward threshold
        assert np.abs(block.columns["obs"][:, 0]).max() <= 4.8
    finally:
        served.close()
