"""Environments in which players of a league act for some of the agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from runner.config.errors import Problem, RunFailure
from runner.env_runners.env_answers import reward_of
from runner.env_runners.multi_agent_env import ALL_AGENTS, AgentDict, MultiAgentEnv
from runner.env_runners.multi_agent_envs import EnvStep, MultiAgentEnvironments
from runner.env_runners.replayed_actions import MAX_REPLAYED_STEPS
from runner.episodes import nested
from runner.league.matches import DRAW, LOSS, WIN, Match
from runner.league.players import Player, Seat
from runner.streams import random_stream, restore_stream, stream_state

# Instead of a player id: the module of a seat plays there itself, and learns from it.
ITSELF = ""


@dataclass(frozen=True)
class Lineup:
    """Odds from which env runners draw the players of each new episode.

    One team, drawn uniformly, plays with its modules and learns. Every other team is played by one opponent.

    Attributes:
        odds: module id of the team that learns -> module id of the other team -> player id -> probability. Without an
            entry the other team also plays with its modules.
        num_at_once: number of opponents that an env runner draws once from its odds for this lineup. Episodes then draw
            uniformly from these opponents. None: each episode draws from the odds.
        number: number of this lineup; env runners draw new opponents for each lineup.
    """

    odds: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    num_at_once: int | None = None
    number: int = 0


_SAME = 1e-9  # returns are sums in any order, so they differ by rounding
# (player id, content of its policy file or None, id of the module that it replaces) -> the player.
MakePlayer = Callable[[str, bytes | None, str], Player]


@dataclass(frozen=True)
class Team:
    """Agents that win and lose together.

    Attributes:
        agents: their ids.
        module_id: module of the first agent, which identifies the team in the league.
    """

    agents: tuple[str, ...]
    module_id: str


@dataclass
class _Seating:
    """Players of one sub-environment.

    Attributes:
        learning_team: index of the team that learns.
        players: index of a team -> the player that acts for it.
        seats: agent id -> its seat, for agents that players act for.
        running: agents that were observed and have not ended.
        returns: undiscounted return of each team.
    """

    learning_team: int = 0
    players: dict[int, str] = field(default_factory=dict)
    seats: dict[str, Seat] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    returns: list[float] = field(default_factory=list)


class OpponentEnvironments(MultiAgentEnvironments):
    """N sub-environments with several agents, of which the env runner sees only the learning agents.

    For each episode the random stream of these environments draws one team that learns, and an opponent for each other
    team. The env runner does not see the opponents' agents, observations and actions.

    Args:
        make_env, num_envs, seed, max_replayed_steps: see `MultiAgentEnvironments`.
        teams: all agents, in teams.
        make_player: makes an opponent when it plays for the first time.

    Attributes:
        lineup: odds of the players in new episodes.
    """

    def __init__(
        self,
        make_env: Callable[[], MultiAgentEnv],
        num_envs: int,
        seed: int,
        teams: Sequence[Team],
        make_player: MakePlayer,
        max_replayed_steps: int = MAX_REPLAYED_STEPS,
    ) -> None:
        super().__init__(make_env, num_envs, seed, max_replayed_steps)
        self._teams = list(teams)
        self._team_of = {agent: place for place, team in enumerate(teams) for agent in team.agents}
        self._make_player = make_player
        self._policies: dict[str, Mapping[str, bytes]] = {}
        self._players: dict[tuple[str, str], Player] = {}
        self._seatings = [_Seating() for _ in range(num_envs)]
        self._dealt: dict[tuple[int, str, str], list[str]] = {}
        self.lineup = Lineup()

    def add_player(self, player_id: str, policies: Mapping[str, bytes]) -> None:
        """Replace a player's policy files, one for each module; they are loaded when the player acts next."""
        self._policies[player_id] = policies
        self._players = {key: player for key, player in self._players.items() if key[0] != player_id}

    # -- stepping --------------------------------------------------------------------------------------------------

    def reset(self, seed_name: tuple[int | str, ...]) -> list[EnvStep]:
        """Reset all sub-environments and the random stream; see `MultiAgentEnvironments`."""
        role, *index = seed_name
        self._rng = random_stream(self._seed, f"{role}/league", *(int(i) for i in index))
        self._dealt = {}
        return [self._without_opponents(n, step) for n, step in enumerate(super().reset(seed_name))]

    def step(self, actions: Sequence[AgentDict]) -> list[EnvStep]:
        """Step each sub-environment with all actions including the opponents', or reset it if its episode is over."""
        self._act_for_opponents(actions)
        return [self._without_opponents(n, step) for n, step in enumerate(super().step(actions))]

    def use_lineup(self, lineup: Lineup) -> None:
        """Draw new episodes from this lineup; players that are neither in it nor at play are unloaded."""
        self.lineup = lineup
        drawn = {player_id for others in lineup.odds.values() for odds in others.values() for player_id in odds}
        drawn |= {player_id for seating in self._seatings for player_id in seating.players.values()}
        self._players = {key: player for key, player in self._players.items() if key[0] in drawn}

    def _act_for_opponents(self, actions: Sequence[AgentDict]) -> None:
        """Write the actions of opponents into the dict of their sub-environment, in one pass for each player."""
        acting: dict[tuple[str, str], list[tuple[int, Seat]]] = {}
        for n, seating in enumerate(self._seatings):
            for seat in seating.seats.values():
                if seat.obs is not None:
                    place = self._team_of[seat.agent_id]
                    acting.setdefault((seating.players[place], self._teams[place].module_id), []).append((n, seat))
        for key, places in acting.items():
            seats = [seat for _, seat in places]
            chosen = self._chosen(*key, seats)
            for row, (n, seat) in enumerate(places):
                actions[n][seat.agent_id] = nested.map_leaves(lambda leaf, row=row: leaf[row], chosen)
                seat.obs, seat.reward = None, 0.0

    def _chosen(self, player_id: str, module_id: str, seats: Sequence[Seat]) -> Any:
        player = self._player(player_id, module_id)
        try:
            return player.act(nested.stack([seat.obs for seat in seats]), seats, self._rng)
        except (ValueError, TypeError, KeyError) as error:  # a policy of another game, for example
            what = f"player {player_id} of the league cannot replace {module_id}: {error}"
            raise RunFailure(Problem(what, f"league.fixed.{player_id}")) from error

    def _player(self, player_id: str, module_id: str) -> Player:
        key = (player_id, module_id)
        if key not in self._players:
            try:
                content = self._policies.get(player_id, {}).get(module_id)
                self._players[key] = self._make_player(player_id, content, module_id)
            except (ValueError, TypeError, KeyError) as error:
                problem = Problem(f"player {player_id} of the league cannot be created: {error}", "league")
                raise RunFailure(problem) from error
        return self._players[key]

    def _without_opponents(self, n: int, step: EnvStep) -> EnvStep:
        """Store the opponents' observations and rewards, and return the step without them."""
        if step.is_reset:
            self._seatings[n] = self._drawn_seating()
        seating = self._seatings[n]
        if not seating.players:
            return step
        for agent, reward in step.rewards.items():
            if agent in self._team_of:
                number = reward if type(reward) is float else reward_of(reward, f"{self.place(n)}, agent {agent}")
                seating.returns[self._team_of[agent]] += number
                if agent in seating.seats:
                    seating.seats[agent].reward += number
        for agent, seat in seating.seats.items():
            seat.obs = step.obs.get(agent)
        terminateds, truncateds = dict(step.terminateds), dict(step.truncateds)
        seating.running |= set(step.obs)
        ended = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        if ALL_AGENTS in ended:
            ended |= seating.running
        for agent in ended & set(seating.seats):
            seating.seats[agent].obs = None
        seating.running -= ended
        if ended and ALL_AGENTS not in terminateds and ALL_AGENTS not in truncateds:
            # An observer of only some agents cannot know whether the last one has ended.
            (truncateds if any(truncateds.values()) else terminateds)[ALL_AGENTS] = not seating.running
        return EnvStep(
            step.is_reset,
            *(_hidden(part, seating) for part in (step.obs, step.rewards, terminateds, truncateds, step.infos)),
        )

    def _drawn_seating(self) -> _Seating:
        learning = int(self._rng.integers(len(self._teams)))
        seating = _Seating(learning, returns=[0.0] * len(self._teams))
        odds_against = self.lineup.odds.get(self._teams[learning].module_id, {})
        for place, team in enumerate(self._teams):
            odds = odds_against.get(team.module_id)
            if place != learning and odds:
                player_id = self._drawn(self._teams[learning].module_id, team.module_id, odds)
                if player_id != ITSELF:
                    seating.players[place] = player_id
                    seating.seats |= {agent: Seat(agent) for agent in team.agents}
        return seating

    def _drawn(self, learning: str, other: str, odds: Mapping[str, float]) -> str:
        """Draw a player from the odds, or from the opponents that were drawn for this lineup."""
        lineup = self.lineup
        if lineup.num_at_once is None:
            return list(odds)[int(self._rng.choice(len(odds), p=list(odds.values())))]
        key = (lineup.number, learning, other)
        if key not in self._dealt:
            role, *index = self._seed_name
            dealing = random_stream(self._seed, f"{role}/league/{learning}/{other}", *map(int, index), lineup.number)
            places = dealing.choice(len(odds), lineup.num_at_once, p=list(odds.values()))
            self._dealt = {one: dealt for one, dealt in self._dealt.items() if one[0] == lineup.number}
            self._dealt[key] = [list(odds)[int(place)] for place in places]
        return self._dealt[key][int(self._rng.integers(lineup.num_at_once))]

    def matches_of(self, n: int) -> tuple[Match, ...]:
        """Return the matches in an episode that has just ended."""
        seating = self._seatings[n]
        module_id = self._teams[seating.learning_team].module_id
        own = seating.returns[seating.learning_team] if seating.returns else 0.0
        return tuple(
            Match(module_id, player_id, _score(own - seating.returns[place]))
            for place, player_id in seating.players.items()
        )

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of the sub-environments, of the draws, and of running episodes' opponents."""
        seatings = [
            {
                "learning_team": seating.learning_team,
                "players": {str(place): player_id for place, player_id in seating.players.items()},
                "seats": {agent: deepcopy(vars(seat)) for agent, seat in seating.seats.items()},
                "running": sorted(seating.running),
                "returns": list(seating.returns),
            }
            for seating in self._seatings
        ]
        return {**super().get_state(), "seatings": seatings, "draws": stream_state(self._rng)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        super().set_state(state)
        role, *index = self._seed_name
        self._rng = random_stream(self._seed, f"{role}/league", *(int(i) for i in index))
        restore_stream(self._rng, state["draws"])
        self._dealt = {}
        self._seatings = [
            _Seating(
                int(seating["learning_team"]),
                {int(place): player_id for place, player_id in seating["players"].items()},
                {agent: Seat(**seat) for agent, seat in seating["seats"].items()},
                set(seating["running"]),
                list(seating["returns"]),
            )
            for seating in state["seatings"]
        ]


def _hidden(by_agent: AgentDict, seating: _Seating) -> AgentDict:
    return {agent: value for agent, value in by_agent.items() if agent not in seating.seats}


def _score(lead: float) -> float:
    if abs(lead) < _SAME:
        return DRAW
    return WIN if lead > 0 else LOSS
