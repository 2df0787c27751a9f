"""The JavaScript client under Node: its contract, policies that run in it, its CartPole, the bridge for browsers."""

from __future__ import annotations

import copy
import hashlib
import http.client
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from scipy.special import log_expit, log_softmax

from runner.policy import OnnxPolicy
from runner.rllink.client.local_policy import LocalPolicy
from tests.conftest import WAIT_S, wait_until
from tests.policy.policies import make_parts, prepended, random_weights, seen_state
from tests.policy.test_onnx_policy import NESTED, NESTED_ACTIONS
from tests.rllink.conftest import OFF, Serve, Served, episode
from tests.rllink.foreign_client import ClientContract, ClientError, Driver, acted, model_of, received

SOURCES = Path(__file__).parents[2] / "clients" / "javascript"
NODE = shutil.which("node")
NPM = shutil.which("npm")
WITH_WEB_SOCKET = "--experimental-websocket"  # Node 20 needs the option; newer ones do not

pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node here to run the JavaScript client with")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the client, its examples and the driver."""
    folder = tmp_path_factory.mktemp("javascript")
    for source in (*SOURCES.glob("*.*"), Path(__file__).with_name("driver.mjs")):
        shutil.copy(source, folder)
    return folder


@pytest.fixture(scope="session")
def onnxruntime_web(programs: Path, pytestconfig: pytest.Config) -> None:
    """The npm package beside `programs`; installed once, and kept with pytest's cache."""
    version = hashlib.sha256((SOURCES / "package.json").read_bytes()).hexdigest()[:12]
    kept = pytestconfig.rootpath / ".pytest_cache" / "d" / f"rllink-javascript-{version}"
    if not kept.exists():
        _install(kept)
    (programs / "node_modules").symlink_to(kept / "node_modules")


def _install(kept: Path) -> None:
    building = kept.with_name(f"{kept.name}.{os.getpid()}")
    building.mkdir(parents=True)
    shutil.copy(SOURCES / "package.json", building)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--fetch-retries=1")
    try:
        if NPM is None:
            pytest.skip("there is no npm here to install onnxruntime-web with")
        done = subprocess.run([NPM, "install", *quiet], cwd=building, capture_output=True, text=True, timeout=WAIT_S)
        if done.returncode != 0:
            pytest.skip(f"npm cannot install onnxruntime-web: {done.stderr[-500:]}")
        if not kept.exists():
            building.rename(kept)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@pytest.fixture
def driver(programs: Path) -> Iterator[Driver]:
    made = Driver([str(NODE), programs / "driver.mjs"])
    yield made
    made.close()


class TestJavaScriptClient(ClientContract):
    def test_a_client_that_is_closed_while_it_reconnects_stays_closed(self, proxied: Any, driver: Driver) -> None:
        served, proxy = proxied(OFF)
        served.sample(1000)
        driver.call("connect", port=proxy.port)
        proxy.break_all()
        with pytest.raises(ClientError, match="closed"):
            driver.call("close_while_reconnecting")
        wait_until(lambda: served.runner.server.connections.num_clients == 0)


@pytest.fixture(scope="module")
def model() -> bytes:
    """A policy with nested observations and actions, a memory and a filter."""
    lstm = ("module.use_lstm=true", "module.lstm_cell_size=8")
    parts, config = make_parts(NESTED, NESTED_ACTIONS, *lstm, env_to_module=[prepended("MeanStdFilter")])
    return OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), seen_state(parts), 1)


def plain(value: Any) -> Any:
    """An observation or action as JSON."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return np.asarray(value).tolist()


def numbers(value: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """All numbers of a nested action, in one order."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (tuple, list)):
        return np.concatenate([numbers(one) for one in value])
    return np.asarray(value, np.float64).reshape(-1)


