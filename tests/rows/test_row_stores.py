"""Both writers of the row store, on numpy and on torch tensors, against lists of episodes that a naive loop grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, ColumnBlock
from runner.rows.agent_rows import AgentRows
from runner.rows.array_namespace import ArrayNamespace
from runner.rows.lock_step_rows import LockStepRows
from runner.rows.row_store import RowStore
from tests.rows.namespaces import BLANKS, NAMESPACES, as_given, filled, on_host

BLANK_ACTION = (np.zeros((), np.int32), np.zeros(2, np.float32))
OUTPUT = {"h": np.zeros((1, 2), np.float32)}  # a nested extra column

namespaces = pytest.mark.parametrize("xp", NAMESPACES.values(), ids=NAMESPACES)
blanks = pytest.mark.parametrize("blank", BLANKS.values(), ids=BLANKS)
runs = given(
    seed=st.integers(0, 10_000),
    num_slots=st.integers(1, 4),
    fragments=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    lookback=st.integers(0, 3),
)
some_runs = settings(max_examples=12, deadline=None, derandomize=True)


@dataclass
class Episode:
    """An episode as lists: T + 1 observations and T of everything else."""

    id_: str
    obs: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    num_cut: int = 0  # steps that are in blocks

    def columns(self, steps: slice) -> dict[str, Any]:
        """Columns of some steps, arrays with a row for each."""
        return {
            OBS: nested.stack(self.obs[steps.start : steps.stop + 1]),
            ACTIONS: nested.stack(self.actions[steps]) if steps.stop > steps.start else None,
            REWARDS: np.array(self.rewards[steps], np.float32),
            "out": nested.stack(self.outputs[steps]) if steps.stop > steps.start else None,
        }


class Numbers:
    """Items that are all different, as far as their dtypes allow."""

    def __init__(self, blank_obs: Any) -> None:
        self._blank_obs = blank_obs
        self._next = 0

    def _number(self) -> int:
        self._next += 1
        return self._next

    def obs(self) -> Any:
        return filled(self._blank_obs, self._number())

    def step(self) -> tuple[Any, Any, float]:
        """An action, an output and a reward."""
        return filled(BLANK_ACTION, self._number()), filled(OUTPUT, self._number()), float(self._number() % 17)


def check_block(block: ColumnBlock, xp: ArrayNamespace, episodes: Sequence[Episode], lookback: int) -> None:
    """The block has all steps that are in no block yet, in the order of these episodes."""
    expected = [episode for episode in episodes if len(episode.actions) > episode.num_cut]
    assert list(block.episode_ids) == [episode.id_ for episode in expected]
    for number, episode in enumerate(expected):
        steps = slice(episode.num_cut, len(episode.actions))
        assert (block.t_started[number], block.lengths[number]) == (steps.start, steps.stop - steps.start)
        assert (block.is_terminated[number], block.is_truncated[number]) == (episode.terminated, episode.truncated)
        first, first_obs = int(block.offsets[number]), int(block.first_obs_rows[number])
        rows = {name: slice(first, first + steps.stop - steps.start) for name in block.columns}
        rows[OBS] = slice(first_obs, first_obs + steps.stop - steps.start + 1)
        for name, column in episode.columns(steps).items():
            assert_same(nested.take(block.columns[name], rows[name]), column, xp)
        check_lookback(block, xp, number, episode, lookback)
        episode.num_cut = steps.stop


def check_lookback(block: ColumnBlock, xp: ArrayNamespace, number: int, episode: Episode, lookback: int) -> None:
    num_before = 0 if block.lookback is None else int(block.lookback.num_before[number])
    assert num_before == min(lookback, episode.num_cut)
    if block.lookback is not None and num_before:
        before = episode.columns(slice(episode.num_cut - num_before, episode.num_cut))
        before[OBS] = nested.take(before[OBS], slice(num_before))  # the next one is the chunk's first
        for name, column in block.lookback.columns_before(number).items():
            assert_same(column, before[name], xp)


def check_running(rows: RowStore, xp: ArrayNamespace, episodes: Sequence[Episode], lookback: int) -> None:
    """Views, newest rows and histories show the running episodes."""
    assert len(rows) == len(episodes)
    assert_same(rows.current_obs, nested.stack([episode.obs[-1] for episode in episodes]), xp)
    assert on_host(xp, rows.starts_episode).tolist() == [not episode.actions for episode in episodes]
    for view, episode in zip(rows, episodes, strict=True):
        seen_before = min(lookback, episode.num_cut)
        assert (view.id_, view.t_started, view.t) == (episode.id_, episode.num_cut, len(episode.actions))
        assert (view.is_terminated, view.is_truncated) == (episode.terminated, episode.truncated)
        assert view.rewards.lookback == seen_before
        columns = episode.columns(slice(episode.num_cut - seen_before, len(episode.actions)))
        assert_same(view.observations.data, columns[OBS], xp)
        assert_same(view.rewards.data, columns[REWARDS], xp)
        if columns[ACTIONS] is not None:
            assert_same(view.actions.data, columns[ACTIONS], xp)
            assert_same(view.extra_model_outputs["out"].data, columns["out"], xp)
    for column in (OBS, ACTIONS, REWARDS):
        for length in range(1, lookback + (column == OBS) + 1):
            check_history(rows, xp, episodes, column, length)


def check_history(rows: RowStore, xp: ArrayNamespace, episodes: Sequence[Episode], column: str, length: int) -> None:
    values, is_there = on_host(xp, rows.history(column, length))
    for number, episode in enumerate(episodes):
        items = {OBS: episode.obs, ACTIONS: episode.actions, REWARDS: episode.rewards}[column][-length:]
        num_missing = length - len(items)
        assert is_there[number].tolist() == [False] * num_missing + [True] * len(items)
        if items:
            assert nested.equal(nested.take(values, (number, slice(num_missing, None))), nested.stack(list(items)))
        for leaf in nested.leaves(nested.take(values, (number, slice(num_missing)))):
            assert not leaf.any()


def assert_same(got: Any, expected: Any, xp: ArrayNamespace) -> None:
    """Equal values and dtypes, in arrays of the namespace."""
    got = on_host(xp, got)
    assert nested.equal(got, expected)
    if not isinstance(expected, np.ndarray) or expected.dtype != np.float64:
        assert [leaf.dtype for leaf in nested.leaves(got)] == [leaf.dtype for leaf in nested.leaves(expected)]


# -- in lock step ------------------------------------------------------------------------------------------------------


class LockStep:
    """Sub-environments that end at random, and what a naive loop keeps of them."""

    def __init__(self, xp: ArrayNamespace, blank: Any, seed: int, num_envs: int, lookback: int) -> None:
        self.xp, self.lookback, self.blank = xp, lookback, blank
        self._random = np.random.default_rng(seed)
        self._numbers = Numbers(blank)
        self.rows = self.new_rows(num_envs)
        self.of_env = [[Episode(f"x-{n}-0", [self._numbers.obs()])] for n in range(num_envs)]
        self.ended: list[Episode] = []
        self.rows.add_reset(as_given(xp, self._newest()), {})

    def new_rows(self, num_envs: int) -> LockStepRows:
        return LockStepRows(num_envs, self.blank, BLANK_ACTION, "x", self.lookback, self.xp)

    @property
    def running(self) -> list[Episode]:
        return [episodes[-1] for episodes in self.of_env]

    def _newest(self) -> Any:
        return nested.stack([episode.obs[-1] for episode in self.running])

    def step(self, *others: LockStepRows) -> None:
        """Write a vector step to the rows, and to others."""
        results = [self._numbers.step() for _ in self.of_env]
        ends = self._random.integers(0, 10, len(self.of_env))
        resets = [episode.terminated or episode.truncated for episode in self.running]
        terminateds, truncateds = (ends == 0) & ~np.array(resets), (ends == 1) & ~np.array(resets)
        for n, (action, output, reward) in enumerate(results):
            if resets[n]:
                self.of_env[n].append(Episode(f"x-{n}-{len(self.of_env[n])}", [self._numbers.obs()]))
                continue
            episode = self.running[n]
            episode.actions.append(action)
            episode.outputs.append(output)
            episode.rewards.append(reward)
            episode.obs.append(self._numbers.obs())
            episode.terminated, episode.truncated = bool(terminateds[n]), bool(truncateds[n])
            if terminateds[n] or truncateds[n]:
                self.ended.append(episode)
        outputs = {ACTIONS: nested.stack([r[0] for r in results]), "out": nested.stack([r[1] for r in results])}
        rewards = np.array([reward for _, _, reward in results])
        for rows in (self.rows, *others):
            obs, flags = as_given(self.xp, self._newest()), as_given(self.xp, (terminateds, truncateds))
            rows.add_step(obs, as_given(self.xp, rewards), *flags, {}, as_given(self.xp, outputs))

    def check_cut(self, rows: LockStepRows) -> None:
        """Cut, and compare with the lists."""
        num_steps = rows.num_env_steps
        fragment = rows.cut()
        assert fragment.block.num_rows == num_steps
        episodes = [episode for episodes in self.of_env for episode in episodes]
        check_block(fragment.block, self.xp, episodes, self.lookback)
        assert fragment.finished.returns.tolist() == [sum(episode.rewards) for episode in self.ended]
        assert fragment.finished.lengths.tolist() == [len(episode.actions) for episode in self.ended]
        assert fragment.finished.env_of.tolist() == [int(episode.id_.split("-")[1]) for episode in self.ended]
        self.ended.clear()


@namespaces
@blanks
@runs
@some_runs
def test_lock_step(
    xp: ArrayNamespace, blank: Any, seed: int, num_slots: int, fragments: list[int], lookback: int
) -> None:
    driver = LockStep(xp, blank, seed, num_slots, lookback)
    for num_steps in fragments:
        for _ in range(num_steps):
            check_running(driver.rows, xp, driver.running, lookback)
            driver.step()
            awaits = [episode.terminated or episode.truncated for episode in driver.running]
            assert on_host(xp, driver.rows.awaits_reset).tolist() == awaits
        driver.check_cut(driver.rows)
        if num_steps % 2:
            state, driver.rows = driver.rows.get_state(), driver.new_rows(num_slots)
            driver.rows.set_state(state)
    check_running(driver.rows, xp, driver.running, lookback)


@namespaces
def test_a_fragment_without_a_step_is_empty(xp: ArrayNamespace) -> None:
    driver = LockStep(xp, BLANKS["dict"], 3, 2, 1)
    for _ in range(2):
        assert len(driver.rows.cut().block) == 0
    driver.step()
    driver.check_cut(driver.rows)
    assert len(driver.rows.cut().block) == 0
    check_running(driver.rows, xp, driver.running, 1)


def test_running_episodes_are_indexed_like_a_list() -> None:
    rows = LockStep(NAMESPACES["numpy"], BLANKS["box"], 0, 2, 0).rows
    assert rows[-1].id_ == "x-1-0"
    with pytest.raises(IndexError, match="sub-environment 2 of 2"):
        rows[2]


# -- each slot at its own time -----------------------------------------------------------------------------------------


class Agents:
    """Agents of one sub-environment each that begin, act, wait, are observed and end at random."""

    def __init__(self, xp: ArrayNamespace, blank: Any, seed: int, num_slots: int, lookback: int) -> None:
        self.xp, self.lookback, self.blank = xp, lookback, blank
        self._random = np.random.default_rng(seed)
        self._numbers = Numbers(blank)
        self.rows = self.new_rows(num_slots)
        self.of_slot: list[list[Episode]] = [[] for _ in range(num_slots)]
        self._waiting: dict[int, tuple[Any, Any, float]] = {}
        self.t = 0

    def new_rows(self, num_slots: int) -> AgentRows:
        return AgentRows("m", ["a"], num_slots, self.blank, BLANK_ACTION, "x", self.lookback, self.xp)

    def _is_running(self, slot: int) -> bool:
        episodes = self.of_slot[slot]
        return bool(episodes) and not (episodes[-1].terminated or episodes[-1].truncated)

    def step(self) -> None:
        """Let some slots begin or be observed, and some of these end; the others that were observed act."""
        self.t += 1
        is_met = self._random.random(len(self.of_slot)) < 0.6
        begun = [slot for slot in range(len(self.of_slot)) if is_met[slot] and not self._is_running(slot)]
        seen = [slot for slot in sorted(self._waiting) if is_met[slot]]
        self._begin(begun)
        self._observe(seen)
        self.rows.slots = self._given(np.array(begun + seen, np.int64))
        if begun or seen:
            check_running(self.rows, self.xp, [self.of_slot[slot][-1] for slot in begun + seen], self.lookback)
        self._act([slot for slot in begun + seen if self._is_running(slot)])

    def _given(self, tree: Any) -> Any:
        return as_given(self.xp, tree)

    def _begin(self, slots: list[int]) -> None:
        if not slots:
            return
        for slot in slots:
            id_ = f"x-{slot}-{len(self.of_slot[slot])}-a"
            self.of_slot[slot].append(Episode(id_, [self._numbers.obs()]))
        numbers = np.array([len(self.of_slot[slot]) - 1 for slot in slots])
        self.rows.begin(*self._given((np.array(slots), self._newest(slots), np.full(len(slots), self.t), numbers)))

    def _newest(self, slots: list[int]) -> Any:
        return nested.stack([self.of_slot[slot][-1].obs[-1] for slot in slots])

    def _observe(self, slots: list[int]) -> None:
        if not slots:
            return
        flags = self._random.integers(0, 6, len(slots))
        rewards = np.array([self._waiting[slot][2] for slot in slots])
        numbers = np.array([len(self.of_slot[slot]) - 1 for slot in slots])
        self.rows.add_rewards(*self._given((np.array(slots), rewards, numbers)))
        for slot, flag in zip(slots, flags, strict=True):
            episode, (action, output, reward) = self.of_slot[slot][-1], self._waiting.pop(slot)
            episode.actions.append(action)
            episode.outputs.append(output)
            episode.rewards.append(reward)
            episode.obs.append(self._numbers.obs())
            episode.terminated, episode.truncated = bool(flag == 0), bool(flag == 1)
        self.rows.observe(*self._given((np.array(slots), self._newest(slots), np.full(len(slots), self.t))))
        ends = flags < 2
        if ends.any():
            self.rows.end(*self._given((np.array(slots)[ends], flags[ends] == 0, flags[ends] == 1)))

    def _act(self, slots: list[int]) -> None:
        if not slots:
            return
        self._waiting |= {slot: self._numbers.step() for slot in slots}
        actions, outputs = (nested.stack([self._waiting[slot][part] for slot in slots]) for part in (0, 1))
        self.rows.act(self._given(np.array(slots)), self._given({ACTIONS: actions, "out": outputs}))


@namespaces
@blanks
@runs
@some_runs
def test_slots_with_their_own_time(
    xp: ArrayNamespace, blank: Any, seed: int, num_slots: int, fragments: list[int], lookback: int
) -> None:
    driver = Agents(xp, blank, seed, num_slots, lookback)
    for num_steps in fragments:
        for _ in range(num_steps):
            driver.step()
        block = driver.rows.cut().block
        check_block(block, xp, [episode for episodes in driver.of_slot for episode in episodes], lookback)
        if num_steps == 1:
            driver.of_slot += [[], []]
            driver.rows.add_slots(2)
        elif num_steps % 2:
            state, driver.rows = driver.rows.get_state(), driver.new_rows(len(driver.of_slot))
            driver.rows.set_state(state)


# -- both --------------------------------------------------------------------------------------------------------------


@namespaces
def test_written_observations_are_held_and_raw_ones_stay(xp: ArrayNamespace) -> None:
    rows = LockStepRows(2, np.zeros(1, np.float32), np.int64(0), "x", 1, xp)
    no = as_given(xp, np.zeros(2, np.bool_))
    rows.add_reset(as_given(xp, np.array([[1.0], [2.0]], np.float32)), {})
    for number in (10.0, 20.0, 30.0):
        rows.write_obs(as_given(xp, np.full((2, 1), -number, np.float64)))
        obs = as_given(xp, np.full((2, 1), number, np.float32))
        rows.add_step(obs, as_given(xp, np.ones(2)), no, no, {}, {ACTIONS: as_given(xp, np.zeros(2, np.int64))})
    rows.write_obs(as_given(xp, np.full((2, 1), -40.0)))
    assert on_host(xp, rows.current_obs).tolist() == [[30], [30]]
    assert on_host(xp, rows[0].observations.data).tolist() == [[-10], [-20], [-30], [-40]]
    fragment = rows.cut()
    assert on_host(xp, fragment.raw_obs)[:, 0].tolist() == [1, 10, 20, 30, 2, 10, 20, 30]
    assert on_host(xp, fragment.block.columns[OBS])[:, 0].tolist() == [-10, -20, -30, -40] * 2


@namespaces
def test_the_newest_step_needs_a_lookback(xp: ArrayNamespace) -> None:
    for lookback, expected in ((0, None), (1, [3, 3])):
        rows = LockStepRows(2, np.zeros(1), np.int64(0), "x", lookback, xp)
        rows.add_reset(as_given(xp, np.zeros((2, 1))), {})
        assert rows.newest_step("unknown") is None
        no = as_given(xp, np.zeros(2, np.bool_))
        actions = as_given(xp, np.full(2, 3))
        rows.add_step(as_given(xp, np.ones((2, 1))), as_given(xp, np.ones(2)), no, no, {}, {ACTIONS: actions})
        newest = rows.newest_step(ACTIONS)
        assert (None if newest is None else newest.tolist()) == expected
        with pytest.raises(ValueError, match=f"needs a longer lookback than {lookback} steps"):
            rows.history(OBS, lookback + 2)


def test_states_of_numpy_and_torch_are_the_same() -> None:
    states: list[Any] = []
    for xp in NAMESPACES.values():
        driver = LockStep(xp, BLANKS["tuple"], 5, 3, 2)
        for _ in range(7):
            driver.step()
        driver.check_cut(driver.rows)
        states.append({name: value for name, value in driver.rows.get_state().items() if value is not None})
    assert nested.equal(*states)
