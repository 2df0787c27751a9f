"""Requests for actions: all requests of one turn of the event loop become one batch per module."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.rllink import RLlinkConfig
from runner.pipelines.custom_metrics import ReducedMetrics, merged_metrics
from runner.rllink.inference import ModuleInference, ObservedStep, ServedEpisode, Version, Versions
from runner.rllink.messages import AgentSpaces, Answer, GetActionsRequest, MessageError, NewObservation
from runner.rllink.open_episodes import EpisodeChanges
from runner.rllink.received_episodes import SampledChunks
from runner.rllink.receiving import Receiver, check_end
from runner.rllink.session import ServedClient

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Request:
    """A request whose answer is pending.

    Attributes:
        actions: one per element, filled in when the modules have chosen them.
    """

    client: ServedClient
    elements: Sequence[NewObservation]
    explore: bool
    body_format: str
    answer: asyncio.Future[Answer]
    actions: list[Any]

    def reject(self, error: MessageError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(eq=False, slots=True)
class _Element:
    """One element of a request, with its observation as arrays."""

    request: _Request
    place: int
    agent: AgentSpaces
    step: ObservedStep

    def take(self, action: Any, episode: ServedEpisode | None) -> None:
        """Put the action into the answer and keep the episode; None means that the episode is over."""
        if episode is None:
            self.request.client.served_episodes.pop(self.step.sent.key, None)
        else:
            self.request.client.served_episodes[self.step.sent.key] = episode
            self.request.actions[self.place] = self.agent.actions.to_wire(action, self.request.body_format)


class ActionRequests:
    """Answers requests for actions.

    Args:
        config: the `rllink` block.
        receiver: knows the agents.
        inference: module id -> chooses the actions of the module.
        versions: the newest weights.
        must_wait: returns whether requests must wait now.
        when_acted: called after each batch with the number of env steps that it completed.

    Attributes:
        task_odds: task -> probability, sent to clients with the extension `tasks`.
    """

    def __init__(
        self,
        config: RLlinkConfig,
        receiver: Receiver,
        inference: Mapping[str, ModuleInference],
        versions: Versions,
        must_wait: Callable[[], bool],
        when_acted: Callable[[int], None],
    ) -> None:
        self._most_open = config.max_open_episodes
        self._receiver = receiver
        self._inference = inference
        self._versions = versions
        self._must_wait = must_wait
        self._when_acted = when_acted
        self._waiting: list[_Request] = []
        self._is_flush_due = False
        self.num_env_steps = 0  # completed since the last cut
        self.task_odds: Mapping[str, float] = {}

    # -- for the runner ----------------------------------------------------------------------------------------------

    def use(self, version: Version | None, shared_state: Mapping[str, Any]) -> None:
        """Use these weights (None keeps the current ones) and this merged state of shared connectors by module id."""
        for module_id, inference in self._inference.items():
            if version is not None:
                inference.load(version.weights[module_id])
            inference.use_shared_state(shared_state.get(module_id, {}))

    @property
    def has_anything_to_cut(self) -> bool:
        """Return whether `cut` has complete steps to return or lost episodes to forget."""
        return self.num_env_steps > 0 or any(inference.has_lost for inference in self._inference.values())

    def cut(self) -> tuple[list[SampledChunks], int]:
        """Return the complete steps so far and the number of env steps."""
        blocks = [cut for inference in self._inference.values() if (cut := inference.cut())]
        num_env_steps, self.num_env_steps = self.num_env_steps, 0
        return blocks, num_env_steps

    def learned(self) -> list[dict[str, Any]]:
        """Return the observations that connectors have learned from since the last call, as states by module id."""
        by_module = {module_id: inference.learned() for module_id, inference in self._inference.items()}
        return [dict(zip(by_module, states, strict=True)) for states in zip(*by_module.values(), strict=True)]

    def take_metrics(self) -> ReducedMetrics:
        """Return the metrics that connectors have reported since the last call."""
        return merged_metrics(inference.take_metrics() for inference in self._inference.values())

    # -- for clients ---------------------------------------------------------------------------------------------------

    def ask(self, client: ServedClient, message: GetActionsRequest, body_format: str) -> asyncio.Future[Answer]:
        """Queue a request and return its future answer.

        Raises:
            MessageError: an episode is named twice, or too many would be open.
        """
        elements = message.episodes
        self._check_number(client, elements)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        actions = [None] * len(elements)
        self._waiting.append(_Request(client, elements, message.explore, body_format, answer, actions))
        self.flush_soon()
        return answer

    def _check_number(self, client: ServedClient, elements: Sequence[NewObservation]) -> None:
        keys = [observed.key for observed in elements]
        if len(set(keys)) < len(keys):
            raise MessageError("bad_message", "an episode occurs twice", "$.episodes")
        begins = [key not in client.served_episodes and not one.ends for key, one in zip(keys, elements, strict=True)]
        num_open = len(client.served_episodes) + sum(begins)
        if num_open > self._most_open:
            text = f"{num_open} open episodes exceed the limit of {self._most_open}"
            raise MessageError("too_many_episodes", text, "$.episodes")

    def lose_all(self, client: ServedClient) -> int:
        """Truncate all open episodes of a client that has disconnected permanently; return their number."""
        self._waiting = [request for request in self._waiting if request.client is not client]
        num_lost = len(client.served_episodes)
        for (agent_id, _), served in client.served_episodes.items():
            self._inference[self._receiver.agent(agent_id, "$").module_id].lose(served)
        client.served_episodes.clear()
        return num_lost

    # -- inference -----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Act as soon as all requests in this turn of the event loop are read."""
        if self._waiting and not self._is_flush_due and not self._must_wait():
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._must_wait():
            return
        waiting, self._waiting = self._waiting, []
        before = self.num_env_steps
        for explore in (True, False):
            self.num_env_steps += self._act([one for one in waiting if one.explore is explore], explore)
        self._when_acted(self.num_env_steps - before)

    def _act(self, requests: Sequence[_Request], explore: bool) -> int:
        """Answer requests; return the number of completed env steps."""
        stepped: set[tuple[_Request, str]] = set()  # several agents may take part in one env step
        for module_id, elements in self._read_by_module(requests).items():
            try:
                answers = self._inference[module_id].act([one.step for one in elements], explore)
            except Exception as error:
                _log.exception("RLlink: acting failed")
                _reject_all(elements, error)
                continue
            for one, (action, episode) in zip(elements, answers, strict=True):
                one.take(action, episode)
                if one.step.served is not None and not one.request.client.is_quarantined:
                    stepped.add((one.request, one.step.sent.id))
        seq_no = self._versions.newest_seq_no
        for request in requests:
            if not request.answer.done():
                answer: Answer = {"type": "ACTIONS", "actions": request.actions, "weights_seq_no": seq_no}
                told = {"task_odds": self.task_odds} if request.client.has_tasks else {}
                request.answer.set_result(answer | told)
        return len(stepped)

    def _read_by_module(self, requests: Sequence[_Request]) -> dict[str, list[_Element]]:
        """Return the elements of all valid requests by module id; reject the other requests."""
        by_module: dict[str, list[_Element]] = {}
        for request in requests:
            try:
                changes = EpisodeChanges(request.client.open)
                read = [
                    self._read(request, place, observed, changes) for place, observed in enumerate(request.elements)
                ]
            except MessageError as error:
                request.reject(error)
                continue
            changes.apply()
            for element in read:
                by_module.setdefault(element.agent.module_id, []).append(element)
        return by_module

    def _read(self, request: _Request, place: int, observed: NewObservation, changes: EpisodeChanges) -> _Element:
        """Check an element and decode its observation; raise `MessageError` if it is not valid."""
        path = f"$.episodes[{place}]"
        agent_id, _ = key = observed.key
        agent = self._receiver.agent(agent_id, path)
        obs = agent.read_one_obs(observed.obs, request.body_format, f"{path}.obs")
        if not observed.ends and self._inference[agent.module_id].forbids_every_action(obs):
            raise MessageError("bad_message", "the action mask forbids every action", f"{path}.obs")
        served = request.client.served_episodes.get(key)
        self._receiver.check_reward(observed.reward, f"{path}.reward")
        if served is None and (observed.reward != 0.0 or observed.ends):
            text = f"episode {observed.id!r:.80} is not open: a first observation must not have a reward or an end"
            raise MessageError("unknown_episode", text, f"{path}.id")
        check_end(observed, path)
        episode = served.episode if served is not None else changes.begin(*key)
        if served is None:
            episode.task = self._receiver.task(observed, path)
        if observed.is_env_done:
            changes.end_env_episode(episode)
        return _Element(request, place, agent, ObservedStep(observed, episode, served, obs))


def _reject_all(elements: Sequence[_Element], error: Exception) -> None:
    """Reject the requests of elements for which acting failed, and forget their episodes."""
    for one in elements:
        one.request.client.served_episodes.pop(one.step.sent.key, None)
        text = f"the server could not act, so these episodes are over: {error}"
        one.request.reject(MessageError("internal", text))
