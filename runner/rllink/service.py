"""Answers requests: the rules of the protocol, without bytes and sockets (specification, sections 4 to 8).

All methods except `take_ready` run in the server's event loop; a delayed answer is a future.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from runner.config.rllink import RLlinkConfig
from runner.rllink.action_requests import ActionRequests
from runner.rllink.inference import ModuleInference, Version, Versions
from runner.rllink.journal import GIVEN, LOST, Journal, Record
from runner.rllink.judgement import RewardBound
from runner.rllink.message_queue import Batch, MessageQueue
from runner.rllink.messages import (
    JSON,
    MSGPACK,
    UNSET,
    AgentKey,
    AgentSpaces,
    Answer,
    Episodes,
    EpisodesAndGetState,
    Format,
    GetActionsRequest,
    GetConfig,
    GetState,
    MessageError,
    NamedChunk,
    Request,
    decode_request,
)
from runner.rllink.received_episodes import EnvEpisode, OpenEpisode, ReceivedChunks
from runner.rllink.receiving import ReceivedMessage, Receiver
from runner.rllink.session import Reply, ServedClient

_log = logging.getLogger(__name__)

_STEPS_ARE_LOST = ("stale_weights", "unknown_weights")


@dataclass(eq=False)
class _Waiting:
    """An answer that waits for weights newer than `seq_no`."""

    client: ServedClient
    seq_no: int
    is_after_episodes: bool
    answer: asyncio.Future[Answer]


@dataclass
class Counts:
    """Counts since the start of the run."""

    num_env_steps_received: int = 0
    num_env_steps_acted: int = 0
    num_env_steps_stale: int = 0
    num_env_steps_quarantined: int = 0
    num_episodes_lost: int = 0
    num_requests_refused: int = 0


class Service:
    """Accepts episodes, and sends weights and actions.

    Args:
        config: the `rllink` block.
        description: content of `SET_CONFIG`, without its type.
        agents: agent id -> spaces, with the key None for a single agent.
        versions: the newest weights.
        inference: module id -> chooses actions for clients that request them.
        journal: stores accepted messages with episodes.
        tasks: name -> changes of the task, for clients.
        bound: largest absolute reward that is accepted.
    """

    def __init__(
        self,
        config: RLlinkConfig,
        description: Mapping[str, Any],
        agents: Mapping[str | None, AgentSpaces],
        versions: Versions,
        inference: Mapping[str, ModuleInference],
        journal: Journal,
        tasks: Mapping[str, Any],
        bound: RewardBound,
    ) -> None:
        self._config = config
        self._description = description
        self._agents = agents
        self.tasks = dict(tasks)
        self._receiver = Receiver(agents, bound, tasks)
        self._journal_receiver = Receiver(agents, bound, tasks, is_journal=True)
        self._quarantined: set[str] = set()
        self.versions = versions
        self.journal = journal
        self.queue = MessageQueue()
        self.counts = Counts()
        self.clients: set[ServedClient] = set()  # connected
        self.known: set[ServedClient] = set()  # connected, or able to resume a session
        self._collecting: tuple[int, asyncio.Future[Batch]] | None = None
        self._is_updating = True  # until there are weights
        self._waiting: list[_Waiting] = []
        self._actions = ActionRequests(
            config, self._receiver, inference, versions, self._must_wait_to_act, self._when_acted
        )
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    # -- for the runner ----------------------------------------------------------------------------------------------

    def use_tasks(self, odds: Mapping[str, float]) -> None:
        """Make clients draw the tasks of new episodes with these probabilities from now on."""
        self._actions.task_odds = dict(odds)

    def publish(self, version: Version | None, shared_state: Mapping[str, Any]) -> None:
        """Send the newest weights to clients from now on.

        Args:
            version: the newest weights, or None if they have not changed.
            shared_state: module id -> merged state of the connectors that runners share.
        """
        self._actions.use(version, shared_state)
        self._is_updating = False
        newest = self.versions.newest_seq_no
        self._send_state(self._take_waiting(lambda one: one.seq_no < newest or not one.is_after_episodes))
        self._actions.flush_soon()

    @property
    def max_abs_reward(self) -> float:
        """The largest absolute reward that is accepted now."""
        return self._receiver.max_abs_reward

    def quarantine(self, names: Collection[str]) -> None:
        """Leave the steps of these clients out of samples from now on, including queued steps."""
        self._quarantined |= set(names)
        self.queue.leave_out(self._quarantined)
        for client in self.known:
            if client.name in self._quarantined:
                client.is_quarantined = True
                for episode in client.open.by_key.values():
                    episode.lose()

    @property
    def connected(self) -> set[str]:
        """Return the names of the connected clients."""
        return {client.name for client in tuple(self.clients)}

    def counts_of_sampled(self) -> Counts:
        """Return the counts without queued messages, which are counted again after a restart."""
        num_env_steps = self.counts.num_env_steps_received - self.queue.num_env_steps_received
        return replace(self.counts, num_env_steps_received=num_env_steps)

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop in which all methods except `take_ready` are called."""
        self._loop = loop

    def collect(self, num_env_steps: int) -> asyncio.Future[Batch]:
        """Start a batch of `num_env_steps` env steps, in complete messages and in order of arrival."""
        future: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
        self._collecting = num_env_steps, future
        self._has_capacity.set()
        self._actions.flush_soon()
        self._close_batch_if_full()
        return future

    def _close_batch_if_full(self) -> None:
        if self._collecting is None:
            return
        target, future = self._collecting
        if future.done():  # cancelled: the queue stays as it is
            self._collecting = None
            return
        if self.queue.num_env_steps + self._actions.num_env_steps < target:
            self._release_if_stuck()
            return
        served, num_served = self._actions.cut()
        batch = self.queue.take(target - num_served)
        assert batch is not None
        self._collecting, self._is_updating = None, True
        future.set_result(
            replace(
                batch,
                num_env_steps=batch.num_env_steps + num_served,
                served=served,
                learned=self._actions.learned(),
                connector_metrics=self._actions.take_metrics(),
            )
        )

    def take_ready(self, num_env_steps: int) -> Batch | None:
        """Return a batch if enough off-policy steps are queued, otherwise None; may be called from any thread.

        This saves a turn of the event loop, which takes tens of milliseconds while many clients send.
        """
        if self._is_on_policy or self._actions.has_anything_to_cut:
            return None
        batch = self.queue.take(num_env_steps)
        if batch is not None and not self._has_capacity.is_set():
            self._loop.call_soon_threadsafe(self._has_capacity.set)
        return batch

    def _release_if_stuck(self) -> None:
        """Release waiting clients with unchanged weights if all of them wait; otherwise they would deadlock."""
        after_episodes = [one for one in self._waiting if one.is_after_episodes]
        samplers = {client for client in self.clients if client.samples}
        if samplers and samplers <= {one.client for one in after_episodes}:
            self._send_state(self._take_waiting(lambda one: one.is_after_episodes))

    def _take_waiting(self, is_taken: Any) -> list[_Waiting]:
        taken = [one for one in self._waiting if is_taken(one)]
        self._waiting = [one for one in self._waiting if not is_taken(one)]
        return taken

    @property
    def has_agents(self) -> bool:
        """Return whether this run has several agents."""
        return None not in self._agents

    def stop_collecting(self) -> None:
        """Cancel the batch being collected, unless it is complete."""
        if self._collecting is not None:
            self._collecting[1].cancel()

    # -- for connections ---------------------------------------------------------------------------------------------

    def join(self, client: ServedClient) -> None:
        """Add a connected client."""
        self.clients.add(client)
        self.known.add(client)

    def pause(self, client: ServedClient) -> None:
        """Remove a client whose session stays: its requests are carried out, and their answers are kept."""
        self.clients.discard(client)
        self._close_batch_if_full()

    def leave(self, client: ServedClient) -> None:
        """Forget a client that has disconnected permanently, and truncate its open episodes."""
        self._lose_open(client, list(client.open.by_key))
        self.counts.num_episodes_lost += self._actions.lose_all(client)
        client.open.end_all()
        for waiting in self._take_waiting(lambda one: one.client is client):
            waiting.answer.cancel()
        self.known.discard(client)
        self.pause(client)

    def _lose_open(self, client: ServedClient, keys: Iterable[AgentKey]) -> None:
        """Truncate open episodes after the last received step."""
        lost = [episode for key in keys if (episode := client.open.by_key.pop(key, None)) is not None]
        for episode in lost:
            episode.lose()
        if lost:
            self.queue.truncate(lost)
        self.counts.num_episodes_lost += len(lost)

    def answer(self, client: ServedClient, request: Request, body_format: str, body: bytes) -> Reply:
        """Answer a request other than `PING`.

        Args:
            client: the client that sent it.
            request: the decoded request.
            body_format: `json` or `msgpack`.
            body: the body of the request, for the journal.

        Raises:
            MessageError: the request is rejected, and nothing has changed.
        """
        if self.has_agents and not client.has_agents:
            raise MessageError("not_granted", "this run has several agents: request the extension agents in PING")
        match request:
            case GetConfig():
                return {"type": "SET_CONFIG", **self._description}
            case GetState():
                self._check_has_files(client)
                return self._state_when_ready(client)
            case EpisodesAndGetState():
                self._check_has_files(client)
                message = self._take_episodes(client, request, body_format, body)
                return self._when_not_full(self._state_after_episodes(client, message.parts))
            case Episodes():
                message = self._take_episodes(client, request, body_format, body)
                return self._when_not_full(self._ack(message.num_env_steps))
            case GetActionsRequest():
                return self._actions.ask(client, request, body_format)
        raise MessageError("unknown_type", f"no answer to {type(request).__name__}", "$.type")

    # -- actions -------------------------------------------------------------------------------------------------------

    def _must_wait_to_act(self) -> bool:
        is_granted = self._collecting is not None or self._actions.num_env_steps <= self._config.max_queued_env_steps
        return self.versions.newest is None or not is_granted or (self._is_updating and self._is_on_policy)

    def _when_acted(self, num_env_steps: int) -> None:
        self.counts.num_env_steps_acted += num_env_steps
        self._close_batch_if_full()

    # -- weights -------------------------------------------------------------------------------------------------------

    @property
    def _is_on_policy(self) -> bool:
        return self._config.force_on_policy

    def _check_has_files(self, client: ServedClient) -> None:
        for maker in self.versions.makers[client.weights_format].values():
            if maker.problem is not None:
                raise MessageError("not_exportable", maker.problem)

    def _state_when_ready(self, client: ServedClient) -> Reply:
        if self.versions.newest is None or (self._is_updating and self._is_on_policy):
            return self._wait(client, self.versions.newest_seq_no, False)
        return self._state(client)

    def _state_after_episodes(self, client: ServedClient, parts: Sequence[ReceivedChunks]) -> Reply:
        newest = self.versions.newest_seq_no
        seq_no = max((int(part.weights_seq_no.max()) for part in parts), default=newest)
        if not self._is_on_policy or seq_no < newest:
            return self._state(client)
        client.samples = True
        answer = self._wait(client, seq_no, True)
        self._close_batch_if_full()
        return answer

    def _wait(self, client: ServedClient, seq_no: int, is_after_episodes: bool) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(client, seq_no, is_after_episodes, answer))
        return answer

    def _send_state(self, waited: Iterable[_Waiting]) -> None:
        for waiting in waited:
            waiting.client.samples = False  # other clients do not wait for it until it sends again
            if waiting.answer.done():
                continue
            try:
                waiting.answer.set_result(self._state(waiting.client))
            except Exception as error:  # the error concerns only this client
                waiting.answer.set_exception(error)

    def _state(self, client: ServedClient) -> Answer:
        """Make the answer with the newest weights."""
        versions, file_format = self.versions, client.weights_format
        if client.seq_no is None and client.session_id is not None:
            self._record_event(client, GIVEN)
        client.seq_no = versions.newest_seq_no
        key = f"{file_format}_file"
        files = {
            module_id: {key: versions.compressed_file(file_format, module_id)}
            for module_id in versions.makers[file_format]
        }
        state: Answer = {"type": "SET_STATE", "weights_seq_no": versions.newest_seq_no}
        if client.has_tasks:
            state["task_odds"] = self._actions.task_odds
        return state | ({"modules": files} if client.has_agents else next(iter(files.values())))

    # -- episodes ------------------------------------------------------------------------------------------------------

    def _take_episodes(self, client: ServedClient, request: Episodes, body_format: str, body: bytes) -> ReceivedMessage:
        """Decode a message, write it to the journal, and queue its chunks."""
        newest = self.versions.newest_seq_no
        assumed = newest if client.seq_no is None else client.seq_no
        try:
            message = self._receiver.receive(request, body_format, client.open, assumed)
            self._check_versions(message)
        except MessageError as error:
            if error.code in _STEPS_ARE_LOST:
                self._lose_rejected(client, _named_chunks(request))
            raise
        if message.parts:
            number = None if request.request is UNSET else request.request
            who = client.name, client.session_id
            self.journal.append(Record(*who, number, body_format, assumed, body, client.open.says_ends))
        self._queue_message(client, message, self.journal.num_records - 1)
        self._close_batch_if_full()
        return message

    def _lose_rejected(self, client: ServedClient, chunks: Sequence[NamedChunk]) -> None:
        """Truncate the open episodes named in a rejected message, and record this in the journal."""
        if self.has_agents or any(chunk.key in client.open.by_key for chunk in chunks):
            self._record_event(client, LOST, msgspec.json.encode(chunks))
        self._skip(client, chunks)

    def _skip(self, client: ServedClient, chunks: Sequence[NamedChunk]) -> None:
        """Truncate open episodes with skipped chunks, and mark other affected env episodes as incomplete."""
        by_key = client.open.by_key
        lost = {chunk.key: by_key[chunk.key] for chunk in chunks if chunk.key in by_key}
        self._lose_open(client, lost)
        client.open.skip(chunks, lost)

    def _record_event(self, client: ServedClient, kind: str, body: bytes = b"") -> None:
        who, seq_no = (client.name, client.session_id), self.versions.newest_seq_no
        self.journal.append(Record(*who, None, kind, seq_no, body, client.open.says_ends))

    def _queue_message(self, client: ServedClient, message: ReceivedMessage, record: int) -> None:
        """Accept a message: apply its changes, and queue its chunks."""
        message.changes.apply()
        if message.parts:
            self.queue.add(message, record, is_left_out=client.name in self._quarantined)
        self.counts.num_env_steps_received += message.num_env_steps

    def restore_message(self, client: ServedClient, record: Record, number: int, is_skipped: bool) -> None:
        """Queue a message that was accepted before a restart, without checking its weights number again.

        Args:
            client: the client that sent it.
            record: the message in the journal.
            number: number of the record.
            is_skipped: whether to skip its steps, and to truncate the open episodes that it names.
        """
        client.open.says_ends |= record.says_ends
        if record.body_format == GIVEN:
            client.seq_no = record.weights_seq_no
            return
        if record.body_format == LOST:
            self._skip(client, msgspec.json.decode(record.body, type=list[NamedChunk]))
            return
        body_format: Format = MSGPACK if record.body_format == MSGPACK else JSON
        try:
            request = decode_request(record.body, body_format)
        except MessageError as error:  # an earlier version of runner accepted it
            _log.warning("RLlink: dropping a message of %s from before the restart: %s", record.client, error)
            return
        assert isinstance(request, Episodes)
        if is_skipped:
            self._skip(client, _named_chunks(request))
            return
        for _ in range(2):
            try:
                message = self._journal_receiver.receive(request, body_format, client.open, record.weights_seq_no)
                self._queue_message(client, message, number)
                return
            except MessageError:  # steps between two records were rejected, so these episodes have gaps
                self._lose_open(client, [chunk.key for chunk in _named_chunks(request)])
        self._skip(client, _named_chunks(request))
        _log.warning(
            "RLlink: dropping a message of %s from before the restart, because it does not continue its episodes",
            record.client,
        )

    def served_env_episodes(self) -> set[EnvEpisode]:
        """Return the env episodes in which the server acts."""
        served = [one.episode.env for client in self.known for one in client.served_episodes.values()]
        return {env for env in served if env is not None}

    def episodes_sampled_in_part(self) -> list[OpenEpisode]:
        """Return the episodes with some sampled steps whose other steps are queued or will arrive later."""
        # Steps of quarantined clients are not sampled, so their episodes cannot continue where the samples end.
        clients = [client for client in self.known if client.name not in self._quarantined]
        going_on = [episode for client in clients for episode in client.open.by_key.values()]
        every = {id(episode): episode for episode in (*self.queue.episodes, *going_on)}
        return [episode for episode in every.values() if episode.last_obs_sampled is not None]

    def answer_again(self, client: ServedClient, request: Request, body_format: str) -> Reply:
        """Answer a request that was carried out before the server was restarted."""
        match request:
            case EpisodesAndGetState():
                return self._state_when_ready(client)
            case Episodes():
                return self._ack(request.num_env_steps)
        return self.answer(client, request, body_format, b"")

    def _check_versions(self, message: ReceivedMessage) -> None:
        newest = self.versions.newest_seq_no
        for part in message.parts:
            oldest = int(part.weights_seq_no.min())
            if part.weights_seq_no.max() > newest:
                text = f"weights_seq_no {part.weights_seq_no.max()} does not exist yet, the newest is {newest}"
                raise MessageError("unknown_weights", text, "$.weights_seq_no")
            if self._is_on_policy and (oldest < newest or self._is_updating):
                self.counts.num_env_steps_stale += message.num_env_steps
                text = f"the episodes were sampled with weights {oldest}, which are outdated; send GET_STATE"
                raise MessageError("stale_weights", text, "$.weights_seq_no")
            if self.versions.get(oldest) is None and not part.has_outputs:
                self.counts.num_env_steps_stale += message.num_env_steps
                kept = ", ".join(map(str, self.versions.kept))
                text = f"weights {oldest} are no longer kept (kept: {kept}); send action_logp and action_dist_inputs"
                raise MessageError("unknown_weights", text, "$.weights_seq_no")

    def _ack(self, num_env_steps: int) -> Answer:
        return {"type": "ACK", "env_steps": num_env_steps, "weights_seq_no": self.versions.newest_seq_no}

    def _when_not_full(self, answer: Reply) -> Reply:
        """Return the answer; as a future if the queue is full until the next batch is taken."""
        is_full = self.queue.num_env_steps > self._config.max_queued_env_steps and self._collecting is None
        if isinstance(answer, asyncio.Future) or not is_full:
            return answer
        self._has_capacity.clear()
        return asyncio.ensure_future(self._answer_when_not_full(answer))

    async def _answer_when_not_full(self, answer: Answer) -> Answer:
        """Answer after a batch was taken from the full queue; this slows the client to the learners' pace."""
        await self._has_capacity.wait()
        return answer


def _named_chunks(request: Episodes) -> list[NamedChunk]:
    """Return the chunks of a message that name their episodes."""
    if request.columns is not UNSET:
        return [NamedChunk(None, id_) for id_ in ([] if request.columns.ids is UNSET else request.columns.ids)]
    chunks = [] if request.episodes is UNSET else request.episodes
    return [
        NamedChunk(None if one.agent_id is UNSET else one.agent_id, one.id, one.is_env_done)
        for one in chunks
        if one.id is not UNSET
    ]
