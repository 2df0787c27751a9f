"""RLlink clients in threads: an honest one whose rewards can be counted, and hostile ones that never stop."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from runner.rllink.client import Client, RLlinkError, ServerGone
from tests.conftest import WAIT_S
from tests.rllink.conftest import RawClient

TOKEN = "an honest token"
Address = tuple[str, int]
_TIMEOUT_S = 5.0


class HonestClient(threading.Thread):
    """Sends episodes of two chunks whose rewards are 0, 1, 2, ... over all messages, until the run is over.

    Args:
        address: of the server.
        pause_after: env steps after which it waits for `go_on`.

    Attributes:
        num_acknowledged: env steps in messages that were answered, or that ended the run.
        error: what went wrong.
    """

    def __init__(self, address: Address, pause_after: int = 0) -> None:
        super().__init__(daemon=True)
        self._address, self._pause_after = address, pause_after
        self._rng = np.random.default_rng(0)
        self._last_obs: list[float] | None = None
        self.go_on = threading.Event()
        self.num_acknowledged = 0
        self.worst_s = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Send until the server says that the run is over."""
        try:
            with Client(*self._address, token=TOKEN, timeout_s=60) as client:
                num_steps = client.get_config().env_steps_per_sample
                client.get_state()
                while True:
                    if self.num_acknowledged >= self._pause_after and not self.go_on.wait(WAIT_S):
                        raise TimeoutError("hostile clients did not get through with their attacks")
                    self._send(client, num_steps)
        except ServerGone as gone:
            if "the run is over" not in str(gone):
                self.error = gone
        except BaseException as error:
            self.error = error

    def _send(self, client: Client, num_steps: int) -> None:
        chunk = self._chunk(num_steps)
        begun = time.monotonic()
        try:
            client.send_episodes_and_get_state([chunk])
        except RLlinkError as error:
            if error.code != "stale_weights":
                raise
            client.get_state()  # the same steps are sent again
            return
        except ServerGone:
            self.num_acknowledged += num_steps
            raise
        self.num_acknowledged += num_steps
        self.worst_s = max(self.worst_s, time.monotonic() - begun)

    def _chunk(self, num_steps: int) -> dict[str, Any]:
        first = self.num_acknowledged
        return {
            "obs": self._rng.uniform(-0.2, 0.2, (num_steps + 1, 4)).astype(np.float32).tolist(),
            "actions": self._rng.integers(0, 2, num_steps).tolist(),
            "rewards": [float(reward) for reward in range(first, first + num_steps)],
            "is_terminated": True,
            "is_truncated": False,
        }


class HostileClient(threading.Thread):
    """Attacks again and again until it is stopped.

    Args:
        address: of the server.
        seed: of its choices.

    Attributes:
        num_attacks: attacks that went through; the server may refuse the connection.
        mistakes: answers that the server should not have given.
    """

    least_attacks = 10

    def __init__(self, address: Address, seed: int) -> None:
        super().__init__(daemon=True, name=type(self).__name__)
        self.address = address
        self.chance = random.Random(seed)
        self.num_attacks = 0
        self.mistakes: list[str] = []
        self._is_over = threading.Event()

    def run(self) -> None:
        """Attack until `stop`."""
        while not self._is_over.is_set():
            try:
                self.attack()
                self.num_attacks += 1
            except OSError:  # refused, dropped, or not let in: what a server may do with such a client
                self._is_over.wait(0.01)

    @abstractmethod
    def attack(self) -> None:
        """Do it once."""

    def stop(self) -> None:
        """End it."""
        self._is_over.set()
        self.join(2 * _TIMEOUT_S)

    @contextmanager
    def connected(self, has_token: bool = False, extensions: Mapping[str, Any] | None = None) -> Iterator[RawClient]:
        """Return a connection, with the right token (and extensions) or silent so far."""
        client = RawClient(self.address, _TIMEOUT_S)
        try:
            if has_token:
                asked = {} if extensions is None else {"protocol": 1, "extensions": extensions}
                client.ask({"type": "PING", "token": TOKEN, **asked})
            yield client
        finally:
            client.close()

    def reset(self, client: RawClient) -> None:
        """Let a connection end with a reset."""
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def expect_refusal(self, answer: dict[str, Any], what: str) -> None:
        """Note an answer that is no error."""
        if answer.get("type") != "ERROR":
            self.mistakes.append(f"{what}: {answer}")


class SendsGarbage(HostileClient):
    """Random bytes instead of frames."""

    def attack(self) -> None:
        with self.connected() as client:
            client.socket.sendall(self.chance.randbytes(self.chance.randrange(1, 4096)))


class SendsHugeLengths(HostileClient):
    """Headers that promise far more than may come."""

    def attack(self) -> None:
        header = self.chance.choice([b"99999999", b"+999999999999999", b"@9999999", b"-0000001", b"99999999" * 100])
        with self.connected(has_token=self.chance.random() < 0.5) as client:
            client.socket.sendall(header + b"{" * self.chance.randrange(1000))


