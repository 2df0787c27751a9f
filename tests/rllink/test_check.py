"""The conformance checker: our server passes, a foreign one passes, and each defect fails its rule."""

from __future__ import annotations

import socket
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.cli.main import main
from runner.episodes.spaces import space_from_dict, space_to_dict
from runner.rllink.check import FAIL, PASS, SKIP, CannotCheck, Result, check_server, sample_items
from runner.rllink.check.wire import Target
from tests.conftest import ROOT, marked_but, run_process
from tests.rllink.conftest import OFF, Serve
from tests.rllink.small_server import SmallServer

# Rules that no checker can check.
NEVER = {"R2", "too_many_clients", "not_exportable", "shutting_down"}


def _failed(results: list[Result]) -> list[str]:
    return [f"{one.rule.number}: {one.rule.what}: {one}" for one in results if one.outcome == FAIL]


_SPACES = "{observation_space: {space: box, low: -1, high: 1, shape: [2], dtype: float32}, "
_SPACES += "action_space: {space: discrete, n: 2}}"
_NESTED = [
    "env=external",
    "env.observation_space={space: dict, spaces: "
    "[[seen, {space: box, low: 0, high: 255, shape: [2, 2], dtype: uint8}], "
    "[flags, {space: multi-binary, n: 3}]]}",
    "env.action_space={space: box, low: -2, high: 2, shape: [2], dtype: float32}",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [["env=external", f"env.agents={{left: {_SPACES}, right: {_SPACES}}}"], [OFF, *_NESTED]],
    ids=["agents", "nested spaces"],
)
def test_our_server_passes_with_other_spaces(serve: Serve, overrides: list[str]) -> None:
    served = serve(*overrides)
    served.sample(10**6)
    results = list(check_server(Target(*served.address)))
    assert _failed(results) == []
    passed = {one.rule.number for one in results if one.outcome == PASS}
    assert {f"E{number}" for number in range(1, 9)} | {"S1", "C1", "msgpack", "actions", "session"} <= passed
    assert ("agents" in passed) == ("env.agents" in overrides[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "skipped"),
    [
        (
            (OFF, "rllink.frame_timeout_s=1", "rllink.idle_timeout_s=3", "rllink.handshake_timeout_s=2"),
            {"E7", "H5", "heartbeat", "agents"},
        ),
        (
            (
                *("rllink.token=secret", "rllink.max_body_bytes=300000", "rllink.handshake_timeout_s=20"),
                "env.validate_observations=error",
            ),
            {"E7", "E8", "F7", "R5", "R7", "agents", "heartbeat"},
        ),
    ],
    ids=["off-policy", "on-policy"],
)
def test_our_server_passes(serve: Serve, overrides: tuple[str, ...], skipped: set[str]) -> None:
    served = serve(*overrides)
    served.sample(10**6)
    token = "secret" if "rllink.token=secret" in overrides else None
    results = list(check_server(Target(*served.address, token=token)))
    assert _failed(results) == []
    assert {one.rule.number for one in results if one.outcome == SKIP} == skipped | NEVER
    numbers = {one.rule.number for one in results if one.outcome == PASS}
    assert {"F1", "F2", "F3", "F4", "F5", "F6", "R1", "R3", "R4", "R6", "H1", "H2", "H3", "H4", "C1", "S1"} <= numbers
    assert {f"E{number}" for number in range(1, 9)} <= numbers
    assert {"msgpack", "large_frames", "compression", "session", "heartbeat", "actions", "weights"} <= numbers
    assert "shared_memory" in numbers
    assert served.runner._service.counts.num_env_steps_received > 0


@pytest.mark.slow
def test_read_only_sends_nothing_that_is_learned_from(serve: Serve) -> None:
    served = serve(OFF)
    served.sample(10**6)
    results = list(check_server(Target(*served.address), read_only=True))
    assert _failed(results) == []
    assert served.runner._service.counts.num_env_steps_received == 0
    assert served.runner._service.counts.num_env_steps_acted == 0
    left_out = {one.rule.number for one in results if "--read-only" in one.why}
    assert {"E1", "E6", "R6", "session"} <= left_out


