"""Prioritised replay in several shards, each in a separate process if env runners are remote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runner.config.algorithms import Schedule
from runner.episodes import nested
from runner.episodes.block_state import rollout_from_state, rollout_to_state
from runner.episodes.columns import Column, Rollout
from runner.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from runner.replay.replay_buffer import BufferEmpty, Replayed
from runner.replay.row_ring import Rows
from runner.replay.shards import Answer, KnownAnswer, LocalShards, MakeShards, ReplayShard, with_values
from runner.restarts import ActorDied
from runner.streams import restore_stream, stream_state


class _Drawn(NamedTuple):
    """A sample that was drawn ahead: its shard, its env steps, and its pending answer."""

    shard: int
    num_env_steps: int
    answer: Answer


class ShardedReplayBuffer(PrioritizedReplayBuffer):
    """Prioritised buffers (shards) that are sampled in turn (Horgan et al., 2018, section 3 of
    https://arxiv.org/abs/1803.00933).

    An episode stays in one shard, and so do all samples of an env runner while its episodes are running. Env runners
    write to the shards in turn, so shards beyond the number of env runners stay empty. Only one shard is filled if each
    item has the samples of all env runners (`ParallelRollouts` with `mode: bulk_sync`). Each sample comes from one
    shard. It is drawn during the previous update, so it does not reflect the priorities of that update. If the process
    of a shard dies and cannot be restored, its experiences are gone and the run continues with an empty shard.

    Args:
        capacity: env steps of each module in all shards together.
        num_shards: S.
        n_step, gamma, alpha, beta, batch_length_T, burn_in_len: see `PrioritizedReplayBuffer`.
        shards: makes the shards; with remote env runners it makes Ray actors.

    Raises:
        ValueError: a number is out of its bounds.
    """

    def __init__(  # noqa: PLR0913 - the arguments of PrioritizedReplayBuffer
        self,
        capacity: int = 10_000,
        num_shards: int = 3,
        n_step: int | Sequence[int] = 1,
        gamma: float = 1.0,
        alpha: float = 0.6,
        beta: Schedule = 0.4,
        batch_length_T: int = 1,  # noqa: N803 - RLlib's name
        burn_in_len: int = 0,
        shards: MakeShards = LocalShards,
    ) -> None:
        if not isinstance(num_shards, int) or num_shards < 1:
            raise ValueError(f"num_shards must be a positive integer, got {num_shards!r}")
        of_sampling = (batch_length_T, n_step, gamma, burn_in_len, alpha, beta)
        super().__init__(capacity, *of_sampling)
        self.num_shards = num_shards
        of_shard = max(2, capacity // num_shards)

        def make_shard(index: int, generation: int) -> ReplayShard:
            return ReplayShard(of_shard, *of_sampling)

        self._shards = shards(make_shard, num_shards)
        self._held: list[set[str]] = [set() for _ in range(num_shards)]  # modules with experiences in each shard
        self._shard_of: dict[str, int] = {}  # running episode -> its shard
        self._next_written = self._next_sampled = 0
        self._drawn: _Drawn | None = None

    # -- shards ------------------------------------------------------------------------------------------------------

    def _prepare(self, index: int) -> None:
        stream = np.random.Generator(np.random.PCG64(self._stream.integers(2**63, size=4)))
        self._shards.submit(index, "use_stream", stream)
        self._shards.submit(index, "use_lookback", dict(self._num_lookback))

    def use_lookback(self, num_lookback: Mapping[str, int]) -> None:
        """Set the number of steps before each sample, and the random streams of the shards; see `ReplayBuffer`."""
        super().use_lookback(num_lookback)
        for index in range(self.num_shards):
            self._prepare(index)

    def _begin_empty(self, index: int) -> None:
        """Record that an empty shard has replaced one whose process died."""
        if self._drawn is not None and self._drawn.shard == index:
            self._drawn = None
        self._held[index] = set()
        self._prepare(index)

    def _call(self, index: int, method: str, *arguments: Any) -> Answer | None:
        """Start a call of a shard; return None if its process has died and an empty shard has replaced it."""
        try:
            return self._shards.submit(index, method, *arguments)
        except ActorDied:
            self._begin_empty(index)
            return None

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Return the answers of all shards; a shard that dies meanwhile is called again after its replacement."""
        answers = [self._call(index, method, *arguments) for index in range(self.num_shards)]
        return [self._answer_of(index, answer, method, *arguments) for index, answer in enumerate(answers)]

    def _answer_of(self, index: int, answer: Answer | None, method: str, *arguments: Any) -> Any:
        while True:
            try:
                if answer is not None:
                    return answer.result()
            except ActorDied:
                self._begin_empty(index)
            answer = self._call(index, method, *arguments)

    # -- experiences -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of env steps that can be sampled, of all shards."""
        return sum(self._call_all("__len__"))

    @property
    def module_ids(self) -> list[str]:
        """The modules with env steps in the buffer."""
        return list(dict.fromkeys(module_id for held in self._held for module_id in sorted(held)))

    @property
    def is_full(self) -> bool:
        """Whether a shard is full."""
        return any(self._call_all("is_full"))

    def add(self, rollout: Rollout) -> None:
        """Write the experiences to the shard that contains the start of their episodes, or to the next one."""
        index = self._shard_for(rollout)
        while self._call(index, "add", rollout) is None:
            pass
        self._held[index] |= {module_id for module_id, block in rollout.blocks.items() if block.num_rows}

    def _shard_for(self, rollout: Rollout) -> int:
        blocks = rollout.blocks.values()
        known = (self._shard_of[id_] for block in blocks for id_ in block.episode_ids if id_ in self._shard_of)
        index = next(known, None)
        if index is None:
            index = self._next_written
            self._next_written = (index + 1) % self.num_shards
        for block in blocks:
            for id_, is_over in zip(block.episode_ids, block.is_terminated | block.is_truncated, strict=True):
                if is_over:
                    self._shard_of.pop(id_, None)
                else:
                    self._shard_of[id_] = index
        return index

    def sample(self, num_env_steps: int, num_env_steps_sampled: int = 0) -> Replayed:
        """Return the sample that was drawn ahead, and draw the next one; see `ReplayBuffer`."""
        drawn, self._drawn = self._drawn, None
        if drawn is None or drawn.num_env_steps != num_env_steps:
            self._next_sampled = self._next_sampled if drawn is None else drawn.shard
            drawn = self._draw(num_env_steps, num_env_steps_sampled)
        while True:
            try:
                replayed = drawn.answer.result()
                break
            except ActorDied:
                self._begin_empty(drawn.shard)
                drawn = self._draw(num_env_steps, num_env_steps_sampled)
        with suppress(BufferEmpty):  # all other shards begin empty
            self._drawn = self._draw(num_env_steps, num_env_steps_sampled)
        rows = {module_id: of_shard * self.num_shards + drawn.shard for module_id, of_shard in replayed.rows.items()}
        return Replayed(replayed.rollout.with_writable_rows(), rows)

    def _draw(self, num_env_steps: int, num_env_steps_sampled: int) -> _Drawn:
        """Request a sample from the next shard that has experiences."""
        for _ in range(self.num_shards):
            index = self._next_sampled
            self._next_sampled = (index + 1) % self.num_shards
            if self._held[index]:
                answer = self._call(index, "sample", num_env_steps, num_env_steps_sampled)
                if answer is not None:
                    return _Drawn(index, num_env_steps, answer)
        raise BufferEmpty("no shard has experiences")

    def update_priorities(self, module_id: str, rows: Rows, td_errors: npt.NDArray[Any]) -> None:
        """Set the priorities of rows (B,) of one sample or several; see `PrioritizedReplayBuffer`."""
        errors, shards = self.checked_errors(module_id, rows, td_errors), rows % self.num_shards
        for index in np.unique(shards).tolist():
            is_here = shards == index
            if module_id in self._held[index]:
                self._call(index, "update_priorities", module_id, rows[is_here] // self.num_shards, errors[is_here])

    def write_columns(
        self, module_id: str, rows: Rows, columns: Mapping[str, Column], lengths: Rows | None = None
    ) -> None:
        """Replace columns of rows (B,) of one sample or several; see `ReplayBuffer`.

        A sample that was drawn ahead keeps the old values.
        """
        self.check_written(rows, columns, lengths)
        shards = rows % self.num_shards
        chunks = None if lengths is None else np.repeat(np.arange(len(lengths)), lengths)
        for index in np.unique(shards).tolist():
            is_here = shards == index
            if module_id in self._held[index]:
                here = {name: nested.take(column, np.flatnonzero(is_here)) for name, column in columns.items()}
                of_shard = None if lengths is None or chunks is None else lengths[np.unique(chunks[is_here])]
                self._call(index, "write_columns", module_id, rows[is_here] // self.num_shards, here, of_shard)

    def metrics(self) -> dict[str, float | int | None]:
        """Return the contents of all shards, and the mean priority."""
        of_shards: list[dict[str, Any]] = self._call_all("metrics")
        summed = {name: sum(one[name] for one in of_shards) for name in ("num_env_steps", "num_bytes")}
        weighted = [one["mean_priority"] * one["num_env_steps"] for one in of_shards if one["num_env_steps"]]
        return {
            "capacity": self.capacity * max(1, len(self.module_ids)),
            **summed,
            "age_of_oldest": self.num_shards * max(one["age_of_oldest"] for one in of_shards),
            "mean_priority": sum(weighted) / summed["num_env_steps"] if weighted else None,
            "num_shard_restarts": self._shards.restarts.count,
        }

    # -- contents ----------------------------------------------------------------------------------------------------

    def get_state(self, has_experiences: bool = True) -> dict[str, Any]:
        """Return the states of all shards, the positions of both cycles, and the sample that was drawn ahead."""
        shards = self._call_all("get_state", has_experiences)
        drawn = self._drawn
        replayed = None
        if drawn is not None and has_experiences:
            try:
                replayed = drawn.answer.result()
                self._drawn = drawn._replace(answer=KnownAnswer(replayed))
            except ActorDied:
                self._begin_empty(drawn.shard)
        return {
            "has_experiences": has_experiences,
            "shards": shards,
            "shard_of": dict(self._shard_of) if has_experiences else {},
            "num_restarts": self._shards.restarts.count,
            "held": [sorted(held) if has_experiences else [] for held in self._held],
            "next": [self._next_written, self._next_sampled],
            "drawn": None if drawn is None or replayed is None else _drawn_state(drawn, replayed),
            "stream": stream_state(self._stream),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state` of a buffer with the same arguments."""
        for index, of_shard in enumerate(state["shards"]):
            self._answer_of(index, None, "set_state", with_values(of_shard))
        self._held = [set(held) for held in state["held"]]
        self._shard_of = {id_: int(index) for id_, index in state["shard_of"].items()}
        self._shards.restarts.count = int(state["num_restarts"])
        self._next_written, self._next_sampled = map(int, state["next"])
        self._drawn = None if state["drawn"] is None else _drawn_from_state(state["drawn"])
        restore_stream(self._stream, state["stream"])

    def close(self) -> None:
        """Free the shards."""
        self._shards.abandon()


def _drawn_state(drawn: _Drawn, replayed: Replayed) -> dict[str, Any]:
    return {
        "shard": drawn.shard,
        "num_env_steps": drawn.num_env_steps,
        "rollout": rollout_to_state(replayed.rollout),
        "rows": dict(replayed.rows),
    }


def _drawn_from_state(state: Mapping[str, Any]) -> _Drawn:
    replayed = Replayed(rollout_from_state(state["rollout"]), state["rows"])
    return _Drawn(int(state["shard"]), int(state["num_env_steps"]), KnownAnswer(replayed))
