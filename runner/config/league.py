"""The `league` block (self-play against earlier snapshots and fixed players), its rules and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.blocks import EnvConfig, EvaluationConfig, MultiAgentConfig
from runner.config.errors import Problem, nearest_match, show_value, unknown_name
from runner.config.features import FeatureBlock
from runner.config.fields import option
from runner.config.multi_agent import find_unmapped_modules
from runner.config.operators import ENV_RUNNERS
from runner.config.targets import PLAYERS, Given, find_target_block_problems

# Kinds of opponents in `league.opponents`.
LATEST, UNIFORM, PRIORITISED, FIXED = "latest", "uniform", "prioritised", "fixed"
KINDS_OF_OPPONENTS = (LATEST, UNIFORM, PRIORITISED, FIXED)
# File in the run dir with the state of the league, for people to read.
LEAGUE_FOLDER, STANDINGS_FILE = "league", "standings.json"


@dataclass(frozen=True)
class LeagueConfig(FeatureBlock):
    """Opponents of the modules that learn. Requires an environment with competing agents or teams."""

    modules: list[str] = option([], "ids of the learning modules, which are snapshotted; empty: no league")
    opponents: dict[str, float] = option(
        {LATEST: 0.5, PRIORITISED: 0.5},
        "kind: share of the episodes. latest: the module itself, which also learns from these episodes; uniform: a "
        "random snapshot; prioritised: preferably snapshots that are hard to beat; fixed: a random player of `fixed`",
    )
    prioritised_power: float = option(
        2.0, "prioritised: a snapshot is drawn in proportion to (1 - score against it) to this power", minimum=0
    )
    snapshot_every: int | None = option(
        None, "env steps between snapshots of a module; null: no snapshots by steps", unit="env steps", minimum=1
    )
    snapshot_win_rate: float | None = option(
        None,
        "win rate since the last snapshot at which a module is snapshotted, after at least snapshot_min_games games; "
        "null: no snapshots by wins",
        minimum=0,
        maximum=1,
    )
    snapshot_min_games: int = option(100, "games before snapshot_win_rate counts", minimum=1)
    max_snapshots: int | None = option(
        None,
        "number of newest snapshots per module that can be drawn; older ones stay in the table; null: all",
        minimum=1,
    )
    opponents_at_once: int | None = option(
        4,
        "opponents that an env runner draws per iteration for all of its new episodes; fewer are faster, because each "
        "opponent acts separately; null: every episode draws one",
        minimum=1,
    )
    fixed: dict[str, Any] = option(
        {},
        "player: a policy file of `runner export`; with several modules, {module: policy file, ...}; or {_target_: "
        "Player class, keyword arguments ...}",
        is_path=True,
    )
    train_against: list[str] = option([], "players of `fixed` for training; empty: all of them")
    evaluate_against: list[str] = option([], "players of `fixed` for evaluations; empty: all of them")

    @property
    def is_used(self) -> bool:
        """See `FeatureBlock`."""
        return bool(self.modules)

    @property
    def env_settings(self) -> dict[str, Any]:
        """See `FeatureBlock`."""
        return {"league": {"modules": list(self.modules), "fixed": dict(self.fixed)}}


def policy_files(given: Any, modules: Sequence[str]) -> dict[str, str]:
    """Return module id -> policy file of a player of `fixed`; empty if the player is a class.

    Args:
        given: the player's value.
        modules: modules of the league.
    """
    if isinstance(given, str):
        return dict.fromkeys(modules, given)
    return {} if "_target_" in given else dict(given)


def evaluated_players(config: LeagueConfig) -> tuple[str, ...]:
    """Return the opponents of evaluations."""
    return tuple(config.evaluate_against or config.fixed)


_PLAYER_ID = re.compile(r"[A-Za-z0-9_-]+")
_SPACE_GIVEN = Given(num_positional=1)  # the action space
_SHARES: Mapping[str, str] = {
    "win_rate": "share of games won",
    "draw_rate": "share of games drawn",
    "loss_rate": "share of games lost",
}
_STANDING: Mapping[str, str] = {
    "elo": "Elo rating of the current module; the first opponent has 1000 points, fixed players first",
    "elo_margin": "half the width of the 95 % interval of `elo`",
    "skill_mu": "mean of the TrueSkill belief about the module's skill; 25 initially",
    "skill_sigma": "standard deviation of this belief",
}


def find_league_problems(
    league: LeagueConfig, env: EnvConfig, multi_agent: MultiAgentConfig, needs: frozenset[str]
) -> Iterator[Problem]:
    """Yield the problems of the block."""
    if league == LeagueConfig():
        return
    if not league.modules:
        yield Problem("league is set, but league.modules is empty", "league", "[]", "module ids")
        return
    yield from _check_run(league, env, needs)
    trained = multi_agent.modules_to_train
    for module_id in [one for one in league.modules if trained is not None and one not in trained]:
        what = "league.modules contains a module that is not in multi_agent.modules_to_train"
        yield Problem(what, "league", module_id, ", ".join(trained or ()))
    yield from find_unmapped_modules("league.modules", league.modules, multi_agent)
    yield from _check_opponents(league)
    for player_id, given in league.fixed.items():
        yield from _check_player(player_id, given, league)
    for name in ("train_against", "evaluate_against"):
        for player_id in [one for one in getattr(league, name) if one not in league.fixed]:
            known = ", ".join(league.fixed) or "league.fixed is empty"
            nearest = nearest_match(player_id, league.fixed)
            what = f"league.{name} contains an unknown player"
            yield Problem(what, f"league.{name}", player_id, known, nearest)


def _check_run(league: LeagueConfig, env: EnvConfig, needs: frozenset[str]) -> Iterator[Problem]:
    key, name = "league", ", ".join(league.modules)
    if env.is_external:
        yield Problem("a league does not work with external simulators (env.port)", key, name, "[]")
    elif ENV_RUNNERS not in needs:
        yield Problem("a league needs a plan that samples; this plan learns from recorded data", key, name, "[]")
    elif env.env is not None:
        what = f"a league needs several agents; {env.env} has a single agent"
        yield Problem(what, key, name, "env._target_: a MultiAgentEnv class")


def _check_opponents(league: LeagueConfig) -> Iterator[Problem]:
    key = "league.opponents"
    for kind, share in league.opponents.items():
        place = f"{key}.{kind}"
        if kind not in KINDS_OF_OPPONENTS:
            yield unknown_name(f"{key} has an unknown kind", place, kind, KINDS_OF_OPPONENTS)
        elif share < 0:
            yield Problem(f"{key}.{kind} is not a valid share", place, show_value(share), "a number of at least 0")
    if not any(share > 0 for share in league.opponents.values()):
        yield Problem(f"{key} needs at least one share above 0", key, show_value(league.opponents))
    if league.opponents.get(FIXED) and not league.fixed:
        what = f"{key}.{FIXED} has a share, but league.fixed is empty"
        given = show_value(league.opponents[FIXED])
        yield Problem(what, f"{key}.{FIXED}", given, "0, or players in league.fixed")


def _check_player(player_id: str, given: Any, league: LeagueConfig) -> Iterator[Problem]:
    key = f"league.fixed.{player_id}"
    if not _PLAYER_ID.fullmatch(player_id):
        what = f"{key}: the name of a player becomes part of metric names"
        yield Problem(what, key, player_id, "letters, digits, _ and -")
    stem, _, number = player_id.rpartition("-")
    if player_id in league.modules or (stem in league.modules and number.isdigit()):
        yield Problem(f"{key} is already the name of a module or snapshot", key, player_id, "another name")
    files = {module_id: "POLICY.onnx" for module_id in league.modules}
    of_files = "policy.onnx" if len(files) == 1 else f"policy files of its modules: {show_value(files)}"
    expected = f"{of_files}, or {{_target_: package.module.Player, argument: value, ...}}"
    if isinstance(given, str):
        if len(files) > 1:
            what = f"{key}: a single policy file cannot play several modules"
            yield Problem(what, key, given, expected)
        return
    if not isinstance(given, dict) or not given or not all(isinstance(one, str) for one in _files_or_target(given)):
        yield Problem(f"{key} is not a valid player", key, show_value(given), expected)
        return
    if "_target_" not in given:
        for name in [str(name) for name in given if name not in files]:
            what = f"{key} has a policy file for a module that is not in league.modules"
            yield unknown_name(what, f"{key}.{name}", name, files)
        return
    yield from find_target_block_problems(key, given, PLAYERS, _SPACE_GIVEN)


def _files_or_target(given: Mapping[str, Any]) -> list[Any]:
    return [given["_target_"]] if "_target_" in given else list(given.values())


def league_metrics(league: LeagueConfig, evaluation: EvaluationConfig) -> dict[str, str]:
    """Return metric -> meaning; empty without a league."""
    if not league.modules:
        return {}
    names = {"league/num_players": "fixed players and snapshots so far"}
    of_module = dict(_STANDING) | {name: f"{meaning} in this iteration's training" for name, meaning in _SHARES.items()}
    for module_id in league.modules:
        names |= {f"league/{module_id}/{name}": meaning for name, meaning in of_module.items()}
    if evaluation.evaluation_interval is not None:
        for player_id in evaluated_players(league):
            for name, meaning in _SHARES.items():
                names[f"evaluation/league/{player_id}/{name}"] = f"{meaning} against this player in evaluations"
    return names
