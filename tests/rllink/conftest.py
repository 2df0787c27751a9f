"""A real server on a free port of this machine, and raw sockets to speak to it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.schemas import ExperimentConfig
from runner.env_runners.sample import Sample
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import build_modules, make_module_specs, weights_of
from runner.modules.flat_parameters import FlatParameters
from runner.policy import OnnxPolicy
from runner.rllink.client.frames import FrameReader, frame
from runner.rllink.connection import Connection
from runner.rllink.env_runner import ExternalEnvRunner
from tests.conftest import WAIT_S, wait_until
from tests.support.configs import config_from

EXPERIMENT = "+experiment=ppo_external_cartpole"
OFF = "rllink.force_on_policy=false"


_EXPORTED: dict[str, OnnxPolicy] = {}


@pytest.fixture(autouse=True, scope="module")  # not "package": that ends with the last test of all
def _one_export_for_equal_modules() -> Iterator[None]:
    """An export takes seconds; servers with equal modules share one."""
    export = OnnxPolicy.of_module

    def cached(parts: Any, config: Any) -> OnnxPolicy:
        key = repr((config.module, config.connectors, parts.spec.observation_space, parts.spec.action_space))
        if key not in _EXPORTED:
            _EXPORTED[key] = export(parts, config)
        return _EXPORTED[key]

    patch = pytest.MonkeyPatch()
    patch.setattr(OnnxPolicy, "of_module", cached)
    yield
    patch.undo()


@cache
def _configuration_of(overrides: tuple[str, ...]) -> ExperimentConfig:
    """Configurations are frozen: servers with equal overrides share one."""
    return config_from(EXPERIMENT, "env.port=0", "module.fcnet_hiddens=[8]", *overrides)


class Served:
    """A server whose learner is the test.

    Args:
        overrides: as on the command line.
        run_dir: for its journal; None keeps none.
        state: of a server before it, which was killed.
    """

    def __init__(self, *overrides: str, run_dir: Path | None = None, state: Mapping[str, Any] | None = None) -> None:
        self.config = _configuration_of(overrides)
        plans = make_module_specs(self.config)
        parts = build_modules(self.config)
        self.weights = weights_of(parts)
        runner = build_env_runner(self.config, plans, TRAINING, 0, 0, run_dir=run_dir)
        assert isinstance(runner, ExternalEnvRunner)
        self.runner = runner
        if state is not None:
            runner.set_state(state)
        runner.server.start()
        self._pool = ThreadPoolExecutor(1)

    @property
    def address(self) -> tuple[str, int]:
        return self.runner.server.address

    def sample(
        self, num_env_steps: int, update: bool = False, shared_state: Mapping[str, Any] | None = None
    ) -> Future[Sample]:
        """Start to sample, with new weights if `update`, from this merged state of connectors."""
        if update:
            self.weights = {key: vector + np.float32(0.01) for key, vector in self.weights.items()}
        sampling = self._pool.submit(self.runner.sample, num_env_steps, True, self.weights, shared_state or {})
        while self.runner._service._collecting is None and not sampling.done():
            time.sleep(0.001)  # the weights are there when this returns
        return sampling

    def close(self) -> None:
        self.runner.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes servers that are closed after the test."""
    made: list[Served] = []

    def make(*overrides: str, **more: Any) -> Served:
        made.append(Served(*overrides, **more))
        return made[-1]

    yield make
    for served in made:
        served.close()


def served_for_long(serve: Serve, *overrides: str) -> Served:
    """Make an off-policy server that keeps sampling."""
    served = serve(OFF, *overrides)
    served.sample(10**6)
    return served


class RawClient:
    """A socket that speaks frames, and nothing else; `source` is an address of this machine to connect from."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 30.0, source: str = "") -> None:
        self.socket = socket.create_connection(address, timeout_s, (source, 0) if source else None)
        self._reader = FrameReader()

    def send(self, message: Any) -> None:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.socket.sendall(frame(body))

    def receive_body(self) -> bytes:
        while (body := self._reader.next_body()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("closed")
            self._reader.feed(data)
        return body

    def receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.receive_body())
        return answer

    def ask(self, message: Any) -> dict[str, Any]:
        self.send(message)
        return self.receive()

    def is_closed(self) -> bool:
        """Whether the server ends the connection, after whatever it still sends."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()


Connect = Callable[..., RawClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes connections that are closed after the test."""
    made: list[RawClient] = []

    def make(served: Served, timeout_s: float = 30.0) -> RawClient:
        made.append(RawClient(served.address, timeout_s))
        return made[-1]

    yield make
    for client in made:
        client.close()


def episode(num_steps: int, seed: int = 0, **more: Any) -> dict[str, Any]:
    """A made-up CartPole episode as JSON has it."""
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(scale=0.1, size=(num_steps + 1, 4)).clip(-0.4, 0.4).astype(np.float32).tolist(),
        "actions": rng.integers(0, 2, num_steps).tolist(),
        "rewards": [1.0] * num_steps,
        "is_terminated": True,
        "is_truncated": False,
        **more,
    }


def part(whole: dict[str, Any], start: int, stop: int, **more: Any) -> dict[str, Any]:
    """Return steps `start` to `stop` of an episode; by default the episode does not end with them."""
    part = {"obs": whole["obs"][start : stop + 1]}
    part |= {name: whole[name][start:stop] for name in ("actions", "rewards")}
    return {**part, "id": "a", "is_terminated": False, "is_truncated": False, **more}


def columns(*episodes: dict[str, Any]) -> dict[str, Any]:
    """Whole episodes as columns."""
    return {
        "lengths": np.array([len(one["rewards"]) for one in episodes]),
        "obs": np.concatenate([np.float32(one["obs"]) for one in episodes]),
        "actions": np.concatenate([np.int64(one["actions"]) for one in episodes]),
        "rewards": np.concatenate([np.float32(one["rewards"]) for one in episodes]),
        "is_terminated": np.array([one["is_terminated"] for one in episodes]),
        "is_truncated": np.array([one["is_truncated"] for one in episodes]),
    }


def hello(client: RawClient, **extensions: Any) -> dict[str, Any]:
    """Ask for extensions; return the PONG."""
    answer = client.ask({"type": "PING", "protocol": 1, "extensions": extensions})
    assert answer["type"] == "PONG"
    return answer


def outputs_of(served: Served, weights: Mapping[str, Any], obs: Any) -> Any:
    """(B, A) logits of the server's module with these weights."""
    module = build_modules(served.config)["default_policy"].module
    FlatParameters(module).load(weights["default_policy"])
    with torch.no_grad():
        return module.forward_exploration({"obs": torch.tensor(obs)})["action_dist_inputs"].numpy()


def wait_until_watched(connection: Connection, since: float, seconds: float) -> None:
    """Wait until the server has looked at a connection later than so many seconds after `since`, a monotonic time."""
    looked: list[float] = []
    check = connection.check_time

    def spy(now: float) -> None:
        check(now)
        looked.append(now)

    connection.check_time = spy  # type: ignore[method-assign]
    try:
        wait_until(lambda: bool(looked) and looked[-1] > since + seconds, timeout_s=WAIT_S)
    finally:
        connection.check_time = check  # type: ignore[method-assign]
