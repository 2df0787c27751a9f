"""The ring of rows against a plain list of everything that was ever written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.errors import RunFailure
from runner.episodes.columns import ColumnBlock
from runner.replay.row_ring import RowRing
from runner.streams import random_stream

# Of one add: for each of some slots the steps of its chunk, and how it ends.
ENDINGS = ("goes on", "terminated", "truncated")
chunks = st.tuples(st.integers(1, 7), st.sampled_from(ENDINGS))
adds = st.lists(st.dictionaries(st.integers(0, 3), chunks, min_size=1), min_size=1, max_size=12)


@dataclass
class Row:
    """One observation: number `t` of episode `episode`; its step, as soon as it is known."""

    episode: int
    t: int
    ending: str | None = None


@dataclass
class Everything:
    """All rows in the order of their observations, and what comes next in each of four slots."""

    rows: list[Row] = field(default_factory=list)
    episode_of: list[int] = field(default_factory=lambda: [0, 1, 2, 3])
    t_of: list[int] = field(default_factory=lambda: [0] * 4)
    num_episodes: int = 4

    def find(self, episode: int, t: int) -> int | None:
        found = [number for number, row in enumerate(self.rows) if (row.episode, row.t) == (episode, t)]
        return found[-1] if found else None

    def add(self, of_slots: dict[int, tuple[int, str]], capacity: int) -> ColumnBlock:
        """Write a chunk in each of these slots; returns them as a block."""
        obs, actions, endings, lengths, ids, t_started = [], [], [], [], [], []
        oldest = len(self.rows) - capacity
        for slot, (length, ending) in of_slots.items():
            episode, first = self.episode_of[slot], self.t_of[slot]
            steps = range(first, first + length)
            last_seen = self.find(episode, first)
            if last_seen is None or last_seen < oldest:
                self.rows.append(Row(episode, first))
            for t in steps:
                found = self.find(episode, t)
                assert found is not None
                self.rows[found].ending = ending if t == steps[-1] else "goes on"
                self.rows.append(Row(episode, t + 1))
            obs += [[episode, t] for t in range(first, first + length + 1)]
            actions += [100 * episode + t for t in steps]
            endings.append(ending)
            lengths.append(length)
            ids.append(str(episode))
            t_started.append(first)
            self.t_of[slot] = first + length
            if ending != "goes on":
                self.episode_of[slot], self.t_of[slot] = self.num_episodes, 0
                self.num_episodes += 1
        return ColumnBlock(
            columns={
                "obs": {"x": np.array(obs), "y": (np.array(obs)[:, 1].astype(np.float32),)},
                "actions": np.array(actions),
                "rewards": np.array(actions, np.float32) + 1,
            },
            lengths=np.array(lengths, np.int64),
            is_terminated=np.array(endings) == "terminated",
            is_truncated=np.array(endings) == "truncated",
            t_started=np.array(t_started, np.int64),
            episode_ids=ids,
        )

    def held(self, capacity: int) -> list[int]:
        """The rows with a step among the newest."""
        oldest = max(0, len(self.rows) - capacity)
        return [number for number, row in enumerate(self.rows) if number >= oldest and row.ending is not None]

    def transition(self, number: int, n_step: int) -> tuple[list[int], int, float, int, str]:
        """Observation and action of a row, its return over n steps, and the observation and ending after them."""
        row = self.rows[number]
        total, t = 0.0, row.t
        for step in range(n_step):
            total += 0.5**step * (100 * row.episode + t + 1)
            ending = self.rows[self.find(row.episode, t) or 0].ending
            t += 1
            after = self.find(row.episode, t)
            if ending != "goes on" or after is None or self.rows[after].ending is None:
                break
        assert ending is not None
        return [row.episode, row.t], 100 * row.episode + row.t, total, t, ending


@given(adds=adds, capacity=st.integers(2, 40), n_step=st.integers(1, 5), seed=st.integers(0, 9))
def test_a_ring_holds_the_newest_rows_and_their_transitions(
    adds: list[dict[int, tuple[int, str]]], capacity: int, n_step: int, seed: int
) -> None:
    everything, ring = Everything(), RowRing(capacity)
    for of_slots in adds:
        block = everything.add(of_slots, capacity)
        rows = ring.add(block)
        assert ring.num_written == len(everything.rows)
        held = everything.held(capacity)
        assert ring.num_env_steps == len(held)
        assert set(rows.tolist()) <= set(held)
    if not held:
        return
    drawn = ring.draw(60, random_stream(seed, "test"))
    assert set(drawn.tolist()) <= set(held)
    every = np.array(held)
    transitions = ring.transitions(every, n_step, 0.5)
    for number, episode in zip(held, transitions, strict=True):
        first, action, total, t_after, ending = everything.transition(number, n_step)
        observations = episode.get_observations()["x"].tolist()
        assert observations == [first, [first[0], t_after]]
        assert episode.get_observations()["y"][0].tolist() == [first[1], t_after]
        assert episode.get_actions().tolist() == [action]
        assert episode.get_rewards().tolist() == pytest.approx([total])
        assert (episode.is_terminated, episode.is_truncated) == (ending == "terminated", ending == "truncated")
        assert episode.get_extra_model_outputs("n_step").tolist() == [t_after - first[1]]


@given(adds=adds, capacity=st.integers(2, 40), cuts=st.lists(st.booleans(), min_size=12, max_size=12))
def test_segments_make_the_same_ring_again(
    adds: list[dict[int, tuple[int, str]]], capacity: int, cuts: list[bool]
) -> None:
    everything, ring, segments, after = Everything(), RowRing(capacity), [], []
    for of_slots, is_cut in zip(adds, cuts, strict=False):
        block = everything.add(of_slots, capacity)
        ring.add(block)
        after.append(block)
        if is_cut:
            segments.append(ring.segment())
            after = []
    if not segments:
        return
    again = RowRing(capacity)
    for segment in segments:
        again.load(segment)
    for block in after:  # a ring goes on as the one that was never left
        again.add(block)
    assert (again.num_written, again.num_env_steps) == (ring.num_written, ring.num_env_steps)
    held = np.array(everything.held(capacity), np.int64)
    for n_step in (1, 3) if len(held) else ():
        ours, theirs = again.transitions(held, n_step, 0.5), ring.transitions(held, n_step, 0.5)
        np.testing.assert_equal(dict(ours.columns), dict(theirs.columns))
        np.testing.assert_array_equal(ours.is_terminated, theirs.is_terminated)
    new = [segment["num_written"] for segment in segments]
    assert all(len(one["rows"]) <= 4 + end - start for one, start, end in zip(segments, [0, *new], new, strict=False))


@given(adds=adds, capacity=st.integers(2, 40), length=st.integers(1, 6))
def test_fragments_follow_an_episode(adds: list[dict[int, tuple[int, str]]], capacity: int, length: int) -> None:
    everything, ring = Everything(), RowRing(capacity, "m")
    for of_slots in adds:
        ring.add(everything.add(of_slots, capacity))
    held = everything.held(capacity)
    if not held:
        return
    fragments = ring.fragments(np.array(held), length)
    assert fragments.module_id == "m"
    for number, chunk in zip(held, fragments, strict=True):
        first, _, _, t_after, ending = everything.transition(number, length)
        steps = np.arange(first[1], t_after + 1)
        assert chunk.get_observations()["x"].tolist() == [[first[0], t] for t in steps]
        assert chunk.get_actions().tolist() == (100 * first[0] + steps[:-1]).tolist()
        assert chunk.get_rewards().tolist() == (100 * first[0] + steps[:-1] + 1).tolist()
        assert (chunk.is_terminated, chunk.is_truncated) == (ending == "terminated", ending == "truncated")


def test_each_row_may_have_a_range_of_its_own() -> None:
    everything, ring = Everything(), RowRing(20)
    ring.add(everything.add({0: (6, "terminated")}, 20))
    transitions = ring.transitions(np.array([0, 0, 4]), np.array([1, 3, 3]), 0.5)
    assert transitions.columns["n_step"].tolist() == [1, 3, 2]
    assert transitions.columns["rewards"].tolist() == [1.0, 1 + 2 / 2 + 3 / 4, 5 + 6 / 2]


def test_every_step_is_equally_likely() -> None:
    everything, ring = Everything(), RowRing(12)
    for length in (3, 7, 4):
        ring.add(everything.add({0: (length, "terminated")}, 12))
    counts = np.bincount(ring.draw(20_000, random_stream(0, "test")))
    held = everything.held(12)
    assert np.flatnonzero(counts).tolist() == held
    assert abs(counts[held] - 20_000 / len(held)).max() < 5 * (20_000 / len(held)) ** 0.5


def test_a_chunk_that_was_left_out_is_a_seam() -> None:
    everything, ring = Everything(), RowRing(30)
    ring.add(everything.add({0: (3, "goes on")}, 30))
    everything.add({0: (2, "goes on")}, 30)  # never stored
    rows = ring.add(everything.add({0: (4, "terminated")}, 30))
    every = np.array([0, 1, 2, *rows.tolist()])
    for episode in ring.transitions(every, 5):
        first, last = episode.get_observations()["x"][:, 1].tolist()
        assert (first < 3) == (last <= 3)
        assert episode.get_extra_model_outputs("n_step").tolist() == [last - first]


def test_other_columns_are_refused() -> None:
    everything, ring = Everything(), RowRing(30)
    ring.add(everything.add({0: (3, "goes on")}, 30))
    block = everything.add({0: (3, "goes on")}, 30)
    with pytest.raises(RunFailure, match="other columns"):
        ring.add(replace(block, columns={**block.columns, "more": np.zeros(3)}))
    assert ring.num_env_steps == 3


def test_an_empty_ring_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="an empty buffer cannot be sampled"):
        RowRing(3).draw(1, random_stream(0, "test"))
