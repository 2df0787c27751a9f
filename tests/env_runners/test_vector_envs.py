"""Sub-environments: restored in the middle of episodes, seeded apart from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import ConfigError
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.vector_envs import BatchedEnvironments, SubEnvironments, SyncEnvironments
from runner.modules import ActorCriticModule
from tests.modules.test_actor_critic_module import SMALL
from tests.rows.test_lock_step_rows import assert_same_blocks
from tests.support.coded_runs import make_runner, weights_of


class OwnState(gym.Env[Any, Any]):
    """Walks at random; its generator is its own and no reset seeds it, so that only `set_state` can restore it."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.random = np.random.default_rng()
        self.place, self.t = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.place, self.t = float(self.random.uniform()), 0
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place, self.t = self.place + action + self.random.uniform(), self.t + 1
        return np.array([self.place], np.float32), self.place, self.t % 7 == 0, False, {}

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place, "t": self.t, "random": self.random.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place, self.t = state["place"], state["t"]
        self.random.bit_generator.state = state["random"]


class CountsItself(gym.Env[Any, Any]):
    """Observes its time step, and has a state of its own."""

    observation_space = gym.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 0.0, False, False, {}

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t}

    def set_state(self, state: Any) -> None:
        self.t = state["t"]


def make_own_state() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(OwnState(), 5)  # type: ignore[no-any-return]


NORMALIZE = {"_target_": "gymnasium.wrappers.NormalizeObservation"}
NORMALIZE_REWARD = {"_target_": "gymnasium.wrappers.NormalizeReward"}
LIMIT = {"_target_": "gymnasium.wrappers.TimeLimit", "max_episode_steps": 5}
STACK = {"_target_": "gymnasium.wrappers.FrameStackObservation", "stack_size": 3}
NORMALIZE_ALL = {"_target_": "gymnasium.wrappers.vector.NormalizeObservation"}
# Running means outlive episodes, so that a replay of the running one would not restore them.
KINDS = {
    "cartpole_batched": (EnvConfig(env="CartPole-v1"), "auto"),
    "cartpole_sync": (EnvConfig(env="CartPole-v1"), "sync"),
    "pendulum": (EnvConfig(env="Pendulum-v1"), "auto"),
    "own_state": (EnvConfig(_target_=f"{__name__}.make_own_state"), "auto"),
    "normalised": (EnvConfig(env="CartPole-v1", wrappers=[NORMALIZE, NORMALIZE_REWARD]), "auto"),
    "normalised_batched": (EnvConfig(env="CartPole-v1", wrappers=[NORMALIZE_ALL]), "auto"),
    "normalised_own_state": (EnvConfig(_target_=f"{__name__}.OwnState", wrappers=[NORMALIZE, LIMIT]), "auto"),
    # The environment has a state, but its wrapper keeps a deque, so episodes are restored by a replay.
    "stacked_state": (EnvConfig(_target_=f"{__name__}.CountsItself", wrappers=[LIMIT, STACK]), "auto"),
    "stacked": (EnvConfig(env="CartPole-v1", wrappers=[STACK, NORMALIZE]), "auto"),
}


def make_envs(kind: str) -> SubEnvironments:
    config, mode = KINDS[kind]
    return make_vector_env(config, 3, mode, seed=4)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_what_they_say(kind: str) -> None:
    assert isinstance(make_envs(kind), BatchedEnvironments if "batched" in kind else SyncEnvironments)


