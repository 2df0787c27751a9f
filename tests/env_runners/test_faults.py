"""Environments that fail or return what they should not: each gets one message that says what, where, got, allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import ConfigError, RunFailure
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.handles import LocalHandle
from runner.env_runners.vector_envs import BatchedEnvironments, SubEnvironments, SyncEnvironments
from runner.modules import ActorCriticModule
from tests.env_runners.coded_runs import make_runner, weights_of
from tests.modules.test_actor_critic_module import SMALL

AssertGolden = Callable[[str, str], None]
FILTER = [
    {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "piece": {"_target_": "runner.pipelines.MeanStdFilter"},
    }
]


class Faulty(gym.Env[Any, Any]):
    """Episodes of four steps; one of its calls has a fault: call `at` of `where` (reset or step, from 1)."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, where: str, at: int, fault: Any, is_continuous: bool = False) -> None:
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32) if is_continuous else gym.spaces.Discrete(2)
        self._where, self._at, self._fault = where, at, fault
        self._calls = {"reset": 0, "step": 0}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return self._obs("reset"), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if np.isnan(action).any():
            raise ValueError("the action is NaN")
        self.t += 1
        return self._obs("step"), 1.0, self.t == 4, False, {}

    def _obs(self, where: str) -> Any:
        self._calls[where] += 1
        if where == self._where and self._calls[where] == self._at:
            if isinstance(self._fault, Exception):
                raise self._fault
            return self._fault
        return np.full(2, 0.1 * self.t, np.float32)


