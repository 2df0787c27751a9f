"""What a batched environment of a user's own keeps over a checkpoint."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from runner.env_runners.vector_envs import BatchedEnvironments
from runner.testing.rules import through_checkpoint
from tests.support.environments import CodedVectorEnv


class Hoarder(CodedVectorEnv):
    """Has state in a list and in an old generator, which are not saved, and in a numpy number, which is."""

    def __init__(self) -> None:
        super().__init__(2, [3])
        self.seen = [1, 2]
        self.old = np.random.RandomState(0)
        self.level = np.int64(7)


class Keeper(Hoarder):
    """Saves its list itself."""

    def get_state(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


def test_what_is_not_saved_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    env = Hoarder()
    vector_env = BatchedEnvironments(env, seed=0)
    vector_env.reset(("env_runner", 0, 0))
    with caplog.at_level(logging.WARNING):
        state = vector_env.get_state()
        vector_env.get_state()
    (record,) = caplog.records
    names = "_envs, seen, old"
    assert record.getMessage() == (
        f"Hoarder: checkpoints do not contain the attributes {names}; define get_state and set_state"
    )
    env.level = np.int64(8)
    vector_env.set_state(state)
    assert env.level == 7


class Draws(CodedVectorEnv):
    """Has a random stream of this kind."""

    def __init__(self, kind: Any) -> None:
        super().__init__(2, [3])
        self.stream = np.random.Generator(kind(1))


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_generators_of_all_kinds_are_restored(kind: str) -> None:
    env = Draws(getattr(np.random, kind))
    vector_env = BatchedEnvironments(env, seed=0)
    vector_env.reset(("env_runner", 0, 0))
    state = through_checkpoint(vector_env.get_state(), "env")
    expected = env.stream.random(3)
    vector_env.set_state(state)
    np.testing.assert_array_equal(env.stream.random(3), expected)


def test_an_environments_own_state_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    env = Keeper()
    vector_env = BatchedEnvironments(env, seed=0)
    vector_env.reset(("env_runner", 0, 0))
    state = vector_env.get_state()
    env.seen.append(3)
    vector_env.set_state(state)
    assert env.seen == [1, 2]
    assert not caplog.records