@pytest.mark.usefixtures("onnxruntime_web")
class TestLocalPolicy:
    def test_it_computes_what_onnxruntime_computes_in_python(self, driver: Driver, model: bytes) -> None:
        manifest = driver.call("load_policy", model=model.hex())
        policy = LocalPolicy(model)
        assert manifest == policy.manifest
        space = copy.deepcopy(NESTED)
        space.seed(0)
        episodes = [[space.sample() for _ in range(4)] for _ in range(25)]
        results = iter(driver.call("act", episodes=plain(episodes)))  # greedy unless asked to explore
        for observations in episodes:
            state = None
            for obs in observations:
                action, extra = policy.act(obs, state=state)
                state, result = extra["state_out"], next(results)
                np.testing.assert_allclose(
                    result["action_dist_inputs"], extra["action_dist_inputs"], rtol=1e-5, atol=1e-5
                )
                np.testing.assert_allclose(numbers(result["action"]), numbers(action), rtol=1e-5, atol=1e-5)

    def test_samples_come_from_the_distribution(self, driver: Driver, model: bytes) -> None:
        driver.call("load_policy", model=model.hex())
        space = copy.deepcopy(NESTED)
        space.seed(0)
        results = driver.call("act", episodes=[[plain(space.sample())]] * 1200, explore=True, seed=1)
        inputs = np.array(results[0]["action_dist_inputs"])  # of bits, choice, integers and move
        actions = [one["action"] for one in results]
        bits = np.array([np.ravel(one["bits"]) for one in actions])
        choices = np.array([numbers([one["choice"], np.add(one["integers"], 2)]) for one in actions]).astype(int)
        low, high = NESTED_ACTIONS["move"].low, NESTED_ACTIONS["move"].high
        sent = np.array([one["sent_action"]["move"] for one in results])
        np.testing.assert_allclose([one["move"] for one in actions], np.clip(sent, low, high))
        assert (sent != np.clip(sent, low, high)).any()
        z = (2 * (sent - low) / (high - low) - 1 - inputs[25:27]) / np.exp(inputs[27:])
        logp = log_expit(np.where(bits == 1, 1, -1) * inputs[:4]).sum(1)
        starts = [4, 7, 9, 13, 19, 25]  # of the columns of each choice
        for column, (start, end) in enumerate(itertools.pairwise(starts)):
            logps = log_softmax(inputs[start:end])
            logp += logps[choices[:, column]]
            shares = np.bincount(choices[:, column], minlength=end - start) / len(results)
            np.testing.assert_allclose(shares, np.exp(logps), atol=0.04)
        logp += (-0.5 * z**2 - inputs[27:] - 0.5 * np.log(2 * np.pi)).sum(1)
        np.testing.assert_allclose([one["action_logp"] for one in results], logp, rtol=1e-6)
        np.testing.assert_allclose(bits.mean(0), np.exp(log_expit(inputs[:4])), atol=0.04)
        np.testing.assert_allclose([z.mean(0), z.std(0)], [[0, 0], [1, 1]], atol=0.08)

    def test_samples_without_bounds(self, driver: Driver) -> None:
        """A number without bounds, one with an upper bound, and one with a lower bound."""
        low, high = np.array([-np.inf, -np.inf, 0.0], np.float32), np.array([np.inf, 0.0, np.inf], np.float32)
        parts, config = make_parts(gym.spaces.Box(-5.0, 5.0, (4,)), gym.spaces.Box(low, high))
        content = OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), {})
        driver.call("load_policy", model=content.hex())
        results = driver.call("act", episodes=[[[0.0] * 4]] * 50, explore=True)
        actions, sent = (np.array([one[name] for one in results], np.float64) for name in ("action", "sent_action"))
        np.testing.assert_allclose(actions, np.clip(sent, low, high))
        assert (actions != sent).any(0).tolist() == [False, True, True]

    def test_a_policy_that_needs_the_past(self, driver: Driver) -> None:
        past = [prepended("PrevActionsPrevRewards")]
        parts, config = make_parts(gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(2), env_to_module=past)
        content = OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), {})
        with pytest.raises(ClientError, match=r"the policy needs past (actions|rewards), which this client does not"):
            driver.call("load_policy", model=content.hex())

    def test_a_file_that_is_no_policy(self, driver: Driver, model: bytes) -> None:
        for content in (b"", b"\x0f", b"nonsense", model[:100]):
            with pytest.raises(ClientError, match=r"ONNX model|policy artifact"):
                driver.call("load_policy", model=content.hex())