# Defect of the small server -> the rules that must fail, and no others.
DEFECTS = {
    "other bytes in PONG": {"F7", "R2", "H1"},
    "blanks in headers": {"F1", "F2"},
    "any header": {"F4"},
    "never closes": {"F4", "F5", "F7", "R7"},
    "closes after a mistake": {"F3", "F6", "R3", "R4"},
    "any length": {"F5"},
    "no timeout": {"F7"},
    "waits for ever": {"R7"},
    "NaN is a number": {"F3"},
    "answers twice": {"F2", "R1"},
    "swaps answers": {"R1"},
    "waits for more": {"R2"},
    "speaks unasked": {"R1"},
    "unknown is bad": {"R3"},
    "no path": {"R4", "E2", "E3"},
    "ignores unknown keys": {"R4"},
    "wrong code": {"not_granted"},
    "protocol 0": {"H3"},
    "asks again": {"H4"},
    "grants everything": {"msgpack", "session", "actions", "heartbeat"},
    "grants more": {"H2"},
    "no limits": {"H2"},
    "no action space": {"C1"},
    "an agent without spaces": {"C1"},
    "no gzip": {"S1"},
    "no model": {"S1"},
    "unanswered EPISODES": {"E1", "E6", "R6"},
    "heartbeat unasked": {"E1", "E6", "R6"},
    "counts episodes": {"E2", "E5", "E6"},
    "believes env_steps": {"E2"},
    "any action": {"E3"},
    "empty chunks": {"E3"},
    "any reward": {"E3"},
    "obs in bounds only": set(),  # a server may refuse observations outside of a Box
    "takes half a message": {"E4", "too_many_episodes"},
    "joins anything": {"E5"},
    "ids are never free": {"E5"},
    "any weights": {"E8"},
    "any number of episodes": {"too_many_episodes"},
}
# These break nearly everything.
FAR_REACHING = {"other bytes in PONG", "blanks in headers", "closes after a mistake", "answers twice", "speaks unasked"}
FAR_REACHING |= {"grants everything", "unanswered EPISODES", "no action space", "waits for more", "no path"}
FAR_REACHING |= {"an agent without spaces", "grants more", "heartbeat unasked"}


def _check(defect: str, token: str | None = None, sent_token: str | None = None) -> list[Result]:
    server = SmallServer(defect, token)
    try:
        return list(check_server(Target("127.0.0.1", server.port, token=sent_token, timeout_s=0.6)))
    finally:
        server.close()


def test_a_foreign_server_passes() -> None:
    results = _check("", "secret", "secret")
    assert _failed(results) == []
    assert {"H5", "F5", "F7", "E8"} <= {one.rule.number for one in results if one.outcome == PASS}


@pytest.mark.parametrize("defect", marked_but(pytest.mark.slow, DEFECTS, "any header", "swaps answers", "no path"))
def test_a_defect_fails_its_rule(defect: str) -> None:
    others = set()
    for _ in range(3):  # on a busy machine even an honest server's limits of 0.2 s pass: what fails, fails each time
        try:
            results = _check(defect)
        except CannotCheck:
            assert defect in ("blanks in headers", "speaks unasked")
            return
        for one in results:
            if one.outcome == FAIL:
                assert one.expected
                assert one.got
        failed = {one.rule.number for one in results if one.outcome == FAIL}
        assert DEFECTS[defect] <= failed
        others = failed - DEFECTS[defect]
        if not others or defect in FAR_REACHING:
            return
    raise AssertionError(others)


def test_a_token_that_does_nothing_fails() -> None:
    results = _check("forgets the token", "secret", "secret")
    assert "H5" not in {one.rule.number for one in results if one.outcome == PASS}


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_line_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    server = SmallServer("believes env_steps")
    code = main(["rllink", "check", f"127.0.0.1:{server.port}", "--timeout", "1"])
    server.close()
    out = capsys.readouterr().out
    assert code == 1
    assert "which the server's run learns from" in out
    assert "E2                 env_steps is the sum of all steps, else ERROR bad_message: fail" in out
    assert "expected  ERROR bad_message with the path $.env_steps" in out
    assert "got       {'type': 'ACK'" in out
    assert "msgpack" in out
    assert "not granted" in out
    assert "1 failed" in out


