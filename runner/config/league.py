"""The block `league`: modules that learn against players of the past and fixed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.fields import option

# Kinds of opponents, whose shares `league.opponents` has.
LATEST, UNIFORM, PRIORITISED, FIXED = "latest", "uniform", "prioritised", "fixed"
KINDS_OF_OPPONENTS = (LATEST, UNIFORM, PRIORITISED, FIXED)
# Of a run dir, what its league keeps there for people to see.
LEAGUE_FOLDER, STANDINGS_FILE = "league", "standings.json"


@dataclass(frozen=True)
class LeagueConfig:
    """Who plays against modules that learn. Only for environments with several agents, of which teams compete."""

    modules: list[str] = option([], "ids of modules that learn and are snapshot; empty: there is no league")
    opponents: dict[str, float] = option(
        {LATEST: 0.5, PRIORITISED: 0.5},
        "kind: share of the episodes. latest: the module itself, which learns from these, too; uniform: any snapshot; "
        "prioritised: snapshots that are hard to beat, more often; fixed: any of `fixed`",
    )
    prioritised_power: float = option(
        2.0, "prioritised: snapshots are drawn in proportion to (1 - score against it) to this power", minimum=0
    )
    snapshot_every: int | None = option(
        None, "env steps after which a module is snapshot; null: never by steps", unit="env steps", minimum=1
    )
    snapshot_win_rate: float | None = option(
        None,
        "snapshot a module that has won at least this share of its games since the last snapshot, of at least "
        "snapshot_min_games; null: never by wins",
        minimum=0,
        maximum=1,
    )
    snapshot_min_games: int = option(100, "games before snapshot_win_rate counts", minimum=1)
    max_snapshots: int | None = option(
        None, "newest snapshots of a module that are drawn; older ones stay in the table; null: all", minimum=1
    )
    opponents_at_once: int | None = option(
        4,
        "opponents that an env runner draws for all episodes that it begins in an iteration; each acts by itself, "
        "so that fewer are faster; null: each episode draws one",
        minimum=1,
    )
    fixed: dict[str, Any] = option(
        {},
        "player: a policy file (policy.onnx, as `export` writes it), of several modules {module: policy file, ...} of "
        "the ones it plays; or {_target_: your own Player class, its keyword arguments, ...}",
        is_path=True,
    )
    train_against: list[str] = option([], "players of `fixed` that the share of fixed ones draws; empty: all of them")
    evaluate_against: list[str] = option([], "players of `fixed` that evaluations are against; empty: all of them")


def policy_files(given: Any, modules: Sequence[str]) -> dict[str, str]:
    """Return module id -> policy file of a player of `fixed`; empty: a class plays all modules.

    Args:
        given: the player's value.
        modules: of the league.
    """
    if isinstance(given, str):
        return dict.fromkeys(modules, given)
    return {} if "_target_" in given else dict(given)


def evaluated_players(config: LeagueConfig) -> tuple[str, ...]:
    """Return the players that evaluations are against."""
    return tuple(config.evaluate_against or config.fixed)
