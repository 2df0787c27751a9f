"""Environments that fail or return what they should not: each gets one message that says what, where, got, allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.cluster.actor_group import ActorGroup
from runner.cluster.actors import LocalActor
from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.listeners import EpisodeListener
from runner.env_runners.vector_envs import BatchedEnvironments, SubEnvironments, SyncEnvironments
from runner.modules import ActorCriticModule
from runner.restarts import Restarts
from tests.modules.test_actor_critic_module import SMALL
from tests.support.coded_runs import make_runner, weights_of
from tests.support.problems import raised_in, shown_problems

FILTER = [
    {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "connector": {"_target_": "runner.pipelines.MeanStdFilter"},
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


def failure_of(env: SubEnvironments, edits: Any = (), steps: int = 20) -> Problem:
    """Return the problem that sampling ends with, as it reaches the driver."""
    module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
    runner = make_runner(env, module, env_to_module_edits=edits, validate_observations="error")
    pipelines = {"default_policy": runner.env_to_module}
    actors = ActorGroup(partial(LocalActor, lambda *_: runner), 1, "env runner", Restarts(0, ""))
    group = EnvRunnerGroup(actors, pipelines)
    group.set_weights(weights_of(module))
    with pytest.raises(RunFailure) as caught, np.errstate(invalid="ignore"):
        group.sample(steps, True)
    (problem,) = shown_problems(caught.value)
    return problem


WRONG_SHAPE = np.zeros(3, np.float32)
OF_SPACE = "shape (2,) and dtype float32"
RAISED = raised_in(Faulty._obs, "raise self._fault")
RAISED_TOGETHER = raised_in(VectorFaulty._obs, "raise self._fault")
NAN = Problem(
    "an observation of the environment is not finite",
    where="env runner 0, episode 0-env_runner-0-1-1, time step 2",
    got="obs[1] = nan",
    expected="finite numbers",
)
OUT_OF_BOUNDS = Problem(
    "an observation is outside the environment's observation space",
    where="env runner 0, episode 0-env_runner-0-1-1, time step 3",
    got="obs[0] = 1.5",
    expected="-1.0 to 1.0",
)


def does_not_fit(call: str, where: str, got: str, expected: str = "shape (2,)") -> Problem:
    what = f"the environment's {call} returned an observation that does not fit its space"
    return Problem(what, where, got, expected)


def other_rows(where: str, got: str, expected: str = "shape (2,) for each of 2 sub-environments") -> Problem:
    return Problem("the environment's observations do not fit its space", where, got, expected)


CASES = [
    pytest.param(
        lambda: sync_envs("reset", 1, OSError("no display")),
        (),
        Problem(
            "the environment raised OSError in reset: no display",
            where=f"env runner 0, sub-environment 1, episode 0, {RAISED}",
        ),
        id="raises_in_first_reset",
    ),
    pytest.param(
        lambda: sync_envs("reset", 2, OSError("no display")),
        (),
        Problem(
            "the environment raised OSError in reset: no display",
            where=f"env runner 0, sub-environment 1, episode 1, {RAISED}",
        ),
        id="raises_in_later_reset",
    ),
    pytest.param(
        lambda: sync_envs("step", 6, ZeroDivisionError("division by zero")),
        (),
        Problem(
            "the environment raised ZeroDivisionError in step: division by zero",
            where=f"env runner 0, sub-environment 1, episode 1, step 1, {RAISED}",
            got="action 1",
        ),
        id="raises_in_step",
    ),
    pytest.param(
        lambda: sync_envs("reset", 1, WRONG_SHAPE),
        (),
        does_not_fit("reset", "env runner 0, sub-environment 1, episode 0", "shape (3,)"),
        id="wrong_shape_in_reset",
    ),
    pytest.param(
        lambda: sync_envs("step", 2, WRONG_SHAPE),
        (),
        does_not_fit("step", "env runner 0, sub-environment 1, episode 0, step 1", "shape (3,)"),
        id="wrong_shape_in_step",
    ),
    pytest.param(
        lambda: sync_envs("step", 2, 0.5),
        (),
        does_not_fit("step", "env runner 0, sub-environment 1, episode 0, step 1", "shape ()"),
        id="scalar_in_step",
    ),
    pytest.param(
        lambda: sync_envs("step", 2, np.zeros(1, np.float32)),
        (),
        does_not_fit("step", "env runner 0, sub-environment 1, episode 0, step 1", "shape (1,)"),
        id="one_number_in_step",
    ),
    pytest.param(
        lambda: sync_envs("step", 2, "left"),
        (),
        does_not_fit("step", "env runner 0, sub-environment 1, episode 0, step 1", "str", OF_SPACE),
        id="text_in_step",
    ),
    pytest.param(
        lambda: sync_envs("reset", 1, None),
        (),
        does_not_fit("reset", "env runner 0, sub-environment 1, episode 0", "None", OF_SPACE),
        id="nothing_in_reset",
    ),
    pytest.param(lambda: sync_envs("step", 6, np.array([0.0, np.nan], np.float32)), (), NAN, id="nan_in_step"),
    pytest.param(
        lambda: sync_envs("step", 6, np.array([0.0, np.nan], np.float32)), FILTER, NAN, id="nan_behind_a_filter"
    ),
    pytest.param(
        lambda: sync_envs("step", 7, np.array([1.5, 0.0], np.float32)), (), OUT_OF_BOUNDS, id="out_of_bounds_in_step"
    ),
    pytest.param(
        lambda: sync_envs("reset", 2, np.array([0.0, -1.25], np.float32)),
        (),
        replace(OUT_OF_BOUNDS, where="env runner 0, episode 0-env_runner-0-1-1, time step 0", got="obs[1] = -1.25"),
        id="out_of_bounds_in_reset",
    ),
    pytest.param(
        lambda: sync_envs("step", 7, np.array([1.5, 0.0], np.float32)),
        FILTER,
        OUT_OF_BOUNDS,
        id="out_of_bounds_behind_a_filter",
    ),
    pytest.param(
        lambda: sync_envs("reset", 1, np.array([1.5, 0.0], np.float32)),
        FILTER,
        replace(OUT_OF_BOUNDS, where="env runner 0, episode 0-env_runner-0-1-0, time step 0"),
        id="out_of_bounds_in_first_reset_behind_a_filter",
    ),
    pytest.param(
        lambda: sync_envs("step", 6, np.array([0.0, np.nan], np.float32), is_continuous=True),
        (),
        replace(NAN, where="env runner 0, sub-environment 1"),
        id="nan_that_makes_the_action_nan",
    ),
    pytest.param(
        lambda: BatchedEnvironments(VectorFaulty(ValueError("bad joint")), 0),
        (),
        Problem(
            "the environment raised ValueError in step: bad joint",
            where=f"env runner 0, {RAISED_TOGETHER}",
            got="actions [1, 1]",
        ),
        id="batched_raises_in_step",
    ),
    pytest.param(
        lambda: BatchedEnvironments(VectorFaulty(ValueError("bad joint"), 0), 0),
        (),
        Problem("the environment raised ValueError in reset: bad joint", where=f"env runner 0, {RAISED_TOGETHER}"),
        id="batched_raises_in_reset",
    ),
    pytest.param(
        lambda: BatchedEnvironments(VectorFaulty(np.zeros((2, 3)), 0), 0),
        (),
        other_rows("env runner 0, reset", "shape (3,)"),
        id="batched_wrong_shape_in_reset",
    ),
    pytest.param(
        lambda: BatchedEnvironments(VectorFaulty(np.zeros((2, 3))), 0),
        (),
        other_rows("env runner 0, step", "shape (3,)"),
        id="batched_wrong_shape_in_step",
    ),
    pytest.param(
        lambda: BatchedEnvironments(VectorFaulty(np.zeros(2)), 0),
        (),
        other_rows("env runner 0, step", "shape ()"),
        id="batched_one_row_in_step",
    ),
    pytest.param(
        lambda: BatchedEnvironments(VectorFaulty(np.zeros((3, 2))), 0),
        (),
        other_rows(
            "env runner 0, step", "shape (3, 2)", "shape (2, 2), which is shape (2,) for each of 2 sub-environments"
        ),
        id="batched_three_rows_in_step",
    ),
    pytest.param(
        lambda: BatchedEnvironments(VectorFaulty(np.full((2, 2), np.nan)), 0),
        (),
        replace(NAN, where="env runner 0, episode 0-env_runner-0-0-0, time step 3", got="obs[0] = nan"),
        id="batched_nan_in_step",
    ),
]


class ResetReturns(Faulty):
    """Its resets return only this."""

    def __init__(self, answer: Any) -> None:
        super().__init__("never", 0, None)
        self._answer = answer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._answer


class VectorResetReturns(VectorFaulty):
    """Its resets return only this."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._fault


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        (np.zeros(2, np.float32), "ndarray"),
        ((np.zeros(2, np.float32), None), "a tuple of ndarray, NoneType"),
        ((np.zeros(2, np.float32), {}, {}), "a tuple of ndarray, dict, dict"),
    ],
)
def test_resets_that_do_not_return_two_values(answer: Any, kinds: str) -> None:
    what, expected = f"the environment's reset returned {kinds}", "a tuple (observation, info), with a dict as info"
    where = "env runner 0, sub-environment 0, episode 0"
    one_by_one = SyncEnvironments(lambda: ResetReturns(answer), 1, 0)
    assert failure_of(one_by_one) == Problem(what, where, expected=expected)
    together = BatchedEnvironments(VectorResetReturns(answer), 0)
    assert failure_of(together) == Problem(what, "env runner 0", expected=expected)


