"""The league of a run: its players, their games and ratings, and the odds of playing next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from openskill.models import ThurstoneMostellerFull

from runner.config.errors import ConfigError, Problem
from runner.config.league import (
    FIXED,
    LATEST,
    LEAGUE_FOLDER,
    PRIORITISED,
    STANDINGS_FILE,
    UNIFORM,
    LeagueConfig,
    evaluated_players,
)
from runner.durable_files import write_atomically
from runner.env_runners.sample import Weights
from runner.league.matches import DRAW, LEAGUE, LOSS, WIN, Match
from runner.league.opponent_environments import ITSELF, Lineup
from runner.league.ratings import Rating, elo_ratings, standings_text
from runner.parts import Announces, Metrics, Part, RunView
from runner.policy import OnnxPolicy
from runner.segments import Segment, SegmentFile
from runner.tracking.headline import report_command

# Older games of a changing module count less: each new game against a player multiplies them by this factor.
_DECAY_PER_GAME = 0.99
_COLUMNS = {WIN: 0, DRAW: 1, LOSS: 2}


@dataclass
class _Player:
    """A policy that never changes.

    Attributes:
        module_id: module that it is a snapshot of, or None for a fixed player.
        num_env_steps: env steps that the run had sampled when the player was made.
        policies: module id -> content of the policy file that plays for it. If empty, its `_target_` plays for all.
    """

    module_id: str | None
    num_env_steps: int
    policies: Mapping[str, bytes]
    file: SegmentFile = field(default_factory=SegmentFile)

    @cached_property
    def digest(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the contents, in the order of their modules."""
        return hashlib.sha256(b"".join(self.policies[one] for one in sorted(self.policies))).hexdigest()[:12]

    def plays(self, module_id: str) -> bool:
        """Return whether the player can replace a module."""
        return not self.policies or module_id in self.policies


class Skill(NamedTuple):
    """A normal belief about how well a player plays; it plays better than mu - 3 sigma almost surely."""

    mu: float
    sigma: float


