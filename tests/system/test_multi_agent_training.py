"""Whole runs with several agents: resumed, on Ray actors, with modules that differ, evaluated."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.environments import MultiAgentCartPole
from runner.experiment.trainer import Trainer
from runner.streams import integer_seed
from tests.conftest import QUICK, Run, marked_but, progress_of, without_times
from tests.support.resuming import (
    assert_command_resumes_exactly,
    assert_resumes_exactly,
    assert_same_runs,
    assert_same_weights,
    train,
)

CARTPOLES, SHARED = "ppo_multi_agent_cartpole", "ppo_multi_agent_cartpole_shared"
OWN_ALGORITHMS = "ppo_dqn_multi_agent_cartpole"
OVERRIDES = "multi_agent.algorithm_config_overrides_per_module"


def trainer_of(*overrides: str, experiment: str = CARTPOLES) -> Trainer:
    return Trainer.from_experiment(experiment, [*QUICK, *overrides])


# -- interrupted and distributed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        (CARTPOLES, []),
        (SHARED, ["connectors=mean_std_filter", "env_runners.episode_lookback_horizon=3"]),
        (CARTPOLES, ["engine=inline", "env_runners.num_env_runners=2", "connectors=mean_std_filter"]),
        (CARTPOLES, [f"{OVERRIDES}.p1.use_kl_loss=true", "multi_agent.modules.p1.use_lstm=true"]),
        ("ppo_speaker_listener", ["env_runners.rollout_fragment_length=10"]),
        pytest.param(OWN_ALGORITHMS, ["connectors=mean_std_filter"], marks=pytest.mark.slow),
    ],
    ids=["separate", "shared_filter", "runners", "memory", "petting_zoo", "own_algorithms"],
)
def test_a_run_resumes_exactly(experiment: str, overrides: list[str], tmp_path: Path) -> None:
    assert_resumes_exactly(partial(trainer_of, *overrides, experiment=experiment), tmp_path)


@pytest.mark.slow
def test_the_command_line_resumes_and_evaluates(run_main: Run, tmp_path: Path) -> None:
    arguments = (f"+experiment={CARTPOLES}", *QUICK, "evaluation.evaluation_interval=2")
    assert_command_resumes_exactly(run_main, tmp_path, *arguments, iterations=(2, 3))
    assert progress_of(tmp_path / "run")[1]["evaluation/env_runners/num_episodes"] == 10
    kl_coeff = "multi_agent.algorithm_config_overrides_per_module.p0.kl_coeff"
    outcome = run_main("resume", "run", "stop.training_iteration=4", f"{kl_coeff}=0.5")
    assert outcome.code == 2
    assert f"{kl_coeff} is an initial value" in outcome.err
    outcome = run_main("evaluate", "run", "evaluation.evaluation_duration=3")
    assert outcome.code == 0, outcome.err
    assert ["num_episodes", "3"] in [line.split() for line in outcome.out.splitlines()]


@pytest.mark.ray
@pytest.mark.parametrize("experiment", marked_but(pytest.mark.slow, [CARTPOLES, OWN_ALGORITHMS], CARTPOLES))
def test_two_ray_actors_make_the_numbers_of_two_inline_runners(experiment: str, ray_cluster: None) -> None:
    settings = ("env_runners.num_env_runners=2", "connectors=mean_std_filter")
    results = []
    for engine in ("inline", "ray"):
        with trainer_of(*settings, f"engine={engine}", experiment=experiment) as trainer:
            results.append((train(trainer, 3), trainer.learners.get_weights(), without_times(trainer.evaluate(5))))
    (inline, inline_weights, inline_evaluation), (remote, remote_weights, remote_evaluation) = results
    assert inline == remote
    assert inline_evaluation == remote_evaluation
    assert_same_weights(inline_weights, remote_weights)


@pytest.mark.slow
@pytest.mark.ray
def test_a_remote_learner_updates_each_module_by_its_algorithm(ray_cluster: None) -> None:
    here, remote = (partial(trainer_of, f"learners.num_learners={num}", experiment=OWN_ALGORITHMS) for num in (0, 1))
    results = assert_same_runs([here, remote], 2)
    assert {"learners/p0/vf_loss", "learners/p1/qf_loss"} <= results[-1].keys()


# -- modules that differ -------------------------------------------------------------------------------------------


def test_only_the_modules_to_train_are_updated() -> None:
    with trainer_of("multi_agent.modules_to_train=[p0]") as trainer:
        before = trainer.learners.get_weights()
        (result,) = train(trainer, 1)
        after = trainer.learners.get_weights()
    assert not np.array_equal(before["p0"], after["p0"])
    np.testing.assert_array_equal(before["p1"], after["p1"])
    assert "learners/p0/total_loss" in result
    assert not any(name.startswith("learners/p1/") for name in result)


def test_modules_begin_with_weights_of_their_own_that_do_not_depend_on_the_others() -> None:
    with trainer_of() as trainer:
        weights = trainer.learners.get_weights()
    assert not np.array_equal(weights["p0"], weights["p1"])
    with trainer_of("multi_agent.modules.p0.fcnet_hiddens=[8,8]") as trainer:
        other = trainer.learners.get_weights()
    assert len(other["p0"]) != len(weights["p0"])
    np.testing.assert_array_equal(other["p1"], weights["p1"])


def test_overrides_of_the_algorithm_reach_their_module_only() -> None:
    overrides = [f"{OVERRIDES}.p1.{field}" for field in ("lr=7e-4", "num_epochs=1", "entropy_coeff=0.5")]
    with trainer_of(*overrides, "algorithm.lr=3e-4") as trainer:
        (result,) = train(trainer, 1)
    expected = {
        "default_optimizer_learning_rate": (3e-4, 7e-4),
        "curr_entropy_coeff": (0.0, 0.5),
        "num_minibatch_updates": (8, 3),  # minibatches of 64 of about 256 and 200 rows
    }
    for name, values in expected.items():
        assert (result[f"learners/p0/{name}"], result[f"learners/p1/{name}"]) == pytest.approx(values)


def test_overrides_reach_the_connectors_of_the_algorithm() -> None:
    with trainer_of(f"{OVERRIDES}.p1.gamma=0", f"{OVERRIDES}.p1.lambda_=0") as trainer:
        (sample,) = trainer.env_runners.sample(64, True)
        learners = trainer.learners
        targets = {
            module_id: learners._pipelines[module_id](
                rl_module=learners._modules, batch={}, episodes=block, shared_data={}
            )[module_id]["value_targets"]
            for module_id, block in sample.rollout.blocks.items()
        }
    is_one = {module_id: torch.isclose(values, torch.tensor(1.0)) for module_id, values in targets.items()}
    assert is_one["p1"].sum() >= 64  # nothing of the future counts: each target is the reward, but on bootstrap rows
    assert is_one["p0"].sum() < 20


def test_agents_that_share_a_module_are_one_batch() -> None:
    with trainer_of("algorithm.minibatch_size=null", experiment=SHARED) as trainer:
        (sample,) = trainer.env_runners.sample(100, True)
        (block,) = sample.rollout.blocks.values()
        assert block.agents is not None
        rows_of = {
            agent: sum(len(chunk) for chunk in block if chunk.agent_id == agent) for agent in ("agent_0", "agent_1")
        }
        assert block.num_rows == sum(rows_of.values()) > 100
        (result,) = train(trainer, 1)
    assert result["learners/default_policy/num_minibatch_updates"] == 2
    assert {name.split("/")[1] for name in result if name.startswith("learners/")} == {"default_policy"}
    own = [result[f"env_runners/agent_episode_return_mean/agent_{number}"] for number in (0, 1)]
    assert sum(own) == pytest.approx(result["env_runners/episode_return_mean"])
    assert result["env_runners/module_episode_return_mean/default_policy"] == pytest.approx(sum(own) / 2)


class LateAgent(MultiAgentEnv):
    """`early` acts in every step, `late` only after `start` steps of an episode of `length`."""

    def __init__(self, start: int, length: int) -> None:
        self.possible_agents = ("early", "late")
        space = gym.spaces.Box(0, 1e3, (1,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))
        self._start, self._length = start, length

    def _obs(self) -> dict[str, Any]:
        agents = self.possible_agents if self._t >= self._start else ("early",)
        return {agent: np.array([self._t], np.float32) for agent in agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return self._obs(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self._t += 1
        return self._obs(), {agent: 1.0 for agent in actions}, {"__all__": self._t == self._length}, {}, {}


def test_a_module_without_rows_is_left_as_it_is() -> None:
    """Iterations are of 64 steps in each of 4 sub-environments; the late agent comes after 100."""
    env = f"env._target_={__name__}.LateAgent"
    mapping = "multi_agent.agent_to_module={early: p0, late: p1}"
    with trainer_of(env, "env.env_config={start: 100, length: 150}", "~env.env_config.num_agents", mapping) as trainer:
        before = trainer.learners.get_weights()
        (first,) = train(trainer, 1)
        after = trainer.learners.get_weights()
        assert not np.array_equal(before["p0"], after["p0"])
        np.testing.assert_array_equal(before["p1"], after["p1"])
        assert "learners/p1/total_loss" not in first
        second, third = train(trainer, 2)
    assert "learners/p1/total_loss" in second
    assert third["env_runners/agent_episode_return_mean/late"] == 50
    assert third["env_runners/episode_return_mean"] == 200


# -- evaluation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_episodes", [1, 3, 11])
def test_an_evaluation_is_exactly_so_many_episodes_of_a_naive_loop(num_episodes: int) -> None:
    num_envs = 3
    with trainer_of(f"evaluation.num_envs_per_env_runner={num_envs}") as trainer:
        train(trainer, 2)
        result = without_times(trainer.evaluate(num_episodes))
        assert without_times(trainer.evaluate(num_episodes)) == result
        modules = trainer.learners._modules
        episodes = [
            play(modules, integer_seed(0, "evaluation", 0, 0, n, k))
            for n in range(num_envs)
            for k in range(num_episodes // num_envs + (n < num_episodes % num_envs))
        ]
    name = "evaluation/env_runners/"
    assert result[f"{name}num_episodes"] == num_episodes == len(episodes)
    assert result[f"{name}episode_return_mean"] == np.mean([sum(own.values()) for own in episodes])
    assert result[f"{name}episode_len_max"] == max(max(own.values()) for own in episodes)
    assert result[f"{name}num_env_steps_sampled"] == sum(max(own.values()) for own in episodes)
    for agent in ("agent_0", "agent_1"):
        assert result[f"{name}agent_episode_return_mean/{agent}"] == np.mean([own[agent] for own in episodes])


def play(modules: Any, seed: int) -> dict[str, float]:
    """The returns of an episode in which each agent takes its module's most likely actions."""
    env = MultiAgentCartPole(2)
    obs, _ = env.reset(seed=seed)
    returns = dict.fromkeys(obs, 0.0)
    while obs:
        actions = {}
        for agent, own in obs.items():
            with torch.no_grad():
                logits = modules[f"p{agent[-1]}"].forward_train({"obs": torch.from_numpy(own[None])})
            actions[agent] = int(logits["action_dist_inputs"].argmax())
        obs, rewards, terminateds, truncateds, _ = env.step(actions)
        for agent, reward in rewards.items():
            returns[agent] += reward
        obs = {agent: own for agent, own in obs.items() if not (terminateds[agent] or truncateds[agent])}
    return returns


@pytest.mark.parametrize("num_episodes", [1, 2, 7])
def test_several_evaluation_runners_share_the_episodes(num_episodes: int) -> None:
    with trainer_of("engine=inline", "evaluation.evaluation_num_env_runners=3", experiment=SHARED) as trainer:
        result = trainer.evaluate(num_episodes)
    assert result["evaluation/env_runners/num_episodes"] == num_episodes
