"""Each reset draws a task by its own seed; a running episode goes on from its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.curriculum import TaskConfig
from runner.config.errors import ConfigError, RunFailure
from runner.config.info_metrics import InfoMetric
from runner.config.schemas import EnvConfig
from runner.curriculum.tasked_env import TaskedEnv, TaskedMultiAgentEnv
from runner.curriculum.tasked_episodes import TaskedEpisodes
from runner.env_runners.agent_infos import AgentInfos
from runner.env_runners.env_makers import make_environment
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.vector_envs import SyncEnvironments
from tests.callbacks.test_callbacks_of_agents import LeavesUnseen
from tests.curriculum.drills import Drill, StatefulDrill, TeamDrill
from tests.support.coded_agents import make_coded_run
from tests.support.problems import raised_in, shown_problems

TASKS = {
    "short": TaskConfig({"length": 3}),
    "long": TaskConfig({"length": 9}),
    "fast": TaskConfig(env_config={"speed": 2.0}),
}
ODDS = {"short": 0.2, "long": 0.5, "fast": 0.3}
NUM_ENVS = 3


def maker(env_class: Callable[..., Any], wrap: Callable[[Any], Any] = lambda env: env) -> Callable[..., Any]:
    return lambda arguments: wrap(env_class(**arguments))


def normalised(env: Any) -> Any:
    return gym.wrappers.NormalizeObservation(env)


def stacked(env: Any) -> Any:
    return gym.wrappers.FrameStackObservation(env, 2)


def envs_of(make: Callable[..., Any], odds: Mapping[str, float] = ODDS, measure: str = "episode_return") -> Any:
    return SyncEnvironments(lambda: TaskedEnv(make, TASKS, odds, measure), NUM_ENVS, seed=5)


def run(envs: SyncEnvironments, num_steps: int, first: int = 0) -> list[Any]:
    told = []
    for t in range(first, first + num_steps):
        obs, rewards, terminateds, truncateds, infos = envs.step(np.array([t % 2] * NUM_ENVS))
        infos_of = [dict(info) for info in infos] if infos else [{}] * NUM_ENVS
        told.append((obs.tolist(), rewards.tolist(), terminateds.tolist(), truncateds.tolist(), infos_of))
    return told


def test_tasks_are_drawn_by_the_odds_and_change_what_is_reset() -> None:
    env = TaskedEnv(maker(Drill), TASKS, ODDS)
    drawn, lengths = [], {}
    for seed in range(600):
        _, info = env.reset(seed=seed)
        drawn.append(info["task"])
        drill = env.env
        lengths[info["task"]] = (drill.length, drill.speed)
    assert lengths == {"short": (3, 1.0), "long": (9, 1.0), "fast": (5, 2.0)}
    shares = {name: drawn.count(name) / len(drawn) for name in ODDS}
    assert shares == pytest.approx(ODDS, abs=0.06)
    assert env.reset(seed=17)[1]["task"] == drawn[17], "the seed of the reset says which"
    env.odds = {"long": 1.0}
    assert {env.reset(seed=seed)[1]["task"] for seed in range(20)} == {"long"}


def test_the_task_is_in_the_infos_of_the_reset_and_of_the_last_step() -> None:
    env = TaskedEnv(maker(Drill), TASKS, {"short": 1.0})
    assert env.reset(seed=0)[1]["task"] == "short"
    infos = [env.step(0)[4] for _ in range(3)]
    assert ["task" in info for info in infos] == [False, False, True]


@pytest.mark.parametrize("env_class", [Drill, StatefulDrill])
@pytest.mark.parametrize("wrap", [lambda env: env, normalised, stacked], ids=["bare", "normalised", "stacked"])
@pytest.mark.parametrize("num_before", [2, 40])
def test_running_episodes_go_on_from_their_state(env_class: Any, wrap: Callable[[Any], Any], num_before: int) -> None:
    make = maker(env_class, wrap)
    straight, resumed = envs_of(make), envs_of(make)
    straight.reset(("env_runner", 0, 0))
    run(straight, num_before)
    for env in resumed.environments:  # episodes of a state know their tasks, whatever was drawn before and meanwhile
        env.odds = {"fast": 1.0}
    resumed.reset(("env_runner", 0, 0))
    run(resumed, 3)
    resumed.set_state(straight.get_state())
    for env in resumed.environments:
        env.odds = dict(ODDS)
    after = run(resumed, 60, num_before)
    assert after == run(straight, 60, num_before)
    assert {info["task"] for step in after for info in step[4] if "task" in info} == set(TASKS)


def test_running_episodes_of_several_agents_go_on_from_their_state() -> None:
    def envs() -> MultiAgentEnvironments:
        return MultiAgentEnvironments(lambda: TaskedMultiAgentEnv(maker(TeamDrill), TASKS, ODDS), NUM_ENVS, seed=5)

    def run_teams(envs: MultiAgentEnvironments, num_steps: int) -> list[Any]:
        told = []
        for _ in range(num_steps):
            steps = envs.step([{"a": 1, "b": 0}] * NUM_ENVS)
            told.append([(step.is_reset, step.rewards, step.terminateds, step.infos) for step in steps])
        return told

    straight, resumed = envs(), envs()
    straight.reset(("env_runner", 0, 0))
    told = run_teams(straight, 40)
    assert {step[3]["a"]["task"] for steps in told for step in steps} == set(TASKS)
    resumed.reset(("env_runner", 0, 0))
    resumed.set_state(straight.get_state())
    assert run_teams(resumed, 40) == run_teams(straight, 40)


def test_a_task_with_other_spaces_is_refused() -> None:
    env = TaskedEnv(maker(Drill), {"wide": TaskConfig(env_config={"width": 3})}, {"wide": 1.0})
    with pytest.raises(ConfigError, match="observation_space of task wide differs"):
        env.reset(seed=0)


def test_a_task_whose_environment_cannot_be_made_shows_the_line() -> None:
    def make(arguments: Mapping[str, Any]) -> Any:
        return make_environment(EnvConfig(_target_="tests.curriculum.drills.Drill", env_config=arguments))

    env = TaskedEnv(make, {"wide": TaskConfig(env_config={"width": "wide"})}, {"wide": 1.0})
    with pytest.raises(ConfigError) as caught:
        env.reset(seed=0)
    (problem,) = shown_problems(caught.value)
    assert problem.what.startswith("task wide: the environment tests.curriculum.drills.Drill cannot be created: ")
    line = raised_in(Drill.__init__, "self.observation_space")
    assert problem.where == f"curriculum.tasks.wide.env_config, env._target_, {line}"


@pytest.mark.parametrize("env_class", [Drill, TeamDrill])
def test_a_value_out_of_infos_is_the_last_ones(env_class: Any) -> None:
    is_team = issubclass(env_class, MultiAgentEnv)
    kind = TaskedMultiAgentEnv if is_team else TaskedEnv
    env: Any = kind(maker(env_class), TASKS, {"short": 1.0}, "info:height")
    env.reset(seed=0)
    for _ in range(3):
        env.step({"a": 1, "b": 0} if is_team else 1)
    assert env.measured() == (30.0 + 0.0) / 2 if is_team else 30.0


@pytest.mark.parametrize("env_class", [Drill, TeamDrill])
def test_a_value_that_is_not_a_number_is_reported_unchanged(env_class: Any) -> None:
    is_team = issubclass(env_class, MultiAgentEnv)
    kinds: Any = (TaskedMultiAgentEnv, MultiAgentEnvironments) if is_team else (TaskedEnv, SyncEnvironments)
    envs = kinds[1](lambda: kinds[0](maker(env_class), TASKS, {"short": 1.0}, "info:name"), 1, seed=5)
    envs.reset(("env_runner", 0, 0))
    actions: Any = [{"a": 1, "b": 0}] if is_team else np.ones(1, np.int64)
    for _ in range(2):
        envs.step(actions)
    with pytest.raises(RunFailure) as caught:
        envs.step(actions)
    what = "info:name, which curriculum.measure names, is not a number in the info of a step"
    assert (caught.value.problem.what, caught.value.problem.where) == (what, "task short")


def test_the_info_of_an_agent_that_ends_without_an_observation_counts() -> None:
    def make_env(*_: Any) -> TaskedMultiAgentEnv:
        return TaskedMultiAgentEnv(maker(LeavesUnseen), TASKS, {"short": 1.0}, "info:x")

    infos = AgentInfos([InfoMetric("x/short", ("x",), group=(("task",), "short"))], {"a0": "m0"}, 1)
    coded = make_coded_run(0, 1, 1, 0, make_env=make_env, make_listeners=lambda envs, _: [infos, TaskedEpisodes(envs)])
    finished = coded.runner.sample(6, True, coded.weights, {}).finished
    assert finished.outcomes["curriculum"] == (("short", 3.0), ("short", 3.0))
    assert finished.infos["x/short"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("key", "what"),
    [("hieght", r"does not contain hieght(?s:.*)did you mean +info:height"), ("name", "is not a number in")],
)
def test_a_value_that_infos_do_not_have_is_told(key: str, what: str) -> None:
    env = TaskedEnv(maker(Drill), TASKS, {"short": 1.0}, f"info:{key}")
    env.reset(seed=0)
    with pytest.raises(RunFailure, match=what):  # noqa: PT012 - which of them tells it depends on the key
        for _ in range(3):
            env.step(0)
        env.measured()
