"""The rules of the extensions (docs/reference/rllink.md, section 8), checked if the server grants them."""

from __future__ import annotations

import base64
import gzip
import json
from contextlib import suppress
from typing import Any

import numpy as np

from runner.rllink.check import sample_items
from runner.rllink.check.checker import Checker, Rules, Skip, expect_error, expect_pong
from runner.rllink.check.wire import Failure, NoAnswer, Wire, expect
from runner.rllink.client.frames import SharedWriter, is_compressed, shared_frame
from runner.rllink.client.packing import pack

RULES = Rules()
rule = RULES.rule

_PING = b'{"type": "PING"}'


# -- msgpack -----------------------------------------------------------------------------------------------------------


@rule("msgpack", "the server answers MessagePack in MessagePack and JSON in JSON", extension="msgpack")
def _(checker: Checker) -> None:
    wire = checker.open(msgpack={})
    for kind in ("PING", "GET_CONFIG"):
        for is_packed in (True, False):
            wire.send({"type": kind}, msgpack=is_packed)
            body = wire.receive_body()
            expect((body[:1] != b"{") == is_packed, f"an answer in {'MessagePack' if is_packed else 'JSON'}", body)
            wire.decode(body)
    for bad in (b"\x81\xa4type", b"\x93\x01\x02\x03", b"\x82\xa4type\xa4PING\x01\x02", b"\xdf\xff\xff\xff\xff"):
        wire.send_body(bad)
        expect(wire.receive()["type"] == "ERROR", "ERROR for a body that is not a message", "another answer")
    expect_pong(wire)


@rule("msgpack", "onnx_file is the gzip itself, as bin", extension="msgpack")
def _(checker: Checker) -> None:
    state = checker.open(msgpack={}).ask({"type": "GET_STATE"}, msgpack=True)
    module = next(iter(state["modules"].values())) if "modules" in state else state
    file = module.get("onnx_file")
    if not isinstance(file, bytes) or file[:2] != b"\x1f\x8b":
        raise Failure("onnx_file, a gzip stream as bin", repr(type(file).__name__))
    with suppress(OSError, EOFError):
        gzip.decompress(file)
        return
    raise Failure("onnx_file, a complete gzip stream", "a broken one")


