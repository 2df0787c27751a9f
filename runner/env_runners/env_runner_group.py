"""Presents several env runners as one: distributes work, and sends weights and merged states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from runner.cluster.actor_group import ActorGroup, GroupFuture
from runner.cluster.actors import RemoteActor
from runner.cluster.futures import wait_a_moment, wait_any
from runner.config.blocks import EPISODES
from runner.config.metrics import NUM_HEALTHY, NUM_RESTARTS, SAMPLE_BYTES
from runner.config.operators import ENV_RUNNERS
from runner.env_runners.evaluation_watch import EvaluationWatch
from runner.env_runners.sample import Sample, Weights
from runner.env_runners.sample_recording import SampleRecording
from runner.parts import Part
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.restarts import ActorDied
from runner.rows.finished_episodes import FinishedEpisodes

if TYPE_CHECKING:
    from runner.offline.writing.recorder import Recorded

# Seconds until evaluation runners without an answer are reported, including their start.
_REPORT_AFTER_S = 30.0


class SampleFuture(GroupFuture):
    """The pending sample of an env runner.

    Args:
        group, index, call, answer: see `GroupFuture`.
        weights_seq_no: number of the weights in the call.
    """

    def __init__(
        self, group: ActorGroup, index: int, call: tuple[Any, ...], weights_seq_no: int, answer: Any = None
    ) -> None:
        super().__init__(group, index, call, answer)
        self.weights_seq_no = weights_seq_no


class EnvRunnerGroup(Part):
    """W env runners with the interface of one. `ActorGroup` replaces dead ones.

    Each call contains the weights and the merged state of connectors, so that a replacement within an iteration acts
    like the dead env runner.

    Args:
        actors: actors that hold the env runners.
        env_to_module: module id -> a pipeline like the runners', which merges their states.
        share: makes a value cheap to send to all runners (`ray.put` for remote ones).
        recording: records samples here; None if runners record, or if nothing is recorded.
        settings: settings that the state of the runners depends on.

    Attributes:
        actors: actors that hold the env runners.
        weights_seq_no: number of the newest weights, which are numbered from 1.
        in_flight: requests that have not been collected, oldest first.
        awaited: requests in flight that plans have found not ready since the last wait.
    """

    name = ENV_RUNNERS

    def __init__(
        self,
        actors: ActorGroup,
        env_to_module: Mapping[str, EnvToModulePipeline],
        share: Callable[[Any], Any] = lambda value: value,
        recording: SampleRecording | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.actors = actors
        self._env_to_module = env_to_module
        self._share = share
        self._recording = recording
        self._settings = dict(settings)
        self._newest = _SentWeights(0, {}, share)
        self._sent = dict.fromkeys(self.actors.indexes, self._newest)
        self.weights_seq_no = 0
        self.shared_state: dict[str, Any] = {}
        self._counts_of: dict[int, Mapping[str, int]] = {}
        self.in_flight: list[SampleFuture] = []
        self.awaited: dict[SampleFuture, None] = {}
        self._num_bytes, self._num_env_steps = 0.0, 0  # of samples since the last metrics

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the state of the runners depends on."""
        return self._settings

    @property
    def num_runners(self) -> int:
        """The number of runners, W."""
        return len(self.actors.indexes)

    @property
    def num_restarts(self) -> int:
        """The number of dead runners that were restored or replaced so far."""
        return self.actors.restarts.count

    def set_weights(self, weights: Weights, runners: Iterable[int] | None = None) -> None:
        """Set the weights (module id -> vector) that all env runners, or only `runners`, use from their next call on.

        They are sent with the next call, so intermediate versions cost nothing.
        """
        self.weights_seq_no += 1
        self._newest = _SentWeights(self.weights_seq_no, weights, self._share)
        for index in self._sent if runners is None else self._sent.keys() & set(runners):
            self._sent[index] = self._newest

    def announce(self, subject: str, receiver: str, *arguments: Any) -> None:
        """Call a receiver in each runner before its next call, also in runners that replace dead ones.

        Args:
            subject: topic of the call; a later announcement about the same subject replaces it.
            receiver, arguments: see `EnvRunner.receive`. The next call raises an error of it.
        """
        self.actors.announce(subject, "receive", receiver, *(self._share(argument) for argument in arguments))

    def has_announced(self, subject: str) -> bool:
        """Return whether there was an announcement about a subject."""
        return self.actors.has_announced(subject)

    def use_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        """Use this state of connectors from the next call on: module id -> connector name -> state."""
        self.shared_state = dict(shared_state)

    def metrics(self) -> dict[str, float | int | None]:
        """Return the health of the runners, their counts, and the size of samples since the last call."""
        health = {
            NUM_HEALTHY: self.num_runners,
            NUM_RESTARTS: self.num_restarts,
        }
        return health | _summed(list(self._counts_of.values())) | self._size_of_samples()

    def _size_of_samples(self) -> dict[str, float | None]:
        num_bytes, num_env_steps, self._num_bytes, self._num_env_steps = self._num_bytes, self._num_env_steps, 0.0, 0
        if not any(isinstance(caller, RemoteActor) for caller in self.actors.callers):
            return {}
        return {SAMPLE_BYTES: num_bytes / num_env_steps if num_env_steps else None}

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(self, num_env_steps: int, explore: bool, num_env_steps_sampled: int = 0) -> list[Sample]:
        """Sample at least `num_env_steps` env steps in all, shared evenly; one sample per runner, in their order.

        Args:
            num_env_steps: total, at least one for each runner.
            explore, num_env_steps_sampled: see `EnvRunner.sample`.
        """
        self.follow_capacity()
        samples, has_left = self._sample_once(num_env_steps, explore, num_env_steps_sampled)
        while has_left and (num_missing := num_env_steps - sum(one.rollout.num_env_steps for one in samples)) > 0:
            further, has_left = self._sample_once(num_missing, explore, num_env_steps_sampled)
            samples += further
        return samples

    def _sample_once(self, num_env_steps: int, explore: bool, num_env_steps_sampled: int) -> tuple[list[Sample], bool]:
        """Sample with all runners. Also return whether one has left the group; the others then sample its share."""
        shares = self._shares(max(num_env_steps, self.num_runners), self.num_runners)
        futures = self._submit("sample", shares, explore, num_env_steps_sampled)
        samples = []
        for future in futures:
            with suppress(ActorDied):  # the runner has left the group
                samples.append(_sample_of(future))
        self._take_in(samples, self.shared_state_of(samples))
        return samples, len(samples) < len(futures)

    def request(
        self, index: int, num_env_steps: int, explore: bool, num_env_steps_sampled: int = 0, method: str = "sample"
    ) -> SampleFuture:
        """Request at least `num_env_steps` env steps from one runner; see `collect`.

        Args:
            index: index of the runner.
            num_env_steps, explore, num_env_steps_sampled: see `EnvRunner.sample`.
            method: method of the runner that returns a sample.
        """
        [future] = self._submit(method, {index: num_env_steps}, explore, num_env_steps_sampled)
        self.in_flight.append(future)
        return future

    def answered(self, index: int, weights_seq_no: int, answer: Any) -> SampleFuture:
        """Return the future of a request that was answered before a checkpoint."""
        future = SampleFuture(self.actors, index, (), weights_seq_no, answer)
        self.in_flight.append(future)
        return future

    def wait_for_any(self) -> None:
        """Wait until one of the awaited requests is ready, or any request in flight if none is awaited.

        An answer that the plan does not take next does not end the wait.
        """
        self.in_flight = [future for future in self.in_flight if not future.has_left]
        awaited, self.awaited = [future for future in self.awaited if not future.has_left], {}
        if waited_for := awaited or self.in_flight:
            wait_any(waited_for)

    def collect(self, future: SampleFuture) -> Sample:
        """Wait for the sample of a request in flight, and merge its state of connectors into the shared state."""
        if future in self.in_flight:
            self.in_flight.remove(future)
        self.awaited.pop(future, None)
        sample = _sample_of(future)
        merged = [self.shared_state] if self.shared_state else []
        self._take_in([sample], self.shared_state_of([sample], merged))
        return sample

    def _shares(self, total: int, num_parts: int) -> dict[int, int]:
        """Split `total` evenly among the first `num_parts` runners; shares by index differ by at most one."""
        return {
            index: total // num_parts + (number < total % num_parts)
            for number, index in enumerate(self.actors.indexes[:num_parts])
        }

    def _submit(
        self,
        method: str,
        shares: Mapping[int, int],
        explore: bool,
        num_env_steps_sampled: int,
        further: tuple[Any, ...] = (),
    ) -> list[SampleFuture]:
        """Call a method of `EnvRunner` in some env runners, each with its share, its weights and further arguments.

        Making a `SampleFuture` sends the call; see `GroupFuture`.
        """
        shared_state = self.shared_state if len(shares) == 1 else self._share(self.shared_state)
        sent = {index: self._sent[index] for index in shares}
        calls = {
            index: (method, share, explore, sent[index].shared, shared_state, sent[index].seq_no, num_env_steps_sampled)
            for index, share in shares.items()
        }
        return [
            SampleFuture(self.actors, index, (*call, *further), sent[index].seq_no) for index, call in calls.items()
        ]

    def shared_state_of(self, samples: Sequence[Sample], merged: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Merge the states of connectors from samples into previously merged states."""
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

    def addresses(self) -> list[str]:
        """Return the addresses `host:port` for simulators; empty if runners step environments."""
        found = [address for address in self.actors.call_all("address").values() if address]
        self._take_in_runners(self.actors.wait_for_first())
        return found

    def submit_evaluation(
        self, duration: int, explore: bool, num_env_steps_sampled: int = 0, unit: str = EPISODES
    ) -> Callable[[], FinishedEpisodes]:
        """Start `duration` complete episodes, or env steps, always with the same seeds; call the result to wait.

        Remote runners evaluate in parallel to the driver.
        """
        shares = self._shares(duration, min(duration, self.num_runners))  # further runners stay idle
        further = () if unit == EPISODES else (unit,)
        futures = self._submit("evaluate", shares, explore, num_env_steps_sampled, further)
        return lambda: FinishedEpisodes.concatenated(self._evaluated(futures))

    def _evaluated(self, futures: Sequence[SampleFuture]) -> list[FinishedEpisodes]:
        """Wait for evaluations; evaluations in this process check themselves whether they have to end."""
        what = f"none of {len(futures)} evaluation runners has run all of its episodes"
        watch = EvaluationWatch(what, _REPORT_AFTER_S)
        waited_for = [future for future in futures if future.reference is not None]
        while pending := [future for future in waited_for if not future.is_ready()]:
            watch.look(has_finished=len(pending) < len(waited_for))
            wait_a_moment(pending)
        return [future.result() for future in futures]

    def follow_capacity(self) -> None:
        """Adapt the number of runners to the cluster, if it is not fixed."""
        self._take_in_runners(self.actors.follow_capacity())

    def _take_in_runners(self, indexes: Sequence[int]) -> None:
        """Send the newest weights to runners that have joined."""
        self._sent.update(dict.fromkeys(indexes, self._newest))

    def finish_recording(self) -> Recorded:
        """Finish the files of all runners."""
        if self._recording is not None:
            return self._recording.finish()
        recorded: list[Recorded] = list(self.actors.call_all("finish_recording").values())
        return sum(recorded[1:], recorded[0])

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the states of all runners."""
        states = self.actors.call_all("get_state")
        recording = {} if self._recording is None else {"recording": self._recording.get_state()}
        return {
            **recording,
            "runners": {str(index): state for index, state in states.items()},
            "generations": list(self.actors.generations),
            "shared": self.shared_state,
            "num_restarts": self.num_restarts,
            "weights_seq_no": self.weights_seq_no,
            "weights_seq_nos": [self._sent[index].seq_no for index in states],
            "older_weights": {
                str(sent.seq_no): dict(sent.weights)
                for sent in (self._sent[index] for index in self.actors.indexes)
                if sent.seq_no != self.weights_seq_no
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.actors.take_places(sorted(map(int, state["runners"])), [int(each) for each in state["generations"]])
        self.actors.restarts.count = int(state["num_restarts"])
        self.in_flight.clear()
        self.awaited.clear()
        self._set_sent(state)
        self.shared_state = dict(state["shared"])
        if self._recording is not None:
            self._recording.set_state(state.get("recording", {}))
        states = {int(index): of_runner for index, of_runner in state["runners"].items()}
        futures = [
            self.actors.submit(index, "set_state", states[index]) for index in self.actors.indexes if index in states
        ]
        for future in futures:
            future.has_answer()

    def _set_sent(self, state: Mapping[str, Any]) -> None:
        """Send runners the weights that they used; the newest ones have been set already."""
        newest = replace(self._newest, seq_no=int(state.get("weights_seq_no", self.weights_seq_no)))
        self.weights_seq_no, self._newest = newest.seq_no, newest
        older = {
            int(seq_no): _SentWeights(int(seq_no), weights, self._share)
            for seq_no, weights in state.get("older_weights", {}).items()
        }
        indexes = sorted(map(int, state.get("runners", ())))
        acted_with = dict(zip(indexes, state.get("weights_seq_nos", ()), strict=False))
        self._sent = {
            index: older.get(int(acted_with.get(index, newest.seq_no)), newest) for index in self.actors.indexes
        }

    def reset(self, old_state: Mapping[str, Any]) -> None:
        """Replace all runners by runners with seeds that `old_state` has not used; they start new episodes."""
        if self._recording is not None:
            self._recording.set_state(old_state.get("recording", {}))
        self._set_sent({"weights_seq_no": old_state.get("weights_seq_no", self.weights_seq_no)})
        generation = 1 + max(old_state.get("generations", [0]))  # missing in recorded data
        self.actors.renew(generation)

    def restore_notes(self, old_state: Mapping[str, Any], is_reset: bool) -> list[str]:
        """Return the number of sub-environments that start new episodes, and whether the number of env runners
        differs."""
        return [] if is_reset else [*self._notes_of_long_episodes(old_state), *self._notes_of_number(old_state)]

    def _notes_of_long_episodes(self, old_state: Mapping[str, Any]) -> list[str]:
        num_too_long = _count_too_long(old_state)
        if not num_too_long:
            return []
        begins = (
            "1 sub-environment begins a new episode"
            if num_too_long == 1
            else f"{num_too_long} sub-environments begin new episodes"
        )
        why = "the running one had more env steps than env.max_replayed_steps, so it cannot be stepped again"
        return [f"{begins}: {why}; to continue it, give the environment `get_state` and `set_state`"]

    def _notes_of_number(self, old_state: Mapping[str, Any]) -> list[str]:
        num_before, num_now = len(old_state.get("runners", ())), self.num_runners
        if num_now == num_before or not num_before:
            return []
        rest = (
            f"continuing the episodes of {num_before}, starting new episodes in {num_now - num_before}"
            if num_now > num_before
            else f"aborting the episodes of {num_before - num_now}"
        )
        runners = f"{num_before} env runner{'' if num_before == 1 else 's'}"
        return [f"the checkpoint has {runners}, and the cluster has resources for {num_now}: {rest}"]

    def close(self) -> None:
        """Close all runners; recorded episodes not yet written to a complete file are discarded."""
        try:
            if self._recording is not None:
                self._recording.abort()
        finally:
            self.actors.close()


@dataclass(eq=False)  # one per update; frozen dataclasses take longer to create
class _SentWeights:
    """Weights that runners act with.

    Attributes:
        seq_no: number of the weights.
        weights: module id -> vector.
        share: see `EnvRunnerGroup`.
    """

    seq_no: int
    weights: Weights
    share: Callable[[Any], Any]

    @cached_property
    def shared(self) -> Any:
        """The weights, cheap to send to all runners; None before the first weights."""
        return self.share(dict(self.weights)) if self.weights else None


def _sample_of(future: SampleFuture) -> Sample:
    """Wait for a sample, and return it with writable arrays; arrays from Ray's object store may be read-only."""
    sample: Sample = future.result().numbered(future.index, future.weights_seq_no)
    return sample if future.reference is None else sample.with_writable_rows()


def _count_too_long(state: Mapping[str, Any]) -> int:
    """Return the number of sub-environments whose running episodes are too long to be stepped again."""
    runners = [of_runner.get("runner", of_runner) for of_runner in state.get("runners", {}).values()]
    return sum(name.startswith("too_long_") for runner in runners for name in runner.get("env", {}))


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for counted in counts for name in counted)
    return {name: sum(counted.get(name, 0) for counted in counts) for name in names}
