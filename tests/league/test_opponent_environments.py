"""Players of a league act for agents that whoever steps the environments does not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from runner.config.errors import RunFailure
from runner.env_runners.multi_agent_env import ALL_AGENTS
from runner.env_runners.running_agents import FinishedEpisode, RunningAgents
from runner.league.matches import Match
from runner.league.opponent_environments import ITSELF, Lineup, OpponentEnvironments, Team
from runner.league.players import Player, PolicyPlayer, Seat
from runner.policy import OnnxPolicy
from runner.rllink.client.local_policy import LocalPolicy
from tests.league.arena import AGENTS, Arena
from tests.policy.policies import make_parts, prepended, random_weights

NUM_ENVS, NUM_STEPS = 4, 300


class Counting(Player):
    """Acts by its number and by how often the seat has acted, which it keeps in the seat's memory."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.passes: list[int] = []

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> Any:
        assert [AGENTS[int(agent)] for agent in obs[:, 0]] == [seat.agent_id for seat in seats]
        self.passes.append(len(seats))
        for seat in seats:
            seat.memory["count"] = seat.memory.get("count", 0) + 1
        return np.array([(self.number + seat.memory["count"]) % 5 for seat in seats])


def seated(has_all_key: bool, odds: dict[str, float], teams: Sequence[Team] = ()) -> OpponentEnvironments:
    teams = teams or [Team((agent,), "main") for agent in AGENTS]
    envs = OpponentEnvironments(
        lambda: Arena(has_all_key),
        NUM_ENVS,
        3,
        teams,
        lambda player_id, content, module_id: Counting(int(player_id[1:])),
    )
    envs.lineup = Lineup({"main": {"main": odds}})
    return envs


class Loop:
    """Whoever steps the environments: acts for the agents that it sees, and keeps books of each episode."""

    def __init__(self, envs: OpponentEnvironments) -> None:
        self.envs = envs
        self.awaited: list[list[str]] = [[] for _ in range(NUM_ENVS)]
        self.seen: list[set[str]] = [set() for _ in range(NUM_ENVS)]
        self.matches: list[tuple[Match, ...]] = []
        self.hidden: list[set[str]] = [set() for _ in range(NUM_ENVS)]
        self._take(envs.reset(("env_runner", 0, 0)))

    def _take(self, steps: Sequence[Any]) -> None:
        for n, step in enumerate(steps):
            if step.is_reset:
                self.seen[n] = set()
            named = {*step.obs, *step.rewards, *step.terminateds, *step.truncateds, *step.infos} - {ALL_AGENTS}
            self.seen[n] |= named
            self.hidden[n] = set(self.envs._seatings[n].seats)
            assert not named & self.hidden[n]
            over = step.terminateds.get(ALL_AGENTS) or step.truncateds.get(ALL_AGENTS)
            ended = {agent for agent, flag in step.terminateds.items() if flag}
            self.awaited[n] = [] if over else [agent for agent in step.obs if agent not in ended]
            if over:
                self.envs.end_episode(n)
                self.matches.append(self.envs.matches_of(n))

    def run(self, num_steps: int) -> None:
        for t in range(num_steps):
            actions = [{agent: t % 5 for agent in awaited} for awaited in self.awaited]
            self._take(self.envs.step(actions))


def transcripts(envs: OpponentEnvironments) -> list[list[Any]]:
    return [env.transcript for env in envs.environments]  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_all_key", [True, False])
def test_whoever_is_seen_acts_and_scores_are_those_of_the_whole_episode(has_all_key: bool) -> None:
    """Oracle: the environment itself, which checks who acts, and sums over its own transcript."""
    envs = seated(has_all_key, {"p1": 0.4, "p2": 0.4, ITSELF: 0.2} if has_all_key else {"p1": 0.4, "p2": 0.6})
    loop = Loop(envs)
    learning_teams: list[Any] = []
    matches_of = envs.matches_of

    def noting(n: int) -> tuple[Match, ...]:
        seating = envs._seatings[n]
        returns = dict.fromkeys(AGENTS, 0.0)
        last_reset = max(place for place, entry in enumerate(envs.environments[n].transcript) if entry == ("reset",))  # type: ignore[attr-defined]
        for _, rewards, _, _ in envs.environments[n].transcript[last_reset + 1 :]:  # type: ignore[attr-defined]
            for agent, reward in rewards.items():
                returns[agent] += reward
        matches = matches_of(n)
        own = returns[AGENTS[seating.learning_team]]
        expected = [
            Match("main", player, 0.5 if own == returns[AGENTS[place]] else float(own > returns[AGENTS[place]]))
            for place, player in seating.players.items()
        ]
        assert list(matches) == expected
        learning_teams.append((seating.learning_team, tuple(sorted(seating.players.items()))))
        return matches

    envs.matches_of = noting  # type: ignore[method-assign]
    loop.run(NUM_STEPS)
    assert len(learning_teams) > 60
    assert {home for home, _ in learning_teams} == {0, 1, 2}
    drawn = [player for _, players in learning_teams for _, player in players]
    assert 0.3 < drawn.count("p1") / (2 * len(learning_teams)) < 0.5
    assert any(not players for _, players in learning_teams) is has_all_key, (
        "without the key only the runner finds the end"
    )
    ends = sum(entry[-1] is True for transcript in transcripts(envs) for entry in transcript if entry != ("reset",))
    assert ends == len(learning_teams)


