"""Leagues of teams: whole teams are drawn, learn, win and are rated together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.errors import ConfigError
from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from runner.experiment.trainer import Trainer
from runner.league.players import Player, Seat
from tests.support.resuming import assert_resumes_exactly

RED, BLUE = ("red_0", "red_1"), ("blue_0", "blue_1")
STEPS = 3
# What the agents of an episode did, and that episode's rewards by agent.
EPISODES: list[tuple[list[AgentDict], AgentDict]] = []


class TugOfWar(MultiAgentEnv):
    """Two teams pull for three steps, each agent by 0 to 2; the team that pulled more gets 1, the other -1.

    The prize goes to the first agent of a team; its second one gets nothing: who has won is told by the sum.
    """

    possible_agents = (*RED, *BLUE)
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(0, STEPS, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(3))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        self._actions: list[AgentDict] = []
        return self._obs(), {}

    def _obs(self) -> AgentDict:
        return {agent: np.array([len(self._actions)], np.float32) for agent in self.possible_agents}

    def step(self, actions: AgentDict) -> StepDicts:
        self._actions.append({agent: int(action) for agent, action in actions.items()})
        is_over = len(self._actions) == STEPS
        rewards = dict.fromkeys(self.possible_agents, 0.0)
        if is_over:
            red, blue = (sum(step[agent] for step in self._actions for agent in team) for team in (RED, BLUE))
            lead = float(np.sign(red - blue))
            rewards |= {RED[0]: lead, BLUE[0]: -lead}
            EPISODES.append((self._actions, rewards))
        return self._obs(), rewards, {"__all__": is_over}, {"__all__": False}, {}


class Lazy(Player):
    """Never pulls; counts the seats of each pass."""

    passes: list[list[str]] = []  # noqa: RUF012

    def __init__(self, action_space: gym.Space[Any]) -> None:
        pass

    def act(self, obs: Any, seats: list[Seat], rng: np.random.Generator) -> Any:
        Lazy.passes.append([seat.agent_id for seat in seats])
        return np.zeros(len(seats), np.int64)


SETTINGS = [
    f"env._target_={__name__}.TugOfWar",
    "multi_agent={agent_to_module: {red_*: main, blue_*: main}, teams: {red: [red_*], blue: [blue_*]}}",
    "~league.fixed",
    f"+league.fixed={{lazy: {{_target_: {__name__}.Lazy}}}}",
    "league.train_against=[]",
    "league.snapshot_every=300",
    "module.action_mask_key=null",
    "module.fcnet_hiddens=[8]",
    "algorithm={train_batch_size_per_learner: 200, minibatch_size: 100, num_epochs: 2, lr: 0.01}",
    "env_runners.num_envs_per_env_runner=3",
    "evaluation.evaluation_interval=1",
    "evaluation.evaluation_duration=20",
    "~stop.evaluation/league/perfect/draw_rate",
    "tracking=none",
]


def trainer_of(*overrides: str) -> Trainer:
    return Trainer.from_experiment("ppo_league_tictactoe", [*SETTINGS, *overrides])


def test_a_team_is_drawn_and_rated_as_one() -> None:
    """The opponent acts on both seats of a team; a lazy team loses to whoever pulls, by the sum of its rewards."""
    EPISODES.clear()
    Lazy.passes.clear()
    with trainer_of("league.opponents={latest: 0, prioritised: 0, fixed: 1}") as trainer:
        result = trainer.train()
    acted = {frozenset(seats) for seats in Lazy.passes}
    assert acted <= {frozenset(RED), frozenset(BLUE), frozenset((*RED, *BLUE))}, "half a team acted"
    lazy = [
        [all(step[agent] == 0 for step in actions for agent in team) for team in (RED, BLUE)] for actions, _ in EPISODES
    ]
    assert all(any(one) for one in lazy)
    assert result["league/main/win_rate"] > 0.9
    assert result["evaluation/league/lazy/win_rate"] > 0.9


def test_a_league_of_teams_resumes_exactly(tmp_path: Path) -> None:
    make = partial(trainer_of, "league.opponents={latest: 0.4, prioritised: 0.3, fixed: 0.3}")
    assert assert_resumes_exactly(make, tmp_path)[-1]["league/num_players"] >= 3


def test_a_team_of_two_modules_is_refused() -> None:
    with pytest.raises(ConfigError, match="must share one module, but team red uses several"):
        trainer_of("multi_agent.agent_to_module={red_0: main, red_1: other, blue_*: main}")
