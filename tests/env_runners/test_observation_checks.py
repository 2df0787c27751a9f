"""Observations outside of their space: an error, a warning and a count, or nothing (`env.validate_observations`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.errors import RunFailure
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.observation_checks import ObservationChecks, find_difference
from runner.env_runners.vector_envs import BatchedEnvironments, SubEnvironments, SyncEnvironments
from runner.modules import ActorCriticModule
from tests.conftest import QUICK, Run, progress_of, result_of
from tests.env_runners.test_faults import FILTER, VectorFaulty
from tests.env_runners.test_multi_agent_faults import TwoAgents
from tests.modules.test_actor_critic_module import SMALL
from tests.support.coded_agents import make_coded_run
from tests.support.coded_runs import make_runner, weights_of
from tests.support.environments import Leaving

MODES = ("error", "warn", "off")
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACE = gym.spaces.Dict(
    {"a": BOX, "b": gym.spaces.Tuple([gym.spaces.Discrete(3, start=2), gym.spaces.Box(0, 9, (2,), np.int32)])}
)


def rows(**parts: Any) -> dict[str, Any]:
    """Three observations of SPACE: with these for `a`, `discrete` and `integers`."""
    a = np.array(parts.get("a", [[0.0, 0.0]] * 3), np.float32)
    discrete = np.array(parts.get("discrete", [2, 3, 4]), np.int64)
    return {"a": a, "b": (discrete, np.array(parts.get("integers", [[0, 9]] * 3), np.int32))}


FITS = [[0.0, 0.0], [1.0, -1.0], [0.5, 0.5]]
ABOVE = [[0.0, 0.0], [0.0, 1.001], [1.001, -1.001]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("parts", "found", "got", "is_error"),
    [
        ({"a": FITS}, None, None, False),
        ({"a": ABOVE}, [1, 2], "obs['a'][1] = 1.001", False),
        ({"integers": [[0, 9], [0, 10], [0, 0]]}, [1], "obs['b'][1][1] = 10", False),
        ({"a": ABOVE, "integers": [[-1, 0], [0, 10], [0, 0]]}, [0, 1, 2], "obs['a'][1] = 1.001", False),
        ({"a": [[0.0, 1.5], [0.0, np.nan], [0.0, 0.0]]}, [0, 1], "obs['a'][1] = nan", True),
        ({"a": [[0.0, 0.0], [0.0, 0.0], [-np.inf, 0.0]]}, [2], "obs['a'][0] = -inf", True),
        ({"discrete": [2, 3, 5]}, [2], "obs['b'][0] = 5", True),
        ({"a": ABOVE, "discrete": [1, 3, 2]}, [0, 1, 2], "obs['b'][0] = 1", True),
    ],
)
def test_what_is_found(mode: str, parts: Any, found: list[int] | None, got: str | None, is_error: bool) -> None:
    misfit = ObservationChecks(SPACE, 3, "Env", mode).find_misfit(rows(**parts))
    if found is None or (mode == "off" and not is_error):
        assert misfit is None
        return
    assert misfit is not None
    if mode != "off":  # then only errors are found
        assert misfit.rows.tolist() == found
    if mode != "error":  # then the first one is told, whichever it is
        assert misfit.problem.got == got
    assert misfit.is_error == (is_error or mode == "error")


@pytest.mark.parametrize("mode", MODES)
def test_infinity_is_an_error_where_the_box_has_no_bounds(mode: str) -> None:
    checks = ObservationChecks(gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), 1, "Env", mode)
    assert checks.find_misfit(np.array([[3e38, -3e38]], np.float32)) is None
    misfit = checks.find_misfit(np.array([[0.0, np.inf]], np.float32))
    assert misfit is not None
    assert misfit.is_error
    assert (misfit.problem.what, misfit.problem.expected) == (
        "an observation of the environment is not finite",
        "finite numbers",
    )


@pytest.mark.parametrize(
    ("space", "obs", "text"),
    [
        (gym.spaces.Discrete(3), np.array([1.0]), "got           dtype float64"),
        (gym.spaces.Box(0, 255, (1,), np.uint8), np.array([[256]]), "got           dtype int64"),
        (BOX, np.array([["0", "1"]]), "got           dtype <U1"),
        (BOX, np.array([[0j, 1j]]), "got           dtype complex128"),
        (BOX, np.zeros((1, 2)), None),
        (BOX, np.zeros((1, 2), np.int64), None),
        (BOX, torch.zeros(1, 2), None),
        (gym.spaces.Discrete(3), torch.tensor([1.0]), "got           dtype float32"),
        (gym.spaces.Box(0, 255, (1,), np.uint8), np.array([[255]]), None),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_numbers_that_the_dtype_cannot_hold(mode: str, space: gym.Space[Any], obs: Any, text: str | None) -> None:
    checks = ObservationChecks(space, 1, "Env", mode)
    if text is None:
        checks.check_shapes(obs, "step")
        return
    with pytest.raises(RunFailure) as caught:
        checks.check_shapes(obs, "step")
    assert str(caught.value).startswith("the environment's observations do not fit its space")
    assert text in str(caught.value)


FITTING = {"a": np.zeros(2, np.float32), "b": (3, [0, 9])}


@pytest.mark.parametrize(
    ("obs", "expected"),
    [
        (FITTING, None),
        (FITTING | {"a": np.zeros(3)}, ("obs['a']: shape (3,)", "obs['a']: shape (2,)")),
        (FITTING | {"a": 0.5}, ("obs['a']: shape ()", "obs['a']: shape (2,)")),
        (FITTING | {"b": (3, [[0, 9]])}, ("obs['b'][1]: shape (1, 2)", "obs['b'][1]: shape (2,)")),
        (FITTING | {"b": (1.5, [0, 9])}, ("obs['b'][0]: dtype float64", "obs['b'][0]: dtype int64")),
        (FITTING | {"a": np.array(["up", "on"])}, ("obs['a']: dtype <U2", "obs['a']: dtype float32")),
        (FITTING | {"a": None}, ("obs['a']: None", "obs['a']: shape (2,) and dtype float32")),
        (FITTING | {"a": "left"}, ("obs['a']: str", "obs['a']: shape (2,) and dtype float32")),
        (FITTING | {"a": [[1.0], [1.0, 2.0]]}, ("obs['a']: list", "obs['a']: shape (2,) and dtype float32")),
        (FITTING | {"a": (0.0, 0.0)}, ("obs['a']: a tuple", "obs['a']: shape (2,) and dtype float32")),
        (FITTING | {"b": [3, [0, 9]]}, ("obs['b']: list", "obs['b']: a tuple")),
        (FITTING | {"b": (3,)}, ("obs['b'][1]: nothing", "obs['b'][1]: shape (2,) and dtype int32")),
        ({"a": FITTING["a"]}, ("obs['b']: nothing", "obs['b']: a tuple")),
        (FITTING | {"c": 1.0}, ("obs['c']: float of shape ()", "obs['c']: nothing")),
        (np.zeros(2), ("ndarray of shape (2,) and dtype float64", "a dict")),
    ],
)
def test_only_the_part_that_differs_is_shown(obs: Any, expected: tuple[str, str] | None) -> None:
    assert find_difference(obs, SPACE) == expected
    if expected is not None:
        with pytest.raises(RunFailure) as caught:
            SyncEnvironments(partial(Returns, obs), 1, seed=0).reset(("env_runner", 0, 0))
        assert (caught.value.problem.got, caught.value.problem.expected) == expected


class Returns(Leaving):
    """Its observations are `obs`."""

    observation_space = SPACE

    def __init__(self, obs: Any) -> None:
        self._obs = obs

    def reset(self, **_: Any) -> Any:
        return self._obs, {}


@pytest.mark.parametrize(
    ("num_rows", "parts", "got", "expected"),
    [
        (1, {"a": np.zeros((1, 3))}, "obs['a']: shape (3,)", "obs['a']: shape (2,)"),
        (1, {"a": np.zeros((1, 1, 2))}, "obs['a']: shape (1, 2)", "obs['a']: shape (2,)"),
        (3, {"a": np.zeros((3, 3))}, "obs['a']: shape (3,)", "obs['a']: shape (2,) for each of 3 sub-environments"),
        (
            3,
            {"a": np.zeros(2)},
            "obs['a']: shape (2,)",
            "obs['a']: shape (3, 2), which is shape (2,) for each of 3 sub-environments",
        ),
        (3, {"a": None}, "obs['a']: None", "obs['a']: shape (2,) and dtype float32"),
        (3, {"a": rows()["a"] * 1j}, "obs['a']: dtype complex64", "obs['a']: dtype float32"),
    ],
)
def test_shapes_of_several_rows(num_rows: int, parts: Any, got: str, expected: str) -> None:
    obs = {"a": rows()["a"][:num_rows], "b": tuple(part[:num_rows] for part in rows()["b"])} | parts
    with pytest.raises(RunFailure) as caught:
        ObservationChecks(SPACE, num_rows, "Env").check_shapes(obs, "step")
    assert (caught.value.problem.got, caught.value.problem.expected) == (got, expected)


class Halves(Leaving):
    """Counts in steps of a half, although its space has whole numbers only."""

    observation_space = gym.spaces.Discrete(9)

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, action: int) -> Any:
        return np.float64(1.5), 1.0, False, False, {}


def test_a_half_is_not_cut_off() -> None:
    runner = runner_of(SyncEnvironments(Halves, 1, seed=0), "off")
    with pytest.raises(RunFailure, match="an observation that does not fit its space"):
        runner.sample(4, True, weights_of(runner.module), {})


def runner_of(env: SubEnvironments, mode: str, edits: Any = ()) -> SingleAgentEnvRunner:
    module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
    return make_runner(env, module, env_to_module_edits=edits, validate_observations=mode)


@pytest.mark.parametrize("edits", [(), FILTER], ids=["plain", "filter"])
@pytest.mark.parametrize("fragment", [4, 6, 10])
def test_each_observation_is_counted_once_however_fragments_are_cut(fragment: int, edits: Any) -> None:
    runner = runner_of(SyncEnvironments(Leaving, 2, seed=0), "warn", edits)
    finished = [runner.sample(fragment, True, weights_of(runner.module), {}).finished for _ in range(40 // fragment)]
    count = sum(one.outside.count for one in finished)
    assert count == sum(len(one.returns) for one in finished) > 5  # the last one of each episode
    first = next(one.outside.first for one in finished if one.outside.count)
    assert first is not None
    assert (first.got, first.expected) == ("obs[1] = 1.001", "-1.0 to 1.0")
    assert first.where in ("episode 0-env_runner-0-0-0, time step 4", "episode 0-env_runner-0-1-0, time step 4")


class NeverEnding(Leaving):
    """Its third observation and all after it are outside; no episode ends."""

    def step(self, action: int) -> Any:
        obs, reward, *_ = super().step(action)
        return obs + np.float32(2 * (self._t > 2)), reward, False, False, {}


def test_the_last_observation_of_a_fragment_is_not_counted_again() -> None:
    runner = runner_of(SyncEnvironments(NeverEnding, 1, seed=0), "warn")
    counts = [runner.sample(3, True, weights_of(runner.module), {}).finished.outside.count for _ in range(3)]
    assert counts == [1, 3, 3]


def test_modes_of_a_runner() -> None:
    off = runner_of(SyncEnvironments(Leaving, 2, seed=0), "off")
    assert off.sample(20, True, weights_of(off.module), {}).finished.outside.count == 0
    error = runner_of(SyncEnvironments(Leaving, 2, seed=0), "error")
    with pytest.raises(RunFailure, match="is outside the environment's observation space"):
        error.sample(20, True, weights_of(error.module), {})
    nan = runner_of(SyncEnvironments(lambda: Leaving(np.nan), 2, seed=0), "off")
    with pytest.raises(RunFailure, match="is not finite"), np.errstate(invalid="ignore"):
        nan.sample(20, True, weights_of(nan.module), {})


def test_evaluation_counts_too() -> None:
    runner = runner_of(SyncEnvironments(Leaving, 2, seed=0), "warn")
    episodes = runner.evaluate(4, False, weights_of(runner.module), {})
    assert (len(episodes.returns), episodes.outside.count) == (4, 4)


def test_batched_environments() -> None:
    runner = runner_of(BatchedEnvironments(VectorFaulty(np.full((2, 2), 1.5, np.float32)), 0), "warn")
    outside = runner.sample(20, True, weights_of(runner.module), {}).finished.outside
    assert outside.count == 2
    assert outside.first is not None
    assert outside.first.where == "episode 0-env_runner-0-0-0, time step 3"


def test_several_agents() -> None:
    def leave(returned: Any) -> None:
        returned[0]["a0"] = np.full(5, -1, np.float32)

    coded = make_coded_run(0, 2, 2, 1, make_env=lambda *_: TwoAgents(leave))
    outside = coded.runner.sample(20, True, coded.weights, {}).finished.outside
    assert outside.count == 2  # in the third step of either sub-environment
    assert outside.first is not None
    assert (outside.first.got, outside.first.where) == ("obs[0] = -1.0", "episode 0-env_runner-0-0-0-a0, time step 3")
    assert coded.runner.sample(20, True, coded.weights, {}).finished.outside.count == 0


LEAVING = (
    *("+experiment=ppo_cartpole", *QUICK, "hydra.run.dir=run", "stop.training_iteration=3"),
    *("env.env=null", "env._target_=tests.support.environments.Leaving"),
)


def test_a_run_goes_on_with_one_line_and_a_count(run_main: Run, tmp_path: Path) -> None:
    several = ("engine=inline", "env_runners.num_env_runners=2", "evaluation.evaluation_interval=1")
    evaluation = ("evaluation.evaluation_duration=4", "evaluation.num_envs_per_env_runner=2")
    outcome = run_main(*LEAVING, *several, *evaluation)
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if "is outside" in line]
    for part in ("tests.support.environments.Leaving: ", "obs[1] = 1.001", "expected -1.0 to 1.0", "-0-0, time step 4"):
        assert part in line
    lines = progress_of(tmp_path / "run")
    assert [one["env_runners/num_observations_outside_space"] for one in lines] == [
        one["env_runners/num_episodes"] for one in lines
    ]
    result = result_of(tmp_path / "run")
    assert result["env_runners/num_observations_outside_space"] > 50
    assert result["evaluation/env_runners/num_observations_outside_space"] == 4
    # Other checks go on with the same episodes.
    stricter = run_main("resume", "run", "env.validate_observations=error", "stop.training_iteration=4")
    assert stricter.code == 1
    assert stricter.err.startswith("an observation is outside the environment's observation space")
    assert "time step 4" in stricter.err
    resumed = run_main("resume", "run", "env.validate_observations=off", "stop.training_iteration=4")
    assert resumed.code == 0, resumed.err
    assert "leaves" not in resumed.out
    assert result_of(tmp_path / "run")["env_runners/num_observations_outside_space"] == 0
