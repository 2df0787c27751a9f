"""The rules of the base protocol and its error codes (docs/reference/rllink.md, sections 1 to 7)."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from contextlib import suppress
from typing import Any

from runner.rllink.check import sample_items
from runner.rllink.check.checker import Checker, Rules, Skip, expect_error, expect_pong, read_onnx
from runner.rllink.check.wire import Failure, NoAnswer, expect
from runner.rllink.client.frames import frame

RULES = Rules()
rule = RULES.rule

_PING = b'00000016{"type": "PING"}'
_PONG = b'{"type": "PONG"}'
_MOST_IN_HEADER = 99_999_999
_FLOAT32_MAX = 3.4028234663852886e38
_LONGEST_MESSAGE = 20_000_000  # bytes


# -- framing -----------------------------------------------------------------------------------------------------------


@rule("F1", "a TCP (or TLS) connection carries frames both ways")
def _(checker: Checker) -> None:
    wire = checker.connect()
    wire.send_bytes(_PING)
    wire.receive_body()


@rule("F2", "a header is the body's length in eight ASCII digits, also in answers")
def _(checker: Checker) -> None:
    wire = checker.open()
    for kind in ("PING", "GET_CONFIG", "GET_STATE"):
        wire.ask({"type": kind})  # the reader rejects bad headers
    expect(wire.is_silent(checker.silence_s), "headers with the length of their bodies", "bytes after the last body")


@rule("F3", "bodies are JSON objects in UTF-8 without a byte order mark, NaN or infinity")
def _(checker: Checker) -> None:
    wire = checker.open()
    for kind in ("PING", "GET_CONFIG"):
        wire.send({"type": kind})
        body = wire.receive_body()
        expect(body[:1] == b"{", "a body that begins with {", body)
        wire.decode(body)
    for body in (b'\xef\xbb\xbf{"type": "PING"}', b'{"type": "PING", "protocol": NaN}', b'{"type": "\xff"}'):
        wire.send_body(body)
        expect_error(wire.receive(), "bad_body")


@rule("F4", "a header that is not a length: ERROR bad_header, then the connection is closed")
def _(checker: Checker) -> None:
    for header in (b"0000001x", b"-0000016", b"+0000016", b" 0000016", b"GET / HT", b"\0" * 8, b"\xff" * 8):
        wire = checker.connect()
        wire.send_bytes(header + b'{"type": "PING"}')
        expect_error(wire.receive(), "bad_header")
        wire.expect_end()


@rule("F5", "a length above max_body_bytes: ERROR too_large, then the connection is closed")
def _(checker: Checker) -> None:
    most = int(checker.limit("max_body_bytes"))
    is_large = most >= _MOST_IN_HEADER
    if is_large and "large_frames" not in checker.granted:
        raise Skip(f"eight digits cannot express more than its limit of {most} bytes")
    wire = checker.open(**({"large_frames": {}} if is_large else {}))
    wire.send_bytes(b"+%015d" % (most + 1) if is_large else b"%08d" % (most + 1))
    expect_error(wire.receive(), "too_large")
    wire.expect_end()


@rule("F6", "a body that is not a JSON object: ERROR bad_body; the connection stays open")
def _(checker: Checker) -> None:
    wire = checker.open()
    bad = (b"", b"{", b"[]", b"3", b"null", b'{"type": "PING"', b'{"type": "PING"} x', b"\x81\xa4type\xa4PING")
    for body in (*bad, gzip.compress(b'{"type": "PING"}'), b"[" * 10_000):
        wire.send_body(body)
        expect_error(wire.receive(), "bad_body")
        expect_pong(wire)


@rule("F7", "a frame may arrive in pieces of any size, or together with other frames")
def _(checker: Checker) -> None:
    wire = checker.connect()
    for position in range(len(_PING)):
        wire.send_bytes(_PING[position : position + 1])
    expect(wire.receive_body() == _PONG, "PONG to a frame in single bytes", "another answer")
    wire.send_bytes(_PING * 3)
    for _ in range(3):
        expect(wire.receive_body() == _PONG, "three answers to three frames in one piece", "another answer")


@rule("F7", "a frame that is not complete within frame_timeout_s: ERROR timeout, then the connection is closed")
def _(checker: Checker) -> None:
    seconds = checker.time_limit("frame_timeout_s")
    wire = checker.connect()
    wire.send_bytes(_PING[:12])
    expect_error(wire.receive(seconds + checker.target.timeout_s), "timeout")
    wire.expect_end()


# -- requests and answers ----------------------------------------------------------------------------------------------


@rule("R1", "each request has exactly one answer, in the order of the requests")
def _(checker: Checker) -> None:
    wire = checker.open()
    kinds = ["PING", "GET_CONFIG", "NO_SUCH_TYPE", "GET_STATE", "PING"] * 3
    for kind in kinds:
        wire.send({"type": kind})
    answers = {"PING": "PONG", "GET_CONFIG": "SET_CONFIG", "NO_SUCH_TYPE": "ERROR", "GET_STATE": "SET_STATE"}
    expected = [answers[kind] for kind in kinds]
    got = [wire.receive()["type"] for _ in kinds]
    expect(got == expected, ", ".join(expected), ", ".join(got))
    expect(wire.is_silent(checker.silence_s), "no further answer", "one more")


@rule("R1", "the server only sends answers")
def _(checker: Checker) -> None:
    expect(checker.connect().is_silent(checker.silence_s), "silence on a new connection", "a message")


@rule("R2", "a client may send further requests before it has read an answer")
def _(checker: Checker) -> None:
    wire = checker.connect()
    wire.send_bytes(_PING * 200)
    for _ in range(200):
        expect(wire.receive_body() == _PONG, "PONG 200 times", "another answer")


@rule("R2", "the server stops reading while more than one answer is pending")
def _(checker: Checker) -> None:
    raise Skip("a client cannot observe this")


@rule("R3", "`type` is present and is a string")
def _(checker: Checker) -> None:
    wire = checker.open()
    for message in ({}, {"type": 3}, {"type": None}, {"type": ["PING"]}):
        expect_error(wire.ask(message), "bad_message", "$.type")
    expect_pong(wire)


@rule("R3", "an unknown `type`: ERROR unknown_type")
def _(checker: Checker) -> None:
    wire = checker.open()
    for kind in ("", "PONG", "ping", "EPISODE", "SET_STATE", "x" * 1000):
        expect_error(wire.ask({"type": kind}), "unknown_type")
    expect_pong(wire)


@rule("R4", "an unknown key, or a value of a wrong type: ERROR bad_message with its path")
def _(checker: Checker) -> None:
    wire = checker.open()
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"type": "PING", "pong": 1}, "$.pong"),
        ({"type": "PING", "protocol": "1"}, "$.protocol"),
        ({"type": "PING", "extensions": []}, "$.extensions"),
        ({"type": "PING", "extensions": {"msgpack": 1}}, "$.extensions"),
        ({"type": "PING", "token": 1}, "$.token"),
        ({"type": "GET_CONFIG", "protocol": 1}, "$.protocol"),
        ({"type": "GET_STATE", "weights_seq_no": 1}, "$.weights_seq_no"),
        ({"type": "EPISODES"}, "$.episodes"),
        ({"type": "EPISODES", "episodes": {}}, "$.episodes"),
        ({"type": "EPISODES", "episodes": [3]}, "$.episodes[0]"),
        ({"type": "EPISODES_AND_GET_STATE"}, "$.episodes"),
    ]
    for message, path in mistakes:
        expect_error(wire.ask(message), "bad_message", path)
    expect_pong(wire)


@rule("R4", "a key of an episode is missing or has a wrong type: ERROR with its path; nothing of the message is used")
def _(checker: Checker) -> None:
    wire = checker.open()
    checker.spaces  # noqa: B018  raises Skip if a space is malformed
    wrong = {"obs": "x", "actions": None, "rewards": ["1"], "is_terminated": 1, "is_truncated": "no", "id": 3}
    for name, value in wrong.items():
        chunk = checker.chunk(id="R4", is_done=False)
        path = f"$.episodes[0].{name}"
        expect_error(checker.send_episodes(wire, [{**chunk, name: value}]), "bad_message", path)
        if name != "id":
            del chunk[name]
            expect_error(checker.send_episodes(wire, [chunk]), "bad_message", path)
    extra = {**checker.chunk(), "reward": 1}
    expect_error(checker.send_episodes(wire, [extra]), "bad_message", "$.episodes[0].reward")
    expect_pong(wire)


@rule("R5", "a connection without a request for idle_timeout_s is closed")
def _(checker: Checker) -> None:
    seconds = checker.time_limit("idle_timeout_s")
    wire = checker.open()
    expect_error(wire.receive(seconds + checker.target.timeout_s), "timeout")
    wire.expect_end()


@rule("R7", "a connection without a first request (or the token) for handshake_timeout_s is closed")
def _(checker: Checker) -> None:
    seconds = checker.time_limit("handshake_timeout_s")
    silent, seated = checker.connect(), checker.open()
    expect_pong(seated)
    expect_error(silent.receive(seconds + checker.target.timeout_s), "timeout")
    silent.expect_end()
    expect_pong(seated)


@rule("R6", "a client leaves by closing its connection; nothing else changes", needs_episodes=True)
def _(checker: Checker) -> None:
    going, staying = checker.open(), checker.open()
    chunk = checker.chunk(is_done=False, id="R6")
    for wire in (going, staying):
        checker.accepted(wire, [chunk])
    going.close()
    rest = checker.chunk(first=chunk["obs"][-1], id="R6")
    checker.accepted(staying, [rest])
    checker.accepted(checker.open(), [checker.chunk(is_done=False, id="R6")])


# -- handshake ---------------------------------------------------------------------------------------------------------


@rule("H1", 'PING without other keys: exactly 00000016{"type": "PONG"}, at any time')
def _(checker: Checker) -> None:
    wire = checker.connect()
    wire.send_bytes(_PING)
    expect((got := wire.receive_body()) == _PONG, repr(_PONG), got)
    wire = checker.open()
    wire.ask({"type": "GET_CONFIG"})
    wire.send_bytes(_PING)
    expect((got := wire.receive_body()) == _PONG, repr(_PONG), got)


@rule(
    "H2",
    "PING with extensions: PONG with protocol, server, granted extensions and limits; unknown extensions are left out",
)
def _(checker: Checker) -> None:
    wire = checker.open()
    pong = wire.ask(checker.ping(protocol=1, extensions={"no_such_extension": {"x": 1}}))
    if "agents" in checker.granted:
        pong = wire.pong
    expect(set(pong) == {"type", "protocol", "server", "extensions", "limits"}, "PONG with its five keys", pong)
    expect(pong["type"] == "PONG" and pong["protocol"] == 1, "PONG of protocol 1", pong)
    expect(isinstance(pong["server"], str), "a string `server`", pong)
    expect(set(pong["extensions"]) <= {"agents"}, "no extensions that were not requested or are unknown", pong)
    limits = {"max_body_bytes", "max_open_episodes", "handshake_timeout_s", "idle_timeout_s", "frame_timeout_s"}
    expect(limits <= set(pong["limits"]), f"limits {', '.join(sorted(limits))}", pong)
    numbers = [pong["limits"][name] for name in limits]
    expect(all(isinstance(one, (int, float)) and one > 0 for one in numbers), "limits above 0", pong)


@rule("H3", "`protocol` is answered with the version of the server, 1; 0 or less: ERROR bad_message")
def _(checker: Checker) -> None:
    for number in (0, -1):
        expect_error(checker.connect().ask(checker.ping(protocol=number)), "bad_message", "$.protocol")
    for number in (1, 7):
        answer = checker.connect().ask(checker.ping(protocol=number))
        expect(answer.get("protocol") == 1, "protocol 1", answer)


@rule("H4", "extensions may be requested once; a second request: ERROR bad_message")
def _(checker: Checker) -> None:
    wire = checker.connect()
    message = checker.ping(extensions={"no_such_extension": {}})
    expect(wire.ask(message)["type"] == "PONG", "PONG", "another answer")
    expect_error(wire.ask(message), "bad_message", "$.extensions")
    expect_pong(wire)


@rule("H5", "if the server requires a token: ERROR unauthorized before it; a wrong token closes the connection")
def _(checker: Checker) -> None:
    wire = checker.connect()
    answer = wire.ask({"type": "GET_CONFIG"})
    if answer["type"] == "SET_CONFIG" or answer.get("code") == "not_granted":
        raise Skip("the server does not require a token")
    expect_error(answer, "unauthorized")
    expect_error(wire.ask({"type": "GET_STATE"}), "unauthorized")
    expect_error(wire.ask({"type": "PING", "token": f"not {checker.target.token}"}), "unauthorized")
    wire.expect_end()


# -- configuration and state -------------------------------------------------------------------------------------------


@rule("C1", "GET_CONFIG -> SET_CONFIG with the sampling options and the spaces")
def _(checker: Checker) -> None:
    config = checker.open().ask({"type": "GET_CONFIG"})
    expect(config["type"] == "SET_CONFIG", "SET_CONFIG", config)
    steps = config.get("env_steps_per_sample")
    expect(type(steps) is int and steps > 0, "env_steps_per_sample, an integer above 0", config)
    expect(isinstance(config.get("force_on_policy"), bool), "force_on_policy, a boolean", config)
    described = {"$": config}
    if "agents" in checker.granted:
        described = {f"$.agents.{agent}": spaces for agent, spaces in config.get("agents", {}).items()}
        expect(bool(described), "agents", config)
    for path, spaces in described.items():
        for name in ("observation_space", "action_space"):
            mistake = sample_items.find_mistake(spaces.get(name), f"{path}.{name}")
            expect(mistake is None, "spaces as in section 4", mistake)
    keys = {"type", "env_steps_per_sample", "force_on_policy"}
    keys |= {"agents"} if "agents" in checker.granted else {"observation_space", "action_space"}
    expect(set(config) == keys, f"the keys {', '.join(sorted(keys))}", config)


@rule("S1", "GET_STATE -> SET_STATE with weights_seq_no and an ONNX model with obs and actions")
def _(checker: Checker) -> None:
    wire = checker.open()
    state = wire.ask({"type": "GET_STATE"})
    expect(state["type"] == "SET_STATE", "SET_STATE", state)
    expect(type(state.get("weights_seq_no")) is int, "weights_seq_no, an integer", state)
    modules = state.get("modules", {}).values() if "agents" in wire.granted else [state]
    expect(bool(modules), "modules", state)
    for module in modules:
        _check_names(_onnx_in(module))
    expect(checker.newest(wire) >= state["weights_seq_no"], "a weights_seq_no that does not decrease", state)


def _onnx_in(module: dict[str, Any]) -> Any:
    file = module.get("onnx_file")
    if not isinstance(file, str):
        raise Failure("onnx_file, a string", repr(type(file).__name__))
    try:
        return read_onnx(gzip.decompress(base64.b64decode(file, validate=True)))
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise Failure("onnx_file: Base64 of the gzip of an ONNX model", str(error)) from None


def _check_names(model: Any) -> None:
    inputs, outputs = ([one.name for one in listed] for listed in (model.graph.input, model.graph.output))
    is_input = [name == "obs" or name.startswith(("obs/", "state_in/")) for name in inputs]
    expect(bool(is_input) and all(is_input), "inputs obs, obs/..., state_in/...", ", ".join(inputs))
    missing = {"actions", "action_dist_inputs"} - {name.partition("/")[0] for name in outputs}
    expect(not missing, "outputs actions and action_dist_inputs", ", ".join(outputs))
    manifest = next((one.value for one in model.metadata_props if one.key == "runner_manifest"), "none")
    try:
        expect(isinstance(json.loads(manifest), dict), "metadata runner_manifest, a JSON object", manifest)
    except ValueError:
        raise Failure("metadata runner_manifest, a JSON object", manifest) from None


# -- episodes ----------------------------------------------------------------------------------------------------------


@rule(
    "E1",
    "weights_seq_no is the number of the weights that chose the actions; by default, of the last weights sent",
    needs_episodes=True,
)
def _(checker: Checker) -> None:
    checker.accepted(checker.open(), [checker.chunk()])  # without any sent weights, the newest ones
    wire = checker.open()
    for _ in range(5):
        seq_no = checker.newest(wire)
        answer = wire.ask({"type": "EPISODES", "episodes": [checker.chunk()], "weights_seq_no": seq_no})
        if answer.get("code") != "stale_weights":
            break
    expect(answer["type"] == "ACK", f"ACK for weights {seq_no}, the newest", answer)
    checker.accepted(wire, [checker.chunk()])


@rule("E2", "env_steps is the sum of all steps, else ERROR bad_message", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open()
    chunks = [checker.chunk(3), checker.chunk(4)]
    for lie in (0, 6, 8):
        expect_error(checker.send_episodes(wire, chunks, env_steps=lie), "bad_message", "$.env_steps")
    answer = checker.accepted(wire, chunks, env_steps=7)
    expect(answer.get("env_steps") == 7, "ACK of 7 env steps", answer)


@rule(
    "E3",
    "items must fit the spaces; chunks must not be empty; all lists must have the same length",
    needs_episodes=True,
)
def _(checker: Checker) -> None:
    wire = checker.open()
    good = checker.chunk()
    obs, actions = good["obs"], good["actions"]
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"actions": [sample_items.out_of_range_item(checker.spaces[1], actions[0]), actions[1]]}, ".actions"),
        ({"actions": [None, actions[1]]}, ".actions"),
        ({"actions": [*actions, actions[0]]}, ""),
        ({"obs": obs[:-1]}, ""),
        ({"obs": [obs[0], None, obs[1]]}, ".obs"),
        ({"obs": [obs[0], [obs[1]], obs[2]]}, ".obs"),
        ({"rewards": [1.0]}, ".rewards"),
        ({"rewards": [1.0, None]}, ".rewards"),
        ({"obs": obs[:1], "actions": [], "rewards": []}, ".actions"),
        ({"is_terminated": True, "is_truncated": True}, ".is_truncated"),
    ]
    for change, place in mistakes:
        answer = checker.send_episodes(wire, [{**good, **change}])
        expect_error(answer, "bad_message", f"$.episodes[0]{place}")
    body = json.dumps({"type": "EPISODES", "episodes": [{**good, "rewards": [1.0, -12345.5]}]})
    wire.send_body(body.replace("-12345.5", "1e999").encode())
    answer = wire.receive()
    expect(answer.get("code") in ("bad_message", "bad_body"), "an ERROR for a number that is not finite", answer)


@rule("E3", "a reward beyond float32 or max_abs_reward is rejected with its path", needs_episodes=True)
def _(checker: Checker) -> None:
    limit = checker.limits.get("max_abs_reward")
    beyond = [1.1 * limit, -1.1 * limit] if isinstance(limit, (int, float)) and limit < _FLOAT32_MAX else []
    wire = checker.open()
    good = checker.chunk()
    for reward in (*beyond, 1e308):
        answer = checker.send_episodes(wire, [{**good, "rewards": [1.0, reward]}])
        expect_error(answer, "bad_message", "$.episodes[0].rewards")
    checker.accepted(wire, [good])


@rule(
    "E3",
    "actions outside of a Box are accepted; observations are accepted, or rejected with their path",
    needs_episodes=True,
)
def _(checker: Checker) -> None:
    obs, action = (sample_items.out_of_bounds_item(space) for space in checker.spaces)
    if obs is None and action is None:
        raise Skip("the spaces do not contain a bounded Box of floats")
    wire = checker.open()
    chunk = checker.chunk()
    if action is not None:
        checker.accepted(wire, [{**chunk, "actions": [action, *chunk["actions"][1:]]}])
    if obs is not None:
        answer = checker.send_episodes(wire, [{**chunk, "obs": [obs, *chunk["obs"][1:]]}])
        if answer.get("type") == "ERROR":
            expect_error(answer, "bad_message", "$.episodes[0].obs")
        checker.accepted(wire, [chunk])


@rule("E4", "a message is accepted completely or not at all", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open()
    first = checker.chunk(is_done=False, id="E4")
    answer = checker.send_episodes(wire, [first, checker.chunk(rewards=[1.0])])
    expect_error(answer, "bad_message", "$.episodes[1].rewards")
    checker.accepted(wire, [checker.chunk(id="E4")])  # it starts the episode, so the first chunk was not accepted


@rule("E5", "a chunk without id is a separate episode", needs_episodes=True)
def _(checker: Checker) -> None:
    if checker.agent is not None:
        raise Skip("with several agents, every chunk must have an id")
    wire = checker.open()
    answer = checker.accepted(wire, [checker.chunk(2, is_done=False), checker.chunk(3, is_done=False)])
    expect(answer.get("env_steps") == 5, "ACK of 5 env steps", answer)


@rule(
    "E5",
    "chunks with the same id form one episode: each repeats the last observation of the previous chunk",
    needs_episodes=True,
)
def _(checker: Checker) -> None:
    wire = checker.open()
    begin = checker.chunk(is_done=False, id="E5")
    checker.accepted(wire, [begin])
    expect_error(checker.send_episodes(wire, [checker.chunk(id="E5")]), "bad_message", "$.episodes[0].obs")
    checker.accepted(checker.open(), [checker.chunk(id="E5")])  # each connection has separate episodes
    middle = checker.chunk(is_done=False, first=begin["obs"][-1], id="E5")
    checker.accepted(wire, [middle, checker.chunk(first=middle["obs"][-1], id="E5")])
    checker.accepted(wire, [checker.chunk(id="E5")])  # the id is free again


@rule("E6", "EPISODES -> ACK immediately, with env_steps and the newest weights_seq_no", needs_episodes=True)
def _(checker: Checker) -> None:
    answer = checker.accepted(checker.open(), [checker.chunk(3)])
    expect(set(answer) == {"type", "env_steps", "weights_seq_no"}, "ACK with env_steps and weights_seq_no", answer)
    expect(answer["env_steps"] == 3, "ACK of 3 env steps", answer)
    expect(type(answer["weights_seq_no"]) is int, "weights_seq_no, an integer", answer)


@rule("E7", "EPISODES_AND_GET_STATE -> SET_STATE, immediately without force_on_policy", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open()
    message = {"type": "EPISODES_AND_GET_STATE", "episodes": [checker.chunk()]}
    try:
        state = checker.send_until_fresh(wire, message)
    except NoAnswer:
        if not checker.is_on_policy:
            raise
        raise Skip("the answer waits for other simulators or for an update") from None
    expect(state["type"] == "SET_STATE" and type(state.get("weights_seq_no")) is int, "SET_STATE", state)


@rule(
    "E7",
    "with force_on_policy the answer waits for newer weights, or until all sampling clients wait",
    needs_episodes=True,
)
def _(checker: Checker) -> None:
    if not checker.is_on_policy:
        raise Skip("the server does not force on-policy sampling")
    first, second = checker.open(), checker.open()
    try:
        before = checker.send_until_fresh(first, {"type": "EPISODES_AND_GET_STATE", "episodes": [checker.chunk()]})
        message = {"type": "EPISODES_AND_GET_STATE", "episodes": [checker.chunk()]}
        second.send(message)
        if not second.is_silent(checker.silence_s):
            raise Skip("the answer was not delayed: no other client has sent episodes since")
        first.send(message)
        answers = [first.receive(), second.receive()]
    except NoAnswer:
        raise Skip("the answers wait for other simulators or for an update") from None
    numbers = [answer.get("weights_seq_no", -1) for answer in answers]
    codes = {answer.get("code") for answer in answers}
    if codes & {"stale_weights"}:
        raise Skip("the weights were updated meanwhile")
    expect(all(number >= before["weights_seq_no"] for number in numbers), "two SET_STATE", answers)


@rule("E8", "future weights: ERROR unknown_weights", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open()
    future = checker.newest(wire) + 10**6
    expect_error(checker.send_episodes(wire, [checker.chunk()], weights_seq_no=future), "unknown_weights")
    expect_error(checker.send_episodes(wire, [checker.chunk(weights_seq_no=future)]), "unknown_weights")
    expect_pong(wire)


@rule("E8", "old weights: ERROR stale_weights with force_on_policy, else unknown_weights", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open()
    answer = wire.ask({"type": "EPISODES", "episodes": [checker.chunk()], "weights_seq_no": -1})
    expect_error(answer, "stale_weights" if checker.is_on_policy else "unknown_weights")


@rule(
    "E8",
    "without force_on_policy, old weights are accepted with action_logp and action_dist_inputs",
    needs_episodes=True,
)
def _(checker: Checker) -> None:
    if checker.is_on_policy:
        raise Skip("the server forces on-policy sampling")
    wire = checker.open()
    if "agents" in checker.granted:
        raise Skip("not checked with several agents")
    dims: Any = None
    with suppress(Failure):  # S1 reports it
        graph = _onnx_in(wire.ask({"type": "GET_STATE"})).graph
        dims = {one.name: one.type.tensor_type.shape.dim for one in graph.output}.get("action_dist_inputs")
    width = dims[-1].dim_value if dims else 0
    if not width:
        raise Skip("the ONNX model does not specify the width of action_dist_inputs")
    outputs: dict[str, Any] = {"action_logp": [-0.5] * 2, "action_dist_inputs": [[0.0] * width] * 2}
    checker.accepted(wire, [checker.chunk(**outputs)], weights_seq_no=-1)


# -- error codes -------------------------------------------------------------------------------------------------------


@rule("not_granted", "GET_ACTIONS and `request` need their extensions")
def _(checker: Checker) -> None:
    wire = checker.open()
    asked = {"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": 0}]}
    expect_error(wire.ask(asked), "not_granted")
    expect_error(wire.ask({"type": "GET_CONFIG", "request": 1}), "not_granted", "$.request")


@rule("too_many_clients", "a connection beyond the limit is rejected and closed")
def _(checker: Checker) -> None:
    raise Skip("the server does not report the limit, and reaching it would block simulators")


@rule("too_many_episodes", "a message that exceeds max_open_episodes is rejected completely", needs_episodes=True)
def _(checker: Checker) -> None:
    wire = checker.open()
    count = int(checker.limit("max_open_episodes")) + 1
    chunk = checker.chunk(1, is_done=False)
    num_bytes = count * len(json.dumps(chunk))
    if num_bytes > min(checker.limit("max_body_bytes"), _LONGEST_MESSAGE):
        raise Skip(f"{count} episodes need {num_bytes} bytes")
    chunks = [{**chunk, "id": f"many-{number}"} for number in range(count)]
    expect_error(checker.send_episodes(wire, chunks), "too_many_episodes")
    checker.accepted(wire, [checker.chunk(id="many-0")])  # it starts the episode, so nothing was accepted


@rule("not_exportable", "a policy that cannot be exported is an error")
def _(checker: Checker) -> None:
    raise Skip("this server's policy can be exported")


@rule("shutting_down", "the end of the run is announced")
def _(checker: Checker) -> None:
    raise Skip("checking this would end the run")


@rule("internal", "no message of this check caused an internal error")
def _(checker: Checker) -> None:
    wire = checker.open()
    for body in (b'{"type": "EPISODES", "episodes": [], "weights_seq_no": 99999999999999999999}', b"{" * 1000):
        wire.send_bytes(frame(body))
        answer = wire.receive()
        expect(answer.get("code") != "internal", "an answer other than internal", answer)