class VectorShowsMore(VectorFaulty):
    """One of its observations has a key that their space does not have."""

    single_observation_space: Any = gym.spaces.Dict(code=Faulty.observation_space)

    def __init__(self, at: int) -> None:
        super().__init__(None, at)

    def _obs(self) -> Any:
        more = {"more": np.zeros(2)} if self.t == self._at else {}
        return {"code": np.zeros((2, 2), np.float32), **more}


@pytest.mark.parametrize(("at", "method"), [(0, "reset"), (3, "step")])
def test_a_key_of_batched_observations_that_their_space_does_not_have(at: int, method: str) -> None:
    assert failure_of(BatchedEnvironments(VectorShowsMore(at), 0)) == Problem(
        "the environment's observations do not fit its space",
        where=f"env runner 0, {method}",
        got="obs['more']: ndarray of shape (2,) and dtype float64",
        expected="obs['more']: nothing",
    )


@pytest.mark.parametrize(("make_envs", "edits", "expected"), CASES)
def test_messages(make_envs: Callable[[], SubEnvironments], edits: Any, expected: Problem) -> None:
    assert failure_of(make_envs(), edits) == expected


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
    with pytest.raises(RunFailure, match=r"obs = 3\n.*expected +0 to 2"):
        runner.sample(10, True, weights_of(module), {})


