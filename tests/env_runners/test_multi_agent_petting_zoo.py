"""PettingZoo's environments through the runner, against the loops that PettingZoo's documentation shows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from runner.env_runners.sample import Sample
from runner.environments import PettingZooEnv
from runner.episodes import SingleAgentEpisode, nested
from runner.experiment.trainer import Trainer
from runner.streams import integer_seed
from tests.conftest import QUICK

SPEAKER_LISTENER = "mpe2.simple_speaker_listener_v4"
TICTACTOE = "pettingzoo.classic.tictactoe_v3"


def trainer_of(*overrides: str) -> Trainer:
    return Trainer.from_experiment("ppo_speaker_listener", [*QUICK, *overrides])


def tictactoe_trainer(module_id: str) -> Trainer:
    return trainer_of(
        f"env.env_config.name={TICTACTOE}",
        f"multi_agent.agent_to_module={{player_?: '{module_id}'}}",
        "module.action_mask_key=action_mask",
    )


def whole_episodes(samples: Sequence[Sample]) -> dict[tuple[int, int], dict[str, SingleAgentEpisode]]:
    """(sub-environment, number) -> agent -> its episode, of those that began and ended in the samples."""
    agents: dict[tuple[int, int], dict[str, SingleAgentEpisode]] = {}
    for sample in samples:
        for block in sample.rollout.blocks.values():
            for chunk in block:
                n, k = (int(part) for part in str(chunk.multi_agent_episode_id).split("-")[-2:])
                own = agents.setdefault((n, k), {})
                if str(chunk.agent_id) in own:
                    own[str(chunk.agent_id)].concat_episode(chunk)
                else:
                    own[str(chunk.agent_id)] = chunk
    return {key: own for key, own in agents.items() if all(e.is_done and e.t_started == 0 for e in own.values())}


def seed_of(n: int, k: int) -> int:
    return integer_seed(0, "env_runner", 0, 0, n, k)


def test_a_parallel_environment() -> None:
    with trainer_of("env_runners.num_envs_per_env_runner=2") as trainer:
        samples = [sample for steps in (7, 80) for sample in trainer.env_runners.sample(steps, True)]
    episodes = whole_episodes(samples)
    assert sorted(episodes) == [(0, 0), (1, 0)]  # of 25 steps each
    env = importlib.import_module(SPEAKER_LISTENER).parallel_env()
    for (n, k), agents in episodes.items():
        obs, _ = env.reset(seed=seed_of(n, k))
        assert sorted(agents) == sorted(obs)
        t = 0
        while env.agents:
            actions = {agent: agents[agent].get_actions(t) for agent in env.agents}
            for agent, seen in obs.items():
                np.testing.assert_array_equal(agents[agent].get_observations(t), seen)
            obs, rewards, terminateds, truncateds, _ = env.step(actions)
            for agent, reward in rewards.items():
                assert agents[agent].get_rewards(t) == np.float32(reward)
            t += 1
        for agent, own in agents.items():
            assert len(own) == t == 25
            np.testing.assert_array_equal(own.get_observations(-1), obs[agent])
            assert (own.is_terminated, own.is_truncated) == (terminateds[agent], truncateds[agent]) == (False, True)


def test_returns_of_a_parallel_environment_are_those_of_its_episodes() -> None:
    with trainer_of("env_runners.num_envs_per_env_runner=2") as trainer:
        (sample,) = trainer.env_runners.sample(60, True)
    episodes = whole_episodes([sample])
    assert sample.finished.lengths.tolist() == [25, 25]
    for agent, returns in sample.finished.by_agent.items():
        own = [float(episodes[n, 0][agent].get_rewards().sum()) for n in sample.finished.env_of.tolist()]
        np.testing.assert_allclose(returns, own, rtol=1e-5)
    np.testing.assert_allclose(sample.finished.returns, sum(sample.finished.by_agent.values()))


@pytest.mark.parametrize("module_id", ["{agent}", "self_play"])
def test_tictactoe_against_the_loop_over_agents(module_id: str) -> None:
    with tictactoe_trainer(module_id) as trainer:
        for _ in range(2):
            result = trainer.train()
        samples = trainer.env_runners.sample(30, True) + trainer.env_runners.sample(120, True)
    assert result["env_runners/episode_return_mean"] == 0, "what one player wins, the other loses"
    assert (result["env_runners/episode_len_min"] or 0) >= 5
    returns: dict[str, list[float]] = {}
    for agents in whole_episodes(samples).values():
        for agent, own in play_again(agents).items():
            returns.setdefault(agent, []).append(own)
    assert len(returns["player_1"]) >= 10
    assert {-1.0, 1.0} <= set(returns["player_2"])


def play_again(agents: dict[str, SingleAgentEpisode]) -> dict[str, float]:
    """The returns of a game with the same moves, by PettingZoo's own loop; checks what the players saw."""
    env = importlib.import_module(TICTACTOE).env()
    env.reset()
    returns = dict.fromkeys(env.possible_agents, 0.0)
    moves = dict.fromkeys(env.possible_agents, 0)
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        own, t = agents[agent], moves[agent]
        returns[agent] += reward
        assert nested.equal(own.get_observations(t)["observation"], obs["observation"])
        if terminated or truncated:
            env.step(None)
            assert (t, own.is_terminated, own.is_truncated) == (len(own), terminated, truncated)
            continue
        action = int(own.get_actions(t))
        assert nested.equal(own.get_observations(t), obs)
        assert obs["action_mask"][action], "an illegal move"
        env.step(action)
        moves[agent] += 1
    for agent, own in agents.items():
        assert own.get_rewards().sum() == returns[agent]
        assert not own.get_rewards()[:-1].any()
    return returns


def assert_samples_go_on(make: Callable[[], Trainer]) -> None:
    """Compare what a trainer samples after 33 env steps with what another one samples from its state."""
    with make() as trainer:
        trainer.env_runners.sample(33, True)
        state = trainer.get_state()
        expected = trainer.env_runners.sample(40, True)[0].rollout.blocks
    with make() as trainer:
        trainer.set_state(state)
        blocks = trainer.env_runners.sample(40, True)[0].rollout.blocks
    assert list(blocks) == list(expected)
    for module_id, block in expected.items():
        assert nested.equal(dict(blocks[module_id].columns), dict(block.columns))


def test_an_interrupted_game_goes_on() -> None:
    assert_samples_go_on(lambda: tictactoe_trainer("{agent}"))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"name": "os.path"}, "os.path is not a module of pettingzoo or mpe2"),
        ({"name": "mpe2.simple_spred_v3"}, "module mpe2.simple_spred_v3 not found; did you mean simple_spread_v3?"),
        ({"name": "pettingzoo.utils"}, "pettingzoo.utils is not an environment"),
        ({"name": TICTACTOE, "kind": "parallel"}, f"{TICTACTOE} does not support kind: parallel, use kind: turn_based"),
        ({"name": TICTACTOE, "kind": "turns"}, "kind must be auto, parallel or turn_based, got 'turns'"),
    ],
)
def test_environments_that_are_not_there(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what.replace("?", r"\?")):
        PettingZooEnv(**arguments)