def test_a_player_acts_for_all_its_seats_in_one_pass() -> None:
    envs = seated(True, {"p1": 1.0})
    Loop(envs).run(50)
    player = envs._players["p1", "main"]
    assert isinstance(player, Counting)
    assert len(player.passes) <= 50
    assert max(player.passes) > NUM_ENVS


def test_running_episodes_go_on_from_their_state() -> None:
    straight, resumed = (seated(True, {"p1": 0.5, "p2": 0.3, ITSELF: 0.2}) for _ in range(2))
    loop = Loop(straight)
    loop.run(37)
    other = Loop(resumed)
    resumed.set_state(straight.get_state())
    other.awaited = [list(awaited) for awaited in loop.awaited]
    for part in transcripts(straight) + transcripts(resumed):
        part.clear()
    loop.run(60)
    other.run(60)
    assert transcripts(resumed) == transcripts(straight)
    assert other.matches[-5:] == loop.matches[-5:]


def test_agents_of_a_team_have_one_opponent_and_one_return() -> None:
    envs = seated(True, {"p1": 0.5, "p2": 0.5}, [Team(("a", "c"), "main"), Team(("b",), "main")])
    loop = Loop(envs)
    loop.run(NUM_STEPS)
    assert all(len(matches) == 1 for matches in loop.matches)
    for seating in envs._seatings:
        assert set(seating.seats) in ({"a", "c"}, {"b"})


class Late(Arena):
    """All agents join in the second step and leave in the fourth one, each with this reward per step."""

    def __init__(self, reward: Any = 1.0) -> None:
        super().__init__()
        self._reward = reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._t = 0
        return {}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self._t += 1
        obs = {agent: self._obs(agent) for agent in AGENTS} if self._t > 1 else {}
        return obs, dict.fromkeys(AGENTS, self._reward), dict.fromkeys(AGENTS, self._t == 4), {}, {}


def late_envs(reward: Any) -> OpponentEnvironments:
    teams = [Team((agent,), "main") for agent in AGENTS]
    envs = OpponentEnvironments(lambda: Late(reward), 1, 3, teams, lambda *_: Counting(1))
    envs.lineup = Lineup({"main": {"main": {"p1": 1.0}}})
    return envs


@pytest.mark.parametrize("reward", [1.0, np.array([1.0])])
def test_an_episode_does_not_end_before_an_agent_joins(reward: Any) -> None:
    envs = late_envs(reward)
    running = RunningAgents(envs, {"main": AGENTS})
    steps = envs.reset(("env_runner", 0, 0))
    running.update(steps)
    finished: list[FinishedEpisode] = []
    for _ in range(4):
        assert not finished
        steps = envs.step([dict.fromkeys(steps[0].obs, 0)])
        finished += running.update(steps)[1]
    assert [(episode.length, list(episode.returns.values())) for episode in finished] == [(4, [4.0])]
    assert [match.score for match in envs.matches_of(0)] == [0.5, 0.5]


def test_a_reward_that_is_not_a_number_is_reported_with_its_agent() -> None:
    envs = late_envs("much")
    envs.reset(("env_runner", 0, 0))
    with pytest.raises(RunFailure, match="the environment's reward is not a number") as caught:
        envs.step([{}])
    assert str(caught.value.problem.where).endswith("step 1, agent a")


def test_a_policy_player_knows_the_past_actions_and_rewards_of_its_seats() -> None:
    connectors = [prepended("PrevActionsPrevRewards")]
    parts, config = make_parts(spaces.Box(-5.0, 5.0, (4,)), spaces.Discrete(3), env_to_module=connectors)
    content = OnnxPolicy.of_module(parts, config).to_bytes(random_weights(parts), {})
    player, policy = PolicyPlayer(content, explore=False), LocalPolicy(content)
    rng, seats, state = np.random.default_rng(0), [Seat("a"), Seat("b")], None
    for _ in range(6):
        obs = rng.normal(size=(2, 4)).astype(np.float32)
        expected, extra = policy.act(obs, state, rewards=[seat.reward for seat in seats])
        state = extra["state_out"]
        assert player.act(obs, seats, rng).tolist() == expected.tolist()
        for seat in seats:
            seat.reward = float(rng.normal())