class CannotBeMade(gym.Env[Any, Any]):
    def __init__(self, level: int) -> None:
        raise FileNotFoundError(f"no map for level {level}")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(
            EnvConfig(_target_=f"{__name__}.CannotBeMade", env_config={"level": 7}),
            Problem(
                f"the environment {__name__}.CannotBeMade cannot be created: FileNotFoundError: no map for level 7",
                where=f"env._target_, {raised_in(CannotBeMade.__init__, 'raise')}",
                got=f"{__name__}.CannotBeMade with env_config {{'level': 7}}",
            ),
            id="constructor_raises",
        ),
        pytest.param(
            EnvConfig(env="CartPole-v1", env_config={"gravitation": 9}),
            Problem(
                (
                    "the environment CartPole-v1 cannot be created: TypeError: CartPoleVectorEnv.__init__() "
                    "got an unexpected keyword argument 'gravitation'"
                ),
                where="env.env",
                got="CartPole-v1 with env_config {'gravitation': 9}",
            ),
            id="constructor_takes_no_such_argument",
        ),
    ],
)
def test_environments_that_cannot_be_made(
    config: EnvConfig, expected: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.env_runners.env_makers.import_target", lambda *_, **__: CannotBeMade)
    with pytest.raises(ConfigError) as caught:
        make_vector_env(config, 2, "auto", 0)
    assert shown_problems(caught.value) == [expected]


class Pushes(gym.Wrapper[Any, Any, Any, Any]):
    """Passes an action that its environment rejects."""

    def step(self, action: Any) -> Any:
        return super().step(7)  # gymnasium raises here


class CannotAdd(Faulty):
    def __init__(self, level: Any = 1) -> None:
        self._level = level + "1"


def test_an_error_in_a_library_is_placed_at_the_users_line_that_led_to_it() -> None:
    config = EnvConfig(env="CartPole-v1", wrappers=[{"_target_": f"{__name__}.Pushes"}])
    env = make_vector_env(config, 1, "sync", 0)
    env.reset(("env_runner", 0, 0))
    with pytest.raises(RunFailure) as caught:
        env.step(np.zeros(1, np.int64))
    (problem,) = shown_problems(caught.value)
    line = raised_in(Pushes.step, "gymnasium raises here")
    assert problem.where == f"sub-environment 0, episode 0, step 0, {line}"


def test_an_error_without_user_code_is_placed_at_its_step_only() -> None:
    try:
        raise_of_user()
    except ValueError:  # an earlier error, whose line has nothing to do with the environment
        together, one = (make_vector_env(EnvConfig(env="CartPole-v1"), 2, mode, 0) for mode in ("auto", "sync"))
        for env, where in ((together, None), (one, "sub-environment 0, episode 0, step 0")):
            env.reset(("env_runner", 0, 0))
            with pytest.raises(RunFailure) as caught:
                env.step(np.array([7, 7]))
            assert caught.value.problem.where == where


def raise_of_user() -> None:
    raise ValueError("earlier")


def test_a_wrong_type_in_the_constructor_of_a_registered_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.envs.registration.EnvSpec("CannotAdd-v0", f"{__name__}:CannotAdd")
    monkeypatch.setitem(gym.registry, "CannotAdd-v0", spec)
    with pytest.raises(ConfigError) as caught:
        make_vector_env(EnvConfig(env="CannotAdd-v0"), 2, "sync", 0)
    (problem,) = shown_problems(caught.value)
    assert problem.what.startswith("the environment CannotAdd-v0 cannot be created: TypeError: unsupported operand")
    assert problem.where == f"env.env, {raised_in(CannotAdd.__init__, 'level + ')}"


class CannotWrap(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], names: dict[str, int]) -> None:
        super().__init__(env)
        self._number = names["colour"]