class SendsHalfBodies(HostileClient):
    """A part of a long message, and then silence until the server ends the connection."""

    least_attacks = 2

    def attack(self) -> None:
        with self.connected() as client:
            client.socket.sendall(b"00200000" + b" " * self.chance.randrange(200_000))
            client.is_closed()


class StaysSilent(HostileClient):
    """Many connections that say nothing."""

    least_attacks = 2
    num_connections = 50

    def attack(self) -> None:
        opened: list[socket.socket] = []
        try:
            for _ in range(self.num_connections):
                opened.append(socket.create_connection(self.address, _TIMEOUT_S))
            self._is_over.wait(1.0)
        finally:
            for each in opened:
                each.close()


class BringsWrongTokens(HostileClient):
    """Guesses the token."""

    least_attacks = 5

    def attack(self) -> None:
        with self.connected() as client:
            answer = client.ask({"type": "PING", "token": f"guess {self.chance.randrange(10**9)}"})
            self.expect_refusal(answer, "a wrong token")


class BringsNoToken(HostileClient):
    """Sends episodes without a token."""

    least_attacks = 5

    def attack(self) -> None:
        with self.connected() as client:
            self.expect_refusal(client.ask(episodes_text("1.0")), "episodes without a token")


class SendsBadNumbers(HostileClient):
    """Episodes with rewards and observations that are not numbers, or are too large for their dtype."""

    numbers = ("NaN", "Infinity", "-Infinity", "1e308", "-1e308", "1e400", "null", '"1"', "[1]", "1e39")

    def attack(self) -> None:
        number = self.chance.choice(self.numbers)
        with self.connected(has_token=True) as client:
            text = episodes_text(number) if self.chance.random() < 0.5 else episodes_text("1.0", number)
            self.expect_refusal(client.ask(text), number)


class SendsSpoilingRewards(HostileClient):
    """Finite rewards that make later computations overflow."""

    def attack(self) -> None:
        with self.connected(has_token=True) as client:
            for number in ("3e38", "-3e38", "1e11"):
                self.expect_refusal(client.ask(episodes_text(number)), number)
        with self.connected(has_token=True, extensions={"actions": {}}) as client:
            client.ask(observed_text("a", ""))
            for number in ("1e308", "3e38", "-1e11"):
                self.expect_refusal(client.ask(observed_text("a", f', "reward": {number}')), f"acted {number}")


class SendsLongBodies(HostileClient):
    """A body of the maximum length without its last byte."""

    least_attacks = 1

    def attack(self) -> None:
        size = 99_999_999
        chunk = bytes(1 << 20)
        with self.connected(has_token=True) as client, suppress(OSError):
            client.socket.sendall(b"%08d" % size)
            for _ in range(size // len(chunk)):
                client.socket.sendall(chunk)
            client.is_closed()


class LeavesInMidMessage(HostileClient):
    """Ends the connection somewhere within a message with episodes, by a reset half of the time."""

    def attack(self) -> None:
        body = episodes_text("1.0")
        whole = b"%08d" % len(body) + body
        with self.connected(has_token=True) as client:
            client.socket.sendall(whole[: self.chance.randrange(1, len(whole))])
            if self.chance.random() < 0.5:
                self.reset(client)


class Floods(HostileClient):
    """Requests without a pause and without reading the answers, with the right token."""

    least_attacks = 2

    def attack(self) -> None:
        body = b'{"type": "GET_CONFIG"}'
        with self.connected(has_token=True) as client:
            client.socket.settimeout(0.5)
            with suppress(TimeoutError):
                client.socket.sendall((b"%08d" % len(body) + body) * 20_000)


def episodes_text(reward: str, observation: str = "0.0") -> bytes:
    """Return a message with an episode of one step, whose reward and an observation are written as given."""
    obs = f"[[0.0, 0.0, 0.0, 0.0], [0.0, {observation}, 0.0, 0.0]]"
    rest = '"actions": [0], "is_terminated": true, "is_truncated": false'
    return f'{{"type": "EPISODES", "episodes": [{{"obs": {obs}, "rewards": [{reward}], {rest}}}]}}'.encode()


def observed_text(episode: str, more: str) -> bytes:
    """Return a request for the action of an episode; `more` is written behind its observation as given."""
    one = f'{{"id": "{episode}", "obs": [0.0, 0.0, 0.0, 0.0]{more}}}'
    return f'{{"type": "GET_ACTIONS", "episodes": [{one}]}}'.encode()


@contextmanager
def attacked_by(hostile: Sequence[HostileClient]) -> Iterator[None]:
    """All of them attack within the block."""
    for client in hostile:
        client.start()
    try:
        yield
    finally:
        for client in hostile:
            client.stop()
