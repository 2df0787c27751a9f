"""Two small environments, their recorded data, and learners for them made from `conf/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from runner import Trainer
from runner.config.compose import compose_experiment
from runner.config.validation import build_experiment_config
from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import ColumnBlock, block_from_episodes
from runner.experiment.learner_builder import build_learner_group
from runner.learners.learner import Learner
from runner.module_building import build_modules
from runner.modules import RLModule
from runner.pipelines.pipeline import LearnerConnectorPipeline
from runner.testing.module_learner import ModuleLearner
from tests.support.configs import config_from

Behaviour = Callable[[Any, np.random.Generator], Any]
ID = "default_policy"


class Corridor(gym.Env[Any, Any]):
    """Six places in a row, left or right, reward 1 in the last, where the episode terminates. Starts in the first."""

    num_places = 6
    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0.0, 1.0, (num_places,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._place, self._t = 0, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._place = max(0, self._place + (1 if action == 1 else -1))
        is_there = self._place == self.num_places - 1
        return self._obs(), float(is_there), is_there, not is_there and self._t == 30, {}

    def _obs(self) -> Any:
        return np.eye(self.num_places, dtype=np.float32)[self._place]


class Line(gym.Env[Any, Any]):
    """A point moves on a line by 0.15 times the action, reward is minus its distance from 0.5; 12 steps."""

    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    observation_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._t = self.np_random.uniform(-1, 1), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._x = float(np.clip(self._x + 0.15 * np.clip(action[0], -2, 2), -1.5, 1.5))
        return self._obs(), -abs(self._x - 0.5), False, self._t == 12, {}

    def _obs(self) -> Any:
        return np.array([self._x], np.float32)


def mostly_left(obs: Any, stream: np.random.Generator) -> Any:
    """Right in 35 of 100 steps."""
    return np.int64(stream.random() < 0.35)


def mostly_away(obs: Any, stream: np.random.Generator) -> Any:
    """In 40 of 100 steps towards 0.5, else away from it, as the module acts: in [-1, 1]."""
    towards = np.clip((0.5 - obs[0]) / 0.3, -1, 1)
    sign = 1.0 if stream.random() < 0.4 else -stream.random()
    return np.clip(np.array([sign * towards + 0.1 * stream.normal()], np.float32), -1, 1)


def for_env(action: Any) -> Any:
    """What the module-to-env pipeline makes of an action."""
    return action if np.ndim(action) == 0 else 2 * np.clip(action, -1, 1)


def record(env: gym.Env[Any, Any], behave: Behaviour, num_episodes: int, seed: int = 0) -> ColumnBlock:
    """Whole episodes."""
    stream = np.random.default_rng(seed)
    episodes = []
    for number in range(num_episodes):
        obs, _ = env.reset(seed=seed * 10_000 + number)
        episode = SingleAgentEpisode(
            id_=str(number), observation_space=env.observation_space, action_space=env.action_space
        )
        episode.add_env_reset(obs)
        while not episode.is_done:
            action = behave(obs, stream)
            obs, reward, terminated, truncated, _ = env.step(for_env(action))
            episode.add_env_step(obs, action, reward, terminated=terminated, truncated=truncated)
        episodes.append(episode)
    return block_from_episodes(episodes)


def mean_return(env: gym.Env[Any, Any], module: RLModule, num_episodes: int = 20) -> float:
    """Of the module acting greedily."""

    def act(obs: Any, stream: np.random.Generator) -> Any:
        with torch.no_grad():
            outputs = module.forward_inference({"obs": torch.from_numpy(obs[None])})
            return module.action_dist.mode(outputs["action_dist_inputs"])[0].numpy()

    block = record(env, act, num_episodes, seed=1)
    return float(np.sum(block.columns["rewards"]) / len(block))


def steps_to_the_end(*overrides: str, num_env_steps: int = 10_000) -> float:
    """The mean length of the last 100 episodes of a run in the corridor; 5 is the shortest."""
    settings = (
        "env_runners.num_envs_per_env_runner=8",
        "module.fcnet_hiddens=[16]",
        "evaluation.evaluation_interval=null",
    )
    stop = f"stop.num_env_steps_sampled_lifetime={num_env_steps}"
    with Trainer(config_from(f"env._target_={__name__}.Corridor", stop, *settings, *overrides)) as trainer:
        while (result := trainer.train())["num_env_steps_sampled_lifetime"] < num_env_steps:
            pass
    return float(result["env_runners/episode_len_mean"])


class LearnerOfRun(ModuleLearner):
    """The learner of a run with one module."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.network = learner, learner._networks[ID]
        self.trained = self.network.modules[ID]
        self.module, self.loss = self.trained.module, self.trained.loss


def make_learner(*overrides: str, env: type[gym.Env[Any, Any]]) -> tuple[ModuleLearner, LearnerConnectorPipeline]:
    """The learner and its pipeline, as a run with these overrides makes them."""
    target = f"env._target_=tests.learners.toy_mdps.{env.__name__}"
    composed = compose_experiment(
        [target, "algorithm.plan=[ParallelRollouts,TrainOneStep]", "stop.training_iteration=1", *overrides]
    )
    config = build_experiment_config(composed)
    parts = build_modules(config)
    learner: Any = build_learner_group(config, parts)
    return LearnerOfRun(learner), parts[ID].learner


def train_batch(learner: ModuleLearner, pipeline: LearnerConnectorPipeline, block: ColumnBlock) -> dict[str, Any]:
    """All rows as the learner gets them."""
    batch = pipeline(rl_module={ID: learner.module}, batch={}, episodes=block, shared_data={})
    return dict(batch[ID])


def train(learner: ModuleLearner, batch: dict[str, Any], num_updates: int, num_rows: int = 128) -> dict[str, float]:
    """Updates on random rows of a batch."""
    stream, metrics = np.random.default_rng(0), {}
    mask = batch.get("loss_mask", torch.ones(len(batch["rewards"]), dtype=torch.bool))
    steps = mask.nonzero().squeeze(-1).numpy()
    columns = {name: batch[name] for name in learner.loss.reads}
    for _ in range(num_updates):
        rows = torch.from_numpy(stream.choice(steps, num_rows))
        metrics = learner.update({name: column[rows] for name, column in columns.items()}, 0).metrics
    return metrics
