"""Collects batches of env steps for samples: waits for clients and checks their returns."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, TimeoutError
from typing import Any

from runner.interrupts import Interrupted, is_interrupted
from runner.rllink.client_judges import ClientJudges
from runner.rllink.inference import Version
from runner.rllink.message_queue import Batch
from runner.rllink.server import Server

_log = logging.getLogger(__name__)

_WAIT_S = 0.2
_TELL_AFTER_S = 10.0


class Batches:
    """Waits until clients have sent enough env steps.

    Args:
        server: the server of the clients.
        judges: quarantine clients.
    """

    def __init__(self, server: Server, judges: ClientJudges) -> None:
        self._server, self._service = server, server.service
        self._judges = judges

    def next(self, num_env_steps: int, version: Version | None, shared_state: Mapping[str, Any]) -> Batch:
        """Publish weights, and return the next batch of at least this many env steps, in complete messages.

        Args:
            num_env_steps: number of env steps.
            version: the newest weights, or None if they have not changed.
            shared_state: module id -> merged state of the connectors that runners share.
        """
        batch = self._judged(self._next(num_env_steps, version, shared_state))
        while batch.is_empty:
            batch = self._judged(self._next(num_env_steps, None, shared_state))
        return batch

    def _next(self, num_env_steps: int, version: Version | None, shared_state: Mapping[str, Any]) -> Batch:
        batch = self._service.take_ready(num_env_steps) if version is None else None
        if batch is not None:
            return batch
        collecting = self._server.submit(self._collect(num_env_steps, version, shared_state))
        self._server.start()
        return self._wait(collecting, num_env_steps)

    async def _collect(self, num_env_steps: int, version: Version | None, shared_state: Mapping[str, Any]) -> Batch:
        self._service.publish(version, shared_state)
        return await self._service.collect(num_env_steps)

    def _wait(self, pending: Future[Batch], num_env_steps: int) -> Batch:
        """Wait for the batch; log the progress every ten seconds."""
        begun = told = time.monotonic()
        while True:
            try:
                return pending.result(_WAIT_S)
            except TimeoutError:
                if is_interrupted():
                    return self._stop_waiting(pending)
                now = time.monotonic()
                if now - told > _TELL_AFTER_S:
                    told = now
                    waited = f"{now - begun:.0f} s for {num_env_steps} env steps"
                    address, num_clients = self._server.host_and_port, self._server.connections.num_clients
                    _log.info("RLlink %s: waiting since %s; %d clients", address, waited, num_clients)

    def _stop_waiting(self, pending: Future[Batch]) -> Batch:
        """Return a batch that is complete by now: its steps have left the queue, so it must not get lost.

        Raises:
            Interrupted: the batch is not complete; its steps stay in the queue.
        """
        self._server.call(self._service.stop_collecting)
        try:
            return pending.result()
        except CancelledError:
            raise Interrupted from None

    def _judged(self, batch: Batch) -> Batch:
        """Check the clients by a batch, and remove the steps of quarantined clients from it."""
        found = self._judges.judge(batch)
        if found:
            self._server.call(self._service.quarantine, found)
        judged = self._judges.without_quarantined(batch)
        self._service.counts.num_env_steps_quarantined += judged.num_left_out
        return judged