@rule("msgpack", "lists of numbers may be array blocks", extension="msgpack", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open(msgpack={})
    answer = checker.accepted(wire, [_with_blocks(checker, checker.chunk(3))], msgpack=True)
    expect(answer.get("env_steps") == 3, "ACK of 3 env steps", answer)


@rule("msgpack", "an array block with a wrong dtype or number of bytes: ERROR bad_message", extension="msgpack")
def _(checker: Checker) -> None:
    wire = checker.open(msgpack={})
    good = {"dtype": "<f4", "shape": [2], "data": b"\0" * 8}
    changes: list[dict[str, Any]] = [
        {"dtype": "|O"},
        {"dtype": ">f4"},
        {"dtype": "<c8", "shape": [1]},
        {"shape": [3]},
        {"shape": [-2]},
        {"shape": [2**62, 4]},
        {"data": b"\0" * 7},
        {"data": "x"},
    ]
    for change in changes:
        chunk = {**checker.chunk(), "rewards": good | change}
        answer = checker.send_episodes(wire, [chunk], msgpack=True)
        expect_error(answer, "bad_message", "$.episodes[0].rewards")


@rule("msgpack", "`columns`: many episodes, one array block per column", extension="msgpack", needs_episodes=True)
def _(checker: Checker) -> None:
    if checker.agent is not None:
        raise Skip("`columns` needs a single agent")
    wire = checker.open(msgpack={})
    columns = _columns(checker, [checker.chunk(2), checker.chunk(3)])
    answer = checker.send_until_fresh(wire, {"type": "EPISODES", "columns": columns}, msgpack=True)
    expect(answer.get("env_steps") == 5, "ACK of 5 env steps", answer)
    for name, value in {"lengths": [2, 2], "rewards": [1.0] * 4, "is_terminated": [True]}.items():
        message = {"type": "EPISODES", "columns": {**columns, name: value}}
        expect_error(checker.send_until_fresh(wire, message, msgpack=True), "bad_message", "$.columns")
    both = {"type": "EPISODES", "columns": columns, "episodes": [checker.chunk()]}
    expect_error(checker.send_until_fresh(wire, both, msgpack=True), "bad_message")


@rule("msgpack", "without the extension a MessagePack body is rejected")
def _(checker: Checker) -> None:
    wire = checker.open()
    wire.send_body(pack({"type": "PING"}))
    expect_error(wire.receive(), "bad_body")


def _with_blocks(checker: Checker, chunk: dict[str, Any]) -> dict[str, Any]:
    """Replace the lists of rewards, and of items of leaf spaces, by arrays."""
    blocks = dict(chunk)
    for name, space in zip(("obs", "actions"), checker.spaces, strict=True):
        if sample_items.parts_of(space) is None:
            blocks[name] = sample_items.stack_items(space, chunk[name])
    blocks["rewards"] = np.array(chunk["rewards"], "<f4")
    return blocks


def _columns(checker: Checker, chunks: list[dict[str, Any]]) -> dict[str, Any]:
    obs_space, action_space = checker.spaces
    return {
        "lengths": np.array([len(chunk["rewards"]) for chunk in chunks]),
        "obs": sample_items.stack_items(obs_space, [item for chunk in chunks for item in chunk["obs"]]),
        "actions": sample_items.stack_items(action_space, [item for chunk in chunks for item in chunk["actions"]]),
        "rewards": np.concatenate([np.array(chunk["rewards"], "<f4") for chunk in chunks]),
        "is_terminated": np.array([chunk["is_terminated"] for chunk in chunks]),
        "is_truncated": np.array([chunk["is_truncated"] for chunk in chunks]),
    }


# -- large frames and compression --------------------------------------------------------------------------------------


@rule("large_frames", "a header may be `+` and fifteen digits", extension="large_frames")
def _(checker: Checker) -> None:
    wire = checker.open(large_frames={})
    wire.send_bytes(b"+%015d" % len(_PING) + _PING)
    expect(wire.receive() == {"type": "PONG"}, "PONG", "another answer")
    expect_pong(wire)
    wire.send_bytes(b"+00000000000001x")
    expect_error(wire.receive(), "bad_header")
    wire.expect_end()


@rule("compression", "a body may be a gzip stream, and answers above 1 kB are gzip streams", extension="compression")
def _(checker: Checker) -> None:
    wire = checker.open(compression={"methods": ["gzip"]})
    expect(wire.granted["compression"] == {"method": "gzip"}, 'options {"method": "gzip"}', wire.granted)
    wire.send_body(gzip.compress(_PING))
    expect(wire.receive() == {"type": "PONG"}, "PONG", "another answer")
    wire.send({"type": "GET_STATE"})
    body = wire.receive_body()
    state = wire.decode(body)
    expect(is_compressed(body) or len(body) <= 1024, "an answer of more than 1 kB as a gzip stream", state)


@rule(
    "compression",
    "a gzip stream that is broken or decompresses to too many bytes: ERROR bad_body",
    extension="compression",
)
def _(checker: Checker) -> None:
    wire = checker.open(compression={"methods": ["gzip"]})
    whole = gzip.compress(_PING)
    for body in (whole[:-4], whole + b"x", whole[:10], whole[:-8] + b"\0" * 8):
        wire.send_body(body)
        expect_error(wire.receive(), "bad_body")
    most = int(checker.limit("max_body_bytes"))
    if most <= 1 << 27:
        wire.send_body(gzip.compress(b" " * (most + 1), 9))
        expect_error(wire.receive(), "bad_body")
    expect_pong(wire)


# -- session -----------------------------------------------------------------------------------------------------------


@rule("session", "each request has the next number, which its answer repeats", extension="session")
def _(checker: Checker) -> None:
    wire = checker.open(session={"id": None})
    session = wire.granted["session"]
    expect(isinstance(session.get("id"), str) and session.get("resumed") is False, "a new session", session)
    for number in (1, 2, 3):
        answer = wire.ask({"type": "GET_CONFIG", "request": number})
        expect(answer.get("request") == number, f"request {number} in the answer", answer)
    for number in (1, 5, 0):
        expect_error(wire.ask({"type": "GET_CONFIG", "request": number}), "bad_message", "$.request")
    expect_error(wire.ask({"type": "GET_CONFIG"}), "bad_message", "$.request")
    expect(wire.ask({"type": "GET_CONFIG", "request": 4}).get("request") == 4, "request 4, the next number", "ERROR")


@rule("session", "an unknown id starts a new session", extension="session")
def _(checker: Checker) -> None:
    session = checker.open(session={"id": "no-such-session"}).granted["session"]
    expect(session.get("resumed") is False and session.get("id") != "no-such-session", "another session", session)


@rule("session", "a repeated request is answered, but not executed again", extension="session", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open(session={"id": None})
    begin = checker.chunk(is_done=False, id="session")
    message: dict[str, Any] = {"type": "EPISODES", "episodes": [begin], "request": 1}
    answer = checker.send_until_fresh(wire, message)
    expect(answer["type"] == "ACK", "ACK", answer)
    session_id = wire.granted["session"]["id"]
    wire.close()
    wire = checker.open(session={"id": session_id})
    expect(wire.granted["session"].get("resumed") is True, "a resumed session", wire.granted)
    again = wire.ask(message)
    expect(again == answer, str(answer), again)
    rest = checker.chunk(first=begin["obs"][-1], id="session")
    message = {"type": "EPISODES", "episodes": [rest], "request": message["request"] + 1}
    answer = checker.send_until_fresh(wire, message)
    expect(answer["type"] == "ACK", "ACK: open episodes outlive the connection", answer)


# -- heartbeat ---------------------------------------------------------------------------------------------------------


@rule("heartbeat", "the interval is granted, within the server's limits", extension="heartbeat")
def _(checker: Checker) -> None:
    options = checker.open(heartbeat={"interval_s": 1}).granted["heartbeat"]
    interval = options.get("interval_s")
    expect(isinstance(interval, (int, float)) and interval > 0, "an interval_s above 0", options)
    for wrong in ("1", 0, -1, True):
        ping = checker.ping(extensions={"heartbeat": {"interval_s": wrong}})
        expect_error(checker.connect().ask(ping), "bad_message", "$.extensions.heartbeat")


@rule("heartbeat", "WAIT while an answer is delayed", extension="heartbeat", needs_episodes=True)
def _(checker: Checker) -> None:
    if not checker.is_on_policy:
        raise Skip("answers are never delayed without force_on_policy")
    first, second = checker.open(), checker.open(heartbeat={"interval_s": 0.2})
    message = {"type": "EPISODES_AND_GET_STATE", "episodes": [checker.chunk()]}
    with suppress(NoAnswer):
        checker.send_until_fresh(first, message)
    second.send(message)
    try:
        answer = second.receive_any()
    except NoAnswer:
        raise Failure("WAIT", "nothing") from None
    if answer["type"] != "WAIT":
        raise Skip("the answer was not delayed")


# -- agents, actions, weights ------------------------------------------------------------------------------------------


@rule("agents", "SET_CONFIG contains agents, SET_STATE contains modules", extension="agents")
def _(checker: Checker) -> None:
    wire = checker.open()
    config, state = wire.ask({"type": "GET_CONFIG"}), wire.ask({"type": "GET_STATE"})
    agents = config.get("agents", {})
    expect(bool(agents), "agents", config)
    expect("observation_space" not in config, "spaces only in agents", config)
    modules = {agent.get("module") for agent in agents.values()}
    expect(modules <= set(state.get("modules", {})), f"modules {modules}", state)
    expect_error(checker.connect().ask({"type": "GET_CONFIG"}), _code_without_agents(checker))


def _code_without_agents(checker: Checker) -> str:
    return "not_granted" if checker.target.token is None else "unauthorized"


@rule("agents", "agent_id must be known; an env episode has one id", extension="agents", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open()
    wrong = checker.chunk(agent_id="no such agent")
    expect_error(checker.send_episodes(wire, [wrong]), "bad_message", "$.episodes[0].agent_id")
    nameless = checker.chunk()
    del nameless["id"]
    expect_error(checker.send_episodes(wire, [nameless]), "bad_message", "$.episodes[0].id")
    checker.accepted(wire, [checker.chunk(2, env_t=[0, 1, 2])])


@rule("actions", "one action per element, in the action space; null if the episode ended", extension="actions")
def _(checker: Checker) -> None:
    wire = checker.open(actions={})
    answer = _act(wire, [_asked(checker, f"a{number}") for number in range(3)])
    actions = answer["actions"]
    expect(len(actions) == 3, "three actions", answer)
    expect(
        all(sample_items.contains(checker.spaces[1], action) for action in actions),
        "items of the action space",
        actions,
    )
    expect(type(answer.get("weights_seq_no")) is int, "weights_seq_no, an integer", answer)


@rule("actions", "episodes continue with rewards, and end", extension="actions", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open(actions={})
    _act(wire, [_asked(checker, "a")])
    _act(wire, [_asked(checker, "a", reward=1.0)], explore=False)
    ends = [_asked(checker, "a", reward=1.0, is_terminated=True), _asked(checker, "b")]
    actions = _act(wire, ends)["actions"]
    expect(actions[0] is None and actions[1] is not None, "null for the episode that ended", actions)
    _act(wire, [_asked(checker, "a")])  # the id is free again


@rule(
    "actions",
    "a repeated episode or a wrong observation: bad_message; a reward or an end of an unknown episode: unknown_episode",
    extension="actions",
)
def _(checker: Checker) -> None:
    wire = checker.open(actions={})
    mistakes = [
        ([_asked(checker, "a"), _asked(checker, "a")], "$.episodes"),
        ([_asked(checker, "a", obs=None)], "$.episodes[0].obs"),
        ([], "$.episodes"),
        ([_asked(checker, 3)], "$.episodes[0].id"),
    ]
    for elements, path in mistakes:
        expect_error(wire.ask({"type": "GET_ACTIONS", "episodes": elements}), "bad_message", path)
    for unknown in (_asked(checker, "a", reward=1.0), _asked(checker, "a", is_terminated=True)):
        refused = wire.ask({"type": "GET_ACTIONS", "episodes": [unknown]})
        expect_error(refused, "unknown_episode", "$.episodes[0].id")
    expect_pong(wire)


def _asked(checker: Checker, id_: Any, **more: Any) -> dict[str, Any]:
    agent = {} if checker.agent is None else {"agent_id": checker.agent}
    return {"id": id_, "obs": checker.obs(), **agent, **more}


def _act(wire: Wire, elements: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    answer = wire.ask({"type": "GET_ACTIONS", "episodes": elements, **more})
    expect(answer["type"] == "ACTIONS" and isinstance(answer.get("actions"), list), "ACTIONS", answer)
    return answer


@rule("weights", "safetensors_file instead of onnx_file", extension="weights")
def _(checker: Checker) -> None:
    state = checker.open(weights={"format": "safetensors"}).ask({"type": "GET_STATE"})
    module = next(iter(state["modules"].values())) if "modules" in state else state
    expect("onnx_file" not in module and isinstance(module.get("safetensors_file"), str), "safetensors_file", state)
    try:
        file = base64.b64decode(module["safetensors_file"], validate=True)
        header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])
    except ValueError as error:
        raise Failure("Base64 of a safetensors file", str(error)) from None
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    size = 8 + int.from_bytes(file[:8], "little") + max(ends, default=0)
    expect(size == len(file), f"a safetensors file of {size} bytes", f"{len(file)} bytes")


# -- shared memory -----------------------------------------------------------------------------------------------------


@rule("shared_memory", "the body of a request may be in shared memory created by the server", extension="shared_memory")
def _(checker: Checker) -> None:
    wire = checker.open(shared_memory={})
    options = wire.granted["shared_memory"]
    expect(isinstance(options.get("name"), str) and type(options.get("size")) is int, "name and size", options)
    try:
        memory = SharedWriter(options["name"], options["size"])
    except OSError:
        raise Skip("the server is not on this machine") from None
    body = _PING.ljust(4096)  # the writer does not use shared memory for short bodies
    try:
        expect(memory.write(body), "memory to which a client can write", "an error")
        wire.send_bytes(shared_frame(len(body)))
        expect(wire.receive() == {"type": "PONG"}, "PONG", "another answer")
        for digits in (str(options["size"] + 1).encode(), b"-1", b"1x", b"99999999999999999999"):
            wire.send_bytes(b"@%07d" % len(digits) + digits)
            expect_error(wire.receive(), "bad_body")
        expect_pong(wire)
    finally:
        memory.close()