def steps(env: SubEnvironments, actions: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [env.step(action)[:4] for action in actions]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [0, 1, 37, 180, 200])
def test_a_new_object_goes_on_from_a_state(kind: str, half: int) -> None:
    env, restored = make_envs(kind), make_envs(kind)
    env.single_action_space.seed(1)
    actions = [np.stack([env.single_action_space.sample() for _ in range(3)]) for _ in range(half + 60)]
    env.reset(("env_runner", 0, 0))
    steps(env, actions[:half])
    state = env.get_state()
    straight = steps(env, actions[half:])
    restored.set_state(state)
    again = make_envs(kind)
    again.set_state(restored.get_state())  # saved once more before its first step
    resumed = steps(restored, actions[half:])
    for one, other in zip(steps(again, actions[half:]), resumed, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    for expected, got in zip(straight, resumed, strict=True):
        for one, other in zip(expected, got, strict=True):
            np.testing.assert_array_equal(other, one)
    if kind != "pendulum" or half == 180:
        assert np.logical_or([s[2] for s in straight], [s[3] for s in straight]).any()  # an episode ended


@pytest.mark.parametrize("kind", ["cartpole_batched", "cartpole_sync", "pendulum", "own_state"])
def test_a_runner_goes_on_from_a_state(kind: str) -> None:
    def make() -> Any:
        env = make_envs(kind)
        module = ActorCriticModule(env.single_observation_space, env.single_action_space, SMALL)
        edits = [
            {
                "insert_after": "AddObservationsFromEpisodesToBatch",
                "connector": {"_target_": "runner.pipelines.MeanStdFilter"},
            }
        ]
        return make_runner(env, module, num_lookback=2, env_to_module_edits=edits)

    runner, restored = make(), make()
    weights = weights_of(ActorCriticModule(runner.env.single_observation_space, runner.env.single_action_space, SMALL))
    for fragment in (50, 31):
        runner.sample(fragment, True, weights, {})
    state = runner.get_state()
    restored.set_state(state)
    for fragment in (31, 60):
        straight, resumed = (one.sample(fragment, True, weights, {}) for one in (runner, restored))
        assert_same_blocks(resumed.rollout.blocks["default_policy"], straight.rollout.blocks["default_policy"])
        np.testing.assert_array_equal(resumed.finished.returns, straight.finished.returns)
        for name, value in straight.shared_state["default_policy"]["MeanStdFilter"].items():
            np.testing.assert_array_equal(resumed.shared_state["default_policy"]["MeanStdFilter"][name], value)


@pytest.mark.parametrize("kind", ["cartpole_batched", "cartpole_sync", "pendulum"])
def test_reset_starts_the_same_episodes_again(kind: str) -> None:
    env = make_envs(kind)
    first, _ = env.reset(("evaluation", 0, 0))
    steps(env, [np.stack([env.single_action_space.sample() for _ in range(3)]) for _ in range(80)])
    again, _ = env.reset(("evaluation", 0, 0))
    np.testing.assert_array_equal(again, first)
    other, _ = env.reset(("evaluation", 1, 0))
    assert (other != first).all()


class NotesSeeds(gym.Env[Any, Any]):
    """Episodes of two steps; the seeds of all resets are in `seeds`."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)
    seeds: list[int | None] = []  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        self.seeds.append(seed)
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return 1, 0.0, self.t == 2, False, {}


def seeds_of(role: str, index: int, generation: int, seed: int) -> list[int]:
    NotesSeeds.seeds = []
    env = SyncEnvironments(NotesSeeds, 8, seed)
    env.reset((role, index, generation))
    for _ in range(9):
        env.step(np.zeros(8, np.int64))
    assert len(NotesSeeds.seeds) == 32
    return NotesSeeds.seeds  # type: ignore[return-value]


def test_no_two_episodes_of_any_runner_share_a_seed() -> None:
    names = [
        (role, index, generation)
        for role in ("env_runner", "evaluation")
        for index in range(4)
        for generation in (0, 1)
    ]
    seeds = [seed for run_seed in (0, 1) for name in names for seed in seeds_of(*name, run_seed)]
    assert len(set(seeds)) == len(seeds) == 2 * 16 * 32
    assert seeds_of("env_runner", 3, 1, 1) == seeds_of("env_runner", 3, 1, 1)


def test_sub_environments_of_a_batched_implementation_start_apart() -> None:
    starts = []
    for index in range(3):
        env = make_vector_env(EnvConfig(env="CartPole-v1"), 4, "auto", seed=0)
        starts.append(env.reset(("env_runner", index, 0))[0])
    assert len(np.unique(np.concatenate(starts), axis=0)) == 12


def test_batched_environment_that_resets_in_the_same_step_is_refused() -> None:
    class SameStep(gym.vector.VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
        num_envs = 1

    with pytest.raises(ConfigError, match="does not reset finished sub-environments in the next step"):
        BatchedEnvironments(SameStep(), 0)


class Odometer(gym.Wrapper[Any, Any, Any, Any]):
    """Observes the number of its steps in all episodes."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0.0, 100.0, (1,), np.float32)
        self.total = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.env.reset(**kwargs)
        return np.full(1, self.total, np.float32), {}

    def step(self, action: Any) -> Any:
        _, *others = self.env.step(action)
        self.total += 1
        return np.full(1, self.total, np.float32), *others


@pytest.mark.parametrize("max_replayed_steps", [1, 100])
def test_a_wrapper_keeps_its_state_after_an_episode_that_has_just_ended(max_replayed_steps: int) -> None:
    """Also if the episode was too long to be repeated."""

    def make() -> SyncEnvironments:
        return SyncEnvironments(lambda: Odometer(NotesSeeds()), 1, 0, max_replayed_steps=max_replayed_steps)

    straight, restored, again = make(), make(), make()
    straight.reset(("r", 0, 0))
    steps(straight, [np.array([0])] * 2)
    restored.set_state(straight.get_state())
    again.set_state(restored.get_state())
    for envs in (straight, restored, again):
        shown = [obs.item() for obs, _, _, _ in steps(envs, [np.array([0])] * 3)]
        assert shown == [2, 3, 4]
