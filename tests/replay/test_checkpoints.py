"""Checkpoints of replay buffers: whatever is added, written, deleted and resumed, a buffer is the one it was."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.replay import PrioritizedReplayBuffer, ReplayBuffer, priority_log, row_ring
from runner.segments import Segment, find_segments
from runner.streams import random_stream
from tests.replay.test_replay_buffer import rollout_of
from tests.replay.test_row_ring import Chunk, Everything, chunks

ID = "default_policy"
SMALL = ((row_ring, "LEAST_ROWS_OF_SEGMENT", 3), (row_ring, "MOST_SEGMENTS", 6), (priority_log, "MOST_PARTS", 4))


@contextmanager
def small_segments() -> Iterator[None]:
    with ExitStack() as stack:
        for where, name, value in SMALL:
            stack.enter_context(patch.object(where, name, value))
        yield


def bits_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """Everything that a buffer goes on from, to the bit."""
    found: dict[str, Any] = {
        "stream": buffer._stream.bit_generator.state,
        "others": (buffer._num_samples, list(buffer._marks), len(buffer)),
    }
    for module_id, ring in buffer._rings.items():
        arrays = [leaf for column in ring.columns.values() for leaf in nested.leaves(column)]
        found[module_id] = [array.tobytes() for array in (*arrays, ring._ending, ring._to_successor)]
        waiting = {id_: one for id_, one in ring._waiting.items() if one[0] >= ring.oldest}
        found[f"{module_id}/ring"] = ring.num_written, ring.num_env_steps, waiting, list(ring.columns)
        if isinstance(buffer, PrioritizedReplayBuffer):
            tree = buffer._trees[module_id]
            assert tree.total >= 0  # sums that wait are computed
            found[f"{module_id}/tree"] = [level.tobytes() for level in (*tree._levels, tree._top)]
            found[f"{module_id}/highest"] = buffer._highest[module_id]
    return found


def copied(buffer: ReplayBuffer) -> ReplayBuffer:
    """Return a buffer as this one is, which no checkpoint has anything to do with."""
    buffer._exported = []
    return copy.deepcopy(buffer)


adding = st.tuples(st.just("add"), st.lists(chunks, min_size=1, max_size=5))
training = st.tuples(st.just("train"), st.integers(1, 8))
saving = st.tuples(st.just("save"), st.none())
operations = st.one_of(
    *(adding, adding, adding, training, training, saving, saving),
    st.tuples(st.just("fail"), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("resume"), st.integers(0, 9)),
    st.tuples(st.just("move"), st.none()),
)


class CheckpointedRun:
    """A buffer, the folder of its checkpoints, and for each of them a plain copy of the buffer."""

    def __init__(self, folder: Path, make: Any) -> None:
        self._folder, self._make = folder, make
        self.buffer: ReplayBuffer = make()
        self.buffer.use_stream(random_stream(0, "test"))
        self._everything = Everything()
        self._saved: dict[Path, tuple[ReplayBuffer, Everything]] = {}
        self._num_saved = self._num_errors = 0

    def add(self, added: list[Chunk]) -> None:
        block = self._everything.add(added, self.buffer.capacity)
        self.buffer.add(Rollout({ID: block, "other": block}, block.num_rows))

    def train(self, num: int) -> None:
        if not len(self.buffer):
            return
        replayed = self.buffer.sample(num)
        self._num_errors += 1
        if isinstance(self.buffer, PrioritizedReplayBuffer):
            rows = replayed.rows[ID]
            self.buffer.update_priorities(ID, rows, 0.1 + rows % 7 * 0.3 + self._num_errors % 5)

    def save(self, _: None) -> None:
        folder = self._folder / f"iteration_{self._num_saved:06d}"
        self._num_saved += 1
        save_checkpoint(folder, {"replay": self.buffer.get_state()}, {})
        self._saved[folder] = copied(self.buffer), copy.deepcopy(self._everything)

    def fail(self, number: int) -> None:
        """Write a checkpoint, in vain."""
        before = bits_of(self.buffer)
        full = [*[None] * number, OSError(28, "No space left on device")]
        with patch("os.fsync", side_effect=full), pytest.raises(OSError, match="No space left"):
            save_checkpoint(self._folder / "iteration_999999", {"replay": self.buffer.get_state()}, {})
        assert bits_of(self.buffer) == before

    def delete(self, number: int) -> None:
        if self._saved:
            folder = list(self._saved)[number % len(self._saved)]
            del self._saved[folder]
            shutil.rmtree(folder)

    def move(self, _: None) -> None:
        """Move all checkpoints elsewhere, as with a run dir that is copied."""
        elsewhere = self._folder.with_name(f"{self._folder.name}x")
        if self._folder.exists():
            shutil.copytree(self._folder, elsewhere)
            shutil.rmtree(self._folder)
        self._saved = {elsewhere / folder.name: kept for folder, kept in self._saved.items()}
        self._folder = elsewhere

    def resume(self, number: int) -> None:
        if self._saved:
            folder = list(self._saved)[number % len(self._saved)]
            straight, everything = self._saved[folder]
            self.buffer = self._make()
            self.buffer.use_stream(random_stream(1, "another"))
            self.buffer.set_state(load_checkpoint(folder)[0]["replay"])
            self._everything = copy.deepcopy(everything)
            assert bits_of(self.buffer) == bits_of(straight)

    def check_all(self) -> None:
        for number in range(len(self._saved)):
            self.resume(number)


@given(
    operations=st.lists(operations, min_size=6, max_size=40), capacity=st.integers(2, 40), is_prioritized=st.booleans()
)
@settings(max_examples=60)
def test_a_resumed_buffer_is_the_one_it_was(
    operations: list[tuple[str, Any]], capacity: int, is_prioritized: bool
) -> None:
    def make() -> ReplayBuffer:
        return PrioritizedReplayBuffer(capacity) if is_prioritized else ReplayBuffer(capacity)

    with small_segments(), tempfile.TemporaryDirectory() as folder:
        run = CheckpointedRun(Path(folder) / "checkpoints", make)
        for name, argument in operations:
            getattr(run, name)(argument)
        run.save(None)
        run.check_all()


def test_a_step_that_comes_late_is_written(tmp_path: Path) -> None:
    """The first episode waits in the first segment, while other episodes fill the next ones."""
    everything, buffer = Everything(), ReplayBuffer(100)

    def add(added: list[Chunk]) -> None:
        block = everything.add(added, 100)
        buffer.add(Rollout({ID: block}, block.num_rows))

    with small_segments():
        add([(0, (2, "goes on")), (1, (60, "goes on"))])
        save_checkpoint(tmp_path / "one", {"replay": buffer.get_state()}, {})
        add([(0, (1, "terminated"))])
        save_checkpoint(tmp_path / "two", {"replay": buffer.get_state()}, {})
        again = ReplayBuffer(100)
        again.set_state(load_checkpoint(tmp_path / "two")[0]["replay"])
    assert bits_of(again) == bits_of(buffer)
    assert len([path for path in (tmp_path / "two").glob("*.segment") if path.stat().st_nlink == 1]) == 2


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_state_in_memory_stays_as_it_is(make: type[ReplayBuffer], tmp_path: Path) -> None:
    with small_segments():
        buffer = make(12)
        buffer.add(rollout_of("a", "b"))
        save_checkpoint(tmp_path / "checkpoint", {"replay": buffer.get_state()}, {})
        expected, states = bits_of(buffer), [buffer.get_state(), buffer.get_state()]
        if isinstance(buffer, PrioritizedReplayBuffer):
            buffer.update_priorities(ID, np.array([1, 2]), np.array([3.0, 4.0]))
        buffer.add(rollout_of("c", first=2))
        shutil.rmtree(tmp_path / "checkpoint")
        for state in states:
            again = make(12)
            again.set_state(state)
            assert bits_of(again) == expected != bits_of(buffer)


def new_bytes(folder: Path) -> int:
    """Bytes of the segments that are in no other checkpoint."""
    files = [path.stat() for path in folder.glob("*.segment")]
    return sum(file.st_size for file in files if file.st_nlink == 1)


def test_a_checkpoint_writes_what_is_new(tmp_path: Path) -> None:
    """Of 200,000 rows of 21 bytes with a priority of 8 bytes, 1,000 are new and 320 have another priority."""
    buffer = PrioritizedReplayBuffer(200_000)
    buffer.add(rollout_of(*(f"a{number}" for number in range(400)), length=499))
    save_checkpoint(tmp_path / "one", {"replay": buffer.get_state()}, {})
    assert 200_000 * 29 <= new_bytes(tmp_path / "one") <= 1.1 * 200_000 * 29
    buffer.add(rollout_of("b", "c", length=499))
    buffer.update_priorities(ID, np.arange(5000, 105_000, 312), np.ones(321))
    save_checkpoint(tmp_path / "two", {"replay": buffer.get_state()}, {})
    assert new_bytes(tmp_path / "two") <= 2 * (1024 * 21 + 500) + (1000 + 321) * 12 + 500
    shutil.rmtree(tmp_path / "one")
    again = PrioritizedReplayBuffer(200_000)
    again.set_state(load_checkpoint(tmp_path / "two")[0]["replay"])
    assert bits_of(again) == bits_of(buffer)
    save_checkpoint(tmp_path / "three", {"replay": again.get_state()}, {})
    assert new_bytes(tmp_path / "three") == 0, "a resumed buffer goes on with the files that it was read from"
    save_checkpoint(tmp_path / "another run" / "one", {"replay": again.get_state()}, {})
    assert new_bytes(tmp_path / "another run" / "one") >= 200_000 * 29, "runs share no files"


def test_priorities_are_written_anew_when_changes_are_many(tmp_path: Path) -> None:
    buffer = PrioritizedReplayBuffer(1000)
    buffer.add(rollout_of("a", length=999))
    nums = []
    for number in range(2 * priority_log.MOST_PARTS):
        buffer.update_priorities(ID, np.arange(9) + 9 * (number % 100), np.full(9, number + 1.0))
        state = buffer.get_state()
        save_checkpoint(tmp_path / "checkpoint", {"replay": state}, {})
        nums.append(len(state["modules"][ID]["priorities"]))
    # 1 + 55 segments hold 495 changes of 1,000 places.
    assert nums[:57] == [*range(1, 57), 1]
    assert max(nums) == 56


@pytest.mark.parametrize("values", [{"segments": []}, {"num_written": 9000}])
def test_a_state_of_another_ring_is_refused(values: Mapping[str, Any]) -> None:
    buffer = ReplayBuffer(5000)
    buffer.add(rollout_of("a"))
    ring = buffer.get_state()["modules"][ID]["ring"]
    with pytest.raises(ValueError, match="rows are in"):
        row_ring.RowRing(5000).set_state({**ring, **values})
    cut = {**ring["segments"][0].values(), "ending": np.zeros(3, np.uint8)}
    with pytest.raises(ValueError, match="segment 0 has 6 rows, got 3"):
        row_ring.RowRing(5000).set_state({**ring, "segments": [Segment(ring["segments"][0].file, lambda: cut)]})


def test_a_state_without_experiences_begins_empty() -> None:
    buffer = PrioritizedReplayBuffer(100)
    buffer.add(rollout_of("a"))
    buffer.sample(4)
    state = buffer.get_state(has_experiences=False)
    assert list(find_segments(state)) == []
    again = PrioritizedReplayBuffer(100)
    again.add(rollout_of("x", module_ids=("another",)))
    again.set_state(state)
    assert len(again) == 0
    assert again.metrics()["mean_priority"] is None
    assert again._stream.bit_generator.state == buffer._stream.bit_generator.state, "no number is drawn twice"
    again.add(rollout_of("b"))
    assert again.metrics()["age_of_oldest"] == 0
