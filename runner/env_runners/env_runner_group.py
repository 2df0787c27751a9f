"""Several env runners as one: shares work, sends weights and merged states, replaces runners that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from runner.closing import close_each
from runner.config.blocks import EPISODES
from runner.config.metrics import NUM_HEALTHY, NUM_RESTARTS, SAMPLE_BYTES
from runner.config.operators import ENV_RUNNERS
from runner.env_runners.evaluation_watch import EvaluationWatch
from runner.env_runners.handles import RemoteHandle, RunnerHandle, RunnerLost
from runner.env_runners.runner_ticket import RunnerTicket
from runner.env_runners.sample import Sample, Weights
from runner.env_runners.sample_recording import SampleRecording
from runner.env_runners.tickets import Ticket, wait_a_moment, wait_any
from runner.parts import Part
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.restarts import Restarts
from runner.rows.finished_episodes import FinishedEpisodes

if TYPE_CHECKING:
    from runner.offline.writing.recorder import Recorded

MakeHandle = Callable[[int, int], RunnerHandle]

_RESTART_KEYS = (
    "env_runners.restart_failed_env_runners, env_runners.max_num_env_runner_restarts; env_runners.sample_timeout_s, "
    "evaluation.evaluation_sample_timeout_s"
)


# Seconds after which evaluation runners that have not answered are reported; starting them takes some of it.
_REPORT_AFTER_S = 30.0


class EnvRunnerGroup(Part):
    """W env runners behind the calls of one.

    Weights and the merged state of connectors travel with each call, so that a runner that had to be replaced in the
    middle of an iteration acts like the one before it.

    Args:
        make_handle: (index, generation) -> a runner, local or remote.
        num_runners: W.
        env_to_module: module id -> a pipeline like the runners', which merges their states.
        max_restarts: lost runners that are replaced before the run ends; 0 ends it with the first.
        role: what messages call a runner.
        share: makes a value cheap to send to all runners (`ray.put` for remote ones).
        recording: records samples here; None: runners record themselves, or nobody does.
        settings: what the state of the runners depends on.

    Attributes:
        generations: by index of a runner, how many runners had it before.
        counts: metric name -> what all runners have counted.
        weights_seq_no: number of the newest weights, which are numbered from 1.
        in_flight: tickets that were asked for with `request` and have not been collected, oldest first.
        awaited: those of them that plans have found not ready since the last wait.
    """

    name = ENV_RUNNERS

    def __init__(
        self,
        make_handle: MakeHandle,
        num_runners: int,
        env_to_module: Mapping[str, EnvToModulePipeline],
        max_restarts: int,
        role: str = "env runner",
        share: Callable[[Any], Any] = lambda value: value,
        recording: SampleRecording | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._make_handle = make_handle
        self._handles = {index: make_handle(index, 0) for index in range(num_runners)}
        self.generations = [0] * num_runners
        self._env_to_module = env_to_module
        self._restarts = Restarts(max_restarts, _RESTART_KEYS)
        self.role = role
        self._share = share
        self._recording = recording
        self._settings = dict(settings)
        self._newest = _SentWeights(0, {}, share)
        self._sent = dict.fromkeys(self._handles, self._newest)
        self._announced: dict[str, tuple[Any, ...]] = {}
        self._told: dict[RunnerHandle, dict[str, tuple[Any, ...]]] = {}
        self.weights_seq_no = 0
        self.shared_state: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self._counts_of: dict[int, Mapping[str, int]] = {}
        self.in_flight: list[RunnerTicket] = []
        self.awaited: dict[RunnerTicket, None] = {}
        self._num_bytes, self._num_env_steps = 0.0, 0  # of samples since the last metrics

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the state of the runners depends on."""
        return self._settings

    @property
    def num_runners(self) -> int:
        """The number of runners, W."""
        return len(self._handles)

    @property
    def indexes(self) -> list[int]:
        """The indexes of the runners, ascending."""
        return list(self._handles)

    @property
    def handles(self) -> list[RunnerHandle]:
        """The runners, in the order of their indexes."""
        return list(self._handles.values())

    @property
    def num_restarts(self) -> int:
        """The number of lost runners that were replaced so far."""
        return self._restarts.count

    def set_weights(self, weights: Weights, runners: Iterable[int] | None = None) -> None:
        """Act with these parameters (module id -> vector) from the next call on: all runners, or these.

        They are sent with the next call, so that versions between two calls cost nothing.
        """
        self.weights_seq_no += 1
        self._newest = _SentWeights(self.weights_seq_no, weights, self._share)
        for index in self._sent if runners is None else self._sent.keys() & set(runners):
            self._sent[index] = self._newest

    def announce(self, subject: str, receiver: str, *arguments: Any) -> None:
        """Call a receiver in each runner before its next call, also in runners that replace lost ones.

        Args:
            subject: what the call is about; a later one about the same takes its place.
            receiver, arguments: see `EnvRunner.receive`; its answer is not waited for.
        """
        self._announced[subject] = ("receive", receiver, *(self._share(argument) for argument in arguments))
        self._told = {handle: self._told.get(handle, {}) for handle in self.handles}

    def has_announced(self, subject: str) -> bool:
        """Whether there was an announcement about a subject."""
        return subject in self._announced

    def use_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        """Act with this state of connectors from the next call on: module id -> connector name -> state."""
        self.shared_state = dict(shared_state)

    def metrics(self) -> dict[str, float | int | None]:
        """Return the health of the runners, what they have counted, and the size of samples since the last call."""
        health = {
            NUM_HEALTHY: self.num_runners,
            NUM_RESTARTS: self.num_restarts,
        }
        return health | self.counts | self._size_of_samples()

    def _size_of_samples(self) -> dict[str, float | None]:
        num_bytes, num_env_steps, self._num_bytes, self._num_env_steps = self._num_bytes, self._num_env_steps, 0.0, 0
        if not any(isinstance(handle, RemoteHandle) for handle in self.handles):
            return {}
        return {SAMPLE_BYTES: num_bytes / num_env_steps if num_env_steps else None}

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(self, num_env_steps: int, explore: bool, num_env_steps_sampled: int = 0) -> list[Sample]:
        """Sample at least `num_env_steps` env steps in all, shared evenly; one sample a runner, in their order.

        Args:
            num_env_steps: at least one of each runner.
            explore, num_env_steps_sampled: see `EnvRunner.sample`.
        """
        shares = self._shares(max(num_env_steps, self.num_runners), self.num_runners)
        calls = self._policy_calls("sample", shares, explore, num_env_steps_sampled)
        asked = [RunnerTicket(self, index, call, self._sent[index].seq_no) for index, call in calls.items()]
        tickets = [ticket for ticket in asked if ticket.has_answer()]
        samples = [ticket.result().numbered(ticket.index, ticket.weights_seq_no) for ticket in tickets]
        self._take_in(samples, self.shared_state_of(samples))
        return [_writable(sample, ticket) for sample, ticket in zip(samples, tickets, strict=True)]

    def request(
        self, index: int, num_env_steps: int, explore: bool, num_env_steps_sampled: int = 0, method: str = "sample"
    ) -> RunnerTicket:
        """Ask one runner for at least `num_env_steps` env steps, and return the ticket; see `collect`.

        Args:
            index: of the runner.
            num_env_steps, explore, num_env_steps_sampled: see `EnvRunner.sample`.
            method: of the runner; gives a sample.
        """
        calls = self._policy_calls(method, {index: num_env_steps}, explore, num_env_steps_sampled)
        ticket = RunnerTicket(self, index, calls[index], self._sent[index].seq_no)
        self.in_flight.append(ticket)
        return ticket

    def answered(self, index: int, weights_seq_no: int, answer: Any) -> RunnerTicket:
        """Return the ticket of a request that was answered before a checkpoint."""
        ticket = RunnerTicket(self, index, (), weights_seq_no, answer)
        self.in_flight.append(ticket)
        return ticket

    def wait_for_any(self) -> None:
        """Wait until one of the awaited tickets is ready; where none is named, one of all in flight.

        A ticket that is ready and belongs to a plan that has no turn ends no wait.
        """
        awaited, self.awaited = list(self.awaited), {}
        wait_any(awaited or list(self.in_flight))

    def submit(self, index: int, method: str, *arguments: Any) -> Ticket:
        """Call a method of one runner, once it knows what has been announced.

        Returns:
            A ticket that ends with the runner; see `RunnerTicket`.
        """
        handle = self._handles[index]
        told = self._told.setdefault(handle, {})
        for subject, announcement in self._announced.items():
            if told.get(subject) is not announcement:
                handle.announce(subject, *announcement)
                told[subject] = announcement
        return handle.submit(method, *arguments)

    def collect(self, ticket: RunnerTicket) -> Sample:
        """Wait for the sample of a ticket in flight, and merge its state of connectors into the shared one."""
        self.withdraw(ticket)
        sample: Sample = ticket.result().numbered(ticket.index, ticket.weights_seq_no)
        merged = [self.shared_state] if self.shared_state else []
        self._take_in([sample], self.shared_state_of([sample], merged))
        return _writable(sample, ticket)

    def withdraw(self, ticket: RunnerTicket) -> None:
        """Let a ticket be no longer in flight."""
        if ticket in self.in_flight:
            self.in_flight.remove(ticket)
        self.awaited.pop(ticket, None)

    def _shares(self, total: int, num_parts: int) -> dict[int, int]:
        """Return the shares of the first `num_parts` runners in `total`, by index; they differ by one at most."""
        return {
            index: total // num_parts + (number < total % num_parts)
            for number, index in enumerate(self.indexes[:num_parts])
        }

    def _policy_calls(
        self, method: str, shares: Mapping[int, int], explore: bool, num_env_steps_sampled: int
    ) -> dict[int, tuple[Any, ...]]:
        """Return a call for each of some runners, with its share, its weights and the merged state of connectors."""
        shared_state = self.shared_state if len(shares) == 1 else self._share(self.shared_state)
        sent = {index: self._sent[index] for index in shares}
        return {
            index: (method, share, explore, sent[index].shared, shared_state, sent[index].seq_no, num_env_steps_sampled)
            for index, share in shares.items()
        }

    def shared_state_of(self, samples: Sequence[Sample], merged: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Merge the states of connectors that came with samples, into ones that were merged before."""
        states = [*merged, *(state for sample in samples for state in (sample.shared_state, *sample.further_states))]
        return {
            module_id: pipeline.merge_states([state[module_id] for state in states])
            for module_id, pipeline in self._env_to_module.items()
        }

    def _take_in(self, samples: Sequence[Sample], shared_state: dict[str, Any]) -> None:
        for sample in samples:
            if self._recording is not None and sample.to_record is not None:
                self._recording.add(sample.runner, sample.rollout, sample.to_record, sample.weights_seq_no)
            self._counts_of[sample.runner] = sample.counts
            if sample.bytes_per_env_step:
                self._num_env_steps += sample.rollout.num_env_steps
                self._num_bytes += sample.bytes_per_env_step * sample.rollout.num_env_steps
        self.shared_state = shared_state
        self.counts = _summed(list(self._counts_of.values()))

    def addresses(self) -> list[str]:
        """Return where simulators connect, `host:port` of each runner; empty where runners step environments."""
        return [address for address in self._call_all("address").values() if address]

    def submit_evaluation(
        self, duration: int, explore: bool, num_env_steps_sampled: int = 0, unit: str = EPISODES
    ) -> Callable[[], FinishedEpisodes]:
        """Start `duration` whole episodes, or env steps, always with the same seeds; call the result to wait for them.

        On remote runners they go on in parallel to whatever the driver does.
        """
        shares = self._shares(duration, min(duration, self.num_runners))  # the other runners have nothing to do
        further = () if unit == EPISODES else (unit,)
        calls = self._policy_calls("evaluate", shares, explore, num_env_steps_sampled)
        tickets = [RunnerTicket(self, index, (*call, *further)) for index, call in calls.items()]
        return lambda: FinishedEpisodes.concatenated(self._evaluated(tickets))

    def _evaluated(self, tickets: Sequence[RunnerTicket]) -> list[FinishedEpisodes]:
        """Wait for evaluations; those in this process look up themselves whether they have to end."""
        what = f"none of {len(tickets)} evaluation runners has run all of its episodes"
        watch = EvaluationWatch(what, _REPORT_AFTER_S)
        waited_for = [ticket for ticket in tickets if ticket.reference is not None]
        while pending := [ticket for ticket in waited_for if not ticket.is_ready()]:
            watch.look(has_finished=len(pending) < len(waited_for))
            wait_a_moment(pending)
        return [ticket.result() for ticket in tickets]

    def _call_all(self, method: str) -> dict[int, Any]:
        """Return the answer of each runner, by index."""
        tickets = [RunnerTicket(self, index, (method,)) for index in self.indexes]
        return {ticket.index: ticket.result() for ticket in tickets if ticket.has_answer()}

    def call_processes(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function in the process of each runner, with what holds the runner there; local runners have none."""
        remote = [handle for handle in self.handles if isinstance(handle, RemoteHandle)]
        return [ticket.result() for ticket in [handle.submit_function(function) for handle in remote]]

    # -- lost runners ----------------------------------------------------------------------------------------------

    def follow_room(self) -> None:
        """Have as many runners as the cluster has room for; here their number is fixed."""

    def replace_lost(self, index: int, generation: int, lost: RunnerLost, losses_in_a_row: int) -> None:
        """Restore a lost runner, or put a new one with other seeds in its place; unless that has been done for another
        of its calls.
        """
        if self.generations[index] != generation:
            return
        self._restarts.add(f"{self.role} {lost}", losses_in_a_row)
        if self._handles[index].restore():
            return
        self._handles[index].close()
        self._make(index, generation + 1)

    def _make(self, index: int, generation: int) -> None:
        self.generations[index] = generation
        if self._recording is not None:
            self._recording.forget(index)
        if index in self._handles:
            self._told.pop(self._handles[index], None)
        self._handles[index] = self._make_handle(index, generation)

    def finish_recording(self) -> Recorded:
        """Finish the files of all runners."""
        if self._recording is not None:
            return self._recording.finish()
        recorded: list[Recorded] = list(self._call_all("finish_recording").values())
        return sum(recorded[1:], recorded[0])

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the states of all runners."""
        states = self._call_all("get_state")
        recording = {} if self._recording is None else {"recording": self._recording.get_state()}
        return {
            **recording,
            "runners": {str(index): state for index, state in states.items()},
            "generations": list(self.generations),
            "shared": self.shared_state,
            "num_restarts": self.num_restarts,
            "weights_seq_no": self.weights_seq_no,
            "weights_seq_nos": [self._sent[index].seq_no for index in states],
            "older_weights": {
                str(sent.seq_no): dict(sent.weights)
                for sent in self._sent.values()
                if sent.seq_no != self.weights_seq_no
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` with as many runners.

        Raises:
            ValueError: another number of runners.
        """
        self._take_places(state)
        self._restarts.count = int(state["num_restarts"])
        self.in_flight.clear()
        self.awaited.clear()
        self._set_sent(state)
        self.shared_state = dict(state["shared"])
        if self._recording is not None:
            self._recording.set_state(state.get("recording", {}))
        states = {int(index): of_runner for index, of_runner in state["runners"].items()}
        calls = {index: ("set_state", states[index]) for index in self.indexes if index in states}
        for ticket in [RunnerTicket(self, index, call) for index, call in calls.items()]:
            ticket.has_answer()

    def _take_places(self, state: Mapping[str, Any]) -> None:
        """Have runners of the indexes and generations of a state."""
        if len(state["runners"]) != self.num_runners:
            raise ValueError(f"the state is of {len(state['runners'])} env runners, this run has {self.num_runners}")
        for index, generation in enumerate(state["generations"]):
            if generation != self.generations[index]:
                self._handles[index].close()
                self._make(index, int(generation))

    def _set_sent(self, state: Mapping[str, Any]) -> None:
        """Give runners the weights that they acted with; the newest have been set already."""
        newest = replace(self._newest, seq_no=int(state.get("weights_seq_no", self.weights_seq_no)))
        self.weights_seq_no, self._newest = newest.seq_no, newest
        older = {
            int(seq_no): _SentWeights(int(seq_no), weights, self._share)
            for seq_no, weights in state.get("older_weights", {}).items()
        }
        indexes = sorted(map(int, state.get("runners", ())))
        acted_with = dict(zip(indexes, state.get("weights_seq_nos", ()), strict=False))
        self._sent = {index: older.get(int(acted_with.get(index, newest.seq_no)), newest) for index in self.indexes}

    def reset(self, old_state: Mapping[str, Any]) -> None:
        """Replace all runners by ones with seeds that `old_state` has not used; they start new episodes."""
        if self._recording is not None:
            self._recording.set_state(old_state.get("recording", {}))
        self._set_sent({"weights_seq_no": old_state.get("weights_seq_no", self.weights_seq_no)})
        generation = 1 + max(old_state.get("generations", [0]))  # recorded data have none
        self.generations = [generation] * len(self.generations)
        for index, handle in list(self._handles.items()):
            handle.close()
            self._make(index, generation)

    def restore_notes(self, old_state: Mapping[str, Any], is_reset: bool) -> list[str]:
        """Return how many sub-environments start new episodes because theirs were too long to be replayed."""
        num_too_long = 0 if is_reset else _count_too_long(old_state)
        if not num_too_long:
            return []
        begins = (
            "1 sub-environment begins a new episode"
            if num_too_long == 1
            else f"{num_too_long} sub-environments begin new episodes"
        )
        why = "the running one had more env steps than env.max_replayed_steps, so it cannot be stepped again"
        return [f"{begins}: {why}; to continue it, give the environment `get_state` and `set_state`"]

    def abandon(self) -> None:
        """Close all runners without waiting for calls that they have not answered."""
        with ExitStack() as stack:
            for handle in self.handles:
                stack.callback(handle.abandon)

    def close(self) -> None:
        """Close all runners; recorded episodes that are in no whole file are dropped."""
        try:
            if self._recording is not None:
                self._recording.abort()
        finally:
            close_each(self.handles)


@dataclass(frozen=True)
class _SentWeights:
    """Weights that runners act with.

    Attributes:
        seq_no: their number.
        weights: module id -> vector.
        share: see `EnvRunnerGroup`.
    """

    seq_no: int
    weights: Weights
    share: Callable[[Any], Any]

    @cached_property
    def shared(self) -> Any:
        """The weights, cheap to send to all runners; None before the first ones."""
        return self.share(dict(self.weights)) if self.weights else None


def _writable(sample: Sample, ticket: Ticket) -> Sample:
    """Return the sample with arrays that may be written to; ones out of Ray's object store may not."""
    return sample if ticket.reference is None else sample.with_writable_rows()


def _count_too_long(state: Mapping[str, Any]) -> int:
    """Return the number of sub-environments whose running episodes are too long to be stepped again."""
    runners = [of_runner.get("runner", of_runner) for of_runner in state.get("runners", {}).values()]
    return sum(name.startswith("too_long_") for runner in runners for name in runner.get("env", {}))


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for counted in counts for name in counted)
    return {name: sum(counted.get(name, 0) for counted in counts) for name in names}
