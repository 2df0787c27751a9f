"""Sub-environments with several agents: what they get when a resumed run repeats their actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.curriculum.restorable_env import RestorableEnv
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.episodes import nested
from runner.testing.rules import through_checkpoint

SPACES: dict[str, Any] = {
    "a": gym.spaces.Discrete(3),
    "b": gym.spaces.Dict(
        push=gym.spaces.Box(-1.0, 1.0, (), np.float32),
        arm=gym.spaces.Tuple((gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(2))),
    ),
}


class KeepsActions(MultiAgentEnv):
    """Keeps the actions that it gets."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(SPACES, gym.spaces.Discrete(1))
    action_spaces = SPACES

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.got: list[Any] = []
        return dict.fromkeys(SPACES, 0), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.got.append(actions)
        return dict.fromkeys(SPACES, 0), {}, {}, {}, {}


STEPS: list[Any] = [
    {
        "a": np.int64(number),
        "b": {"push": np.float32(0.1 * number), "arm": (np.full(2, -0.1, np.float32), np.int64(1))},
    }
    for number in range(3)
]


def types_of(steps: list[Any]) -> list[Any]:
    return [(type(leaf), leaf.dtype) for step in steps for leaf in nested.leaves(step)]


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_replay_gives_actions_of_the_same_types(is_stored: bool) -> None:
    envs, restored, again = (MultiAgentEnvironments(KeepsActions, 1, 0) for _ in range(3))
    envs.reset(("check", 0, 0))
    for actions in STEPS:
        envs.step([actions])
    restored.set_state(through_checkpoint(envs.get_state(), "env") if is_stored else envs.get_state())
    again.set_state(through_checkpoint(restored.get_state(), "env"))
    for one in (envs, restored, again):
        [env] = one.environments
        assert isinstance(env, KeepsActions)
        assert nested.equal(tuple(env.got), tuple(STEPS))
        assert types_of(env.got) == types_of(STEPS)


def test_a_replay_within_a_curriculum_gives_actions_of_the_same_types() -> None:
    env, restored = (RestorableEnv(KeepsActions()) for _ in range(2))
    env.reset(0, {})
    for actions in STEPS:
        env.step(actions)
    restored.set_state(through_checkpoint(env.get_state(is_running=True), "env"), lambda: restored.reset(0, {}))
    assert nested.equal(tuple(restored.env.got), tuple(STEPS))
    assert types_of(restored.env.got) == types_of(STEPS)


class Breaks(KeepsActions):
    """Fails in its second step, if `is_due`."""

    is_due = False

    def step(self, actions: dict[str, Any]) -> Any:
        if self.is_due and self.got:
            raise ValueError("the arm has left its rail")
        return super().step(actions)


def test_an_error_while_actions_are_repeated_names_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, restored = (MultiAgentEnvironments(Breaks, 1, 0) for _ in range(2))
    envs.reset(("check", 0, 0))
    for actions in STEPS:
        envs.step([actions])
    monkeypatch.setattr(Breaks, "is_due", True)
    with pytest.raises(RunFailure) as caught:
        restored.set_state(envs.get_state())
    assert caught.value.problem.what == "the environment raised ValueError in step: the arm has left its rail"
    assert str(caught.value.problem.where).startswith("sub-environment 0, episode 0, step 1, ")
