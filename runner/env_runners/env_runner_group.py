"""Several env runners as one: shares work, sends weights and merged states, replaces runners that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from runner.config.errors import RunFailure, RunnerError
from runner.config.metrics import NUM_RESTARTS
from runner.config.schemas import EPISODES
from runner.env_runners.handles import RemoteHandle, RunnerHandle, RunnerLost
from runner.env_runners.sample import Sample, Weights
from runner.env_runners.sample_recording import SampleRecording
from runner.env_runners.tickets import LocalTicket, Ticket, wait_any
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


class EnvRunnerGroup:
    """W env runners behind the calls of one.

    Weights and the merged state of pieces travel with each call, so that a runner that had to be replaced in the
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
        counts: metric name -> what all runners have counted.
        weights_seq_no: number of the newest weights, which are numbered from 1.
        in_flight: tickets that were asked for with `request` and have not been collected, oldest first.
        awaited: those of them that plans have found not ready since the last wait.
    """

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
        self.handles = [make_handle(index, 0) for index in range(num_runners)]
        self.generations = [0] * num_runners
        self._env_to_module = env_to_module
        self._restarts = Restarts(max_restarts, _RESTART_KEYS)
        self.role = role
        self._share = share
        self._recording = recording
        self.settings = dict(settings)
        self._sent = [_SentWeights(0, {}, share)] * num_runners
        self._announced: dict[str, tuple[Any, ...]] = {}
        self._told: list[dict[str, tuple[Any, ...]]] = [{} for _ in range(num_runners)]
        self.weights_seq_no = 0
        self.shared_state: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self._counts_of: dict[int, Mapping[str, int]] = {}
        self.in_flight: list[RunnerTicket] = []
        self.awaited: dict[RunnerTicket, None] = {}

    @property
    def num_runners(self) -> int:
        """The number of runners, W."""
        return len(self.handles)

    @property
    def num_restarts(self) -> int:
        """The number of lost runners that were replaced so far."""
        return self._restarts.count

    def set_weights(self, weights: Weights, runners: Iterable[int] | None = None) -> None:
        """Act with these parameters (module id -> vector) from the next call on: all runners, or these.

        They are sent with the next call, so that versions between two calls cost nothing.
        """
        self.weights_seq_no += 1
        sent = _SentWeights(self.weights_seq_no, weights, self._share)
        for index in range(self.num_runners) if runners is None else runners:
            self._sent[index] = sent

    def announce(self, subject: str, method: str, *arguments: Any) -> None:
        """Call a method of each runner before its next call, also of those that take the places of lost ones.

        Args:
            subject: what the call is about; a later one about the same takes its place.
            method, arguments: of the call; its answer is not waited for.
        """
        self._announced[subject] = (method, *(self._share(argument) for argument in arguments))

    def has_announced(self, subject: str) -> bool:
        """Whether there was an announcement about a subject."""
        return subject in self._announced

    def submit(self, index: int, call: tuple[Any, ...]) -> Ticket:
        """Call a method of a runner, once it knows what has been announced."""
        handle, told = self.handles[index], self._told[index]
        for subject, announcement in self._announced.items():
            if told.get(subject) is not announcement:
                handle.submit(*announcement)
                told[subject] = announcement
        return handle.submit(*call)

    def use_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        """Act with this state of pieces from the next call on: module id -> piece name -> state."""
        self.shared_state = dict(shared_state)

    def metrics(self) -> dict[str, int]:
        """Return the health of the runners, and what they have counted."""
        health = {
            "fault_tolerance/num_healthy_workers": self.num_runners,
            NUM_RESTARTS: self.num_restarts,
        }
        return health | self.counts

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(self, num_env_steps: int, explore: bool, num_env_steps_sampled: int = 0) -> list[Sample]:
        """Sample at least `num_env_steps` env steps in all, shared evenly; one sample a runner, in their order.

        Args:
            num_env_steps: at least one of each runner.
            explore, num_env_steps_sampled: see `EnvRunner.sample`.
        """
        shares = _shares(max(num_env_steps, self.num_runners), self.num_runners)
        calls = self._policy_calls("sample", shares, explore, num_env_steps_sampled)
        tickets = [RunnerTicket(self, index, call) for index, call in enumerate(calls)]
        samples = [ticket.result().numbered(ticket.index, self._sent[ticket.index].seq_no) for ticket in tickets]
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
        [call] = self._policy_calls(method, [num_env_steps], explore, num_env_steps_sampled, index)
        ticket = RunnerTicket(self, index, call, self._sent[index].seq_no)
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
        wait_any(awaited or self.in_flight)

    def collect(self, ticket: RunnerTicket) -> Sample:
        """Wait for the sample of a ticket in flight, and merge its state of pieces into the shared one."""
        self.in_flight.remove(ticket)
        self.awaited.pop(ticket, None)
        sample: Sample = ticket.result().numbered(ticket.index, ticket.weights_seq_no)
        merged = [self.shared_state] if self.shared_state else []
        self._take_in([sample], self.shared_state_of([sample], merged))
        return _writable(sample, ticket)

    def _policy_calls(
        self, method: str, shares: Sequence[int], explore: bool, num_env_steps_sampled: int, first_runner: int = 0
    ) -> list[tuple[Any, ...]]:
        """Return a call for each of some runners, with its share, its weights and the merged state of pieces."""
        shared_state = self.shared_state if len(shares) == 1 else self._share(self.shared_state)
        return [
            (method, share, explore, sent.shared, shared_state, sent.seq_no, num_env_steps_sampled)
            for share, sent in zip(shares, self._sent[first_runner:], strict=False)
        ]

    def shared_state_of(self, samples: Sequence[Sample], merged: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Merge the states of pieces that came with samples, into ones that were merged before."""
        states = [*merged, *(state for sample in samples for state in (sample.shared_state, *sample.further_states))]
        return {
            module_id: pipeline.merge_states([state[module_id] for state in states])
            for module_id, pipeline in self._env_to_module.items()
        }

    def _take_in(self, samples: Sequence[Sample], shared_state: dict[str, Any]) -> None:
        for sample in samples:
            if self._recording is not None and sample.to_record is not None:
                (block,) = sample.rollout.blocks.values()
                self._recording.add(sample.runner, block, sample.to_record, sample.weights_seq_no)
            self._counts_of[sample.runner] = sample.counts
        self.shared_state = shared_state
        self.counts = _summed(list(self._counts_of.values()))

    def addresses(self) -> list[str]:
        """Return where simulators connect, `host:port` of each runner; empty where runners step environments."""
        return [address for address in self._call_all("address") if address]

    def submit_evaluation(
        self, duration: int, explore: bool, num_env_steps_sampled: int = 0, unit: str = EPISODES
    ) -> Callable[[], FinishedEpisodes]:
        """Start `duration` whole episodes, or env steps, always with the same seeds; call the result to wait for them.

        On remote runners they go on in parallel to whatever the driver does.
        """
        shares = _shares(duration, min(duration, self.num_runners))  # the other runners have nothing to do
        further = () if unit == EPISODES else (unit,)
        calls = [(*call, *further) for call in self._policy_calls("evaluate", shares, explore, num_env_steps_sampled)]
        tickets = [RunnerTicket(self, index, call) for index, call in enumerate(calls)]
        return lambda: FinishedEpisodes.concatenated([ticket.result() for ticket in tickets])

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        tickets = [RunnerTicket(self, index, (method, *arguments)) for index in range(self.num_runners)]
        return [ticket.result() for ticket in tickets]

    def call_processes(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function in the process of each runner, with what holds the runner there; local runners have none."""
        remote = [handle for handle in self.handles if isinstance(handle, RemoteHandle)]
        return [ticket.result() for ticket in [handle.submit_function(function) for handle in remote]]

    # -- lost runners ----------------------------------------------------------------------------------------------

    def replace_lost(self, index: int, generation: int, lost: RunnerLost, losses_in_a_row: int) -> None:
        """Put a new runner in the place of a lost one, unless that has been done for another of its calls."""
        if self.generations[index] != generation:
            return
        self._restarts.add(f"{self.role} {lost}", losses_in_a_row)
        self.handles[index].close()
        self._make(index, generation + 1)

    def _make(self, index: int, generation: int) -> None:
        self.generations[index] = generation
        if self._recording is not None:
            self._recording.forget(index)
        self.handles[index] = self._make_handle(index, generation)
        self._told[index] = {}

    def finish_recording(self) -> Recorded:
        """Finish the files of all runners."""
        if self._recording is not None:
            return self._recording.finish()
        recorded: list[Recorded] = self._call_all("finish_recording")
        return sum(recorded[1:], recorded[0])

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the states of all runners."""
        states = self._call_all("get_state")
        recording = {} if self._recording is None else {"recording": self._recording.get_state()}
        return {
            **recording,
            "runners": {str(index): state for index, state in enumerate(states)},
            "generations": list(self.generations),
            "shared": self.shared_state,
            "num_restarts": self.num_restarts,
            "weights_seq_no": self.weights_seq_no,
            "weights_seq_nos": [sent.seq_no for sent in self._sent],
            "older_weights": {
                str(sent.seq_no): dict(sent.weights) for sent in self._sent if sent.seq_no != self.weights_seq_no
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` with as many runners.

        Raises:
            ValueError: another number of runners.
        """
        states = state["runners"]
        if len(states) != self.num_runners:
            raise ValueError(f"the state is of {len(states)} env runners, this run has {self.num_runners}")
        for index, generation in enumerate(state["generations"]):
            if generation != self.generations[index]:
                self.handles[index].close()
                self._make(index, int(generation))
        self._restarts.count = int(state["num_restarts"])
        self.in_flight.clear()
        self.awaited.clear()
        self._set_sent(state)
        self.shared_state = dict(state["shared"])
        if self._recording is not None:
            self._recording.set_state(state.get("recording", {}))
        calls = [("set_state", states[str(index)]) for index in range(self.num_runners)]
        for ticket in [RunnerTicket(self, index, call) for index, call in enumerate(calls)]:
            ticket.result()

    def _set_sent(self, state: Mapping[str, Any]) -> None:
        """Give runners the weights that they acted with; the newest have been set already."""
        newest = replace(self._sent[0], seq_no=int(state.get("weights_seq_no", self.weights_seq_no)))
        self.weights_seq_no = newest.seq_no
        older = {
            int(seq_no): _SentWeights(int(seq_no), weights, self._share)
            for seq_no, weights in state.get("older_weights", {}).items()
        }
        seq_nos = state.get("weights_seq_nos", [newest.seq_no] * self.num_runners)
        self._sent = [older.get(int(seq_no), newest) for seq_no in seq_nos]

    def start_anew(self, state: Mapping[str, Any]) -> None:
        """Replace all runners by ones with seeds that `state` has not used; they start new episodes."""
        if self._recording is not None:
            self._recording.set_state(state.get("recording", {}))
        self._set_sent({"weights_seq_no": state.get("weights_seq_no", self.weights_seq_no)})
        generation = 1 + max(state.get("generations", [0]))  # recorded data have none
        for index, handle in enumerate(self.handles):
            handle.close()
            self._make(index, generation)

    def close(self) -> None:
        """Close all runners; recorded episodes that are in no whole file are dropped."""
        if self._recording is not None:
            self._recording.abort()
        for handle in self.handles:
            handle.close()


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


class RunnerTicket:
    """A ticket of one runner of a group: where the runner is lost, another takes its place and repeats the call.

    Args:
        group: of the runner.
        index: of the runner.
        call: name of a method, and its arguments.
        weights_seq_no: number of the weights among these.
        answer: known already, of a call before a checkpoint.
    """

    def __init__(
        self, group: EnvRunnerGroup, index: int, call: tuple[Any, ...], weights_seq_no: int = 0, answer: Any = None
    ) -> None:
        self.index = index
        self.weights_seq_no = weights_seq_no
        self._group, self._call = group, call
        self._losses_in_a_row = 0
        self._ticket: Ticket = LocalTicket(lambda: answer) if answer is not None else self._submitted()

    def _submitted(self) -> Ticket:
        self._generation = self._group.generations[self.index]
        return self._group.submit(self.index, self._call)

    @property
    def reference(self) -> Any:
        """Ray's reference to the answer; None where the runner is in this process."""
        return self._ticket.reference

    def is_ready(self) -> bool:
        """Whether `result` would not wait; in the place of a lost runner another one starts while others go on."""
        if self.reference is None or not self._ticket.is_ready():
            return self._ticket.is_ready()
        try:
            self._ticket.result()
        except RunnerLost as lost:
            self._repeat(lost)
            return False
        except RunnerError:
            pass  # `result` raises it
        return True

    def result(self) -> Any:
        """Wait for the answer and return it.

        Raises:
            RunFailure: the call failed, or restarts are used up.
        """
        while True:
            try:
                return self._ticket.result()
            except RunnerLost as lost:
                self._repeat(lost)
            except RunFailure as failure:
                where = ", ".join(filter(None, (f"{self._group.role} {self.index}", failure.problem.where)))
                raise RunFailure(replace(failure.problem, where=where)) from failure

    def _repeat(self, lost: RunnerLost) -> None:
        self._losses_in_a_row += 1
        self._group.replace_lost(self.index, self._generation, lost, self._losses_in_a_row)
        self._ticket = self._submitted()


def _writable(sample: Sample, ticket: Ticket) -> Sample:
    """Return the sample with arrays that may be written to; ones out of Ray's object store may not."""
    return sample if ticket.reference is None else sample.with_writable_rows()


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(counted[name] for counted in counts) for name in counts[0]}


def _shares(total: int, num_parts: int) -> list[int]:
    """Return `total` in `num_parts` whole parts that differ by one at most."""
    return [total // num_parts + (index < total % num_parts) for index in range(num_parts)]
