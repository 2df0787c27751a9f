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

# Of one add: chunks, each of a slot, with its steps and how it ends; several of one slot follow each other.
ENDINGS = ("goes on", "terminated", "truncated")
Chunk = tuple[int, tuple[int, str]]
chunks = st.tuples(st.integers(0, 3), st.tuples(st.integers(1, 7), st.sampled_from(ENDINGS)))
adds = st.lists(st.lists(chunks, min_size=1, max_size=5), min_size=1, max_size=12)


@dataclass
class Row:
    """One observation: number `t` of episode `episode`; the row before it; its step, as soon as it is known."""

    episode: int
    t: int
    before: int | None = None
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

    def add(self, chunks: list[Chunk], capacity: int) -> ColumnBlock:
        """Write chunks one after the other; returns them as a block."""
        obs, actions, endings, lengths, ids, t_started = [], [], [], [], [], []
        oldest = len(self.rows) - capacity
        for slot, (length, ending) in chunks:
            episode, first = self.episode_of[slot], self.t_of[slot]
            steps = range(first, first + length)
            last_seen = self.find(episode, first)
            if last_seen is None or last_seen < oldest:
                self.rows.append(Row(episode, first))
            for t in steps:
                found = self.find(episode, t)
                assert found is not None
                self.rows[found].ending = ending if t == steps[-1] else "goes on"
                self.rows.append(Row(episode, t + 1, found))
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

    def past(self, number: int, num_steps: int, capacity: int) -> tuple[list[int], bool]:
        """Up to so many rows before a row, the oldest first; whether the next one was not held."""
        oldest, found = max(0, len(self.rows) - capacity), [number]
        while len(found) <= num_steps:
            row = self.rows[found[0]]
            if row.before is None or row.before < oldest:
                return found[:-1], row.t > 0
            found.insert(0, row.before)
        return found[:-1], False

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
    adds: list[list[Chunk]], capacity: int, n_step: int, seed: int
) -> None:
    everything, ring = Everything(), RowRing(capacity)
    for added in adds:
        block = everything.add(added, capacity)
        rows = ring.add(block)
        assert ring.num_written == len(everything.rows)
        held = everything.held(capacity)
        assert ring.num_env_steps == len(held)
        assert len(rows) == block.num_rows
        assert set(rows[rows >= ring.oldest].tolist()) <= set(held)
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


@given(adds=adds, capacity=st.integers(2, 40), length=st.integers(1, 6))
def test_fragments_follow_an_episode(adds: list[list[Chunk]], capacity: int, length: int) -> None:
    everything, ring = Everything(), RowRing(capacity, "m")
    for added in adds:
        ring.add(everything.add(added, capacity))
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


def seen_before(everything: Everything, number: int, length: int, capacity: int) -> tuple[list[list[int]], list[int]]:
    """What a history shows at a row: (episode, t) of observations up to its own, and the actions before it; zeros where
    there is none."""
    rows = [everything.rows[one] for one in everything.past(number, length, capacity)[0]]
    lacking = length - len(rows)
    observed = [[row.episode, row.t] for row in (*rows, everything.rows[number])]
    return ([[0, 0]] * lacking + observed)[1:], [0] * lacking + [100 * row.episode + row.t for row in rows]


def check_history(everything: Everything, block: ColumnBlock, numbers: list[int], length: int, capacity: int) -> None:
    """Compare the histories of a block's observations, which are in these rows."""
    observed, _ = block.history("obs", length)
    acted, _ = block.history("actions", length)
    for row, number in enumerate(numbers):
        frames, actions = seen_before(everything, number, length, capacity)
        assert observed["x"][row].tolist() == frames
        assert observed["y"][0][row].tolist() == [t for _, t in frames]
        assert acted[row].tolist() == actions


@given(
    adds=adds,
    capacity=st.integers(2, 40),
    num_lookback=st.integers(1, 4),
    n_step=st.integers(1, 4),
    num_back=st.integers(0, 4),
    seed=st.integers(0, 9),
)
def test_what_is_before_a_chunk_comes_with_it(
    adds: list[list[Chunk]], capacity: int, num_lookback: int, n_step: int, num_back: int, seed: int
) -> None:
    everything, ring = Everything(), RowRing(capacity, num_lookback=num_lookback)
    for added in adds:
        ring.add(everything.add(added, capacity))
    again = RowRing(capacity, num_lookback=num_lookback)
    again.set_state(ring.get_state())
    held = everything.held(capacity)
    whole = [number for number in held if not everything.past(number, num_lookback, capacity)[1]]
    if not whole:
        with pytest.raises(RunFailure if held else ValueError, match="does not hold the lookback" if held else "empty"):
            again.draw(1, random_stream(seed, "test"))
        return
    for one in (ring, again):
        assert set(one.draw(40, random_stream(seed, "test")).tolist()) <= set(whole)
        assert one.drawn(len(whole), lambda missing: np.array(held)).tolist() == whole
    rows = np.array(whole)

    transitions = again.transitions(rows, n_step, 0.5)
    after = []
    for number, episode in zip(whole, transitions, strict=True):
        past = [everything.rows[one].t for one in everything.past(number, num_lookback, capacity)[0]]
        assert episode.t_started == episode.rewards.lookback == len(past)
        assert episode.get_observations(slice(-len(past), 0), neg_index_as_lookback=True)["x"][:, 1].tolist() == past
        after.append(everything.find(everything.rows[number].episode, everything.transition(number, n_step)[3]) or 0)
    both = np.stack((whole, after), 1).reshape(-1).tolist()
    check_history(everything, transitions, both, num_lookback, capacity)

    first, num_burn_in = again.step_back(rows, num_back)
    for number, start, steps in zip(whole, first.tolist(), num_burn_in.tolist(), strict=True):
        past, is_cut = everything.past(number, num_back + num_lookback, capacity)
        assert steps == min(len(past) - num_lookback * is_cut, num_back)
        assert start == [*past, number][len(past) - steps]
    fragments = again.fragments(first, num_burn_in + n_step)
    path = [
        everything.past(number, int(steps), capacity)[0] + follow(everything, number, n_step)
        for number, steps in zip(whole, num_burn_in, strict=True)
    ]
    assert fragments.lengths.tolist() == [len(one) - 1 for one in path]
    check_history(everything, fragments, [number for one in path for number in one], num_lookback, capacity)


