"""The load of the RLlink benchmark: clients in one process that send messages encoded beforehand.

    rllink_load.py HOST PORT KIND NUM_CLIENTS

KIND is `json` or `columns` (ours), `rllib` (RLlib's msgpack), or `actions`. Runs until it is killed. With `actions`, it
prints a line per second with the median and the 99th percentile of the answer time in milliseconds.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import deque
from typing import Any

import numpy as np

EPISODES, STEPS = 20, 200


def episodes(seed: int) -> list[dict[str, Any]]:
    """Return 20 CartPole-like episodes of 200 steps."""
    rng = np.random.default_rng(seed)
    return [
        {
            "obs": rng.normal(scale=0.1, size=(STEPS + 1, 4)).astype(np.float32),
            "actions": rng.integers(0, 2, STEPS),
            "rewards": np.ones(STEPS, np.float32),
            "is_terminated": False,
            "is_truncated": True,
            "action_logp": rng.normal(size=STEPS).astype(np.float32),
            "action_dist_inputs": rng.normal(size=(STEPS, 2)).astype(np.float32),
        }
        for _ in range(EPISODES)
    ]


def json_body(seed: int) -> bytes:
    """Return a message of the base protocol, which every client can send."""
    names = ("obs", "actions", "rewards")
    chunks = [
        {**one, **{name: one[name].tolist() for name in names}, "action_logp": None, "action_dist_inputs": None}
        for one in episodes(seed)
    ]
    plain = [{name: value for name, value in chunk.items() if value is not None} for chunk in chunks]
    return json.dumps({"type": "EPISODES", "episodes": plain}).encode()


def columns_body(seed: int) -> bytes:
    """Return array blocks, one per column."""
    from runner.rllink.client.packing import pack

    every = episodes(seed)
    names = ("obs", "actions", "rewards", "action_logp", "action_dist_inputs")
    columns = {name: np.concatenate([one[name] for one in every]) for name in names}
    flags = {name: np.array([one[name] for one in every]) for name in ("is_terminated", "is_truncated")}
    return pack({"type": "EPISODES", "columns": {"lengths": np.full(EPISODES, STEPS), **columns, **flags}})


def rllib_body(seed: int) -> bytes:
    """Return a message in the format of RLlib's bundled client: states of episodes that were filled step by step."""
    import msgpack
    import msgpack_numpy
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    msgpack_numpy.patch()
    states = []
    for one in episodes(seed):
        episode = SingleAgentEpisode()
        episode.add_env_reset(one["obs"][0])
        for t in range(STEPS):
            episode.add_env_step(
                one["obs"][t + 1],
                int(one["actions"][t]),
                1.0,
                truncated=t == STEPS - 1,
                extra_model_outputs={
                    "action_dist_inputs": one["action_dist_inputs"][t],
                    "action_logp": float(one["action_logp"][t]),
                },
            )
        states.append(episode.get_state())
    message = {"type": "EPISODES", "episodes": states, "timesteps": EPISODES * STEPS}
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return body


def action_body(obs: list[float], is_first: bool) -> bytes:
    """Return one step of the client's only episode."""
    episode = {"id": "a", "obs": obs} | ({} if is_first else {"reward": 1.0})
    return json.dumps({"type": "GET_ACTIONS", "episodes": [episode]}).encode()


def framed(body: bytes) -> bytes:
    """Return a body with its header."""
    return b"%08d%b" % (len(body), body)


class Connection:
    """A client that sends one message after the other, with at most one unanswered."""

    def __init__(self, address: tuple[str, int], messages: list[bytes], hello: bytes | None) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hello is not None:
            self.socket.sendall(framed(hello))
            self._read_answer_now()
        self.socket.setblocking(False)
        self._messages = messages
        self._next = 0
        self._left = memoryview(b"")
        self._received = bytearray()
        self.sent_at = 0.0

    def _read_answer_now(self) -> None:
        head = self.socket.recv(8, socket.MSG_WAITALL)
        answer = self.socket.recv(int(head), socket.MSG_WAITALL)
        assert b"ERROR" not in answer, answer

    def write(self) -> bool:
        """Send as much as possible; return whether a complete message was sent."""
        if not self._left:
            self._left = memoryview(self._messages[self._next % len(self._messages)])
            self._next += 1
            self.sent_at = time.perf_counter()
        try:
            self._left = self._left[self.socket.send(self._left) :]
        except BlockingIOError:
            return False
        return not self._left

    def read(self) -> bool:
        """Return whether an answer has arrived."""
        self._received += self.socket.recv(65536)
        if len(self._received) < 8 or len(self._received) < 8 + int(self._received[:8]):
            return False
        assert b"ERROR" not in self._received[:40], bytes(self._received[:200])
        self._received.clear()
        return True


HELLO = b'{"type": "PING", "protocol": 1, "extensions": {"msgpack": {}, "actions": {}}}'


def messages_of(kind: str) -> list[bytes]:
    """Return the frames that each client sends in turn."""
    if kind == "actions":
        rng = np.random.default_rng(0)
        bodies = [action_body(rng.normal(scale=0.1, size=4).tolist(), is_first=number == 0) for number in range(200)]
        first, *rest = [framed(body) for body in bodies]
        return [first, *rest * 50]
    make = {"json": json_body, "columns": columns_body, "rllib": rllib_body}[kind]
    return [framed(make(seed)) for seed in range(4)]


def main() -> None:
    host, port, kind, num_clients = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    hello = None if kind == "rllib" else HELLO
    messages = messages_of(kind)
    selector = selectors.DefaultSelector()
    for _ in range(num_clients):
        one = Connection((host, port), messages, hello)
        selector.register(one.socket, selectors.EVENT_WRITE, one)
    latencies: deque[float] = deque(maxlen=100_000)
    told = time.perf_counter()
    while True:
        for key, events in selector.select(1.0):
            one = key.data
            if events & selectors.EVENT_WRITE:
                if one.write() and kind != "rllib":
                    selector.modify(one.socket, selectors.EVENT_READ, one)
            elif one.read():
                latencies.append(time.perf_counter() - one.sent_at)
                if not one.write():
                    selector.modify(one.socket, selectors.EVENT_WRITE, one)
        now = time.perf_counter()
        if kind == "actions" and now - told > 1.0 and latencies:
            told = now
            median, high = np.percentile(np.array(latencies) * 1e3, [50, 99])
            print(f"{median:.2f} {high:.2f}", flush=True)
            latencies.clear()


if __name__ == "__main__":
    main()
