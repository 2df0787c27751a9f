"""Sub-environments of EnvPool and ALE: the same rows as an own loop over single ones, and exact states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import ConfigError
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_environment, make_vector_env
from runner.env_runners.native import ale_env, envpool_env
from runner.env_runners.native.action_log import ActionLog
from runner.env_runners.native.observations import ChannelsLast
from runner.env_runners.rendered_envs import rendered
from runner.env_runners.vector_envs import BatchedEnvironments
from runner.experiment.trainer import Trainer
from runner.streams import integer_seed
from runner.testing.rules import are_equal
from tests.conftest import QUICK
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly

NUM_ENVS = 2
NEEDS_ENVPOOL = pytest.mark.skipif(find_spec("envpool") is None, reason="envpool is not installed")
SMALL = {"img_height": 42, "img_width": 42}
ALE = EnvConfig(env="ALE/Breakout-v5", backend="ale", env_config={**SMALL, "num_threads": 1, "noop_max": 3})
CARTPOLE = EnvConfig(env="CartPole-v1", backend="envpool")
CONFIGS = [
    pytest.param(ALE, id="ale"),
    pytest.param(CARTPOLE, id="envpool_cartpole", marks=NEEDS_ENVPOOL),
    pytest.param(
        EnvConfig(env="Pendulum-v1", backend="envpool", env_config={"max_episode_steps": 30}),
        id="envpool_pendulum",
        marks=NEEDS_ENVPOOL,
    ),
    pytest.param(EnvConfig(env="MiniGrid-Empty-5x5-v0", backend="envpool"), id="envpool_dict", marks=NEEDS_ENVPOOL),
    pytest.param(
        EnvConfig(env="Breakout-v5", backend="envpool", env_config={**SMALL, "noop_max": 3}),
        id="envpool_breakout",
        marks=NEEDS_ENVPOOL,
    ),
]


@pytest.fixture(params=[10_000, 60], ids=["one_seed", "seeds"])
def steps_of_seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (ale_env, envpool_env):
        monkeypatch.setattr(module, "NUM_STEPS_OF_SEED", request.param)
    return int(request.param)


def actions_of(config: EnvConfig, num_steps: int) -> list[Any]:
    env = make_environment(config, 1)
    space = gym.vector.utils.batch_space(env.single_action_space, NUM_ENVS)
    env.close()
    space.seed(1)
    return [space.sample() for _ in range(num_steps)]


# -- the same rows as an own loop ------------------------------------------------------------------------------------


class Single:
    """One sub-environment in an environment of its library's own, reset by hand."""

    def __init__(self, config: EnvConfig, number: int, seed: int) -> None:
        self._config, self._number, self._seed = config, number, seed
        self._env: Any = None
        if config.backend == "ale":
            from ale_py.vector_env import AtariVectorEnv

            self._env = AtariVectorEnv("breakout", 1, **config.env_config)

    def reset_seeded(self, num_seeds: int) -> Any:
        """Return (1, ...) observations of the first episode with its next seed."""
        seed = integer_seed(self._seed, "sub-environment", self._number, num_seeds)
        if self._config.backend == "ale":
            return self._env.reset(seed=np.array([seed]))[0]
        import envpool

        self._env = envpool.make_gymnasium(self._config.env, num_envs=1, seed=[seed], **self._config.env_config)
        return self._env.reset()[0]

    def walk(self, actions: list[Any], num_seeds: list[int]) -> Iterator[tuple[Any, float, bool, bool]]:
        """Yield rows, the first one of a reset; `num_seeds` says at which of them there was another seed."""
        yield self.reset_seeded(0), 0.0, False, False
        is_done = False
        for time, action in enumerate(actions, start=1):
            if is_done:
                is_seeded = num_seeds[time] > num_seeds[time - 1]
                obs = self.reset_seeded(num_seeds[time]) if is_seeded else self._env.reset()[0]
                is_done = False
                yield obs, 0.0, False, False
                continue
            obs, reward, terminated, truncated, _ = self._env.step(action[self._number : self._number + 1])
            is_done = bool(terminated[0] or truncated[0])
            yield obs, float(reward[0]), bool(terminated[0]), bool(truncated[0])


