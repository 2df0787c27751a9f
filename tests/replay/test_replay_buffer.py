"""Replay buffers of all modules: sampling, priorities, what they report, and their state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.errors import RunFailure
from runner.episodes.columns import ColumnBlock, Rollout
from runner.replay import PrioritizedReplayBuffer, ReplayBuffer
from runner.streams import random_stream

ID = "default_policy"


def rollout_of(*ids: str, length: int = 5, module_ids: tuple[str, ...] = (ID,), first: int = 0) -> Rollout:
    """Terminated episodes with these ids; step t of episode number e has the action 100 e + t and the reward 1."""
    num_rows = length * len(ids)
    numbers = np.arange(first, first + len(ids))
    block = ColumnBlock(
        columns={
            "obs": (100 * numbers[:, None] + np.arange(length + 1)).reshape(-1, 1).astype(np.float32),
            "actions": (100 * numbers[:, None] + np.arange(length)).reshape(-1),
            "rewards": np.ones(num_rows, np.float32),
        },
        lengths=np.full(len(ids), length),
        is_terminated=np.ones(len(ids), np.bool_),
        is_truncated=np.zeros(len(ids), np.bool_),
        t_started=np.zeros(len(ids), np.int64),
        episode_ids=list(ids),
    )
    return Rollout(dict.fromkeys(module_ids, block), num_rows)


def with_stream(buffer: ReplayBuffer) -> ReplayBuffer:
    buffer.use_stream(random_stream(0, "test"))
    return buffer


def prioritized(**arguments: float) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(**{"capacity": 100, **arguments})  # type: ignore[arg-type]
    buffer.use_stream(random_stream(0, "test"))
    return buffer


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_a_sample_has_so_many_steps(length: int) -> None:
    buffer = with_stream(ReplayBuffer(100, batch_length_T=length))
    buffer.add(rollout_of("a", "b", "c"))
    for num_env_steps in (1, 7, 32):
        replayed = buffer.sample(num_env_steps)
        block = replayed.rollout.blocks[ID]
        assert block.num_rows == replayed.rollout.num_env_steps == num_env_steps
        assert len(replayed.rows[ID]) == num_env_steps
        assert max(block.lengths) <= length
        assert (replayed.rows[ID] == np.repeat(replayed.rows[ID][block.offsets[:-1]], block.lengths)).all()
        for row, chunk in zip(replayed.rows[ID][block.offsets[:-1]].tolist(), block, strict=True):
            assert chunk.get_observations()[0, 0] == 100 * (row // 6) + row % 6
            assert (np.diff(chunk.get_observations()[:, 0]) == 1).all()


def test_each_transition_draws_its_own_range() -> None:
    buffer = with_stream(ReplayBuffer(100, n_step=[2, 4]))
    buffer.add(rollout_of("a", length=60))
    columns = buffer.sample(300).rollout.blocks[ID].columns
    assert set(columns["n_step"].tolist()) == {2, 3, 4} | ({1} & set(columns["n_step"].tolist()))
    np.testing.assert_array_equal(columns["rewards"], columns["n_step"])


def test_modules_are_sampled_by_themselves() -> None:
    buffer = with_stream(ReplayBuffer(100))
    buffer.add(rollout_of("a", module_ids=("left", "right")))
    buffer.add(rollout_of("b", module_ids=("right",), first=1))
    replayed = buffer.sample(50)
    actions = {name: set(block.columns["actions"].tolist()) for name, block in replayed.rollout.blocks.items()}
    assert actions["left"] == set(range(5))
    assert actions["right"] == {*range(5), *range(100, 105)}
    assert {block.module_id for block in replayed.rollout.blocks.values()} == {"left", "right"}
    assert len(buffer) == 5


def test_the_mean_priority_is_of_all_modules() -> None:
    buffer = prioritized()
    buffer.add(rollout_of("a", module_ids=("left", "right")))
    buffer.add(rollout_of("b", module_ids=("right",), first=1))
    assert buffer.metrics()["mean_priority"] == 1.0


def test_priorities_decide_what_is_drawn() -> None:
    buffer = prioritized(alpha=0.5, beta=1.0)
    buffer.add(rollout_of("a"))
    errors = np.array([0.0, 1.0, 4.0, 9.0, 16.0])
    buffer.update_priorities(ID, np.arange(5), errors)
    drawn = [buffer.sample(7) for _ in range(3000)]
    rows = np.concatenate([one.rows[ID] for one in drawn])
    shares = np.sqrt(errors + 1e-6) / np.sqrt(errors + 1e-6).sum()
    assert chisquare(np.bincount(rows, minlength=5)[1:], shares[1:] / shares[1:].sum() * (rows > 0).sum()).pvalue > 1e-3
    for one in drawn[:20]:
        weights = (5 * shares[one.rows[ID]]) ** -1.0
        np.testing.assert_allclose(one.rollout.blocks[ID].columns["weights"], weights / weights.max(), rtol=1e-5)


def test_new_steps_have_the_highest_priority_so_far() -> None:
    buffer = prioritized(alpha=1.0)
    buffer.add(rollout_of("a"))
    buffer.update_priorities(ID, np.arange(5), np.array([0.0, 0.0, 0.0, 0.0, 7.0]))
    buffer.add(rollout_of("b", first=1))
    rows = np.concatenate([buffer.sample(10).rows[ID] for _ in range(200)])
    counts = np.bincount(rows, minlength=12)
    assert counts[[0, 1, 2, 3, 5, 11]].sum() <= 2, "rows without a step have no priority, the others 1e-6"
    assert counts[[4, *range(6, 11)]].min() > 250


def test_priorities_of_rows_that_are_gone_are_left_out() -> None:
    buffer = prioritized(capacity=12, alpha=1.0)
    buffer.add(rollout_of("a"))
    rows = buffer.sample(8).rows[ID]
    buffer.add(rollout_of("b", "c", first=1))  # their twelve rows take every place
    buffer.update_priorities(ID, rows, np.full(8, 1e9))
    counts = np.bincount(np.concatenate([buffer.sample(10).rows[ID] for _ in range(100)]), minlength=18)
    assert counts[:6].sum() == 0
    assert counts[6:].max() < 200, "none of them got the priority"


def test_priorities_of_what_was_never_written_are_left_out() -> None:
    buffer = prioritized(capacity=40)
    buffer.add(rollout_of("a"))
    buffer.update_priorities(ID, np.array([5, 30, 90]), np.full(3, 1e9))  # a last observation, and two unknown rows
    assert buffer.sample(50).rows[ID].max() < 5
    with pytest.raises(RunFailure, match="returned 2 errors for 3 replayed rows"):
        buffer.update_priorities(ID, np.array([0, 1, 2]), np.ones(2))


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_errors_that_cannot_be_priorities_are_refused(error: float) -> None:
    buffer = prioritized()
    buffer.add(rollout_of("a"))
    with pytest.raises(RunFailure, match=r"the error of a replayed row of module .* is not finite") as failure:
        buffer.update_priorities(ID, np.array([0, 1]), np.array([1.0, error]))
    assert failure.value.problem.got == str(error)


def test_beta_follows_its_schedule() -> None:
    buffer = PrioritizedReplayBuffer(100, alpha=1.0, beta=[[0, 0.0], [100, 1.0]])
    buffer.use_stream(random_stream(0, "test"))
    buffer.add(rollout_of("a"))
    buffer.update_priorities(ID, np.arange(5), np.arange(1.0, 6.0))
    at_start = buffer.sample(20, 0).rollout.blocks[ID].columns["weights"]
    at_end = buffer.sample(20, 200).rollout.blocks[ID].columns["weights"]
    np.testing.assert_array_equal(at_start, 1.0)
    assert at_end.min() < 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReplayBuffer(20, batch_length_T=3),
        lambda: ReplayBuffer(20, n_step=[1, 3], gamma=0.9),
        lambda: PrioritizedReplayBuffer(20, alpha=0.7),
    ],
)
def test_a_restored_buffer_goes_on_as_the_one_it_was(make: Callable[[], ReplayBuffer], tmp_path: Path) -> None:
    def steps(buffer: ReplayBuffer, numbers: range) -> list[list[float]]:
        drawn = []
        for number in numbers:
            buffer.add(rollout_of(f"e{number}", length=1 + number % 4, first=number))
            replayed = buffer.sample(6, number)
            if isinstance(buffer, PrioritizedReplayBuffer):
                buffer.update_priorities(ID, replayed.rows[ID], replayed.rows[ID] % 5 + 0.5)
            columns = replayed.rollout.blocks[ID].columns
            drawn += [[*replayed.rows[ID].tolist(), *columns["actions"].tolist(), *columns["rewards"].tolist()]]
        return [*drawn, list(buffer.metrics().values())]  # type: ignore[list-item]

    straight = with_stream(make())
    steps(straight, range(8))
    save_checkpoint(tmp_path / "checkpoint", {"replay": straight.get_state()}, {})
    expected = steps(straight, range(8, 20))
    resumed = with_stream(make())
    resumed.set_state(load_checkpoint(tmp_path / "checkpoint")[0]["replay"])
    assert steps(resumed, range(8, 20)) == expected


def test_what_is_reported() -> None:
    buffer = prioritized(capacity=12)
    assert buffer.metrics()["num_env_steps"] == 0
    buffer.add(rollout_of("a"))
    for _ in range(3):
        buffer.sample(2)
    buffer.add(rollout_of("b", first=1))
    assert buffer.metrics() == {
        "capacity": 12,
        "num_env_steps": 10,
        "num_bytes": 12 * (4 + 8 + 4 + 1 + 4 + 1) + 8 * 17,  # of priorities a mark each; a node of 16, and its sum
        "age_of_oldest": 3,
        "mean_priority": 1.0,
    }
    buffer.add(rollout_of("c", first=2))
    assert buffer.metrics()["age_of_oldest"] == 0, "the first episode has left"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReplayBuffer(0), "capacity must be an integer of 2 or more, got 0"),
        (lambda: ReplayBuffer(10, n_step=[3, 2]), "n_step must be a number, or the lowest and the highest one"),
        (lambda: ReplayBuffer(10, n_step=[]), "n_step must be a number, or the lowest and the highest one"),
        (lambda: ReplayBuffer(10, gamma=7), "gamma must be a number from 0 to 1, got 7"),
        (
            lambda: PrioritizedReplayBuffer(10, beta=-3),
            "beta must be >= 0, or [[env steps, value], ...] of such values, got -3",
        ),
        (lambda: PrioritizedReplayBuffer(10, beta="x"), "beta must be >= 0, .* got 'x'"),  # type: ignore[arg-type]
        (lambda: ReplayBuffer(10, batch_length_T=4, n_step=2), r"chunks of several steps .* need n_step 1, got 2"),
        (lambda: PrioritizedReplayBuffer(10, alpha=-1), "alpha must be a non-negative number, got -1"),
        (lambda: with_stream(ReplayBuffer()).sample(1), "an empty buffer cannot be sampled"),
    ],
)
def test_what_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        make()


@pytest.mark.parametrize(("buffer_class", "tolerance"), [(ReplayBuffer, 0.0), (PrioritizedReplayBuffer, 0.01)])
def test_memory_is_known_before_it_is_taken(buffer_class: type[ReplayBuffer], tolerance: float) -> None:
    rollout = rollout_of("a", "b", module_ids=("left", "right"))
    block = rollout.blocks["left"]
    nested = {**block.columns, "state_out": {"h": np.zeros((10, 3), np.float32), "c": np.zeros((10, 2, 2), np.int16)}}
    rollout = replace(rollout, blocks={**rollout.blocks, "right": replace(block, columns=nested)})
    buffer = buffer_class(50_000)
    expected = 50_000 * sum(buffer.row_bytes(module_id, one) for module_id, one in rollout.blocks.items())
    assert buffer.metrics()["num_bytes"] == 0
    buffer.add(rollout)
    assert buffer.metrics()["num_bytes"] == pytest.approx(expected, rel=tolerance)
