"""Several env runners as one: shares work, sends weights and merged states, replaces runners that are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import RunFailure
from runner.env_runners.env_runner import Sample, Weights
from runner.env_runners.handles import Pending, RunnerHandle, RunnerLost
from runner.env_runners.rollout_buffer import FinishedEpisodes
from runner.env_runners.sample_recording import SampleRecording
from runner.episodes import nested
from runner.pipelines.pipeline import EnvToModulePipeline
from runner.restarts import Restarts

if TYPE_CHECKING:
    from runner.offline.recorder import Recorded

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

    Attributes:
        counts: metric name -> what all runners have counted.
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
    ) -> None:
        self._make_handle = make_handle
        self._handles = [make_handle(index, 0) for index in range(num_runners)]
        self._generations = [0] * num_runners
        self._env_to_module = env_to_module
        self._restarts = Restarts(max_restarts, _RESTART_KEYS)
        self._role = role
        self._share = share
        self._recording = recording
        self._weights: Any = None
        self.shared_state: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    @property
    def num_runners(self) -> int:
        """The number of runners, W."""
        return len(self._handles)

    @property
    def num_restarts(self) -> int:
        """The number of lost runners that were replaced so far."""
        return self._restarts.count

    def set_weights(self, weights: Weights) -> None:
        """Act with these parameters (module id -> vector) from the next call on."""
        self._weights = self._share(dict(weights))

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(self, num_env_steps: int, explore: bool) -> list[Sample]:
        """Sample at least `num_env_steps` env steps in all, shared evenly; one sample a runner, in their order."""
        shares = _shares(max(num_env_steps, self.num_runners), self.num_runners)
        samples: list[Sample] = self._submit("sample", shares, explore)()
        self._record(samples)
        self.shared_state = {
            module_id: pipeline.merge_states(
                [state[module_id] for sample in samples for state in (sample.shared_state, *sample.further_states)]
            )
            for module_id, pipeline in self._env_to_module.items()
        }
        self.counts = _summed([sample.counts for sample in samples])
        return [_writable(sample) for sample in samples]

    def _record(self, samples: Sequence[Sample]) -> None:
        for index, sample in enumerate(samples):
            if self._recording is not None and sample.to_record is not None:
                (block,) = sample.rollout.blocks.values()
                self._recording.add(index, block, sample.to_record)

    def addresses(self) -> list[str]:
        """Return where simulators connect, `host:port` of each runner; empty where runners step environments."""
        addresses: list[str] = self._submit_all([("address",)] * self.num_runners)()
        return addresses

    def submit_evaluation(self, num_episodes: int, explore: bool) -> Callable[[], FinishedEpisodes]:
        """Start `num_episodes` whole episodes, always with the same seeds; call the result to wait for them.

        On remote runners they go on in parallel to whatever the driver does.
        """
        shares = _shares(num_episodes, min(num_episodes, self.num_runners))  # the other runners have nothing to do
        wait = self._submit("evaluate", shares, explore)
        return lambda: FinishedEpisodes.concatenated(wait())

    def _submit(self, method: str, shares: Sequence[int], explore: bool) -> Callable[[], list[Any]]:
        shared_state = self._share(self.shared_state)
        calls = [(method, share, explore, self._weights, shared_state) for share in shares]
        return self._submit_all(calls)

    def _submit_all(self, calls: Sequence[tuple[Any, ...]]) -> Callable[[], list[Any]]:
        """Start one call (method, *args) on each of the first runners; call the result to wait for all answers."""
        pending = [handle.submit(*call) for handle, call in zip(self._handles, calls, strict=False)]
        return lambda: [self._wait(index, calls[index], wait) for index, wait in enumerate(pending)]

    def _wait(self, index: int, call: tuple[Any, ...], wait: Pending) -> Any:
        losses_in_a_row = 0
        while True:
            try:
                return wait()
            except RunnerLost as lost:
                losses_in_a_row += 1
                self._replace(index, lost, losses_in_a_row)
                wait = self._handles[index].submit(*call)
            except RunFailure as failure:
                where = ", ".join(filter(None, (f"{self._role} {index}", failure.problem.where)))
                raise RunFailure(replace(failure.problem, where=where)) from failure

    def _replace(self, index: int, lost: RunnerLost, losses_in_a_row: int) -> None:
        """Put a new runner in the place of a lost one."""
        self._restarts.add(f"{self._role} {lost}", losses_in_a_row)
        self._handles[index].close()
        self._make(index, self._generations[index] + 1)

    def _make(self, index: int, generation: int) -> None:
        self._generations[index] = generation
        if self._recording is not None:
            self._recording.forget(index)
        self._handles[index] = self._make_handle(index, generation)

    def finish_recording(self) -> Recorded:
        """Finish the files of all runners."""
        if self._recording is not None:
            return self._recording.finish()
        recorded: list[Recorded] = self._submit_all([("finish_recording",)] * self.num_runners)()
        return sum(recorded[1:], recorded[0])

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the states of all runners."""
        states = self._submit_all([("get_state",)] * self.num_runners)()
        recording = {} if self._recording is None else {"recording": self._recording.get_state()}
        return {
            **recording,
            "runners": {str(index): state for index, state in enumerate(states)},
            "generations": list(self._generations),
            "shared": self.shared_state,
            "num_restarts": self.num_restarts,
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
            if generation != self._generations[index]:
                self._handles[index].close()
                self._make(index, int(generation))
        self._restarts.count = int(state["num_restarts"])
        self.shared_state = dict(state["shared"])
        if self._recording is not None:
            self._recording.set_state(state.get("recording", {}))
        self._submit_all([("set_state", states[str(index)]) for index in range(self.num_runners)])()

    def start_anew(self, state: Mapping[str, Any]) -> None:
        """Replace all runners by ones with seeds that `state` has not used; they start new episodes."""
        if self._recording is not None:
            self._recording.set_state(state.get("recording", {}))
        generation = 1 + max(state.get("generations", [0]))  # recorded data have none
        for index, handle in enumerate(self._handles):
            handle.close()
            self._make(index, generation)

    def close(self) -> None:
        """Close all runners; recorded episodes that are in no whole file are dropped."""
        if self._recording is not None:
            self._recording.abort()
        for handle in self._handles:
            handle.close()


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(counted[name] for counted in counts) for name in counts[0]}


def _shares(total: int, num_parts: int) -> list[int]:
    """Return `total` in `num_parts` whole parts that differ by one at most."""
    return [total // num_parts + (index < total % num_parts) for index in range(num_parts)]


def _writable(sample: Sample) -> Sample:
    """Return the sample with arrays that may be written to; arrays out of Ray's object store may not."""
    blocks = {
        module_id: replace(block, columns=nested.map_leaves(_writable_array, dict(block.columns)))
        for module_id, block in sample.rollout.blocks.items()
    }
    return replace(sample, rollout=replace(sample.rollout, blocks=blocks))


def _writable_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.require(array, requirements="W")