class League(Part):
    """Keeps a run's players and their games against its modules, and determines the next opponents.

    Args:
        config: the `league` block.
        policies: module id -> exporter of its snapshots, for modules that learn.
        fixed: fixed player -> module id -> content of its policy file. If empty, the player's `_target_` plays.
        split_weights: splits the weights of a run into the weights of each module.
    """

    name = LEAGUE

    def __init__(
        self,
        config: LeagueConfig,
        policies: Mapping[str, OnnxPolicy],
        fixed: Mapping[str, Mapping[str, bytes]],
        split_weights: Callable[[Weights], Weights],
    ) -> None:
        self._config = config
        self._policies = dict(policies)
        self._split_weights = split_weights
        self._players = {player_id: _Player(None, 0, policies) for player_id, policies in fixed.items()}
        # Faded games determine how often a player is drawn; ratings count each game once, also among opponents.
        self._faded: dict[str, dict[str, list[float]]] = {module_id: {} for module_id in policies}
        self._games: dict[str, dict[str, list[float]]] = {module_id: {} for module_id in policies}
        self._since_snapshot: dict[str, list[int]] = {module_id: [0, 0] for module_id in policies}  # games, wins
        self._skills: dict[str, Skill] = {}
        self._num_lineups = 0
        self._written: tuple[Path, int] | None = None  # run dir and number of players that were written last
        self._model: Any = ThurstoneMostellerFull()

    # -- players ---------------------------------------------------------------------------------------------------

    def begin(self, run: RunView) -> None:
        """Take the initial parameters of modules without a snapshot as their first snapshots."""
        new = [module_id for module_id in self._policies if not self._snapshots_of(module_id)]
        if new:
            weights = self._split_weights(run.get_weights())
            for module_id in new:
                self._snapshot(module_id, 0, weights, run.shared_state)

    @property
    def num_players(self) -> int:
        """Number of fixed players and snapshots."""
        return len(self._players)

    def write_files(self, run_dir: Path, is_final: bool) -> None:
        """Write the standings and the policies of new snapshots to the folder `league` if there is a new player."""
        newest = run_dir, self.num_players
        if is_final or newest != self._written:
            self._written = newest
            self._write_to(run_dir / LEAGUE_FOLDER)

    def summary(self, run_dir: Path) -> list[str]:
        """Return the standings, and the command that shows all games."""
        return [standings_text(self.standings()), f"  who beats whom: {report_command(run_dir)}"]

    def _write_to(self, folder: Path) -> None:
        for player_id, player in self._players.items():
            file = folder / f"{player_id}-{player.digest}.onnx"
            if player.module_id is not None and not file.exists():
                write_atomically(file, player.policies[player.module_id])
        write_atomically(folder / STANDINGS_FILE, json.dumps(self.standings(), indent=1).encode())

    def policy_files(self, player_id: str) -> Mapping[str, bytes]:
        """Return module id -> content of a player's policy file; empty if a class implements the player."""
        return self._players[player_id].policies

    def _snapshots_of(self, module_id: str) -> list[str]:
        return [player_id for player_id, player in self._players.items() if player.module_id == module_id]

    def _snapshot(self, module_id: str, num_env_steps: int, weights: Weights, shared_state: Mapping[str, Any]) -> None:
        player_id = f"{module_id}-{len(self._snapshots_of(module_id))}"
        content = self._policies[module_id].to_bytes(weights[module_id], shared_state.get(module_id, {}))
        self._players[player_id] = _Player(module_id, num_env_steps, {module_id: content})
        self._games[player_id], self._games[module_id] = self._games[module_id], {}
        self._skills[player_id] = self._skill(module_id)
        self._since_snapshot[module_id] = [0, 0]

    # -- who plays -------------------------------------------------------------------------------------------------

    def announce_to(self, env_runners: Announces, is_evaluation: bool) -> None:
        """Announce the players of the next episodes."""
        named = evaluated_players(self._config) if is_evaluation else self._players
        for player_id in named:
            player = self._players[player_id]
            subject = f"player {player_id} {player.digest}"
            if player.policies and not env_runners.has_announced(subject):
                env_runners.announce(subject, "player", player_id, player.policies)
        env_runners.announce("lineup", "lineup", self._evaluation_lineup() if is_evaluation else self.lineup())

    def lineup(self) -> Lineup:
        """Return the odds of the players that play against learning modules."""
        odds = {
            learning: {other: self._odds(learning, other) for other in self._policies} for learning in self._policies
        }
        return Lineup(odds, self._config.opponents_at_once, self._num_lineups)

    def _odds(self, learning: str, other: str) -> dict[str, float]:
        """Return the probability that each player replaces module `other` in a game against module `learning`."""
        snapshots = self._snapshots_of(other)[-(self._config.max_snapshots or 0) :]
        chances = np.array([1.0 - self._score(learning, player_id) for player_id in snapshots])
        hardness = chances**self._config.prioritised_power
        fixed = [one for one in self._config.train_against or self._config.fixed if self._players[one].plays(other)]
        weights_of = {
            LATEST: {ITSELF: 1.0},
            UNIFORM: dict.fromkeys(snapshots, 1.0),
            PRIORITISED: dict(zip(snapshots, hardness.tolist(), strict=True)),
            FIXED: dict.fromkeys(fixed, 1.0),
        }
        odds: dict[str, float] = {}
        for kind, share in self._config.opponents.items():
            weights = weights_of[kind]
            total = sum(weights.values())
            if share and total:
                for player_id, weight in weights.items():
                    odds[player_id] = odds.get(player_id, 0.0) + share * weight / total
        total = sum(odds.values())
        return {player_id: chance / total for player_id, chance in odds.items() if chance}

    def _score(self, module_id: str, player_id: str) -> float:
        """Return the mean score of a module against a player, or 0.5 before any game."""
        wins, draws, losses = self._faded[module_id].get(player_id, (0.0, 0.0, 0.0))
        return (wins + draws / 2 + 0.5) / (wins + draws + losses + 1.0)

    def _evaluation_lineup(self) -> Lineup:
        odds: dict[str, dict[str, float]] = {}
        for module_id in self._policies:
            able = [one for one in evaluated_players(self._config) if self._players[one].plays(module_id)]
            odds[module_id] = {player_id: 1 / len(able) for player_id in able}
        return Lineup(dict.fromkeys(self._policies, odds))

    # -- results of games ------------------------------------------------------------------------------------------

    def add_matches(self, matches: Sequence[Match]) -> None:
        """Count training games."""
        for module_id, player_id, score in matches:
            faded = self._faded[module_id].setdefault(player_id, [0.0, 0.0, 0.0])
            faded[:] = [count * _DECAY_PER_GAME for count in faded]
            for games in (faded, self._games[module_id].setdefault(player_id, [0.0, 0.0, 0.0])):
                games[_COLUMNS[score]] += 1.0
            since = self._since_snapshot[module_id]
            since[:] = since[0] + 1, since[1] + (score == WIN)
            self._rate(module_id, player_id, score)

    def _skill(self, player_id: str) -> Skill:
        if player_id not in self._skills:
            rating = self._model.rating()
            self._skills[player_id] = Skill(rating.mu, rating.sigma)
        return self._skills[player_id]

    def _rate(self, player_id: str, other: str, score: float) -> None:
        """Update the beliefs about two players after a game, by a closed form near TrueSkill's (Weng and Lin, 2011)."""
        ratings = [[self._model.rating(*self._skill(one))] for one in (player_id, other)]
        [[first], [second]] = self._model.rate(ratings, ranks=[-score, score - 1.0])
        self._skills[player_id] = Skill(first.mu, first.sigma)
        self._skills[other] = Skill(second.mu, second.sigma)

    def elo(self) -> dict[str, Rating]:
        """Return the Elo ratings of all players that have played. The first player, fixed ones first, has 1000."""
        played = {one for against in self._games.values() for one in against}
        players = [one for one in self._players if one in played or any(self._games.get(one, ()))]
        follows: dict[str, str] = {}
        for module_id in self._policies:
            versions = [*(one for one in self._snapshots_of(module_id) if one in players), module_id]
            follows |= dict(zip(versions[1:], versions[:-1], strict=True))
        return elo_ratings(self._games, [*players, *self._policies], follows)

    def end_iteration(self, run: RunView) -> Metrics:
        """Count the iteration's games and take snapshots that are due; return the earlier standings."""
        matches = [Match(*outcome) for outcome in run.outcomes(self.name)]
        self.add_matches(matches)
        metrics = self._metrics_of(matches)
        due = [module_id for module_id in self._policies if self._is_due(module_id, run.num_env_steps)]
        if due:
            weights = self._split_weights(run.get_weights())
            for module_id in due:
                self._snapshot(module_id, run.num_env_steps, weights, run.shared_state)
        self._num_lineups += 1
        return metrics

    def _is_due(self, module_id: str, num_env_steps: int) -> bool:
        config = self._config
        newest = self._players[self._snapshots_of(module_id)[-1]]
        if config.snapshot_every is not None and num_env_steps - newest.num_env_steps >= config.snapshot_every:
            return True
        num_games, num_wins = self._since_snapshot[module_id]
        if config.snapshot_win_rate is None or num_games < config.snapshot_min_games:
            return False
        return num_wins / num_games >= config.snapshot_win_rate

    def _metrics_of(self, matches: Sequence[Match]) -> dict[str, float | int | None]:
        """Return the standing of each module, and its shares of wins, draws and losses in these games."""
        elo = self.elo()
        metrics: dict[str, float | int | None] = {"league/num_players": self.num_players}
        for module_id in self._policies:
            scores = [match.score for match in matches if match.module_id == module_id]
            skill = self._skill(module_id)
            rates = shares_of(scores) | {
                "elo": elo[module_id].value,
                "elo_margin": elo[module_id].margin,
                "skill_mu": skill.mu,
                "skill_sigma": skill.sigma,
            }
            metrics |= {f"league/{module_id}/{name}": value for name, value in rates.items()}
        return metrics

    def evaluation_metrics(self, outcomes: Sequence[Any]) -> Metrics:
        """Return the shares of wins, draws and losses of an evaluation's games against each player."""
        matches = [Match(*outcome) for outcome in outcomes]
        metrics: dict[str, float | None] = {}
        for player_id in evaluated_players(self._config):
            shares = shares_of([match.score for match in matches if match.player_id == player_id])
            metrics |= {f"evaluation/league/{player_id}/{name}": share for name, share in shares.items()}
        return metrics

    # -- display ---------------------------------------------------------------------------------------------------

    def standings(self) -> list[dict[str, Any]]:
        """Return one row for each player and module, sorted by Elo in descending order."""
        elo = self.elo()
        rows = [
            {
                "player": player_id,
                "env_steps": self._players[player_id].num_env_steps if player_id in self._players else None,
                "is_fixed": player_id in self._players and self._players[player_id].module_id is None,
                "elo": asdict(rating),
                "skill": self._skill(player_id)._asdict(),
                "games": {other: list(games) for other, games in self._games.get(player_id, {}).items()},
            }
            for player_id, rating in elo.items()
        ]
        return sorted(rows, key=lambda row: -row["elo"]["value"])

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return players, games and ratings; policy files are written only once."""
        return {
            "players": {
                player_id: {
                    "module_id": player.module_id,
                    "num_env_steps": player.num_env_steps,
                    "content": Segment(player.file, partial(_as_values, player.policies[player.module_id])),
                }
                for player_id, player in self._players.items()
                if player.module_id is not None
            },
            "fixed": {player_id: self._players[player_id].digest for player_id in self._config.fixed},
            "games": _copied(self._games),
            "faded": _copied(self._faded),
            "num_lineups": self._num_lineups,
            "since_snapshot": {module_id: list(counts) for module_id, counts in self._since_snapshot.items()},
            "skills": {player_id: list(skill) for player_id, skill in self._skills.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        Raises:
            ConfigError: a policy file of a fixed player has changed.
        """
        for player_id, digest in state["fixed"].items():
            now = self._players[player_id].digest if player_id in self._config.fixed else digest
            if now != digest:
                what = f"the policy file of the fixed player {player_id} has changed since the checkpoint"
                fix = "restore the earlier file, or add the new one under another name"
                raise ConfigError([Problem(what, f"league.fixed.{player_id}", f"digest {now}", fix=fix)])
        fixed = {player_id: player for player_id, player in self._players.items() if player.module_id is None}
        snapshots = {
            player_id: _Player(
                saved["module_id"],
                int(saved["num_env_steps"]),
                {saved["module_id"]: np.asarray(saved["content"].values()["content"], np.uint8).tobytes()},
                saved["content"].file,
            )
            for player_id, saved in state["players"].items()
        }
        self._players = fixed | snapshots
        nobody: dict[str, dict[str, list[float]]] = {module_id: {} for module_id in self._policies}
        self._games, self._faded = nobody | _copied(state["games"]), _copied(nobody) | _copied(state["faded"])
        self._num_lineups = int(state["num_lineups"])
        self._since_snapshot |= {module_id: list(counts) for module_id, counts in state["since_snapshot"].items()}
        self._skills = {player_id: Skill(*skill) for player_id, skill in state["skills"].items()}


def shares_of(scores: Sequence[float]) -> dict[str, float | None]:
    """Return the shares of won, drawn and lost games, or None for each if there were no games."""
    named = {"win_rate": WIN, "draw_rate": DRAW, "loss_rate": LOSS}
    return {name: scores.count(score) / len(scores) if scores else None for name, score in named.items()}


def _as_values(content: bytes) -> dict[str, Any]:
    return {"content": np.frombuffer(content, np.uint8)}


def _copied(games: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, list[float]]]:
    return {one: {other: list(counts) for other, counts in against.items()} for one, against in games.items()}
