"""Objects and functions that YAML names as arguments of the user's classes, with `_target_` as in Hydra."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.callbacks import Callback
from runner.checkpoints.trust import UntrustedError
from runner.config.algorithms import PPOConfig
from runner.config.errors import ConfigError
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_environment
from runner.experiment.trainer import Trainer
from runner.learners.ppo import PPOLoss
from runner.modules import ActorCriticModule
from runner.pipelines.connector import Connector
from tests.conftest import Run, progress_of
from tests.support.configs import config_from
from tests.support.resuming import assert_command_resumes_exactly

HERE = "tests.experiment.test_nested_targets"
CLIP = f"{{_target_: {HERE}.clip, _partial_: true, high: 0.5}}"
REWARD = f"env.wrappers=[{{_target_: gymnasium.wrappers.TransformReward, func: {CLIP}}}]"
PAIR = f"{{_target_: {HERE}.Pair, _args_: [1, {{_target_: {HERE}.Pair, first: 2, second: [{CLIP}]}}]}}"
QUICK = (
    *("algorithm=ppo", "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=64"),
    *("algorithm.num_epochs=1", "tracking=none", "module.fcnet_hiddens=[8]"),
)


def clip(value: float, high: float) -> float:
    return min(value, high)


@dataclass
class Pair:
    first: Any
    second: Any = None


def is_complete(pair: Any) -> bool:
    return isinstance(pair, Pair) and isinstance(pair.second, Pair) and pair.second.second[0](3.0) == 0.5


class PairEnv(gym.Env[Any, int]):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, by_name: Any = None) -> None:
        assert is_complete(by_name["here"][0]), by_name
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 5, False, {}


class PairModule(ActorCriticModule):
    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        assert is_complete(config.model_config["pair"])
        super().__init__(observation_space, action_space, config)


class PairConnector(Connector):
    def __init__(self, pair: Any) -> None:
        assert is_complete(pair)

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return batch


class PairCallback(Callback):
    def __init__(self, *pairs: Any) -> None:
        assert is_complete(pairs[0])

    def on_episode_end(self, **kwargs: Any) -> None:
        pass


@dataclass(frozen=True)
class PairConfig(PPOConfig):
    pair: dict[str, Any] = field(default_factory=dict)


class PairLoss(PPOLoss):
    def __init__(self, config: Any) -> None:
        assert is_complete(config.pair)
        super().__init__(config)


EVERYWHERE = (
    f"env._target_={HERE}.PairEnv",
    f"env.env_config={{by_name: {{here: [{PAIR}]}}}}",
    REWARD,
    f"module._target_={HERE}.PairModule",
    f"module.model_config={{pair: {PAIR}}}",
    f"connectors.learner=[{{append: {{_target_: {HERE}.PairConnector, pair: {PAIR}}}}}]",
    f"connectors.env_to_module=[{{prepend: {{_target_: {HERE}.PairConnector, _args_: [{PAIR}]}}}}]",
    f"callbacks=[{{_target_: {HERE}.PairCallback, _args_: [{PAIR}]}}]",
    f"algorithm.schema={HERE}.PairConfig",
    f"algorithm.loss={HERE}.PairLoss",
    f"++algorithm.pair={PAIR}",
)


def returns_of(run_dir: Path) -> list[float]:
    return [line["env_runners/episode_return_mean"] for line in progress_of(run_dir)]


def test_in_all_parts_of_a_run_and_after_a_resume(run_main: Run, tmp_path: Path) -> None:
    assert_command_resumes_exactly(run_main, tmp_path, *EVERYWHERE, *QUICK, iterations=(1, 2))
    assert returns_of(tmp_path / "run") == [2.5, 2.5], "rewards are clipped to one half"


@pytest.mark.usefixtures("ray_cluster")
def test_on_ray() -> None:
    counts = ("env_runners.num_env_runners=1", "learners.num_learners=1", "stop.training_iteration=1")
    trainer = Trainer(config_from(*EVERYWHERE, *QUICK, *counts))
    try:
        assert trainer.train()["env_runners/episode_return_mean"] == 2.5
    finally:
        trainer.close()


@pytest.mark.slow
def test_environments_in_processes_of_their_own(run_main: Run, tmp_path: Path) -> None:
    mode = ("env_runners.gym_env_vectorize_mode=async", "env_runners.num_envs_per_env_runner=2")
    outcome = run_main(*EVERYWHERE, *QUICK, *mode, "stop.training_iteration=1", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert returns_of(tmp_path / "run") == [2.5]


def test_each_environment_has_its_own_objects() -> None:
    config = EnvConfig(_target_=f"{HERE}.KeepingEnv", env_config={"kept": {"_target_": f"{HERE}.Pair", "first": []}})
    one, other = make_environment(config), make_environment(config)
    assert one.kept == other.kept
    assert one.kept is not other.kept


class KeepingEnv(PairEnv):
    def __init__(self, kept: Any) -> None:
        self.kept = kept


def test_blocks_stay_as_they_are_without_recursion() -> None:
    inner = {"_target_": f"{HERE}.Pair", "first": 1}
    kept = {"_target_": f"{HERE}.Pair", "_recursive_": False, "first": inner}
    env = make_environment(EnvConfig(_target_=f"{HERE}.KeepingEnv", env_config={"kept": kept}))
    assert env.kept == Pair(inner)


@pytest.mark.parametrize(
    ("override", "what"),
    [
        (REWARD.replace(f"{HERE}.clip", f"{HERE}.clap"), f"env.wrappers.0.func: {HERE} does not define clap"),
        (REWARD.replace("high", "hihg"), "env.wrappers.0.func: clip does not take the argument hihg"),
        (f"env.env_config={{a: [{{b: {{_target_: {HERE}.Pair}}}}]}}", "a.0.b: Pair needs the argument first"),
        (f"env.env_config={{a: {{_target_: {HERE}.Pair, _args_: 1}}}}", "env.env_config.a._args_ must be a list"),
        (
            f"module.model_config={{a: {{_target_: {HERE}.Pair, first: {{_target_: os.system}}}}}}",
            "module.model_config.a.first: os.system is part of Python itself",
        ),
        (
            f"connectors.learner=[{{append: {{_target_: {HERE}.PairConnector, pair: {{_target_: {HERE}.Non}}}}}}]",
            f"connectors.learner.0.append.pair: {HERE} does not define Non",
        ),
        (f"callbacks=[{{_target_: {HERE}.PairCallback, a: {{_target_: nowhere.A}}}}]", "callbacks.0.a: "),
        ("+algorithm.replay_buffers={b: {_target_: runner.replay.ReplayBuffer, a: {_target_: no.B}}}", "b.a: "),
    ],
)
def test_static_validation_finds_faults(override: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from("env=cartpole", *QUICK, "stop.training_iteration=1", override)
    assert any(what in problem.what for problem in caught.value.problems), str(caught.value)


def test_checkpoints_of_others_instantiate_nothing(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_main("env=cartpole", REWARD, *QUICK, "stop.training_iteration=1", "hydra.run.dir=run").code == 0
    monkeypatch.setenv("RUNNER_KEY", "another key than the one of before")
    with pytest.raises(UntrustedError) as caught:
        Trainer.from_checkpoint(tmp_path / "run" / "checkpoints" / "iteration_000001")
    assert [(one.verb, one.key) for one in caught.value.requirements] == [("imports", "env.wrappers.0.func._target_")]