def play(programs: Path, *arguments: Any, flags: tuple[str, ...] = ()) -> list[int]:
    """Runs cartpole.mjs; returns the lengths of its episodes."""
    command = [str(NODE), *flags, programs / "cartpole.mjs", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in re.findall(r"episode \d+: (\d+) steps", done.stdout)]


class TestCartPole:
    @pytest.mark.usefixtures("onnxruntime_web")
    def test_episodes_of_its_own_policy_arrive_with_all_columns(
        self, serve: Serve, driver: Driver, programs: Path
    ) -> None:
        served = serve(OFF)
        sampling = served.sample(700)
        driver.call("connect", port=served.address[1])
        policy = LocalPolicy(model_of(driver.call("get_state")))
        lengths = play(programs, "--port", served.address[1], "--episodes", 60, "--inference", "client")
        assert len(lengths) == 60
        assert received(served) == sum(lengths)
        sample = sampling.result(30)
        assert sample.finished.lengths.tolist() == lengths[: len(sample.finished.lengths)]
        columns = sample.rollout.blocks["default_policy"].columns
        logits = columns["action_dist_inputs"]
        logp = np.take_along_axis(log_softmax(logits, -1), columns["actions"][:, None], 1)[:, 0]
        np.testing.assert_allclose(columns["action_logp"], logp, atol=1e-5)
        length = lengths[0]
        for t in range(length):
            _, extra = policy.act(columns["obs"][t])
            np.testing.assert_allclose(logits[t], extra["action_dist_inputs"], atol=1e-5)
        env = gym.make("CartPole-v1").unwrapped
        env.reset()
        env.state = columns["obs"][0].astype(np.float64)
        for t in range(length):
            obs, _, is_terminated, _, _ = env.step(int(columns["actions"][t]))
            np.testing.assert_allclose(columns["obs"][t + 1], obs, atol=1e-5)
        assert is_terminated

    def test_the_server_acts(self, serve: Serve, programs: Path) -> None:
        served = serve(OFF, "rllink.token=secret")
        served.sample(10_000)
        arguments = ("--token", "secret", "--episodes", 10, "--inference", "server")
        lengths = play(programs, "--port", served.address[1], *arguments)
        assert len(lengths) == 10
        assert acted(served) == sum(lengths)

    def test_mistakes(self, serve: Serve, programs: Path) -> None:
        port = serve("rllink.token=secret").address[1]
        for wrong in (["--inference", "nobody"], ["--token", "Secret"], ["--prot", "1"]):
            command = [str(NODE), programs / "cartpole.mjs", "--port", str(port), *wrong]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
            assert done.returncode == 1
            assert re.search("nobody|unauthorized|--prot", done.stderr)


class Bridge:
    """clients/javascript/bridge.mjs before a server."""

    def __init__(self, programs: Path, served: Served) -> None:
        target = "{}:{}".format(*served.address)
        command = [str(NODE), programs / "bridge.mjs", "--port", "0", "--server", target]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[0]
        self.address = self.url.removeprefix("ws://").rstrip("/")

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.address, timeout=10)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
def bridge(programs: Path) -> Iterator[Callable[[Served], Bridge]]:
    made: list[Bridge] = []

    def make(served: Served) -> Bridge:
        made.append(Bridge(programs, served))
        return made[-1]

    yield make
    for one in made:
        one.close()


PAGE = """
globalThis.location = { host: "%s", search: "?inference=%s" };
globalThis.requestAnimationFrame = (callback) => setTimeout(callback, 0);
globalThis.document = {
  getElementById: () => ({
    getContext: () => new Proxy({}, { get: () => () => {} }),
    set textContent(text) { console.log(text); },
  }),
};
"""


