"""The newest weights by sequence number, their files for clients, and inference on the server."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from runner.env_runners.mask_checks import check_masks
from runner.env_runners.sample import Weights
from runner.episodes import nested
from runner.episodes.spaces import blank_item
from runner.module_building import BuiltActingModule
from runner.modules.flat_parameters import FlatParameters
from runner.pipelines.connector import ACTIONS_FOR_ENV
from runner.pipelines.custom_metrics import ReducedMetrics
from runner.pipelines.pipeline import taken_metrics
from runner.rllink.messages import NewObservation
from runner.rllink.received_episodes import OpenEpisode, SampledChunks
from runner.rllink.weights_files import OnnxFile, SafetensorsFile
from runner.rows.agent_rows import AgentRows

# File format (`onnx`, `safetensors`) -> module id -> maker of its file.
FileMakers = Mapping[str, Mapping[str, OnnxFile | SafetensorsFile]]


@dataclass(frozen=True)
class Version:
    """One version of the weights.

    Attributes:
        seq_no: its sequence number.
        weights: module id -> parameters (P,).
        shared_state: module id -> merged state of the connectors that runners share.
    """

    seq_no: int
    weights: Weights
    shared_state: Mapping[str, Any]


@dataclass
class Versions:
    """The newest versions.

    Args:
        num_kept: number of versions to keep.
        makers: file format (`onnx`, `safetensors`) -> module id -> maker of its file.
        newest_seq_no: number before the first version.
    """

    num_kept: int
    makers: FileMakers
    newest_seq_no: int = 0
    num_files_made: int = 0
    _kept: dict[int, Version] = field(default_factory=dict)
    _files: dict[tuple[str, str], bytes] = field(default_factory=dict)

    @property
    def newest(self) -> Version | None:
        """Return the newest version, or None before the first one."""
        return self._kept.get(self.newest_seq_no)

    def add(self, weights: Weights, shared_state: Mapping[str, Any], needed: int | None = None) -> Version:
        """Add a version with the next number; keep all versions from number `needed` on, even more than `num_kept`."""
        self.newest_seq_no += 1
        version = Version(self.newest_seq_no, weights, shared_state)
        self._kept[version.seq_no] = version
        self._files.clear()
        for seq_no in list(self._kept)[: -self.num_kept]:
            if needed is None or seq_no < needed:
                del self._kept[seq_no]
        return version

    def get(self, seq_no: int) -> Version | None:
        """Return the version, or None if it is not kept any more."""
        return self._kept.get(seq_no)

    @property
    def kept(self) -> list[int]:
        """Return the numbers of the kept versions."""
        return list(self._kept)

    def compressed_file(self, file_format: str, module_id: str) -> bytes:
        """Return a module's file of the newest version, made once for all clients; ONNX files are gzip-compressed."""
        key = file_format, module_id
        if key not in self._files:
            newest = self._kept[self.newest_seq_no]
            content = self.makers[file_format][module_id](
                newest.weights[module_id], newest.shared_state.get(module_id, {}), newest.seq_no
            )
            self._files[key] = content if file_format == "safetensors" else gzip.compress(content, 1, mtime=0)
            self.num_files_made += 1
        return self._files[key]


_FIRST_SLOTS = 64


@dataclass(eq=False, slots=True)
class ServedEpisode:
    """An open episode in which the server chooses the actions.

    Attributes:
        episode: the open episode.
        slot: slot in the rows of its module.
        number: number of the episode among the episodes of its module in this run, from 0.
        num_steps: number of complete env steps so far.
    """

    episode: OpenEpisode
    slot: int
    number: int
    num_steps: int = 0


@dataclass(eq=False, slots=True)
class ObservedStep:
    """One element of a request: an observation, and the end of the step before it.

    Attributes:
        sent: the element.
        episode: the episode of the observation.
        served: the same episode on the server, or None if it begins here.
        obs: the observation as arrays without a leading axis.
    """

    sent: NewObservation
    episode: OpenEpisode
    served: ServedEpisode | None
    obs: Any


