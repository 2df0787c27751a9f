"""Sub-environments apart from each other, here and in processes: the same numbers, and failures that stay alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.metrics import NUM_ENV_RESTARTS
from runner.config.schemas import EnvConfig
from runner.env_runners import separate_envs
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.evaluation_quotas import EvaluationQuotas
from runner.env_runners.separate_envs import SeparateEnvironments, local_environments
from runner.env_runners.vector_envs import SubEnvironments, SyncEnvironments
from runner.episodes import nested
from runner.modules import ActorCriticModule
from runner.streams import integer_seed
from tests.conftest import marked_but
from tests.env_runners.separate_runs import CONFIGS, NAME, SEED, N, actions_for, failing, failure_of, seed_of
from tests.modules.test_actor_critic_module import SMALL
from tests.rows.test_lock_step_rows import assert_same_blocks
from tests.support.coded_runs import make_runner, weights_of
from tests.support.environments import FailsAt
from tests.support.problems import raised_in, shown_problems


def assert_same_steps(got: Any, expected: Any) -> None:
    """Compare what two environments returned, bit for bit, infos included."""
    obs, *numbers, infos = got
    other_obs, *other_numbers, other_infos = expected
    nested.map_leaves(np.testing.assert_array_equal, obs, other_obs)
    for one, other in zip(numbers, other_numbers, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    assert plain_infos(infos) == plain_infos(other_infos)


def plain_infos(infos: Any) -> list[dict[str, str]]:
    """Infos without the seconds that `RecordEpisodeStatistics` measures."""
    return [{key: repr(value) for key, value in info.items() if key != "episode"} for info in infos]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("mode", "restarts"), [("async", False), ("sync", True)])
def test_the_same_numbers_as_stepped_one_by_one(made: Any, name: str, mode: str, restarts: bool) -> None:
    sync, apart = made(CONFIGS[name], "sync"), made(CONFIGS[name], mode, restarts)
    assert type(sync) is SyncEnvironments
    assert type(apart) is SeparateEnvironments
    assert_same_steps(apart.reset(NAME), sync.reset(NAME))
    ends = 0
    for action in actions_for(sync, 60):
        expected = sync.step(action)
        assert_same_steps(apart.step(action), expected)
        ends += int((expected[2] | expected[3]).sum())
    assert ends > N
    assert_same_steps(apart.reset(("evaluation", 1, 0)), sync.reset(("evaluation", 1, 0)))


OWN_STATE = EnvConfig(_target_="tests.env_runners.test_vector_envs.make_own_state")


@pytest.mark.parametrize(
    "config",
    [CONFIGS["cartpole"], CONFIGS["wrapped"], pytest.param(OWN_STATE, marks=pytest.mark.slow)],
    ids=["", "wrapped", "own"],
)
@pytest.mark.parametrize(
    ("before", "after"),
    marked_but(pytest.mark.slow, [("async", "async"), ("sync", "async"), ("async", "sync")], ("async", "async")),
)
def test_goes_on_from_a_state(made: Any, config: EnvConfig, before: str, after: str) -> None:
    straight, resumed = made(config, before), made(config, after)
    straight.reset(NAME)
    actions = actions_for(straight, 90)
    for action in actions[:45]:
        straight.step(action)
    resumed.set_state(straight.get_state())
    for action in actions[45:]:
        assert_same_steps(resumed.step(action), straight.step(action))


def runner_of(env: SubEnvironments, num_lookback: int = 1) -> Any:
    torch.manual_seed(0)
    module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
    runner = make_runner(env, module, num_lookback=num_lookback, seed=SEED)
    return lambda steps: runner.sample(steps, True, weights_of(module), {}), runner


def test_a_runner_samples_the_same_and_goes_on_in_processes(made: Any) -> None:
    (sample, runner), (other, _) = (runner_of(made(CONFIGS["cartpole"], mode)) for mode in ("async", "sync"))
    for _ in range(2):
        assert_same_blocks(sample(60).rollout.blocks["default_policy"], other(60).rollout.blocks["default_policy"])
    resumed, new = runner_of(made(CONFIGS["cartpole"], "async"))
    new.set_state(runner.get_state())
    for _ in range(2):
        assert_same_blocks(resumed(60).rollout.blocks["default_policy"], other(60).rollout.blocks["default_policy"])


# -- failures --------------------------------------------------------------------------------------------------------


# Sub-environment 1 fails in its second episode, and then at once in the reset of the third.
AT = {(1, 1): 5, (1, 2): 0}
CASES = [
    *(("raise", "sync", None, fragment) for fragment in (3, 21, 30, 90)),
    ("raise", "async", None, 30),
    ("exit", "async", None, 21),
    ("sleep", "async", 1.5, 90),
]


@pytest.mark.parametrize(("fault", "mode", "timeout_s", "fragment"), CASES)
def test_a_failure_loses_its_own_episode_alone(
    made: Any, fault: str, mode: str, timeout_s: float | None, fragment: int
) -> None:
    undisturbed, _ = runner_of(made(CONFIGS["cartpole"], "sync"))
    sample, _ = runner_of(made(failing(fault, AT), mode, True, timeout_s))
    expected, samples = ([one(fragment) for _ in range(180 // fragment)] for one in (undisturbed, sample))
    for n in (0, 2):  # to the last bit, as far as both have sampled
        rows, others = steps_of(samples, n), steps_of(expected, n)
        least = min(len(rows), len(others))
        assert least > 40
        assert rows[:least] == others[:least]
    of_second, of_third = ([e for e in chunks_of(samples, 1) if e.id_.endswith(f"-1-{k}")] for k in (1, 2))
    assert sum(map(len, of_second)) == AT[1, 1] - 1  # all that were made
    assert not any(chunk.is_done for chunk in of_second)
    assert of_second[0].t_started == of_third[0].t_started == 0
    assert samples[-1].counts == {NUM_ENV_RESTARTS: 2}
    assert_counted(samples)


def chunks_of(samples: Any, n: int) -> list[Any]:
    """The chunks of sub-environment n in all samples."""
    chunks = [chunk for sample in samples for chunk in sample.rollout.blocks["default_policy"]]
    return [chunk for chunk in chunks if chunk.id_.split("-")[-2] == str(n)]


def steps_of(samples: Any, n: int) -> list[tuple[Any, ...]]:
    """What sub-environment n did and got, step by step."""
    return [
        (chunk.id_, obs.tolist(), int(action), float(reward), next_obs.tolist())
        for chunk in chunks_of(samples, n)
        for obs, next_obs, action, reward in zip(
            chunk.get_observations()[:-1],
            chunk.get_observations()[1:],
            chunk.get_actions(),
            chunk.get_rewards(),
            strict=True,
        )
    ]


def assert_counted(samples: Any) -> None:
    """All steps are counted, and the returns are of the episodes that ended, each with all its rewards."""
    chunks = [chunk for n in range(N) for chunk in chunks_of(samples, n)]
    assert sum(sample.rollout.num_env_steps for sample in samples) == sum(map(len, chunks))
    returns: dict[str, float] = {}
    for chunk in chunks:
        returns[chunk.id_] = returns.get(chunk.id_, 0.0) + float(chunk.get_rewards().sum())
    ended = [chunk.id_ for chunk in chunks if chunk.is_done]
    assert len(ended) > N
    finished = np.concatenate([sample.finished.returns for sample in samples])
    assert sorted(finished.tolist()) == sorted(returns[id_] for id_ in ended)


def test_the_next_episode_has_the_next_seed(made: Any) -> None:
    env, sync = made(failing("raise", {(1, 0): 2}), "sync", True), made(CONFIGS["cartpole"], "sync")
    env.reset(NAME)
    sync.reset(NAME)
    action = np.zeros(N, np.int64)
    env.step(action)
    obs, rewards, terminateds, truncateds, _ = env.step(action)
    assert env.recreated == [1]
    assert (rewards[1], terminateds[1], truncateds[1]) == (0.0, False, False)
    expected, _ = gym.make("CartPole-v1").reset(seed=seed_of(1, 1))
    np.testing.assert_array_equal(obs[1], expected)
    env.step(action)
    assert env.recreated == []


@pytest.mark.parametrize("step", [5, 6, 8])  # the first one of a fragment, one in the middle, the last one
def test_returns_after_a_failure_somewhere_in_a_fragment(made: Any, step: int) -> None:
    config = replace(failing("raise", {(1, 0): step}), env=None, _target_="tests.support.environments.Faulty")
    config = replace(config, env_config={"episode_len": 20})
    sample, _ = runner_of(made(config, "sync", True))
    samples = [sample(4 * N - 1) for _ in range(30)]  # four vector steps, also where one sub-environment takes three
    assert samples[-1].counts == {NUM_ENV_RESTARTS: 1}
    assert_counted(samples)


def test_what_broke_off_is_in_no_quota() -> None:
    quotas = EvaluationQuotas(4, "env_steps", 2)
    nobody = np.zeros(2, np.bool_)
    quotas.count(np.array([False, True]), nobody, [1])
    assert quotas.remaining.tolist() == [1, 2]
    quotas = EvaluationQuotas(2, "episodes", 2)
    quotas.count(np.array([False, True]), nobody, [1])
    quotas.count(nobody, np.array([True, True]))
    assert quotas.remaining.tolist() == [0, 0]
    numbers, env_of = np.array([0, 1, 0, 1, 2]), np.array([0, 0, 1, 1, 1])
    assert quotas.are_counted(numbers, env_of).tolist() == [True, False, True, True, False]


def test_a_restart_is_in_the_state(made: Any) -> None:
    env, restored = (made(failing("raise", {(1, 0): 2}), "sync", True) for _ in range(2))
    env.reset(NAME)
    for action in actions_for(env, 10):
        env.step(action)
    restored.set_state(env.get_state())
    assert restored.counts == env.counts == {NUM_ENV_RESTARTS: 1}
    for action in actions_for(env, 30):
        assert_same_steps(restored.step(action), env.step(action))


class FailsOnDemand(gym.Wrapper[Any, Any, Any, Any]):
    """Fails in each step of sub-environment 1's first episode while `is_due`."""

    is_due = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._fails = seed == seed_of(1, 0)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self._fails and self.is_due:
            raise ValueError("the arm has left its rail")
        return self.env.step(action)