def row_of(obs: Any, number: int) -> Any:
    return {key: leaf[number] for key, leaf in obs.items()} if isinstance(obs, dict) else obs[number]


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("config", CONFIGS)
def test_rows_are_those_of_single_environments_that_are_reset_by_hand(config: EnvConfig, steps_of_seed: int) -> None:
    num_steps = 420 if "Breakout" in str(config.env) else 260
    actions = actions_of(config, num_steps)
    env = make_environment(config, NUM_ENVS)
    num_seeds_of = lambda: np.array(env._num_seeds if config.backend == "ale" else env._pool_of)  # noqa: E731
    obs, _ = env.reset(seed=7)
    is_end = np.zeros(NUM_ENVS, np.bool_)
    rows, num_seeds = [(obs, np.zeros(NUM_ENVS), is_end, is_end)], [num_seeds_of()]
    for action in actions:
        rows.append(env.step(action)[:4])
        num_seeds.append(num_seeds_of())
    ends = sum(row[2] | row[3] for row in rows)
    assert ends.min() >= 1, ends
    assert (num_seeds[-1] > 0).any() == (steps_of_seed < num_steps)
    for number in range(NUM_ENVS):
        singles = Single(config, number, env._seed).walk(actions, [int(counts[number]) for counts in num_seeds])
        for time, ((obs, *others), (single_obs, *single_others)) in enumerate(zip(rows, singles, strict=True)):
            expected = row_of(single_obs, 0)
            if env.single_observation_space.dtype == np.uint8 and expected.ndim == 3:
                expected = np.moveaxis(expected, 0, 2)
            assert are_equal(row_of(obs, number), expected), (number, time)
            assert [column[number] for column in others] == single_others, (number, time)


# -- ends --------------------------------------------------------------------------------------------------------------


def ends_of(config: EnvConfig, num_steps: int, action: int | None = None) -> list[tuple[Any, bool, bool]]:
    """Return the last observation of each episode, and whether it was terminated and truncated."""
    env = make_environment(config, NUM_ENVS)
    env.reset(seed=3)
    ends = []
    for actions in actions_of(config, num_steps):
        obs, _, terminateds, truncateds, _ = env.step(actions if action is None else np.full_like(actions, action))
        ends += [(obs[n], terminateds[n], truncateds[n]) for n in np.flatnonzero(terminateds | truncateds)]
    assert ends
    return ends


@NEEDS_ENVPOOL
def test_an_episode_ends_with_its_last_observation_and_as_it_did() -> None:
    for (place, _, angle, _), terminated, truncated in ends_of(CARTPOLE, 200):
        assert (terminated, truncated) == (True, False)
        assert abs(place) > 2.4 or abs(angle) > 12 * np.pi / 180
    limited = EnvConfig(env="Pendulum-v1", backend="envpool", env_config={"max_episode_steps": 9})
    assert {end[1:] for end in ends_of(limited, 40)} == {(False, True)}


def test_a_game_that_takes_too_long_is_truncated() -> None:
    limited = EnvConfig(env=ALE.env, backend="ale", env_config={**ALE.env_config, "max_num_frames_per_episode": 60})
    assert {end[1:] for end in ends_of(limited, 40, action=0)} == {(False, True)}
    assert {end[1:] for end in ends_of(ALE, 250)} == {(True, False)}


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "half"),
    [
        *(pytest.param(*one.values, 330, id=f"{one.id}-330", marks=one.marks) for one in CONFIGS),
        *(pytest.param(CARTPOLE, half, id=f"envpool_cartpole-{half}", marks=NEEDS_ENVPOOL) for half in (0, 1)),
    ],
)
def test_another_object_goes_on_from_a_state(config: EnvConfig, half: int, steps_of_seed: int) -> None:
    env, restored, again = (make_vector_env(config, NUM_ENVS, "auto", seed=4) for _ in range(3))
    assert isinstance(env, BatchedEnvironments)
    actions = actions_of(config, half + 150)
    env.reset(("env_runner", 0, 0))
    for action in actions[:half]:
        env.step(action)
    state = env.get_state()
    straight = [env.step(action) for action in actions[half:]]
    restored.set_state(state)
    again.set_state(restored.get_state())  # saved once more before its first step
    for envs in (restored, again):
        for expected, action in zip(straight, actions[half:], strict=True):
            assert are_equal(envs.step(action), expected)
    assert any((row[2] | row[3]).any() for row in straight)


@NEEDS_ENVPOOL
def test_a_state_may_lie_between_an_end_and_its_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool_env, "NUM_STEPS_OF_SEED", 5)
    env, restored = make_vector_env(CARTPOLE, NUM_ENVS, "auto", 4), make_vector_env(CARTPOLE, NUM_ENVS, "auto", 4)
    env.reset(("env_runner", 0, 0))
    actions = np.zeros(NUM_ENVS, np.int64)
    while not np.any(env.step(actions)[2]):
        pass
    restored.set_state(env.get_state())
    assert are_equal(restored.step(actions), env.step(actions))