class TestBridge:
    def test_frames_of_all_sizes_go_through(self, serve: Serve, bridge: Any, programs: Path) -> None:
        served = serve(OFF)
        served.sample(1_000_000)
        driver = Driver([str(NODE), WITH_WEB_SOCKET, programs / "driver.mjs"])
        driver.call("connect", url=bridge(served).url)
        sizes = (1, 3, 100, 1000, 20_000)
        for size in sizes:
            assert driver.call("send_episodes", episodes=[episode(size)], weights_seq_no=1)["env_steps"] == size
        assert len(model_of(driver.call("get_state"))) > 1000
        assert received(served) == sum(sizes)
        driver.close()

    def test_cartpole_over_a_web_socket(self, serve: Serve, bridge: Any, programs: Path) -> None:
        served = serve(OFF)
        served.sample(10_000)
        lengths = play(
            programs, "--url", bridge(served).url, "--inference", "server", "--episodes", 3, flags=(WITH_WEB_SOCKET,)
        )
        assert acted(served) == sum(lengths)

    @pytest.mark.usefixtures("onnxruntime_web")
    @pytest.mark.parametrize("inference", ["client", "server"])
    def test_the_script_of_the_page_plays(self, serve: Serve, bridge: Any, programs: Path, inference: str) -> None:
        """There is no browser here: Node runs the page's script, with a canvas that draws nothing."""
        served = serve(OFF)
        served.sample(100_000)
        script = re.search(r'<script type="module">(.*)</script>', (SOURCES / "cartpole.html").read_text(), re.DOTALL)
        assert script is not None
        page = programs / f"page_{inference}.mjs"
        page.write_text(PAGE % (bridge(served).address, inference) + script[1])
        process = subprocess.Popen([str(NODE), WITH_WEB_SOCKET, page], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        process.kill()
        process.stdout.close()
        process.wait(10)
        assert all(re.fullmatch(r"episode \d+: \d+ steps\n", line) for line in lines), lines

    def test_it_serves_the_page_and_nothing_else(self, serve: Serve, bridge: Any, programs: Path) -> None:
        bridge = bridge(serve())
        page = (SOURCES / "cartpole.html").read_text()
        for path in ("/cartpole.html", *re.findall(r'from "\.(/\w+\.mjs)"', page)):
            assert bridge.get(path).status == 200
        outside = programs.parent / "outside.html"
        outside.write_text("secret")
        for path in (
            "/",
            "/../outside.html",
            "/%2e%2e/outside.html",
            "/..%2foutside.html",
            "/package.json",
            "/%",
            "//x",
        ):
            assert bridge.get(path).status == 404

    @pytest.mark.parametrize(("origin", "status"), [("http://evil.example", 403), ("null", 403), (None, 101)])
    def test_pages_of_others_may_not_connect(self, serve: Serve, bridge: Any, origin: str | None, status: int) -> None:
        bridge = bridge(serve())
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        answer = bridge.get("/", **headers, **({"Origin": origin} if origin else {}))
        assert answer.status == status
        if status == 101:  # the example of RFC 6455
            assert answer.headers["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
            assert bridge.get("/", **headers, Origin=f"http://{bridge.address}").status == 101

    @pytest.mark.parametrize(
        ("host", "origin", "status"),
        [
            ("192.0.2.7:5580", "http://192.0.2.7:5580", 101),
            ("[2001:db8::7]:5580", "http://[2001:db8::7]:5580", 101),
            ("192.0.2.7:5580", "http://192.0.2.8:5580", 403),
            ("evil.example:5580", "http://evil.example:5580", 403),
        ],
    )
    def test_its_page_may_connect_from_another_machine(
        self, serve: Serve, bridge: Any, host: str, origin: str, status: int
    ) -> None:
        """A name may belong to another site, which lets it lead to this machine."""
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        assert bridge(serve()).get("/", **headers, Host=host, Origin=origin).status == status
