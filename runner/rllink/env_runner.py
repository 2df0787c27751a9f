"""The env runner of external simulators: a server that they connect to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from runner.env_runners.listeners import receiver_of
from runner.env_runners.sample import Sample, Weights
from runner.episodes.columns import ColumnBlock, Rollout, concat_blocks
from runner.module_building import BuiltActingModule
from runner.modules.flat_parameters import flat_values
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline
from runner.rllink.batches import Batches
from runner.rllink.client_judges import ClientJudges
from runner.rllink.env_episodes import SampledEnvEpisodes
from runner.rllink.inference import Version
from runner.rllink.message_queue import Batch
from runner.rllink.module_intake import ModuleIntake
from runner.rllink.received_episodes import SampledChunks, add_returns
from runner.rllink.returning_clients import ReturningClients
from runner.rllink.sample_listeners import SampleListener
from runner.rllink.server import Server
from runner.rllink.service import Counts


class ExternalEnvRunner:
    """Waits for simulators to connect, and samples the episodes that they send.

    Args:
        server: the server to which simulators connect.
        built_modules: module id -> module and pipelines with which the server chooses actions.
        intakes: module id -> completes the received chunks of the module.
        env_episodes: follows env episodes to their end.
        judges: check clients.
        listeners: follow the samples, in this order.

    Attributes:
        server: the server to which simulators connect.
    """

    def __init__(
        self,
        server: Server,
        built_modules: Mapping[str, BuiltActingModule],
        intakes: Mapping[str, ModuleIntake],
        env_episodes: SampledEnvEpisodes,
        judges: ClientJudges,
        listeners: Sequence[SampleListener] = (),
    ) -> None:
        self.server = server
        self._service = server.service
        self._journal = server.service.journal
        self._built_modules = built_modules
        self._intakes = intakes
        self._env_episodes = env_episodes
        self._judges = judges
        self._batches = Batches(server, judges)
        self._listeners = tuple(listeners)
        self._published: Weights = {}
        self._weights: Weights = {module_id: flat_values(built.module) for module_id, built in built_modules.items()}
        self._shared_state: Mapping[str, Any] = {}

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

        A sample consists of complete messages, so it may contain more steps. Each simulator decides whether it
        explores, independently of `explore`. RLlink numbers weights independently of the learners.
        """
        self._use_policy(weights, shared_state, num_env_steps_sampled)
        batch = self._batches.next(num_env_steps, self._new_version(), self._shared_state)
        chunks = self._chunks_of(batch)
        noted = self._env_episodes.note(chunks)
        sample = Sample(
            Rollout(self._blocks_of(chunks), batch.num_env_steps, self._journal.skipped_with(batch.records)),
            self._env_episodes.finished(noted.counted),
            # The states of intakes come first, because they include the newest merged state.
            {module_id: intake.state() for module_id, intake in self._intakes.items()},
            self._counts(),
            batch.learned,
            connector_metrics=batch.connector_metrics,
        )
        for listener in self._listeners:
            sample = listener.complete(sample, chunks, noted)
        return sample

    def _use_policy(
        self, weights: Weights | None, shared_state: Mapping[str, Any] | None, num_env_steps_sampled: int
    ) -> None:
        if weights is not None:
            self.set_weights(weights)
        if shared_state is not None:
            self._shared_state = shared_state
        for module_id, intake in self._intakes.items():
            intake.use_shared_state(self._shared_state.get(module_id, {}))
        for built in self._built_modules.values():
            built.module_to_env.at_env_steps(num_env_steps_sampled)

    def _new_version(self) -> Version | None:
        """Add a version if the weights have changed; otherwise return None."""
        if not _differ(self._weights, self._published):
            return None
        self._published = {module_id: np.array(vector) for module_id, vector in self._weights.items()}
        self._journal.note_weights(self._service.versions.newest_seq_no + 1)
        versions = self._service.versions
        queue = self._service.queue
        # The queue is read in the event loop, so that no message is queued before the version is added.
        return self.server.call(lambda: versions.add(self._published, self._shared_state, queue.oldest_seq_no))

    def _chunks_of(self, batch: Batch) -> list[SampledChunks]:
        """Complete the received chunks of each module; served chunks are already complete."""
        chunks: list[SampledChunks] = []
        for module_id, intake in self._intakes.items():
            received = [part for part in batch.received if part.module_id == module_id]
            if received:
                chunks.append(intake.block(received))
        for served in batch.served:
            add_returns(served.block, served.episodes)
        return [*chunks, *batch.served]

    def _blocks_of(self, chunks: Sequence[SampledChunks]) -> dict[str, ColumnBlock]:
        by_module = {
            module_id: [one.block for one in chunks if one.block.module_id == module_id] for module_id in self._intakes
        }
        return {module_id: concat_blocks(group) for module_id, group in by_module.items() if group}

    def _counts(self) -> dict[str, int]:
        """Return metric -> count since the start of the run."""
        counts = {f"rllink/{name}": value for name, value in asdict(self._service.counts).items()}
        counts["rllink/num_clients"] = self.server.connections.num_clients
        counts["rllink/weights_seq_no"] = self._service.versions.newest_seq_no
        return counts | self._judges.counts(self._service.connected)

    # -- state -----------------------------------------------------------------------------------------------------

    def receive(self, receiver: str, *announced: Any) -> None:
        """Pass an announcement of a part of the run to a receiver of the listeners."""
        receiver_of((listener.receivers for listener in self._listeners), receiver)(*announced)

    def set_weights(self, weights: Weights) -> None:
        """Send these parameters (module id -> vector) to simulators from the next sample on."""
        self._weights = weights

    def address(self) -> str:
        """Return `host:port`."""
        return self.server.host_and_port

    def pipelines_of(self, module_id: str) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
        """Return the pipelines around a module for which the server can choose actions."""
        built = self._built_modules[module_id]
        return built.env_to_module, built.module_to_env

    def get_state(self) -> dict[str, Any]:
        """Return the state of sampling: number of the weights, connectors, sessions, and partly sampled episodes.

        The journal contains the messages that were not sampled yet.
        """
        return self.server.call(self._state)

    def _state(self) -> dict[str, Any]:
        service = self._service
        self._journal.begin_segment(service.queue.num_records_sampled)
        return {
            "weights_seq_no": service.versions.newest_seq_no,
            "modules": {
                module_id: {
                    "env_to_module": built.env_to_module.get_state(),
                    "module_to_env": built.module_to_env.get_state(),
                }
                for module_id, built in self._built_modules.items()
            },
            "num_records": service.queue.num_records_sampled,
            "sessions": {id_: session.get_state() for id_, session in self.server.connections.sessions.items()},
            "episodes": {episode.id: episode.get_state() for episode in service.episodes_sampled_in_part()},
            "env_episodes": self._env_episodes.get_state(service.served_env_episodes()),
            "counts": asdict(service.counts_of_sampled()),
            "judges": self._judges.get_state(),
            **{listener.name: listener.get_state() for listener in self._listeners if listener.name},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`, and the messages of the journal after it."""
        if state:
            self.server.call(self._restore, state)

    def _restore(self, state: Mapping[str, Any]) -> None:
        service, clients = self._service, ReturningClients(self.server.connections)
        # Weight numbers must be unique, even for weights that were sent after the checkpoint.
        service.versions.newest_seq_no = max(int(state["weights_seq_no"]), self._journal.newest_seq_no)
        for module_id, pipelines in state["modules"].items():
            self._built_modules[module_id].env_to_module.set_state(pipelines["env_to_module"])
            self._built_modules[module_id].module_to_env.set_state(pipelines["module_to_env"])
        service.counts = Counts(**{name: int(value) for name, value in state["counts"].items()})
        service.queue.num_records_sampled = int(state["num_records"])
        self._judges.set_state(state["judges"])
        clients.restore_sessions(state["sessions"])
        service.quarantine(self._judges.quarantined)
        running = clients.restore_episodes(state["episodes"].values())
        clients.offer(self._env_episodes.set_state(state["env_episodes"], running))
        for listener in self._listeners:
            if listener.name in state:
                listener.set_state(state[listener.name], running)
        clients.restore_messages(self._journal, int(state["num_records"]))
        clients.leave()

    def close(self) -> None:
        """Notify simulators that the run is over."""
        self.server.close()
        self._journal.close()


def _differ(weights: Weights, published: Weights) -> bool:
    return weights.keys() != published.keys() or any(
        not np.array_equal(vector, published[module_id]) for module_id, vector in weights.items()
    )
