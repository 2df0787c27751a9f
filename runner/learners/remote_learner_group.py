"""Several learners of the same modules: Ray actors that update synchronously, each on different rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.cluster.actor_gang import ActorGang
from runner.cluster.actors import Role
from runner.cluster.placement import Placement
from runner.config.blocks import LearnersConfig
from runner.config.operators import LEARNERS
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.episodes.rollout_parts import split_rollout
from runner.learners.gradients import GroupGradients, gradients_of_peers
from runner.learners.learner import Learner
from runner.learners.learner_actors import LearnerActor, MakeLearners, copied, to_array, with_threads
from runner.learners.train_batch import MakeReaders
from runner.learners.trained_network import in_present_layout
from runner.learners.update_results import RecordedUpdates, UpdateResult
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import MultiRLModule, modules_in
from runner.modules.rl_module import RLModule
from runner.parts import Part
from runner.pipelines.custom_metrics import merged_metrics
from runner.pipelines.pipeline import STREAMS
from runner.restarts import Restarts


class RemoteLearnerGroup(Part):
    """The interface of `Learner` for learners in Ray actors; gradients are averaged before each step.

    Each learner gets an equal share of a rollout's rows, and makes its train batch with its learner pipelines. It also
    reads recorded data itself.

    The answer to each update contains the state after it, so this process always has the newest state. If a learner
    dies, all learners restart from this state and repeat the call. Either all learners complete an update once, or the
    run ends.

    Args:
        make_learners: makes the learners of one actor.
        modules: module id -> a module like the learner's, which converts its state to weights; see `networks_of`.
        acting: ids of the modules that env runners use.
        config: number and resources of the learners, and the limit of restarts.
        num_lookback: past steps that remain visible to a chunk that is split between two learners.
        keeps_unsplit: whether each learner also gets the rows of all others, to read; see `Rollout.unsplit`.
        start_timeout_s: time limit for the start of all learners. With few cores they import torch one by one.

    Attributes:
        gang: the actors.

    Raises:
        RunFailure: a learner cannot be created.
    """

    name = LEARNERS

    def __init__(
        self,
        make_learners: MakeLearners,
        modules: Mapping[str, RLModule | MultiRLModule],
        acting: Collection[str],
        config: LearnersConfig,
        num_lookback: int,
        keeps_unsplit: bool = False,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.num_learners = config.num_learners
        self._config, self._num_lookback = config, num_lookback
        self._start_timeout_s = start_timeout_s
        self._keeps_unsplit = keeps_unsplit
        self._modules = dict(modules)
        self._parameters = {module_id: FlatParameters(modules[module_id]) for module_id in acting}
        self._weights: dict[str, npt.NDArray[np.float32]] | None = None  # None if `_states` is newer
        placement = Placement(config.resources_per_learner, config.num_learners, config.scheduling_strategy)
        role = Role("learner", LearnerActor, placement, start_timeout_s=None)
        restarts = Restarts(config.max_restarts, "learners.max_restarts")
        make = partial(with_threads, make_learners, config.torch_num_threads)
        self.gang = ActorGang(role, make, self.num_learners, restarts, self._prepare)
        self._updating: object | None = None  # the current update, until its end was waited for
        self._make_readers: MakeReaders | None = None
        # By rank, learners and pipelines: complete for the first learner, otherwise only the unshared state.
        self._states: list[dict[str, Any]] = []
        self._states = self._call_all("state", [()] * self.num_learners)

    @property
    def num_restarts(self) -> int:
        """Number of times that all learners were restarted after one of them crashed."""
        return self.gang.restarts.count

    # -- updates ---------------------------------------------------------------------------------------------------

    def update(self, rollout: Rollout, num_env_steps: int) -> UpdateResult:
        """Update each module once on all of its rows, after `num_env_steps` env steps in total.

        A module with fewer rows than learners is not changed.
        """
        return self.begin_update(self._parts(rollout), num_env_steps)()

    def send(self, rollout: Rollout) -> list[Any]:
        """Send each learner its share of a rollout for `begin_update`, even while another update is running.

        Returns:
            Ray's references to the shares.
        """
        parts = self._parts(rollout)
        self.gang.begin("receive", [(part,) for part in parts])
        return parts

    def begin_update(self, sent: Sequence[Any], num_env_steps: int) -> Callable[[], UpdateResult]:
        """Start an update on the result of `send`; no other changes of the learners are allowed until its end.

        Returns:
            A function that waits for the end, and returns the same as `update`.
        """
        self._check_not_updating()
        arguments = [(part, num_env_steps) for part in sent]
        generation, begun = self.gang.generation, self.gang.begin("update", arguments)
        update = self._updating = object()

        def attempt() -> list[Any]:
            is_begun = begun and generation == self.gang.generation
            return self.gang.answers(begun) if is_begun else self.gang.call("update", arguments)

        def end() -> UpdateResult:
            if self._updating is not update:
                raise RuntimeError("the state of the learners was replaced during this update")
            self._updating = None
            return _joined(self._change_all(attempt))

        return end

    def _check_not_updating(self) -> None:
        if self._updating is not None:
            raise RuntimeError("the learners cannot be changed during an update")

    def gradients(self, rollout: Rollout, num_env_steps: int) -> GroupGradients:
        """Compute one gradient of all rows for each trained module; parameters do not change.

        Raises:
            LossNotFinite: a loss is not finite.
        """
        arguments = [(part, num_env_steps) for part in self._parts(rollout)]
        parts: list[GroupGradients] = self._updated("gradients", arguments)
        return gradients_of_peers(parts)

    def apply(self, gradients: GroupGradients, num_env_steps: int) -> dict[str, dict[str, float]]:
        """Take one step of each module along its gradient; returns metrics by module id."""
        metrics: dict[str, dict[str, float]]
        metrics = self._updated("apply", [(gradients, num_env_steps)] * self.num_learners)[0]
        return metrics

    def update_targets(self, tau: float) -> None:
        """Move the targets of each trained module: target <- target + tau (network - target)."""
        self._updated("update_targets", [(tau,)] * self.num_learners)

    def _parts(self, rollout: Rollout) -> list[Any]:
        """Put each learner's share of a rollout into Ray's object store, and return the references."""
        import ray

        unsplit = rollout.unsplit or rollout.blocks if self._keeps_unsplit else None
        parts = split_rollout(rollout, self.num_learners, self._num_lookback)
        return [ray.put(replace(part, unsplit=unsplit)) for part in parts]

    def read_from(self, make_readers: MakeReaders) -> None:
        """Make each learner read batches from its reader from now on."""
        self.gang.until_done(lambda: self.gang.call("read_from", [(reader,) for reader in make_readers()]))
        self._make_readers = make_readers

    def update_on_recorded(self, most: int | None, num_env_steps: int) -> RecordedUpdates:
        """Update on the next batches until the end of the pass, at most `most` of them."""
        done: list[RecordedUpdates]
        done = self._updated("update_on_recorded", [(most, num_env_steps)] * self.num_learners)
        reported = merged_metrics(one.connector_metrics for one in done)
        return replace(done[0], compile_s=max(one.compile_s for one in done), connector_metrics=reported)

    def _updated(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method that changes the learners, store their new states, and return their answers."""
        return self._change_all(lambda: self.gang.call(method, arguments))

    def _change_all(self, attempt: Callable[[], list[Any]]) -> list[Any]:
        """Store the states in the answers of all learners, and return the remaining answers."""
        self._check_not_updating()
        answers = self.gang.until_done(attempt)
        self._states = [state for _, state in answers]
        self._weights = None
        return [answer for answer, _ in answers]

    # -- actors --------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Connect restarted learners to each other, and set the newest state."""
        [address] = self.gang.answers([self.gang.actors[0].submit("free_address")], self._start_timeout_s)
        joins = [(rank, self.num_learners, address) for rank in range(self.num_learners)]
        self.gang.call("join", joins, self._start_timeout_s)
        if self._states:
            self.gang.call("set_state", self._complete_states())
        if self._make_readers is not None:
            self.gang.call("read_from", [(reader,) for reader in self._make_readers()])

    def _call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the answers of all learners to a call that does not change them."""
        return self.gang.until_done(lambda: self.gang.call(method, arguments))

    def _complete_states(self) -> list[tuple[dict[str, Any]]]:
        shared = self._states[0]["learners"]
        return [
            (
                {
                    "learners": {id_: {**shared[id_], **state["learners"].get(id_, {})} for id_ in shared},
                    "pipelines": state["pipelines"],
                },
            )
            for state in self._states
        ]

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def modules(self) -> Mapping[str, RLModule]:
        """The modules by id: copies in this process, with the newest parameters."""
        self.get_weights()
        return modules_in(self._modules)

    def metrics(self) -> dict[str, int]:
        """Return the metrics for the end of an iteration."""
        return {"fault_tolerance/num_learner_restarts": self.num_restarts}

    def get_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return module id -> parameters (P,) of the acting modules, for env runners."""
        if self._weights is None:
            for module_id, state in self._states[0]["learners"].items():
                tensors = {name: torch.from_numpy(np.array(value)) for name, value in state["module"].items()}
                self._modules[module_id].load_state_dict(tensors)
            self._weights = {module_id: parameters.to_numpy() for module_id, parameters in self._parameters.items()}
        return self._weights

    def get_state(self) -> dict[str, Any]:
        """Return the states of learners and pipelines; `peers` is the unshared state of all but the first learner."""
        first, *peers = nested.map_leaves(copied, tuple(self._states))
        return {**first, "peers": peers, "num_restarts": self.num_restarts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; if the number of learners differs, random streams are as in a new run."""
        state = in_present_layout(state)
        first = {name: nested.map_leaves(to_array, dict(state[name])) for name in ("learners", "pipelines")}
        peers = [in_present_layout(peer) for peer in state.get("peers", ())]
        if len(peers) != self.num_learners - 1:
            peers = [_unshared_from(first, unshared) for unshared in self._states[1:]]
        self._states, self._weights, self._updating = [first, *peers], None, None
        self.gang.restarts.count = int(state.get("num_restarts", 0))
        self._call_all("set_state", self._complete_states())

    def close(self) -> None:
        """End the actors."""
        self.gang.close()


Learners = Learner | RemoteLearnerGroup


def _joined(parts: Sequence[UpdateResult]) -> UpdateResult:
    """Combine the results of all learners: all rows, the metrics of the first learner, and the longest times."""
    rows: dict[str, Any] = {
        module_id: {name: np.concatenate([part.rows[module_id][name] for part in parts]) for name in names}
        for module_id, names in parts[0].rows.items()
    }
    longest = {name: max(getattr(part, name) for part in parts) for name in ("connector_s", "update_s", "compile_s")}
    reported = merged_metrics(part.connector_metrics for part in parts)
    return UpdateResult(parts[0].metrics, rows=rows, connector_metrics=reported, **longest)


def _unshared_from(saved: Mapping[str, Any], unshared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unshared state of the first learner in a saved state, with the streams of another learner."""
    learners = {
        module_id: {name: value for name, value in saved["learners"][module_id].items() if name in state}
        for module_id, state in unshared["learners"].items()
    }
    return _with_streams({"learners": learners, "pipelines": saved["pipelines"]}, unshared)


def _with_streams(saved: Mapping[str, Any], streams: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved state, with its random streams replaced by `streams`, at any depth."""
    found: dict[str, Any] = dict(saved)
    for name in saved.keys() & streams.keys():
        if name in ("stream", "loss_stream", STREAMS):
            found[name] = streams[name]
        elif isinstance(saved[name], Mapping) and isinstance(streams[name], Mapping):
            found[name] = _with_streams(saved[name], streams[name])
    return found
