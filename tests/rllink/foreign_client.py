"""Clients in other languages: a program that drives one, and the contract that each fulfils."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import onnx
import pytest

from tests.conftest import wait_until
from tests.rllink.conftest import OFF, Serve, Served, episode

Direction = Literal["request", "answer"]


class ClientError(Exception):
    """An error that the driven client threw."""

    def __init__(self, code: str, message: str, path: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.path = code, message, path


class Driver:
    """A client in another language: calls are JSON lines to its program.

    Args:
        command: starts the program, tests/rllink/driver.*.
    """

    def __init__(self, command: Sequence[str | Path], **environment: Any) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", **environment
        )

    def send(self, name: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended with {self._process.wait(10)}"
        said = json.loads(line)
        if "error" in said:
            raise ClientError(**said["error"])
        return said["result"]

    def call(self, name: str, **arguments: Any) -> Any:
        self.send(name, **arguments)
        return self.receive()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.kill()
        self._process.wait(10)


class Proxy:
    """A TCP proxy that breaks connections on demand.

    Attributes:
        target: address of the server; the next connection goes there.
        is_refusing: whether connections are closed at once.
        num_connections: made so far.
        num_refused: connections that were closed at once.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.is_refusing = False
        self.num_connections = 0
        self.num_refused = 0
        self._cuts: dict[Direction, int] = {}
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self, direction: Direction, after_bytes: int) -> None:
        """Let so many bytes of the next request or answer through; then break the connection."""
        self._cuts[direction] = after_bytes

    def break_all(self) -> None:
        for one in self._open:
            _close(one)
        self._open = []

    def close(self) -> None:
        _close(self._listener)
        self.break_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_refusing:
                client.close()
                self.num_refused += 1
                continue
            self.num_connections += 1
            server = socket.create_connection(self.target)
            self._open += [client, server]
            for source, sink, direction in ((client, server, "request"), (server, client, "answer")):
                threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                limit = self._cuts.pop(direction, None)
                sink.sendall(data[:limit])
                if limit is not None:
                    break
        _close(source)
        _close(sink)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def model_of(state: dict[str, Any]) -> bytes:
    """The ONNX model in what `get_state` of a driver returns, which is zipped or not."""
    content = bytes.fromhex(state["model"])
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def received(served: Served) -> int:
    return int(served.runner._service.counts.num_env_steps_received)


def acted(served: Served) -> int:
    return int(served.runner._service.counts.num_env_steps_acted)


def ended(sampling: Future[Any]) -> Any:
    return sampling.result(30)