class VectorFaulty(gym.vector.VectorEnv[Any, Any, Any]):
    """Two sub-environments that never end; step 3 has the fault."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space, single_action_space = Faulty.observation_space, gym.spaces.Discrete(2)
    num_envs = 2

    def __init__(self, fault: Any, at: int = 3) -> None:
        self._fault, self._at = fault, at

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        return self._obs(), np.ones(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_), {}

    def _obs(self) -> Any:
        if self.t == self._at:
            if isinstance(self._fault, Exception):
                raise self._fault
            return self._fault
        return np.zeros((2, 2), np.float32)


def sync_envs(*fault: Any, **options: Any) -> SyncEnvironments:
    """Two sub-environments, of which the second is faulty."""
    numbers = iter(range(2))
    return SyncEnvironments(
        lambda: Faulty(*(fault if next(numbers) else ("never", 0, None)), **options), num_envs=2, seed=0
    )


def failure_of(env: SubEnvironments, edits: Any = (), steps: int = 20) -> str:
    """The message that sampling ends with, as it reaches the driver."""
    module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
    runner = make_runner(env, module, env_to_module_edits=edits, observation_check="error")
    pipelines = {"default_policy": runner.env_to_module}
    group = EnvRunnerGroup(lambda index, generation: LocalHandle(lambda *_: runner, 0, 0), 1, pipelines, 0)
    group.set_weights(weights_of(module))
    with pytest.raises(RunFailure) as caught, np.errstate(invalid="ignore"):
        group.sample(steps, True)
    return str(caught.value)


WRONG_SHAPE = np.zeros(3, np.float32)
CASES: dict[str, Callable[[], str]] = {
    "raises_in_first_reset": lambda: failure_of(sync_envs("reset", 1, OSError("no display"))),
    "raises_in_later_reset": lambda: failure_of(sync_envs("reset", 2, OSError("no display"))),
    "raises_in_step": lambda: failure_of(sync_envs("step", 6, ZeroDivisionError("division by zero"))),
    "wrong_shape_in_reset": lambda: failure_of(sync_envs("reset", 1, WRONG_SHAPE)),
    "wrong_shape_in_step": lambda: failure_of(sync_envs("step", 2, WRONG_SHAPE)),
    "scalar_in_step": lambda: failure_of(sync_envs("step", 2, 0.5)),
    "one_number_in_step": lambda: failure_of(sync_envs("step", 2, np.zeros(1, np.float32))),
    "text_in_step": lambda: failure_of(sync_envs("step", 2, "left")),
    "nothing_in_reset": lambda: failure_of(sync_envs("reset", 1, None)),
    "nan_in_step": lambda: failure_of(sync_envs("step", 6, np.array([0.0, np.nan], np.float32))),
    "nan_behind_a_filter": lambda: failure_of(sync_envs("step", 6, np.array([0.0, np.nan], np.float32)), FILTER),
    "out_of_bounds_in_step": lambda: failure_of(sync_envs("step", 7, np.array([1.5, 0.0], np.float32))),
    "out_of_bounds_in_reset": lambda: failure_of(sync_envs("reset", 2, np.array([0.0, -1.25], np.float32))),
    "out_of_bounds_behind_a_filter": lambda: failure_of(sync_envs("step", 7, np.array([1.5, 0.0], np.float32)), FILTER),
    "out_of_bounds_in_first_reset_behind_a_filter": lambda: failure_of(
        sync_envs("reset", 1, np.array([1.5, 0.0], np.float32)), FILTER
    ),
    "nan_that_makes_the_action_nan": lambda: failure_of(
        sync_envs("step", 6, np.array([0.0, np.nan], np.float32), is_continuous=True)
    ),
    "batched_raises_in_step": lambda: failure_of(BatchedEnvironments(VectorFaulty(ValueError("bad joint")), 0)),
    "batched_raises_in_reset": lambda: failure_of(BatchedEnvironments(VectorFaulty(ValueError("bad joint"), 0), 0)),
    "batched_wrong_shape_in_reset": lambda: failure_of(BatchedEnvironments(VectorFaulty(np.zeros((2, 3)), 0), 0)),
    "batched_wrong_shape_in_step": lambda: failure_of(BatchedEnvironments(VectorFaulty(np.zeros((2, 3))), 0)),
    "batched_one_row_in_step": lambda: failure_of(BatchedEnvironments(VectorFaulty(np.zeros(2)), 0)),
    "batched_nan_in_step": lambda: failure_of(BatchedEnvironments(VectorFaulty(np.full((2, 2), np.nan)), 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_messages(name: str, assert_golden: AssertGolden) -> None:
    assert_golden(name, CASES[name]())


def test_nan_later_in_an_episode_of_a_later_fragment_is_placed_right() -> None:
    env = sync_envs("step", 11, np.array([np.nan, 0.0], np.float32))  # the third step of its third episode
    module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
    runner = make_runner(env, module)
    for _ in range(3):
        runner.sample(6, True, weights_of(module), {})
    with pytest.raises(RunFailure, match=r"episode 0-env_runner-0-1-2, time step 3"):
        runner.sample(6, True, weights_of(module), {})


def test_discrete_observations_have_bounds_too() -> None:
    class Two(Faulty):
        observation_space = gym.spaces.Discrete(3)  # type: ignore[assignment]

        def _obs(self, where: str) -> Any:
            return 3 if self.t == 2 else 1

    env = SyncEnvironments(lambda: Two("never", 0, None), 2, 0)
    # Behind a module that takes what it gets, as the check runs once per fragment.
    module = ActorCriticModule(gym.spaces.Box(0, 9, (), np.float32), env.single_action_space, SMALL)
    runner = make_runner(env, module)
    with pytest.raises(RunFailure, match=r"obs = 3\n.*allowed  0 to 2"):
        runner.sample(10, True, weights_of(module), {})


class CannotBeMade(gym.Env[Any, Any]):
    def __init__(self, level: int) -> None:
        raise FileNotFoundError(f"no map for level {level}")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("constructor_raises", EnvConfig(_target_=f"{__name__}.CannotBeMade", env_config={"level": 7})),
        ("constructor_takes_no_such_argument", EnvConfig(env="CartPole-v1", env_config={"gravitation": 9})),
    ],
)
def test_environments_that_cannot_be_made(
    name: str, config: EnvConfig, assert_golden: AssertGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.env_runners.env_makers.import_target", lambda *_, **__: CannotBeMade)
    with pytest.raises(ConfigError) as caught:
        make_vector_env(config, 2, "auto", 0)
    assert_golden(name, str(caught.value).replace(__name__, "tests.test_faults"))
