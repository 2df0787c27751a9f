"""Leagues whose modules learn with a centralised critic: who the critic sees, and snapshots that act without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.errors import ConfigError
from runner.env_runners.multi_agent_env import AgentDict, StepDicts
from runner.experiment.trainer import Trainer
from runner.module_building import build_modules
from runner.modules import CentralisedCritic
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import ALL_MODULES, Batches
from runner.rllink.client.local_policy import LocalPolicy
from tests.conftest import Outcome, marked_but
from tests.league.test_league_runs import SMALL
from tests.league.test_teams import BLUE, RED, SETTINGS, TugOfWar
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray, train
from tests.support.run_views import RunAt, feature_of

MAPPO = "algorithm=mappo"
STATE = (
    f"env._target_={__name__}.TugOfWarWithState",
    "multi_agent.multi_rl_module.reads=state",
    "connectors.learner=[{replace: AddObservationsOfAllAgentsToTrainBatch, "
    "connector: {_target_: runner.pipelines.AddStatesFromInfosToTrainBatch}}]",
)
OPPONENTS = "league.opponents={latest: 0.4, prioritised: 0.3, fixed: 0.3}"
TEAMS = ("ppo_league_tictactoe", (MAPPO, *SETTINGS, OPPONENTS))
ROLES = (
    "ppo_league_pursuit",
    (MAPPO, *(one for one in SMALL if "opponents" not in one), "env.env_config.max_steps=20"),
)
Run = tuple[str, tuple[str, ...]]
RUNS: dict[str, Run] = {
    "teams": TEAMS,
    "state": (TEAMS[0], (*TEAMS[1], *STATE)),
    "two modules": ROLES,
    "a shared encoder": (ROLES[0], (*ROLES[1], "multi_agent.multi_rl_module.share_encoders=true")),
}


class TugOfWarWithState(TugOfWar):
    """Tells the state, which tells nothing more."""

    state_space = gym.spaces.Box(0, 9, (1,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[AgentDict, AgentDict]:
        obs, _ = super().reset(**kwargs)
        return obs, self._infos(obs)

    def step(self, actions: AgentDict) -> StepDicts:
        obs, rewards, terminateds, truncateds, _ = super().step(actions)
        return obs, rewards, terminateds, truncateds, self._infos(obs)

    @staticmethod
    def _infos(obs: AgentDict) -> AgentDict:
        return {agent: {"state": seen} for agent, seen in obs.items()}


class Noting(CentralisedCritic):
    """Notes whose row each is, and which agents the critic sees in it."""

    seen: set[tuple[str, ...]] = set()  # noqa: RUF012

    def compute_values(self, batches: Batches) -> dict[str, Tensor]:
        for batch in batches.values():
            agents = TugOfWar.possible_agents
            masks, observed = batch["agents_mask"].reshape(-1, 4), batch["obs_of_agents"]
            for place, agent in enumerate(agents):
                assert not observed[agent].reshape(-1)[~masks[:, place]].any(), "an observation of a hidden agent"
            for row, mask in zip(batch["agent_index"].reshape(-1).tolist(), masks.tolist(), strict=True):
                there = [agent for agent, is_there in zip(agents, mask, strict=True) if is_there]
                Noting.seen.add((agents[row], *there))
        return super().compute_values(batches)


def trainer_of(run: Run, *overrides: str) -> Trainer:
    experiment, others = run
    return Trainer.from_experiment(experiment, [*others, *overrides])


@pytest.mark.parametrize("name", marked_but(pytest.mark.slow, RUNS, "teams"))
def test_a_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    expected = assert_resumes_exactly(partial(trainer_of, RUNS[name]), tmp_path)
    assert expected[-1]["league/num_players"] >= 3


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", ["teams", "two modules"])
def test_ray_actors_give_the_numbers_of_one_process(ray_cluster: None, name: str) -> None:
    assert_same_on_ray(partial(trainer_of, RUNS[name], "env_runners.num_env_runners=2"), 3)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_snapshot_acts_as_its_module_does(run: Run) -> None:
    with trainer_of(run) as trainer:
        train(trainer, 1)
        league, config = feature_of(trainer, "league"), trainer.config
        assert league is not None
        weights = trainer.learners.get_weights()
        league.end_iteration(RunAt(10**6, weights, trainer.parts.shared_state))
        files = {module_id: league.policy_files(f"{module_id}-1")[module_id] for module_id in config.league.modules}
    parts = build_modules(config)
    together = next(iter(parts.values())).together
    assert together is not None
    FlatParameters(together).load(weights[ALL_MODULES])
    for module_id, content in files.items():
        space = parts[module_id].spec.observation_space
        obs = np.stack([space.sample() for _ in range(16)])
        with torch.no_grad():
            outputs = together.forward_inference({module_id: {"obs": torch.from_numpy(obs)}})[module_id]
        policy = LocalPolicy(content)
        _, extra = policy.act(obs, policy.initial_state(), False, np.random.default_rng(0))
        np.testing.assert_allclose(extra["action_dist_inputs"], outputs["action_dist_inputs"].numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["latest", "fixed", "prioritised"])
def test_the_critic_sees_the_agents_that_learn(kind: str) -> None:
    """In self-play all agents, else the ones of the row's team."""
    Noting.seen.clear()
    shares = {"latest": 0, "fixed": 0, "prioritised": 0} | {kind: 1}
    opponents = ", ".join(f"{name}: {share}" for name, share in shares.items())
    critic = f"multi_agent.multi_rl_module._target_={__name__}.Noting"
    with trainer_of(TEAMS, critic, f"league.opponents={{{opponents}}}") as trainer:
        train(trainer, 1)
    seen_by = {agent: TugOfWar.possible_agents if kind == "latest" else team for team in (RED, BLUE) for agent in team}
    assert Noting.seen == {(agent, *seen) for agent, seen in seen_by.items()}