def follow(everything: Everything, number: int, num_steps: int) -> list[int]:
    """The rows of a row's observation and of the ones after it, up to so many steps."""
    row = everything.rows[number]
    t_after = everything.transition(number, num_steps)[3]
    return [number, *(everything.find(row.episode, t) or 0 for t in range(row.t + 1, t_after + 1))]


def test_two_chunks_of_an_episode_in_one_block_follow_each_other() -> None:
    everything, ring = Everything(), RowRing(30, num_lookback=5)
    ring.add(everything.add([(0, (2, "goes on")), (1, (1, "terminated")), (0, (3, "truncated"))], 30))
    assert ring.num_written == 8, "each observation once"
    episode = ring.fragments(np.array([0]), 9)[0]
    assert episode.get_observations()["x"][:, 1].tolist() == [0, 1, 2, 3, 4, 5]
    assert episode.is_truncated


def test_a_ring_without_links_back_goes_on_with_some() -> None:
    everything, ring = Everything(), RowRing(30)
    ring.add(everything.add([(0, (4, "goes on"))], 30))
    again = RowRing(30, num_lookback=1)
    again.set_state(ring.get_state())
    with pytest.raises(RunFailure, match="does not hold the lookback before any step of module default_policy"):
        again.draw(1, random_stream(0, "test"))
    again.add(everything.add([(0, (4, "goes on"))], 30))
    assert set(again.draw(40, random_stream(0, "test")).tolist()) == {5, 6, 7}


def test_sampled_chunks_have_ids_of_their_own() -> None:
    everything, ring = Everything(), RowRing(30)
    ring.add(everything.add([(0, (4, "goes on"))], 30))
    ids = ring.transitions(np.array([2, 1, 2])).episode_ids
    assert list(ids) == ["row-2-0", "row-1-1", "row-2-2"]
    assert list(ids[1:]) == ["row-1-1", "row-2-2"]


def test_each_row_may_have_a_range_of_its_own() -> None:
    everything, ring = Everything(), RowRing(20)
    ring.add(everything.add([(0, (6, "terminated"))], 20))
    transitions = ring.transitions(np.array([0, 0, 4]), np.array([1, 3, 3]), 0.5)
    assert transitions.columns["n_step"].tolist() == [1, 3, 2]
    assert transitions.columns["rewards"].tolist() == [1.0, 1 + 2 / 2 + 3 / 4, 5 + 6 / 2]


def test_every_step_is_equally_likely() -> None:
    everything, ring = Everything(), RowRing(12)
    for length in (3, 7, 4):
        ring.add(everything.add([(0, (length, "terminated"))], 12))
    counts = np.bincount(ring.draw(20_000, random_stream(0, "test")))
    held = everything.held(12)
    assert np.flatnonzero(counts).tolist() == held
    assert abs(counts[held] - 20_000 / len(held)).max() < 5 * (20_000 / len(held)) ** 0.5


def test_a_chunk_that_was_left_out_is_a_seam() -> None:
    everything, ring = Everything(), RowRing(30)
    ring.add(everything.add([(0, (3, "goes on"))], 30))
    everything.add([(0, (2, "goes on"))], 30)  # never stored
    rows = ring.add(everything.add([(0, (4, "terminated"))], 30))
    every = np.array([0, 1, 2, *rows.tolist()])
    for episode in ring.transitions(every, 5):
        first, last = episode.get_observations()["x"][:, 1].tolist()
        assert (first < 3) == (last <= 3)
        assert episode.get_extra_model_outputs("n_step").tolist() == [last - first]


def test_other_columns_are_refused() -> None:
    everything, ring = Everything(), RowRing(30)
    ring.add(everything.add([(0, (3, "goes on"))], 30))
    block = everything.add([(0, (3, "goes on"))], 30)
    with pytest.raises(RunFailure, match="the columns of new experiences differ"):
        ring.add(replace(block, columns={**block.columns, "more": np.zeros(3)}))
    assert ring.num_env_steps == 3


def test_an_empty_ring_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="an empty buffer cannot be sampled"):
        RowRing(3).draw(1, random_stream(0, "test"))