class ClientContract:
    """Tests of a client; a subclass in a test file gives the fixture `driver`.

    Each test begins with a server and, where connections break, with a `Proxy` before it.
    """

    @pytest.fixture
    def proxied(self, serve: Serve) -> Any:
        made: list[Proxy] = []

        def make(*overrides: str) -> tuple[Served, Proxy]:
            served = serve(*overrides)
            made.append(Proxy(served.address))
            return served, made[-1]

        yield make
        for proxy in made:
            proxy.close()

    def test_configuration_and_state_arrive(self, serve: Serve, driver: Driver) -> None:
        served = serve()
        served.sample(10)
        driver.call("connect", port=served.address[1])
        driver.call("ping")
        config = driver.call("get_config")
        assert config["force_on_policy"] is True
        assert config["env_steps_per_sample"] > 0
        assert config["observation_space"]["shape"] == [4]
        assert (config["action_space"]["space"], config["action_space"]["n"]) == ("discrete", 2)
        state = driver.call("get_state")
        assert state["weights_seq_no"] == 1
        assert [one.name for one in onnx.load_from_string(model_of(state)).graph.input] == ["obs"]

    def test_episodes_arrive_as_they_were(self, serve: Serve, driver: Driver) -> None:
        served = serve(OFF)
        sampling = served.sample(9)
        driver.call("connect", port=served.address[1])
        sent = [episode(5, 0), episode(2, 1, is_terminated=False, id='"ä\n😀'), episode(2, 2, id='"ä\n😀')]
        sent[2] |= {"t_started": 2, "obs": [sent[1]["obs"][-1], *sent[2]["obs"][1:]]}
        for number, one in enumerate(sent):
            steps = len(one["rewards"])
            one |= {"action_logp": [-0.5 - number] * steps, "action_dist_inputs": [[0.25, -0.125]] * steps}
            ack = driver.call("send_episodes", episodes=[one], weights_seq_no=1)
            assert (ack["env_steps"], ack["weights_seq_no"]) == (steps, 1)
        block = ended(sampling).rollout.blocks["default_policy"]
        assert block.lengths.tolist() == [5, 4]
        obs = sent[0]["obs"] + sent[1]["obs"] + sent[2]["obs"][1:]
        np.testing.assert_array_equal(block.columns["obs"], np.float32(obs))
        for column in ("actions", "rewards", "action_logp", "action_dist_inputs"):
            assert block.columns[column].tolist() == [value for one in sent for value in one[column]]

    def test_on_policy_the_answer_is_the_next_weights(self, serve: Serve, driver: Driver) -> None:
        served = serve()
        sampling = served.sample(6)
        driver.call("connect", port=served.address[1], heartbeat_s=0.2)
        before = driver.call("get_state")
        driver.send("send_episodes_and_get_state", episodes=[episode(6)], weights_seq_no=1)
        ended(sampling)
        (connection,) = served.runner.server.connections.open
        for _ in range(2):  # signs of life are no answers
            newest = connection._heartbeat_at
            wait_until(lambda newest=newest: connection._heartbeat_at > newest)
        sampling = served.sample(6, update=True)
        after = driver.receive()
        assert after["weights_seq_no"] == 2
        assert model_of(after) != model_of(before)
        with pytest.raises(ClientError, match="stale_weights"):
            driver.call("send_episodes", episodes=[episode(6)], weights_seq_no=1)
        driver.call("send_episodes", episodes=[episode(6)], weights_seq_no=2)
        assert ended(sampling).rollout.num_env_steps == 6

    def test_the_server_acts(self, serve: Serve, driver: Driver) -> None:
        served = serve(OFF)
        sampling = served.sample(5)
        driver.call("connect", port=served.address[1])
        obs = np.random.default_rng(0).normal(scale=0.1, size=(6, 4)).astype(np.float32)
        actions = driver.call("get_actions", episodes=[{"id": "a", "obs": obs[0].tolist()}])["actions"]
        for t in range(1, 6):
            observed = {"id": "a", "obs": obs[t].tolist(), "reward": t / 4, "is_terminated": t == 5}
            actions += driver.call("get_actions", episodes=[observed])["actions"]
        assert actions.pop() is None
        block = ended(sampling).rollout.blocks["default_policy"]
        np.testing.assert_array_equal(block.columns["obs"], obs)
        assert block.columns["actions"].tolist() == actions
        assert block.columns["rewards"].tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]

    def test_errors_name_what_is_wrong_and_the_connection_stays(self, serve: Serve, driver: Driver) -> None:
        served = serve(OFF)
        served.sample(1000)
        driver.call("connect", port=served.address[1])
        for _ in range(2):
            with pytest.raises(ClientError) as refused:
                driver.call("send_episodes", episodes=[{**episode(5), "rewards": [1.0]}], weights_seq_no=1)
            assert (refused.value.code, refused.value.path) == ("bad_message", "$.episodes[0].rewards")
            with pytest.raises(ClientError, match="unknown_weights"):
                driver.call("send_episodes", episodes=[episode(5)], weights_seq_no=99)
            with pytest.raises(ClientError, match="bad_message"):
                driver.call("get_actions", episodes=[{"id": "a", "obs": [1.0]}])
            driver.call("send_episodes", episodes=[episode(5)], weights_seq_no=1)
            driver.call("ping")
        assert received(served) == 10

    def test_what_cannot_be_sent_is_not_sent(self, serve: Serve, driver: Driver) -> None:
        served = serve(OFF, "rllink.max_body_bytes=10000")
        served.sample(1000)
        driver.call("connect", port=served.address[1])
        with pytest.raises(ClientError, match="bad_value"):
            driver.call("send_nan")
        with pytest.raises(ClientError, match="too_large"):
            driver.call("send_episodes", episodes=[episode(500)], weights_seq_no=1)
        driver.call("send_episodes", episodes=[episode(5)], weights_seq_no=1)
        assert received(served) == 5

    def test_an_extension_that_was_not_asked_for(self, serve: Serve, driver: Driver) -> None:
        served = serve(OFF)
        served.sample(1000)
        assert driver.call("connect", port=served.address[1], session=False, actions=False, heartbeat_s=0) == {}
        with pytest.raises(ClientError, match="not_granted"):
            driver.call("get_actions", episodes=[{"id": "a", "obs": [0.0] * 4}])
        assert driver.call("send_episodes", episodes=[episode(5)], weights_seq_no=1)["env_steps"] == 5

    def test_tokens(self, serve: Serve, driver: Driver) -> None:
        served = serve("rllink.token=secret")
        for wrong in ({"token": "Secret"}, {}):
            started = time.monotonic()
            with pytest.raises(ClientError, match="unauthorized"):
                driver.call("connect", port=served.address[1], **wrong)
            assert time.monotonic() - started < 30  # not 60 s: a client does not retry with a wrong token
        driver.call("connect", port=served.address[1], token="secret")
        driver.call("get_config")

    @pytest.mark.parametrize(
        ("direction", "after_bytes"),
        [("request", 0), ("request", 3), ("request", 8), ("request", 60), ("answer", 0), ("answer", 5), ("answer", 20)],
    )
    def test_what_was_not_answered_is_repeated_and_carried_out_once(
        self, proxied: Any, driver: Driver, direction: Direction, after_bytes: int
    ) -> None:
        served, proxy = proxied(OFF)
        served.sample(1000)
        driver.call("connect", port=proxy.port)
        driver.call("send_episodes", episodes=[episode(5)], weights_seq_no=1)
        proxy.cut(direction, after_bytes)
        ack = driver.call("send_episodes", episodes=[episode(6)], weights_seq_no=1)
        assert ack["env_steps"] == 6
        assert (received(served), proxy.num_connections) == (11, 2)
        proxy.cut(direction, after_bytes)
        driver.call("get_actions", episodes=[{"id": "a", "obs": [0.0] * 4}])
        driver.call("get_actions", episodes=[{"id": "a", "obs": [0.0] * 4, "reward": 1.0}])
        assert (acted(served), proxy.num_connections) == (1, 3)

    def test_an_answer_that_is_waited_for_outlives_the_connection(self, proxied: Any, driver: Driver) -> None:
        served, proxy = proxied()
        sampling = served.sample(6)
        driver.call("connect", port=proxy.port)
        driver.send("send_episodes_and_get_state", episodes=[episode(6)], weights_seq_no=1)
        ended(sampling)
        proxy.break_all()
        wait_until(lambda: proxy.num_connections == 2)
        served.sample(6, update=True)
        assert driver.receive()["weights_seq_no"] == 2
        assert received(served) == 6

    def test_a_server_that_cannot_be_reached_for_a_while(self, proxied: Any, driver: Driver) -> None:
        served, proxy = proxied(OFF)
        served.sample(1000)
        proxy.is_refusing = True
        driver.send("connect", port=proxy.port)
        wait_until(lambda: proxy.num_refused >= 2)
        proxy.is_refusing = False
        driver.receive()
        proxy.is_refusing = True
        num_refused = proxy.num_refused
        proxy.break_all()
        driver.send("send_episodes", episodes=[episode(5)], weights_seq_no=1)
        wait_until(lambda: proxy.num_refused >= num_refused + 2)
        proxy.is_refusing = False
        assert driver.receive()["env_steps"] == 5
        proxy.is_refusing = True
        with pytest.raises(ClientError, match="unreachable"):
            driver.call("connect", port=proxy.port, reconnect_s=0.3)

    @pytest.mark.parametrize("session", [True, False])
    def test_a_server_that_knows_the_session_no_more(
        self, proxied: Any, serve: Serve, driver: Driver, session: bool
    ) -> None:
        old, proxy = proxied(OFF)
        old.sample(1000)
        driver.call("connect", port=proxy.port, session=session)
        driver.call("get_actions", episodes=[{"id": "a", "obs": [0.0] * 4}])
        new = serve(OFF)
        new.sample(1000)
        proxy.target = new.address
        proxy.break_all()
        observed = {"id": "a", "obs": [0.0] * 4, "reward": 1.0}
        with pytest.raises(ClientError, match="session_lost"):
            driver.call("get_actions", episodes=[observed])
        driver.call("get_actions", episodes=[{"id": "b", "obs": [0.0] * 4}])
        driver.call("get_actions", episodes=[{**observed, "id": "b"}])
        assert (acted(old), acted(new)) == (0, 1)

    def test_a_connection_that_was_idle_for_too_long(self, serve: Serve, driver: Driver) -> None:
        served = serve(OFF, "rllink.idle_timeout_s=0.3")
        served.sample(1000)
        driver.call("connect", port=served.address[1])
        wait_until(lambda: served.runner.server.connections.num_clients == 0)
        assert driver.call("send_episodes", episodes=[episode(5)], weights_seq_no=1)["env_steps"] == 5
        assert received(served) == 5

    def test_the_run_is_over(self, serve: Serve, driver: Driver) -> None:
        served = serve(OFF)
        served.sample(1000)
        driver.call("connect", port=served.address[1], reconnect_s=1)
        served.close()
        with pytest.raises(ClientError, match=r"shutting_down|unreachable"):
            driver.call("get_state")

    def test_cartpole_is_that_of_gymnasium(self, driver: Driver) -> None:
        env = gym.make("CartPole-v1").unwrapped
        env.reset(seed=0)
        env.state = np.array([0.01, -0.02, 0.03, 0.04])
        actions = np.random.default_rng(0).integers(0, 2, 60).tolist()
        said = driver.call("cartpole", state=env.state.tolist(), actions=actions)
        for action, state, ends in zip(actions, said["states"], said["ends"], strict=True):
            _, _, is_terminated, _, _ = env.step(action)
            assert all(math.isclose(*pair, rel_tol=1e-12, abs_tol=1e-12) for pair in zip(state, env.state, strict=True))
            assert ends == [is_terminated, False]
            if is_terminated:
                return
        raise AssertionError("these actions should let the pole fall")