def test_a_wrapper_that_cannot_be_made() -> None:
    wrapper = {"_target_": f"{__name__}.CannotWrap", "names": {"color": 1}}
    with pytest.raises(ConfigError) as caught:
        make_vector_env(EnvConfig(env="CartPole-v1", wrappers=[wrapper]), 1, "sync", 0)
    assert shown_problems(caught.value) == [
        Problem(
            f"{__name__}.CannotWrap cannot wrap CartPoleEnv: KeyError: 'colour'",
            where=f"env.wrappers.0, {raised_in(CannotWrap.__init__, 'names[')}",
            got="{'names': {'color': 1}}",
            expected="color",
            nearest="color",
        )
    ]


class Receives(EpisodeListener):
    """Has one receiver."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    @property
    def receivers(self) -> dict[str, Callable[..., None]]:
        return {"tasks": self.received.append}


def test_an_announcement_needs_a_receiver() -> None:
    listener = Receives()
    env = sync_envs("never", 0, None)
    module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
    runner = make_runner(env, module, listeners=[listener])
    runner.receive("tasks", "odds")
    assert listener.received == ["odds"]
    with pytest.raises(RunFailure) as raised:
        runner.receive("task", "odds")
    assert raised.value.problem == Problem(
        "no listener of the env runner has the receiver `task`, which a part of the run announces to",
        "env_runners.announce",
        "task",
        "tasks",
        "tasks",
    )