def test_modules_that_act_together_are_refused() -> None:
    both = "multi_agent.multi_rl_module={_target_: tests.support.joint_modules.ActsTogether}"
    with pytest.raises(ConfigError) as raised:
        Trainer.from_experiment("ppo_league_pursuit", [*ROLES[1][1:], both]).close()
    (problem,) = raised.value.problems
    assert problem.what == (
        "a module of ActsTogether cannot be a player of a league: ActsTogether.forward_inference computes its actions"
    )
    assert problem.where == "multi_agent.multi_rl_module"
    assert problem.got == "tests.support.joint_modules.ActsTogether"
    assert "whose modules act independently" in str(problem.expected)


def test_modules_that_act_together_meet_no_opponent(run_main: Callable[..., Outcome]) -> None:
    both = "multi_agent.multi_rl_module={_target_: tests.support.joint_modules.ActsTogether}"
    settings = ("tracking=none", "evaluation.evaluation_interval=null", "stop.training_iteration=1", both)
    run = run_main("+experiment=ppo_multi_agent_cartpole", *settings, "hydra.run.dir=one")
    assert run.code == 0, run.err
    outcome = run_main("evaluate", "one", "--against", "one")
    assert outcome.code == 2
    assert "a module of ActsTogether cannot meet an opponent" in outcome.err
    alone = ("+experiment=ppo_multi_agent_cartpole", *settings[:-1], "hydra.run.dir=other")
    assert run_main(*alone).code == 0
    outcome = run_main("evaluate", "other", "--against", "one")
    assert outcome.code == 2
    assert "a module of ActsTogether cannot be exported" in outcome.err
    assert "where         --against one: multi_agent.multi_rl_module\n" in outcome.err


@pytest.mark.slow
def test_another_run_with_a_critic_is_an_opponent(run_main: Callable[..., Outcome]) -> None:
    arguments = (f"+experiment={ROLES[0]}", *ROLES[1])
    assert run_main(*arguments, "hydra.run.dir=one", "stop.training_iteration=1").code == 0
    outcome = run_main("evaluate", "one", "--against", "one", "evaluation.evaluation_duration=10")
    assert outcome.code == 0, outcome.err
    assert "other/win_rate" in outcome.out