def test_read_only_is_said_before(capsys: pytest.CaptureFixture[str]) -> None:
    server = SmallServer()
    assert main(["rllink", "check", f"127.0.0.1:{server.port}", "--read-only", "--timeout=1"]) == 0
    server.close()
    assert capsys.readouterr().out.splitlines()[1].startswith("read-only: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "rllink needs a command"),
        (["chek", "127.0.0.1:5556"], "did you mean  rllink check"),
        (["check"], "HOST:PORT is missing"),
        (["check", "a", "b"], "b is an unexpected argument"),
        (["check", "localhost"], "localhost is not a valid address"),
        (["check", "localhost:99999"], "is not a valid address"),
        (["check", "localhost:1", "--tls-ca", "no/such/file"], "--tls-ca"),
        (["check", "localhost:1", "--tokn=x"], "did you mean  --token"),
        (["check", "localhost:1", "--timeout", "soon"], "--timeout"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rllink", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        assert main(["rllink", "check", f"127.0.0.1:{port}", "--timeout", "0.3"]) == 2  # it accepts and says nothing
    assert "does not answer PING" in capsys.readouterr().err
    assert main(["rllink", "check", f"127.0.0.1:{port}"]) == 2
    assert "cannot connect" in capsys.readouterr().err


def test_a_token_is_missing_or_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    server = SmallServer(token="secret")
    address = f"127.0.0.1:{server.port}"
    assert main(["rllink", "check", address, "--timeout", "1"]) == 2
    assert "--token TOKEN" in capsys.readouterr().err
    assert main(["rllink", "check", address, "--token", "wrong"]) == 2
    assert "rejects the token" in capsys.readouterr().err
    server.close()


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, runner.cli.rllink\nfrom runner.rllink.check import base_rules, extension_rules\n"
        "print(sorted({'torch', 'ray', 'gymnasium', 'hydra', 'msgspec'} & set(sys.modules)))"
    )
    assert run_process(ROOT, program=("-c", code)).stdout == "[]\n"


# -- sample items ------------------------------------------------------------------------------------------------------

_DTYPES = st.sampled_from(["float32", "float64", "uint8", "int32", "bool"])


@st.composite
def _boxes(draw: Any) -> gym.Space[Any]:
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    dtype = np.dtype(draw(_DTYPES))
    if dtype.kind == "b":
        return gym.spaces.Box(0, 1, shape, np.bool_)
    low = np.array(draw(st.integers(0, 5)), dtype)
    high = low + np.array(draw(st.integers(1, 9)), dtype)
    if dtype.kind == "f":
        low = draw(st.sampled_from([low, -np.inf, -7.25]))
        high = draw(st.sampled_from([high, np.inf]))
    return gym.spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), tuple(shape), dtype.type)


_LEAVES = st.one_of(
    _boxes(),
    st.builds(gym.spaces.Discrete, st.integers(1, 9), start=st.integers(-3, 3)),
    st.builds(gym.spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    st.builds(gym.spaces.MultiDiscrete, st.just([[2, 3], [4, 1]])),
    st.builds(gym.spaces.MultiBinary, st.one_of(st.integers(1, 4), st.just([2, 3]))),
)


def _nested(parts: Any) -> Any:
    tuples = st.lists(parts, min_size=1, max_size=3).map(gym.spaces.Tuple)
    dicts = st.dictionaries(st.sampled_from(["a", "b", "c/d"]), parts, min_size=1).map(gym.spaces.Dict)
    return st.one_of(tuples, dicts)


SPACES = st.one_of(_LEAVES, _nested(st.one_of(_LEAVES, _nested(_LEAVES))))


@pytest.mark.filterwarnings("ignore:.*Casting input")
@given(SPACES, st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_sample_items_fit_their_space(space: gym.Space[Any], seed: int) -> None:
    from runner.rllink.arrays import SpaceCodec

    described = space_to_dict(space)
    assert sample_items.find_mistake(described, "$") is None
    space.seed(seed)
    item = sample_items.draw_item(space)
    codec = SpaceCodec(space_from_dict(described))
    import msgspec

    read = codec.item(msgspec.json.encode(item), "json")
    assert space.contains(read)
    assert sample_items.contains(space, item)
    wrong = sample_items.out_of_range_item(space, item)
    with pytest.raises((ValueError, msgspec.DecodeError)):
        codec.item(msgspec.json.encode(wrong), "json")


@pytest.mark.parametrize(
    "space",
    [
        *(gym.spaces.Dict(), gym.spaces.Tuple([])),
        gym.spaces.Box(0, 2**63 - 1, (2,), np.int64),
        gym.spaces.Box(-1.7e308, 1.7e308, (2,), np.float64),
        gym.spaces.Box(-1e9, -1e8, (2,)),
    ],
    ids=str,
)
def test_items_of_empty_and_wide_spaces(space: gym.Space[Any]) -> None:
    space.seed(1)
    items = [sample_items.draw_item(space) for _ in range(9)]
    assert all(sample_items.contains(space, item) for item in items)
    assert not sample_items.contains(space, 3)


@pytest.mark.parametrize("space", [None, {}, {"space": "text"}, {"space": "box", "low": 0}, {"space": ["box"]}])
def test_a_description_that_is_no_space(space: Any) -> None:
    assert sample_items.find_mistake(space, "$")
