"""The listening socket closes each connection that it has accepted, at whatever moment it is closed itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from runner.config.rllink import RLlinkConfig
from runner.rllink.admission import Admission
from runner.rllink.listener import Listener


class Ending(asyncio.Protocol):
    """Ends its connection as soon as it has one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@pytest.mark.filterwarnings("error:unclosed:ResourceWarning")
@pytest.mark.parametrize("num_turns", range(6))
def test_a_listener_that_closes_leaves_no_accepted_socket(num_turns: int) -> None:
    async def connect_and_close() -> None:
        listener = Listener("127.0.0.1", 0, None, 1.0, Admission(RLlinkConfig()), lambda _: Ending())
        with socket.create_connection(listener.address, 5) as client:
            await listener.start()
            for _ in range(num_turns):  # nothing is accepted, accepted, about to be connected, connected
                await asyncio.sleep(0)
            await listener.close()
            await asyncio.sleep(0.01)
            gc.collect()  # an accepted socket that nobody holds warns here, which pytest makes an error
            with contextlib.suppress(ConnectionResetError):  # it was never accepted
                assert client.recv(1) == b""

    asyncio.run(connect_and_close())