ON_DEMAND = EnvConfig(env="CartPole-v1", wrappers=[{"_target_": f"{__name__}.FailsOnDemand"}])


def test_an_episode_whose_actions_cannot_be_repeated_is_lost_alone(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env, restored = (made(ON_DEMAND, "sync", True) for _ in range(2))
    env.reset(NAME)
    *actions, last = actions_for(env, 6)
    for action in actions:
        env.step(action)
    with monkeypatch.context() as patch:
        patch.setattr(FailsOnDemand, "is_due", True)
        restored.set_state(env.get_state())
    expected, got = env.step(last), restored.step(last)
    assert restored.recreated == [1]
    assert restored.counts == {NUM_ENV_RESTARTS: 1}
    for row in (0, 2):
        np.testing.assert_array_equal(got[0][row], expected[0][row])
    np.testing.assert_array_equal(got[0][1], gym.make("CartPole-v1").reset(seed=seed_of(1, 1))[0])


def test_an_error_while_actions_are_repeated_names_the_step(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env, restored = (made(ON_DEMAND, "sync") for _ in range(2))
    env.reset(NAME)
    env.step(np.zeros(N, np.int64))
    monkeypatch.setattr(FailsOnDemand, "is_due", True)
    with pytest.raises(RunFailure) as caught:
        restored.set_state(env.get_state())
    assert shown_problems(caught.value) == [
        Problem(
            "the environment raised ValueError in step: the arm has left its rail",
            where=f"sub-environment 1, episode 0, step 0, {raised_in(FailsOnDemand.step, 'raise ValueError')}",
            got="action 0",
        )
    ]


@pytest.mark.parametrize("seed_name", [("evaluation", 0, 0)])
def test_an_evaluation_has_all_its_episodes(made: Any, seed_name: tuple[str, int, int]) -> None:
    seeds = {str(integer_seed(SEED, *seed_name, 1, 0)): 3}
    wrapper = {"_target_": "tests.support.environments.FailsAt", "fault": "raise", "steps": seeds}
    finished = []
    for config, restarts in ((CONFIGS["cartpole"], False), (EnvConfig(env="CartPole-v1", wrappers=[wrapper]), True)):
        env = made(config, "sync", restarts)
        torch.manual_seed(0)
        module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
        runner = make_runner(env, module, seed_name=seed_name, seed=SEED)
        finished.append(runner.evaluate(9, False, weights_of(module), {}))
    before, after = ([one.returns[one.env_of == n].tolist() for n in range(N)] for one in finished)
    assert [len(returns) for returns in after] == [3, 3, 3]
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1][:2] == before[1][1:]  # the first one broke off, so the second one is the first that counts


# -- errors ----------------------------------------------------------------------------------------------------------

RAISED = raised_in(FailsAt._fail_if_due, "raise ValueError")


@pytest.mark.parametrize(
    ("fault", "step", "timeout_s", "expected"),
    [
        pytest.param(
            "raise",
            3,
            None,
            Problem(
                "the environment raised ValueError in step: the arm has left its rail",
                where=f"sub-environment 1, episode 0, step 2, {RAISED}",
                got="action 1",
            ),
            id="raise_at_3",
        ),
        pytest.param(
            "raise",
            0,
            None,
            Problem(
                "the environment raised ValueError in reset: the arm has left its rail",
                where=f"sub-environment 1, episode 0, {RAISED}",
            ),
            id="raise_at_0",
        ),
        pytest.param(
            "exit",
            3,
            None,
            Problem(
                "the process of the environment CartPole-v1 ended in step",
                where="sub-environment 1, episode 0",
                got="exit code 3",
            ),
            id="exit_at_3",
        ),
        pytest.param(
            "sleep",
            3,
            1.0,
            Problem(
                "the environment CartPole-v1 hung in step",
                where="sub-environment 1, episode 0",
                expected="an answer within env_runners.env_step_timeout_s",
            ),
            id="sleep_at_3",
        ),
        pytest.param(
            "sleep",
            0,
            1.0,
            Problem(
                "the environment CartPole-v1 hung in reset",
                where="sub-environment 1, episode 0",
                expected="an answer within env_runners.env_step_timeout_s",
            ),
            id="sleep_at_0",
        ),
    ],
)
def test_without_restarts_a_failure_ends_the_run(
    made: Any, fault: str, step: int, timeout_s: float | None, expected: Problem
) -> None:
    assert failure_of(made(failing(fault, {(1, 0): step}), "async", timeout_s=timeout_s)) == expected


def test_in_a_process_an_error_reads_as_here(made: Any) -> None:
    here, there = (failure_of(made(failing("raise", {(1, 1): 3}), mode), 90) for mode in ("sync", "async"))
    assert here == there


def test_a_sub_environment_that_always_fails_ends_the_run(made: Any) -> None:
    at = {(1, k): 0 for k in range(2, 40)}
    assert failure_of(made(failing("raise", at), "sync", True), 90) == Problem(
        (
            "sub-environment 1 failed 10 times in a row without a step: the environment raised "
            "ValueError in reset: the arm has left its rail"
        ),
        where=f"sub-environment 1, episode 11, {RAISED}",
    )


def test_a_sub_environment_that_cannot_be_made_again_ends_the_run() -> None:
    wrapped = failing("raise", {(1, 0): 3})
    count = iter(range(100))

    def make_env() -> Any:
        if next(count) >= N:
            raise ConfigError([Problem("the environment cannot be created: OSError: no licence is left")])
        from runner.env_runners.env_makers import make_environment

        return make_environment(wrapped, 1, "sync")

    env = gym.make("CartPole-v1")
    envs = local_environments(make_env, (env.observation_space, env.action_space), N, SEED)
    assert failure_of(envs) == Problem(
        (
            "sub-environment 1 failed 10 times in a row without a step: the environment cannot be "
            "created: OSError: no licence is left"
        ),
        where="sub-environment 1, episode 9",
    )
    assert next(count) == N + separate_envs.MOST_FAILURES_IN_A_ROW - 1


def test_an_observation_of_another_shape_is_no_failure_that_restarts(made: Any) -> None:
    env = made(EnvConfig(_target_=f"{__name__}.GrowingObservations"), "sync", True)
    assert "does not fit its space" in failure_of(env).what
    assert env.counts == {NUM_ENV_RESTARTS: 0}


class GrowingObservations(gym.Env[Any, Any]):
    """Shows one number more after each step."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(self.t, np.float32), 0.0, False, False, {}


class Together(gym.vector.VectorEnv[Any, Any, Any]):
    """Steps all."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs


def make_together(num_envs: int) -> Together:
    return Together(num_envs)


@pytest.mark.parametrize(
    ("mode", "restarts", "expected"),
    [
        pytest.param(
            "async",
            False,
            Problem(
                (
                    f"{__name__}.make_together steps all sub-environments together, "
                    "so they cannot run in separate processes"
                ),
                where="env_runners.gym_env_vectorize_mode",
                got="Together",
                expected="a gymnasium.Env, which steps a single one",
            ),
            id="process",
        ),
        pytest.param(
            "auto",
            True,
            Problem(
                f"{__name__}.make_together steps all sub-environments together, so single ones cannot be re-created",
                where="env_runners.restart_failed_sub_environments",
                got="Together",
                expected="a gymnasium.Env, which steps a single one",
            ),
            id="anew",
        ),
    ],
)
def test_environments_that_step_together_are_refused(mode: str, restarts: bool, expected: Problem) -> None:
    with pytest.raises(ConfigError) as caught:
        make_vector_env(EnvConfig(_target_=f"{__name__}.make_together"), N, mode, SEED, restarts)
    assert list(caught.value.problems) == [expected]


def test_auto_with_restarts_steps_one_by_one(made: Any) -> None:
    assert type(made(CONFIGS["cartpole"], "auto", True)) is SeparateEnvironments
