"""The C++ client, compiled and run: its contract, its JSON, its CartPole."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import WAIT_S
from tests.rllink.conftest import OFF, Serve
from tests.rllink.foreign_client import ClientContract, ClientError, Driver, acted

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "clients" / "cpp"
COMPILER = shutil.which("g++")
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ here to compile the C++ client with")


def compiled(source: Path, folder: Path, *flags: str) -> Path:
    program = folder / source.stem
    done = subprocess.run([str(COMPILER), *FLAGS, *flags, "-o", program, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(Path(__file__).with_name("driver.cpp"), tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(SOURCES / "cartpole.cpp", tmp_path_factory.mktemp("cartpole"))


@pytest.fixture
def driver(program: Path) -> Iterator[Driver]:
    made = Driver([program])
    yield made
    made.close()


class TestCppClient(ClientContract):
    pass


class TestCartPole:
    def test_each_step_arrives(self, serve: Serve, cartpole: Path) -> None:
        served = serve(OFF, "rllink.token=secret")
        sampling = served.sample(100)
        command = [cartpole, "--port", str(served.address[1]), "--token", "secret", "--episodes", "20", "--seed", "3"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
        lengths = [int(number) for number in re.findall(r"episode \d+: (\d+) steps", done.stdout)]
        assert len(lengths) == 20
        assert acted(served) == sum(lengths)
        finished = sampling.result(30).finished
        assert finished.lengths.tolist() == lengths[: len(finished.lengths)]
        assert finished.returns.tolist() == lengths[: len(finished.lengths)]
        assert len(finished.lengths) > 0

    def test_a_wrong_token_and_wrong_arguments(self, serve: Serve, cartpole: Path) -> None:
        served = serve("rllink.token=secret")
        for arguments, said, code in (
            (["--port", str(served.address[1]), "--token", "Secret"], "unauthorized", 1),
            (["--prot", "5"], "usage", 2),
            (["--port"], "usage", 2),
            (["--port", "five"], "numbers", 1),
        ):
            done = subprocess.run([cartpole, *arguments], capture_output=True, text=True, timeout=WAIT_S)
            assert done.returncode == code
            assert said in done.stderr


def _receive(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile("rb") as stream:
        return dict(json.loads(stream.read(int(stream.read(8)))))


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    connection.sendall(b"%08d" % len(body) + body)


@pytest.mark.slow
def test_a_large_request_waits_for_memory_while_the_server_gives_signs_of_life(driver: Driver) -> None:
    """The client gives up if a server neither reads nor sends for four heartbeats."""
    heartbeat = {"heartbeat": {"interval_s": 0.25}}
    chunk = {"obs": [[0.0], [0.0]], "actions": [0], "rewards": [1.0], "is_terminated": True, "is_truncated": False}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(8.0)
        port = listener.getsockname()[1]
        driver.send("connect", port=port, session=False, actions=False, heartbeat_s=0.25)
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            assert _receive(connection)["extensions"] == heartbeat
            _send(connection, {"type": "PONG", "extensions": heartbeat, "limits": {"max_body_bytes": 10**8}})
            assert driver.receive() == heartbeat
            driver.send("send_episodes", weights_seq_no=1, episodes=[{**chunk, "id": "x" * 20_000_000}])
            for _ in range(14):
                _send(connection, {"type": "WAIT"})
                time.sleep(0.25)
            assert len(_receive(connection)["episodes"]) == 1
            _send(connection, {"type": "ACK", "env_steps": 1, "weights_seq_no": 1})
            assert driver.receive() == {"env_steps": 1, "weights_seq_no": 1}
            driver.send("send_episodes", weights_seq_no=1, episodes=[{**chunk, "id": "x" * 20_000_000}])
            listener.accept()[0].close()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
FIXTURE_STAYS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _typed(value: Any) -> Any:
    """1, 1.0 and True are equal in Python and are not the same in JSON (but 1.0 may be written as 1)."""
    if isinstance(value, list):
        return [_typed(one) for one in value]
    if isinstance(value, dict):
        return {key: _typed(one) for key, one in value.items()}
    return ("boolean", value) if isinstance(value, bool) else value


class TestJson:
    @FIXTURE_STAYS
    @given(value=VALUES, is_ascii=st.booleans())
    def test_what_is_read_and_written_is_the_same(self, driver: Driver, value: Any, is_ascii: bool) -> None:
        assert _typed(driver.call("json", text=json.dumps(value, ensure_ascii=is_ascii))) == _typed(value)

    def test_with_an_older_standard_library(self, tmp_path: Path) -> None:
        made = Driver([compiled(Path(__file__).with_name("driver.cpp"), tmp_path, "-O0", "-DRLLINK_NO_CHARCONV")])
        for number in (0.1, -1.5e-300, 3.0, 2.0**70, 5e-324, 1.7976931348623157e308):
            assert made.call("json", text=json.dumps([number])) == [number]
        made.close()

    @pytest.mark.parametrize(
        "text",
        ["", " ", "{", "[1,]", "[1 2]", "{'a': 1}", '{"a" 1}', '{"a":1,}', '{"a":1,"a":2}', "nul", "truex", "NaN",
         "Infinity", "-", "01", "1.", ".5", "1e", "+1", "1e999", '"', '"\\x"', '"\\u12"', '"\\ud800"', '"\\udc00"',
         '"\\ud800\\u0041"', '"a\nb"', "1 1", "[" * 70 + "]" * 70, "/*a*/1", '"\\'],
    )  # fmt: skip
    def test_what_is_no_json_is_refused(self, driver: Driver, text: str) -> None:
        with pytest.raises(ClientError, match="invalid JSON"):
            driver.call("json", text=text)
        assert driver.call("json", text="[1]") == [1]
