"""The env runner of external simulators: a server to which they connect."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from runner.callbacks import build_callbacks
from runner.config.errors import ConfigError
from runner.config.schemas import ExperimentConfig
from runner.env_runners.fragment_checks import check_fragment
from runner.env_runners.listeners import receiver_of
from runner.env_runners.observation_checks import ObservationChecks
from runner.env_runners.sample import Sample, Weights
from runner.episodes.columns import Rollout, concat_blocks
from runner.episodes.spaces import space_to_dict
from runner.interrupts import Interrupted, is_interrupted
from runner.module_parts import ActingParts, ModuleSpec, build_acting_parts
from runner.modules.flat_parameters import FlatParameters
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline
from runner.policy import OnnxPolicy
from runner.rllink.arrays import SpaceCodec
from runner.rllink.client_judges import ClientJudges
from runner.rllink.env_episodes import NotedEnvEpisodes, OpenRecordings, SampledEnvEpisodes, returns_of, to_record
from runner.rllink.inference import ModuleInference, Version, Versions
from runner.rllink.journal import Journal, Record
from runner.rllink.messages import AgentSpaces, widened
from runner.rllink.module_intake import ModuleIntake, actions_to_module
from runner.rllink.received_callbacks import ReceivedCallbacks
from runner.rllink.received_episodes import OpenEpisode, SampledChunks, add_returns
from runner.rllink.server import Server
from runner.rllink.service import Batch, Counts, Service
from runner.rllink.session import ServedClient
from runner.rows.finished_episodes import OutsideObservations
from runner.rows.to_record import ToRecord
from runner.streams import random_stream

_log = logging.getLogger(__name__)

_WAIT_S = 0.2
_TELL_AFTER_S = 10.0
_FIRST_AFTER_RESTART = 10**9


@dataclass(frozen=True)
class Sampling:
    """How much is sampled.

    Attributes:
        env_steps_per_round: env steps that all runners sample in a round.
        num_runners: number of runners that share a round.
        num_lookback: number of past steps that chunks can see.
    """

    env_steps_per_round: int
    num_runners: int
    num_lookback: int

    @property
    def env_steps_per_message(self) -> int:
        """Return the env steps a message that `rllink.env_steps_per_sample=auto` stands for."""
        return max(1, -(-self.env_steps_per_round // (8 * self.num_runners)))


class ExternalEnvRunner:
    """Listens for simulators, and samples the episodes that they send.

    Args:
        config: configuration of the run, with `env.port`.
        specs: module id -> its specification.
        seed_name: `(role, index, generation)`; the runner of index i listens at `env.port` + i.
        sampling: how much is sampled.
        journal_dir: folder in which accepted messages are stored; None stores none.
        is_recording: whether samples hold what recording needs.
        tasks: name -> content of the tasks that simulators draw for their episodes.

    Attributes:
        server: the server to which simulators connect.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        specs: Mapping[str, ModuleSpec],
        seed_name: tuple[str, int, int],
        sampling: Sampling,
        journal_dir: Path | None = None,
        is_recording: bool = False,
        tasks: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        role, index, generation = seed_name
        self._acting_parts = {module_id: build_acting_parts(config, spec) for module_id, spec in specs.items()}
        for module_id, parts in self._acting_parts.items():
            _give_streams(config.seed, f"{role}/{module_id}", index, generation, parts)
            for pipeline in (parts.env_to_module, parts.module_to_env):
                pipeline.use_env_runner(index, sampling.num_runners)
            if parts.spec.agents is not None:
                parts.module_to_env.remove("ModuleToAgentUnmapping")
        self._versions = Versions(
            config.rllink.num_kept_weights,
            {
                "onnx": {module_id: _OnnxFile(config, spec) for module_id, spec in specs.items()},
                "safetensors": {module_id: _SafetensorsFile(config, spec) for module_id, spec in specs.items()},
            },
        )
        num_lookback, refusing = sampling.num_lookback, _observation_checks(config, specs, "error")
        self._counting = _observation_checks(config, specs, "warn")
        action_checks = _action_checks(config, specs)
        self._intakes = {
            module_id: ModuleIntake(
                build_acting_parts(config, spec),
                build_acting_parts(config, spec),
                self._versions,
                sampling.num_lookback,
            )
            for module_id, spec in specs.items()
        }
        agents = {
            agent: _agent_spaces(parts, None if refusing is None else refusing[module_id], action_checks.get(module_id))
            for module_id, parts in self._acting_parts.items()
            for agent in _agents_of(parts)
        }
        inference = {module_id: ModuleInference(parts, num_lookback) for module_id, parts in self._acting_parts.items()}
        self._leave_out = config.rllink.skip_journal_records
        name, num_kept = f"{index}.{generation}", config.checkpoint.keep_last
        self._journal = None if journal_dir is None else Journal(journal_dir, name, num_kept)
        self._judges = ClientJudges(config)
        description = _description(config, self._acting_parts, sampling)
        self._service = Service(
            config.rllink, description, agents, self._versions, inference, self._journal, tasks, self._judges.bound
        )
        self._env_episodes = SampledEnvEpisodes({agent: spaces.module_id for agent, spaces in agents.items()})
        self._is_recording = is_recording
        self._open_recordings = OpenRecordings() if is_recording and None in agents else None
        self._callbacks = ReceivedCallbacks(build_callbacks(config), index)
        self._published: Weights | None = None
        self._weights: Weights = {
            module_id: FlatParameters(parts.module).to_numpy() for module_id, parts in self._acting_parts.items()
        }
        self._shared_state: Mapping[str, Any] = {}
        assert config.env.port is not None
        port = config.env.port + index if config.env.port else 0
        self.server = Server(config.rllink, self._service, config.env.host, port, f"{index}-{secrets.token_hex(3)}")

    def address(self) -> str:
        """Return `host:port`."""
        host, port = self.server.address
        return f"{host}:{port}"

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(
        self,
        num_env_steps: int,
        explore: bool = True,
        weights: Weights | None = None,
        shared_state: Mapping[str, Any] | None = None,
        weights_seq_no: int = 0,
        num_env_steps_sampled: int = 0,
    ) -> Sample:
        """Wait until simulators have sent enough env steps; see `FragmentSource.sample`.

        A sample holds whole messages, so it may have more. Each simulator decides whether it explores, whatever
        `explore` is; RLlink numbers the weights that it sends by itself.
        """
        shared_state = self._shared_state = self._shared_state if shared_state is None else shared_state
        for module_id, intake in self._intakes.items():
            intake.take_over(shared_state.get(module_id, {}))
        for parts in self._acting_parts.values():
            parts.module_to_env.at_env_steps(num_env_steps_sampled)
        version = None
        weights = self._weights if weights is None else weights
        if self._published is None or _differ(weights, self._published):
            self._published = {module_id: np.array(vector) for module_id, vector in weights.items()}
            version = self._versions_add(self._published, shared_state)
        while True:
            batch = self._service.take_ready(num_env_steps) if version is None else None
            if batch is None:
                collecting = self.server.submit(self._collect(version, shared_state, num_env_steps))
                self.server.start()
                batch = self._wait(collecting, num_env_steps)
            batch = self._judged(batch)
            if batch.received or batch.served:
                return self._sample_of(batch)
            version = None  # all of the batch was sent by a client that it has put into quarantine

    def _versions_add(self, weights: Weights, shared_state: Mapping[str, Any]) -> Version:
        if self._journal is not None:
            self._journal.note_weights(self._versions.newest_seq_no + 1)

        async def add() -> Version:
            return self._versions.add(weights, shared_state, self._service.oldest_queued)

        return self.server.call(add())

    async def _collect(self, version: Version | None, shared_state: Mapping[str, Any], num_env_steps: int) -> Batch:
        self._service.publish(version, shared_state)
        return await self._service.collect(num_env_steps)

    def _wait(self, pending: Future[Batch], num_env_steps: int) -> Batch:
        """Wait for the batch, and log every ten seconds how many env steps are awaited."""
        begun = told = time.monotonic()
        while True:
            try:
                return pending.result(_WAIT_S)
            except TimeoutError:
                if is_interrupted():
                    pending.cancel()
                    raise Interrupted from None
                now = time.monotonic()
                if now - told > _TELL_AFTER_S:
                    told = now
                    waited = f"{now - begun:.0f} s for {num_env_steps} env steps"
                    _log.info("RLlink %s: waits since %s; %d clients", self.address(), waited, self.server.num_clients)

    def _judged(self, batch: Batch) -> Batch:
        """Judge the clients by a batch, and return it without the steps of clients in quarantine."""
        found = self._judges.judge(batch)
        if found:
            self.server.call(self._quarantine(found))
        judged, num_left_out = self._judges.without_quarantined(batch)
        self._service.count_left_out(num_left_out)
        return judged

    async def _quarantine(self, names: Collection[str]) -> None:
        self._service.quarantine(names)

    def _sample_of(self, batch: Batch) -> Sample:
        sampled: list[SampledChunks] = []
        for module_id, intake in self._intakes.items():
            parts = [part for part in batch.received if part.module_id == module_id]
            if parts:
                sampled.append(intake.block(parts))
        for served in batch.served:
            add_returns(served.block, served.episodes)
            sampled.append(served)
        by_module = {
            module_id: [one.block for one in sampled if one.block.module_id == module_id] for module_id in self._intakes
        }
        blocks = {module_id: concat_blocks(group) for module_id, group in by_module.items() if group}
        rollout = Rollout(blocks, batch.num_env_steps, self._left_out_without(batch.records))
        noted = self._env_episodes.note(sampled)
        # The states of intakes come first: they have just gone on from the newest merged state.
        shared_state = {module_id: intake.state() for module_id, intake in self._intakes.items()}
        counts = {f"rllink/{name}": value for name, value in asdict(self._service.counts).items()}
        counts |= {"rllink/num_clients": self.server.num_clients, "rllink/weights_seq_no": self._versions.newest_seq_no}
        counts |= self._judges.counts(self._service.connected)
        finished = replace(self._env_episodes.finished(noted.whole), outside=self._outside(sampled))
        self._callbacks.after_sample(rollout, returns_of(noted.whole))
        reported = batch.connector_metrics | self._callbacks.take_metrics()
        to_record = self._to_record(sampled, noted) if self._is_recording else None
        return Sample(rollout, finished, shared_state, counts, batch.learned, to_record, connector_metrics=reported)

    def _to_record(self, sampled: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> ToRecord:
        """Return what recording needs of a sample beside its blocks."""
        if self._open_recordings is not None:
            return self._open_recordings.note(sampled)
        return to_record(sampled, noted)

    def _outside(self, sampled: Sequence[SampledChunks]) -> OutsideObservations:
        """Count the observations outside of their space, with `env.validate_observations=warn`."""
        if self._counting is None:
            return OutsideObservations()
        found = [check_fragment(one.block, one.raw_obs, self._counting[one.block.module_id]) for one in sampled]
        return OutsideObservations.total(found)

    def _left_out_without(self, records: range) -> tuple[str, ...]:
        """Return the value of `rllink.skip_journal_records` that skips these journal records; () without records."""
        if self._journal is None or not records:
            return ()
        return *self._leave_out, self._journal.name_of(records)

    def set_weights(self, weights: Weights) -> None:
        """Send simulators these parameters (module id -> vector) from the next sample on."""
        self._weights = weights

    def receive(self, receiver: str, *announced: Any) -> None:
        """Pass the probabilities of tasks to simulators; see `FragmentSource.receive`."""
        receiver_of([{"tasks": self._service.use_tasks}], receiver)(*announced)

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of sampling: weights' number, connectors, sessions, and episodes that were sampled in part.

        The journal has the messages that were not sampled yet.
        """
        return self.server.call(self._state())

    async def _state(self) -> dict[str, Any]:
        if self._journal is not None:
            self._journal.begin_segment(self._service.num_records_sampled)
        return {
            "weights_seq_no": self._versions.newest_seq_no,
            "modules": {
                module_id: {
                    "env_to_module": parts.env_to_module.get_state(),
                    "module_to_env": parts.module_to_env.get_state(),
                }
                for module_id, parts in self._acting_parts.items()
            },
            "num_records": self._service.num_records_sampled,
            "sessions": {
                session.id: {
                    "client": session.client.name,
                    "number": session.number,
                    "num_begun": session.client.open.num_begun,
                    "weights_seq_no": session.client.seq_no,
                }
                for session in self.server.sessions.values()
            },
            "episodes": {episode.id: episode.get_state() for episode in self._service.episodes_sampled_in_part()},
            "env_episodes": self._env_episodes.get_state(self._service.served_env_episodes()),
            "counts": asdict(self._service.counts_of_sampled()),
            "recorded_in_part": [] if self._open_recordings is None else self._open_recordings.ids,
            "callbacks": self._callbacks.get_state(),
            "judges": self._judges.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` and from the messages of the journal after it."""
        if state:
            self.server.call(self._restore(state))

    async def _restore(self, state: Mapping[str, Any]) -> None:
        # No two weights may have the same number, also not weights that were sent after the checkpoint.
        noted = 0 if self._journal is None else self._journal.newest_seq_no
        self._versions.newest_seq_no = max(int(state["weights_seq_no"]), noted)
        for module_id, pipelines in state["modules"].items():
            self._acting_parts[module_id].env_to_module.set_state(pipelines["env_to_module"])
            self._acting_parts[module_id].module_to_env.set_state(pipelines["module_to_env"])
        self._service.counts = Counts(**{name: int(value) for name, value in state["counts"].items()})
        self._service.num_records_sampled = int(state["num_records"])
        self._judges.set_state(state["judges"])
        clients = self._restore_sessions(state["sessions"])
        self._service.quarantine(self._judges.quarantined)
        gone = self._restore_episodes(state, clients)  # clients without a session, which cannot come again
        if self._journal is not None:
            gone |= self._take_journal_again(self._journal, int(state["num_records"]), clients)
        for client in gone:
            self._service.leave(client)

    def _restore_sessions(self, sessions: Mapping[str, Any]) -> dict[str, ServedClient]:
        """Restore clients that may come again; return them by their names."""
        clients = {}
        for session_id, session in sessions.items():
            client = self.server.restore_session(session_id, session["client"], int(session["number"]))
            client.open.num_begun = int(session["num_begun"])
            client.seq_no = None if session["weights_seq_no"] is None else int(session["weights_seq_no"])
            clients[session["client"]] = client
        return clients

    def _restore_episodes(self, state: Mapping[str, Any], clients: dict[str, ServedClient]) -> set[ServedClient]:
        """Restore open episodes; return clients of them that cannot come again, which are added to `clients`."""
        gone: set[ServedClient] = set()
        restored: dict[str, OpenEpisode] = {}
        for episode_state in state["episodes"].values():
            episode = OpenEpisode.from_state(episode_state)
            if episode.client not in clients:
                clients[episode.client] = self._client_without_session(episode.client)
                gone.add(clients[episode.client])
            clients[episode.client].open.restore(episode)
            restored[episode.id] = episode
        for env in self._env_episodes.set_state(state["env_episodes"], restored):
            if env.client not in clients:
                clients[env.client] = self._client_without_session(env.client)
                gone.add(clients[env.client])
            clients[env.client].open.offer(env)
        self._callbacks.set_state(state.get("callbacks", []))
        if self._open_recordings is not None:
            self._open_recordings.go_on(state.get("recorded_in_part", []), restored)
        return gone

    def _take_journal_again(
        self, journal: Journal, num_sampled: int, clients: dict[str, ServedClient]
    ) -> set[ServedClient]:
        """Accept messages after the checkpoint again; return clients of them that cannot come again."""
        records = list(journal.records_from(num_sampled))
        first = journal.num_records - len(records)  # older ones may be deleted
        self._service.num_records_sampled = first
        left_out = journal.records_named(self._leave_out)
        gone: set[ServedClient] = set()
        for number, record in enumerate(records, first):
            gone |= self._take_again(record, clients, any(number in named for named in left_out))
        return gone

    def _take_again(self, record: Record, clients: dict[str, ServedClient], is_left_out: bool) -> set[ServedClient]:
        """Accept a message from before the restart again; return its client if that cannot come again."""
        if is_left_out:
            _log.warning("RLlink: a message of %s is left out, as rllink.skip_journal_records says", record.client)
        if record.session is not None:
            client = self.server.restore_session(record.session, record.client, record.request or 0)
            clients[record.client] = client
            self._service.take_again(client, record, is_left_out)
            return set()
        if record.client not in clients:
            clients[record.client] = self._client_without_session(record.client)
        self._service.take_again(clients[record.client], record, is_left_out)
        return {clients[record.client]}

    def _client_without_session(self, name: str) -> ServedClient:
        """Make a client that cannot come again; its later episodes get ids that no other episode has."""
        open_episodes = self.server.new_open_episodes(name)
        # Other ones than after an earlier restart, at which fewer messages had been sampled.
        open_episodes.num_begun = _FIRST_AFTER_RESTART * (1 + self._service.num_records_sampled)
        return ServedClient(name, open_episodes)

    def pipelines_of(self, module_id: str) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
        """Return the pipelines around a module for which the server can choose actions."""
        parts = self._acting_parts[module_id]
        return parts.env_to_module, parts.module_to_env

    def close(self) -> None:
        """Tell simulators that the run is over."""
        self.server.close()
        if self._journal is not None:
            self._journal.close()


class _OnnxFile:
    """Makes the ONNX file of a module.

    The graph is exported at the start, although not every client asks for it: torch's exporter changes global state,
    and a learner that computes in another thread at the same time would get other results.
    """

    def __init__(self, config: ExperimentConfig, spec: ModuleSpec) -> None:
        self.problem: str | None = None
        try:
            self._policy = OnnxPolicy.of_parts(build_acting_parts(config, spec), config)
        except ConfigError as error:
            problem = error.problems[0]
            why = problem.what if problem.got is None else f"{problem.what}: {problem.got}"
            self.problem = f"{why}; ask for actions, or for weights as safetensors"
            _log.warning("RLlink: simulators that ask for ONNX files are refused: %s", why)

    def __call__(self, weights: Any, shared_state: Mapping[str, Any], weights_seq_no: int) -> bytes:
        """Return the ONNX file."""
        return self._policy.to_bytes(weights, shared_state, weights_seq_no)


class _SafetensorsFile:
    """Makes the file with the parameters of a module under their names."""

    problem: str | None = None

    def __init__(self, config: ExperimentConfig, spec: ModuleSpec) -> None:
        self._module = build_acting_parts(config, spec).module
        self._parameters = FlatParameters(self._module)

    def __call__(self, weights: Any, shared_state: Mapping[str, Any], weights_seq_no: int) -> bytes:
        """Return the safetensors file."""
        from safetensors.torch import save

        self._parameters.load(weights)
        return save({name: tensor.clone() for name, tensor in self._module.state_dict().items()})


def _give_streams(seed: int, role: str, index: int, generation: int, parts: ActingParts) -> None:
    for pipeline in (parts.env_to_module, parts.module_to_env):
        pipeline.give_streams(partial(_stream, seed, role, index, generation))


def _stream(seed: int, role: str, index: int, generation: int, name: str, position: int) -> np.random.Generator:
    return random_stream(seed, f"{role}/{name}", index, generation, position)


def _agents_of(parts: ActingParts) -> Sequence[str | None]:
    return [None] if parts.spec.agents is None else parts.spec.agents


def _observation_check(config: ExperimentConfig) -> str:
    chosen = config.env.validate_observations
    return "error" if chosen == "auto" else chosen


def _action_checks(config: ExperimentConfig, specs: Mapping[str, ModuleSpec]) -> dict[str, ObservationChecks]:
    """Make the action checks by module id; none if modules may choose actions outside of the space."""
    if _observation_check(config) != "error" or not (config.env.normalize_actions or config.env.clip_actions):
        return {}
    return {
        module_id: ObservationChecks(widened(spec.action_space), 1, f"module {module_id}", "error")
        for module_id, spec in specs.items()
    }


def _observation_checks(
    config: ExperimentConfig, specs: Mapping[str, ModuleSpec], mode: str
) -> dict[str, ObservationChecks] | None:
    """Make the observation checks by module id; None if `env.validate_observations` is another mode."""
    if _observation_check(config) != mode:
        return None
    return {
        module_id: ObservationChecks(spec.observation_space, 1, f"module {module_id}", mode)
        for module_id, spec in specs.items()
    }


def _agent_spaces(
    parts: ActingParts, bounds: ObservationChecks | None, action_bounds: ObservationChecks | None
) -> AgentSpaces:
    spec = parts.spec
    return AgentSpaces(
        spec.module_id,
        SpaceCodec(spec.observation_space),
        SpaceCodec(spec.action_space),
        parts.module.action_dist.num_inputs,
        actions_to_module(parts.module_to_env, spec.module_id),
        bounds,
        action_bounds,
    )


def _description(config: ExperimentConfig, parts: Mapping[str, ActingParts], sampling: Sampling) -> dict[str, Any]:
    """Return the content of SET_CONFIG."""
    asked = config.rllink.env_steps_per_sample
    description: dict[str, Any] = {
        "env_steps_per_sample": sampling.env_steps_per_message if isinstance(asked, str) else asked,
        "force_on_policy": config.rllink.force_on_policy,
    }
    spaces = {
        agent: {
            "observation_space": space_to_dict(module_parts.spec.observation_space),
            "action_space": space_to_dict(module_parts.spec.action_space),
        }
        for module_parts in parts.values()
        for agent in _agents_of(module_parts)
    }
    if None in spaces:
        return description | spaces[None]
    module_of = {agent: one.spec.module_id for one in parts.values() for agent in _agents_of(one)}
    agents = {agent: {"module": module_of[agent], **described} for agent, described in spaces.items()}
    return description | {"agents": agents}


def _differ(weights: Weights, published: Weights) -> bool:
    return any(not np.array_equal(vector, published[module_id]) for module_id, vector in weights.items())
