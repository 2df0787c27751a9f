"""A real run beside hostile connections: it trains on with its honest client, in bounded memory."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, WAIT_S, addresses_of, num_lines, wait_until
from tests.rllink.conftest import EXPERIMENT, frame
from tests.rllink.test_runs import CLIENT

LONGEST = 99_999_999
TOKEN_PING = frame(b'{"type": "PING", "token": "secret"}')


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def send_bodies_that_never_end(port: int, count: int, seconds: float) -> int:
    """Send bodies of the greatest length but for their last byte, side by side; the bytes that were taken."""
    chunk = memoryview(bytes(1 << 20))
    sent: dict[socket.socket, int] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            one.sendall(TOKEN_PING + b"%08d" % LONGEST)
            one.setblocking(False)
            selector.register(one, selectors.EVENT_WRITE)
            sent[one] = 0
        latest = time.monotonic() + seconds
        while time.monotonic() < latest:
            for key, _ in selector.select(0.1):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                with contextlib.suppress(BlockingIOError):
                    try:
                        sent[one] += one.send(chunk[: min(len(chunk), LONGEST - 1 - sent[one])])
                    except ConnectionError:
                        sent[one] = LONGEST - 1
                if sent[one] == LONGEST - 1:
                    selector.unregister(one)
                    sent[one] += 1
    return sum(sent.values())


def guess_tokens(port: int, is_over: threading.Event) -> None:
    while not is_over.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1, ("127.0.0.2", 0)) as one:
            one.sendall(frame(b'{"type": "PING", "token": "wrong"}'))
            one.recv(100)


@pytest.mark.slow
def test_a_run_trains_on_beside_hostile_clients(tmp_path: Path) -> None:
    small = ["algorithm.train_batch_size_per_learner=400", "module.fcnet_hiddens=[8]", "stop.training_iteration=100000"]
    limits = ["rllink.token=secret", "rllink.max_clients=14", "rllink.handshake_timeout_s=3"]
    command = [sys.executable, "-m", "runner", EXPERIMENT, "env.port=0", f"hydra.run.dir={tmp_path}", "tracking=none"]
    run = subprocess.Popen([*command, *small, *limits], cwd=ROOT)
    honest: subprocess.Popen[bytes] | None = None
    is_over = threading.Event()

    def wait_for_iterations(count: int) -> None:
        wait_until(lambda: num_lines(tmp_path) >= count, run)

    with contextlib.ExitStack() as stack:
        try:
            port = int(addresses_of(tmp_path)[0].rpartition(":")[2])
            before = peak_bytes(run.pid)
            for _ in range(200):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            guesser = threading.Thread(target=guess_tokens, args=(port, is_over))
            guesser.start()
            honest = subprocess.Popen([sys.executable, CLIENT, "--port", str(port), "--token", "secret"])
            wait_for_iterations(2)
            assert send_bodies_that_never_end(port, 12, 4.0) > LONGEST
            assert peak_bytes(run.pid) - before < 350_000_000
            wait_for_iterations(num_lines(tmp_path) + 3)
            run.send_signal(signal.SIGINT)
            assert run.wait(WAIT_S) == 130
            assert honest.wait(WAIT_S) == 0
        finally:
            is_over.set()
            for process in (run, honest):
                if process is not None:
                    process.kill()
                    process.wait()
    guesser.join(10)