def test_a_log_has_no_more_than_the_actions_since_the_oldest_seed() -> None:
    log = ActionLog(2)
    for action in range(5):
        log.append(np.array([action, action + 10]))
        if action in (1, 3):
            log.begin(np.array([action == 3, action == 1]))
    assert log.num_steps.tolist() == [1, 3]
    assert log.get_state()["actions"].tolist() == [[2, 12], [3, 13], [4, 14]]
    done: list[Any] = []
    log.replay(lambda ones: done.append(ones.tolist()), lambda actions, ones: done.append((*actions, *ones.tolist())))
    assert done == [[False, True], (2, 12, False, True), (3, 13, False, True), [True, False], (4, 14, True, True)]


@pytest.mark.parametrize(
    "overrides", [pytest.param([], marks=NEEDS_ENVPOOL), ["env=atari_ale"]], ids=["envpool", "ale"]
)
def test_a_run_resumes_exactly(overrides: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    experiment = "ppo_atari_breakout" if overrides else "ppo_cartpole"
    small = ["module.conv_filters=[[4,8,4],[4,4,2]]", "module.fcnet_hiddens=[8]"] if overrides else QUICK
    backend = overrides or ["env.backend=envpool"]
    sizes = ["algorithm.train_batch_size_per_learner=128", "algorithm.minibatch_size=64", "algorithm.num_epochs=1"]
    overrides = [*small, *backend, *sizes, "env_runners.num_envs_per_env_runner=2", "evaluation=none"]
    monkeypatch.setattr(envpool_env, "NUM_STEPS_OF_SEED", 50)
    assert_resumes_exactly(partial(Trainer.from_experiment, experiment, overrides), tmp_path, cuts=[1])


# -- seeds, spaces, infos ----------------------------------------------------------------------------------------------


@NEEDS_ENVPOOL
def test_all_sub_environments_of_all_runners_begin_apart() -> None:
    starts = []
    for index in range(3):
        env = make_vector_env(CARTPOLE, 4, "auto", seed=0)
        starts.append(env.reset(("env_runner", index, 0))[0])
        env.step(np.zeros(4, np.int64))
        np.testing.assert_array_equal(env.reset(("env_runner", index, 0))[0], starts[-1])
    assert len(np.unique(np.concatenate(starts), axis=0)) == 12


@pytest.mark.parametrize(
    ("grayscale", "stack_num", "shape"),
    [(True, 4, (42, 42, 4)), (False, 2, (42, 42, 6))],
)
def test_frames_have_their_channels_last(grayscale: bool, stack_num: int, shape: tuple[int, ...]) -> None:
    from ale_py.vector_env import AtariVectorEnv

    options = {**ALE.env_config, "grayscale": grayscale, "stack_num": stack_num}
    env = make_environment(EnvConfig(env=ALE.env, backend="ale", env_config=options), 2)
    assert env.single_observation_space == gym.spaces.Box(0, 255, shape, np.uint8)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    seeds = np.array([integer_seed(env._seed, "sub-environment", n, 0) for n in range(2)])
    frames, _ = AtariVectorEnv("breakout", 2, **options).reset(seed=seeds)
    newest = frames[:, -1] if grayscale is False else frames[:, -1, ..., None]
    np.testing.assert_array_equal(obs[..., -newest.shape[-1] :], newest)


def test_what_is_no_stack_of_frames_stays_as_it_is() -> None:
    for space in (
        gym.spaces.Box(0, 255, (96, 96, 3), np.uint8),
        gym.spaces.Box(0, 1, (3, 8, 8), np.float32),
        gym.spaces.Discrete(4),
    ):
        assert ChannelsLast(space).space is space
        obs = np.zeros((2, *(space.shape or ())))
        assert ChannelsLast(space)(obs) is obs


@pytest.mark.parametrize("config", CONFIGS)
def test_infos_are_numbers_of_sub_environments(config: EnvConfig) -> None:
    env = make_environment(config, NUM_ENVS)
    _, of_reset = env.reset(seed=1)
    *_, of_step = env.step(actions_of(config, 1)[0])
    assert of_step.keys() == of_reset.keys()
    assert ("lives" in of_step) == ("Breakout" in str(config.env))
    assert all(values.shape == (NUM_ENVS,) for values in of_step.values())


def test_a_metric_of_infos_is_reported() -> None:
    overrides = ["env=atari_ale", "module.conv_filters=[[4,8,4],[4,4,2]]", "module.fcnet_hiddens=[8]"]
    overrides += [
        "algorithm.train_batch_size_per_learner=500",
        "algorithm.minibatch_size=250",
        "algorithm.num_epochs=1",
    ]
    overrides += [
        "env_runners.num_envs_per_env_runner=1",
        "evaluation=none",
        "metrics={env_runners/lives: {info: lives, at: episode_max}}",
    ]
    with Trainer.from_experiment("ppo_atari_breakout", overrides) as trainer:
        assert trainer.train()["env_runners/lives"] == 5


# -- mistakes ----------------------------------------------------------------------------------------------------------

MISTAKES = [
    (
        EnvConfig(env="ALE/Breakot-v5", backend="ale"),
        "env.backend=ale does not provide ALE/Breakot-v5",
        "did you mean  ALE/Breakout-v5",
    ),
    (
        EnvConfig(env="ALE/Pong-v5", backend="ale", env_config={"frameskp": 2}),
        "frameskp is not a known option",
        "did you mean  frameskip",
    ),
    (
        EnvConfig(env="ALE/Pong-v5", backend="ale", env_config={"batch_size": 2}),
        "batch_size cannot be set with env.backend=ale",
        "every step covers all sub-environments",
    ),
    (
        EnvConfig(env="ALE/Pong-v5", backend="ale", env_config={"render_mode": "human"}),
        "render_mode cannot be set with env.backend=ale",
        "rendering needs env.backend=gymnasium",
    ),
]
ENVPOOL_MISTAKES = [
    (
        EnvConfig(env="CartPol-v1", backend="envpool"),
        "env.backend=envpool does not provide CartPol-v1",
        "did you mean  CartPole-v1",
    ),
    (
        EnvConfig(env="CartPole-v1", backend="envpool", env_config={"num_thread": 1}),
        "num_thread is not a known option",
        "num_threads",
    ),
    (
        EnvConfig(env="CartPole-v1", backend="envpool", env_config={"seed": 1}),
        "seed cannot be set",
        "the experiment's seed sets it",
    ),
    (EnvConfig(env="Chess-v1", backend="envpool"), "Chess-v1 has 2 agents", "one agent"),
]


@pytest.mark.parametrize(
    ("config", "what", "hint"),
    [*MISTAKES, *(pytest.param(*mistake, marks=NEEDS_ENVPOOL) for mistake in ENVPOOL_MISTAKES)],
)
def test_mistakes_are_told(config: EnvConfig, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_environment(config, 2)
    assert what in str(error.value)
    assert hint in str(error.value)


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for backend, extra in (("envpool", "envpool"), ("ale", "atari")):
        with pytest.raises(ConfigError, match=rf'pip install -e "\.\[{extra}\]"'):
            make_environment(EnvConfig(env="Pong-v5", backend=backend), 2)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[atari\]"'):
        rendered(ALE, "rgb_array")


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["env_runners.gym_env_vectorize_mode=sync"], "gym_env_vectorize_mode has no effect with env.backend=ale"),
        (["env.port=0"], "env.backend has no effect on external simulators"),
        (["env.env=null", "env._target_=runner.environments.Catch"], "env.backend does not work with env._target_"),
        (["env.env_config.seed=3"], "env.env_config.seed cannot be set with env.backend=ale"),
        (["env.env_config.noop_mx=3"], "AtariVectorEnv does not take the argument noop_mx"),
        (["env.env=ALE/Breakot-v5"], "env.backend=ale does not provide ALE/Breakot-v5"),
        (
            ["env.wrappers=[{_target_: gymnasium.wrappers.TimeAwareObservation}]"],
            r"env\.wrappers\.0 wraps a single sub-environment",
        ),
    ],
)
def test_validate_finds_what_does_not_go_together(overrides: list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        config_from("+experiment=ppo_atari_breakout", "env=atari_ale", *overrides)


@pytest.mark.parametrize("grayscale", [True, False])
def test_a_rendering_environment_has_the_same_steps(grayscale: bool) -> None:
    """ALE's vector environments do not render, so gymnasium's environment takes their place in videos."""
    options = {**SMALL, "num_threads": 1, "noop_max": 0, "stack_num": 1, "reward_clipping": False}
    config = replace(ALE, env_config={**options, "use_fire_reset": False, "grayscale": grayscale})
    envs, rendering = make_environment(config, 1), make_environment(rendered(config, "rgb_array"))
    assert envs.single_observation_space == rendering.observation_space
    obs, _ = envs.reset(seed=1)
    np.testing.assert_array_equal(obs[0], rendering.reset(seed=1)[0])
    for action in np.random.default_rng(0).integers(0, 4, 100):
        obs, rewards, terminated, *_ = envs.step(np.array([action]))
        own_obs, reward, is_terminated, *_ = rendering.step(int(action))
        np.testing.assert_array_equal(obs[0], own_obs)
        assert (rewards[0], terminated[0]) == (reward, is_terminated) == (reward, False)
    assert rendering.render().shape == (210, 160, 3)


def test_options_that_cannot_be_rendered_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(ALE, "rgb_array")
    assert [problem.where for problem in caught.value.problems] == [
        f"env.env_config.{name}" for name in ("stack_num", "reward_clipping", "use_fire_reset")
    ]