class ModuleInference:
    """Chooses actions with one module in any number of episodes, and stores their steps until `cut`.

    Args:
        parts: module and pipelines, only used for inference.
        num_lookback: number of past steps that chunks can see.
    """

    def __init__(self, built: BuiltActingModule, num_lookback: int) -> None:
        self.parts = built
        self._weights = FlatParameters(built.module)
        obs, action = blank_item(built.spec.observation_space), blank_item(built.module.action_space)
        self._rows = _EpisodeRows(built.spec.module_id, obs, action, num_lookback)
        self._free = list(range(_FIRST_SLOTS))[::-1]
        self._numbers = itertools.count()
        self._by_id: dict[str, ServedEpisode] = {}
        self._lost: list[str] = []
        self._learned: list[dict[str, Any]] = []

    def load(self, weights: Any) -> None:
        """Use these parameters (P,) from now on."""
        self._weights.load(weights)

    def use_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        """Set the merged state of shared connectors; `learned` still returns everything learned before this call."""
        self._learned.append(self._take_learned())
        self.parts.env_to_module.set_state(shared_state)

    def learned(self) -> list[dict[str, Any]]:
        """Return the states that connectors have learned since the last call, before merging."""
        learned, self._learned = [*self._learned, self._take_learned()], []
        return learned

    def take_metrics(self) -> ReducedMetrics:
        """Return the metrics that connectors have reported since the last call."""
        return taken_metrics({self.parts.spec.module_id: (self.parts.env_to_module, self.parts.module_to_env)})

    def _take_learned(self) -> dict[str, Any]:
        """Return the state of the connectors; mark it as merged, so that it is counted once."""
        pipeline = self.parts.env_to_module
        state = pipeline.get_state()
        pipeline.set_state(pipeline.merge_states([state]))
        return state

    def forbids_every_action(self, obs: Any) -> bool:
        """Return whether an observation has an action mask that forbids every action.

        `act` would fail, and truncate the episodes of all clients in the batch.
        """
        module = self.parts.module
        key = module.config.action_mask_key
        if key is None or not isinstance(obs, dict) or key not in obs:
            return False
        mask = nested.map_leaves(lambda leaf: leaf[None], obs[key])
        return module.action_dist.first_fully_forbidden(mask) is not None

    def act(self, steps: Sequence[ObservedStep], explore: bool) -> list[tuple[Any, ServedEpisode | None]]:
        """Choose an action for each step.

        Args:
            steps: at most one step per episode.
            explore: whether to sample actions; otherwise the most likely actions are chosen.

        Returns:
            The action for the environment and the episode of each step; None and None if the episode has ended.

        Raises:
            Exception: the module or a pipeline failed; the episodes are truncated.
        """
        served = [self._begin(step.episode) if step.served is None else step.served for step in steps]
        rows = self._rows
        try:
            self._write(steps, served)
            rows.slots = np.array([one.slot for one in served])
            actions = self._forward(explore)
        except Exception:
            for one in served:
                self.lose(one)
            raise
        answers: list[tuple[Any, ServedEpisode | None]] = []
        position = itertools.count()
        for step, one in zip(steps, served, strict=True):
            if step.sent.ends:
                self._free.append(one.slot)
                answers.append((None, None))
            else:
                answers.append((nested.take(actions, next(position)), one))
        return answers

    def _begin(self, episode: OpenEpisode) -> ServedEpisode:
        if not self._free:
            first, more = self._rows.max_rows, self._rows.max_rows
            self._rows.add_slots(more)
            self._free = list(range(first, first + more))[::-1]
        begun = ServedEpisode(episode, self._free.pop(), next(self._numbers))
        self._rows.ids[begun.number] = episode.id
        self._by_id[episode.id] = begun
        return begun

    def _write(self, steps: Sequence[ObservedStep], served: Sequence[ServedEpisode]) -> None:
        rows = self._rows
        begins = np.array([step.served is None for step in steps])
        obs = nested.stack([step.obs for step in steps])
        slots = np.array([one.slot for one in served])
        numbers = np.array([one.number for one in served])
        if begins.any():
            count = int(begins.sum())
            rows.begin(slots[begins], nested.take(obs, begins), np.zeros(count, np.int64), numbers[begins])
        if not begins.all():
            continues = ~begins
            rewards = np.array([step.sent.reward for step in steps], np.float64)
            rows.add_rewards(slots[continues], rewards[continues], numbers[continues])
            for one, is_new in zip(served, begins, strict=True):
                one.num_steps += not is_new
            env_t = np.array([one.num_steps for one in served])
            rows.observe(slots[continues], nested.take(obs, continues), env_t[continues])
        ends = np.array([step.sent.ends for step in steps])
        if ends.any():
            is_terminated = np.array([step.sent.is_terminated for step in steps])
            is_truncated = np.array([step.sent.is_truncated for step in steps])
            rows.end(slots[ends], is_terminated[ends], is_truncated[ends])

    def _forward(self, explore: bool) -> Any:
        """Return the actions (K', ...) of running episodes."""
        parts, rows = self.parts, self._rows
        module, shared_data = parts.module, {}  # type: ignore[var-annotated]
        common = {"rl_module": module, "episodes": rows, "explore": explore, "shared_data": shared_data}
        continues = rows.is_running[rows.slots]
        to_module = parts.env_to_module(batch={}, **common)
        check_masks(module, to_module, continues, lambda row: rows.running_episode(int(rows.slots[row])).id_)
        forward = module.forward_exploration if explore else module.forward_inference
        with torch.no_grad():
            outputs = forward(to_module)
        batch = parts.module_to_env(batch=outputs, **common)
        actions = batch.pop(ACTIONS_FOR_ENV)
        if not continues.all():
            batch, actions = nested.take(batch, continues), nested.take(actions, continues)
        rows.act(rows.slots[continues], batch)
        return actions

    def lose(self, served: ServedEpisode) -> None:
        """Truncate an episode after its last complete step, because its client has disconnected."""
        served.episode.lose()
        rows, slot = self._rows, np.array([served.slot])
        rows.is_waiting[slot] = False
        rows.end(slot, np.array([False]), np.array([True]))
        self._free.append(served.slot)
        self._lost.append(served.episode.id)

    @property
    def has_lost(self) -> bool:
        """Return whether `cut` has lost episodes to forget."""
        return bool(self._lost)

    def _forget(self, id_: str) -> None:
        del self._rows.ids[self._by_id.pop(id_).number]

    def cut(self) -> SampledChunks | None:
        """Return the complete steps so far, or None if there are none.

        Running episodes continue in the next block.
        """
        if not self._by_id:
            return None
        module_to_env, module = self.parts.module_to_env, self.parts.module
        cut = self._rows.cut(lambda columns: module_to_env.complete_fragment(columns, module))
        block = cut.block
        episodes = [self._by_id[id_].episode for id_ in block.episode_ids]
        for id_, is_done in zip(block.episode_ids, block.is_terminated | block.is_truncated, strict=True):
            if is_done:
                self._forget(id_)
        for id_ in self._lost:
            if id_ in self._by_id:  # without a step since the last cut
                self._forget(id_)
        self._lost.clear()
        if not len(block):
            return None
        assert block.agents is not None
        agents = [episode.agent_id or "" for episode in episodes]
        env_ids = [episode.env_id or "" for episode in episodes]
        has_agents = self.parts.spec.agents is not None
        named = replace(block.agents, agent_ids=agents, multi_agent_episode_ids=env_ids) if has_agents else None
        return SampledChunks(replace(block, agents=named), episodes, cut.raw_obs)


class _EpisodeRows(AgentRows):
    """Rows whose slots hold the episodes of clients one after the other; `ids` contains their ids by number."""

    def __init__(self, module_id: str, blank_obs: Any, blank_action: Any, num_lookback: int) -> None:
        super().__init__(module_id, [""], _FIRST_SLOTS, blank_obs, blank_action, "", num_lookback)
        self.ids: dict[int, str] = {}

    def _episode_id(self, slot: int, number: int) -> str:
        return self.ids[number]
