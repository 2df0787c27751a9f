"""Checks of the block `league`, and the metrics of a league."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.composed import Composed
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.kinds import PLAYERS
from runner.config.league import FIXED, KINDS_OF_OPPONENTS, LeagueConfig, evaluated_players
from runner.config.list_patch_checks import describe_fault
from runner.config.multi_agent_checks import find_unmapped_modules
from runner.config.operators import ENV_RUNNERS
from runner.config.plans import needs_of
from runner.config.schemas import ExperimentConfig
from runner.config.targets import Given, find_target_fault

_PLAYER_ID = re.compile(r"[A-Za-z0-9_-]+")
_SPACE_GIVEN = Given(num_positional=1)  # the action space
_SHARES: Mapping[str, str] = {
    "win_rate": "share of games that were won",
    "draw_rate": "share of games that neither won",
    "loss_rate": "share of games that were lost",
}
_STANDING: Mapping[str, str] = {
    "elo": "Elo rating of the module as it is; the first player that was played, fixed ones first, has 1000 points",
    "elo_margin": "half the width of the 95 % interval of `elo`",
    "skill_mu": "mean of the belief about the module's skill, as TrueSkill has it; 25 at first",
    "skill_sigma": "standard deviation of this belief",
}


def find_league_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield the problems of the block."""
    league = config.league
    if league == LeagueConfig():
        return
    where = composed.where("league")
    if not league.modules:
        yield Problem("league is set, and league.modules names nobody who learns", where, "[]", "ids of modules")
        return
    yield from _check_run(config, where)
    yield from find_unmapped_modules("league.modules", league.modules, config, composed)
    yield from _check_opponents(league, composed)
    for player_id, given in league.fixed.items():
        yield from _check_player(player_id, given, league, composed)
    for name in ("train_against", "evaluate_against"):
        for player_id in [one for one in getattr(league, name) if one not in league.fixed]:
            known = ", ".join(league.fixed) or "no player: league.fixed is empty"
            nearest = nearest_match(player_id, league.fixed)
            what = f"league.{name} names no player of league.fixed"
            yield Problem(what, composed.where(f"league.{name}"), player_id, known, nearest)


def _check_run(config: ExperimentConfig, where: str | None) -> Iterator[Problem]:
    name = ", ".join(config.league.modules)
    if config.env.is_external:
        yield Problem(
            "a league needs environments that are stepped here, simulators step themselves", where, name, "[]"
        )
    elif ENV_RUNNERS not in needs_of(config):
        yield Problem("a league needs a plan that samples, this one learns from recorded data", where, name, "[]")
    elif config.env.env is not None:
        what = f"a league needs several agents, {config.env.env} has a single one"
        yield Problem(what, where, name, "env._target_: a MultiAgentEnv class")
    trained = config.multi_agent.modules_to_train
    for module_id in [one for one in config.league.modules if trained is not None and one not in trained]:
        what = "league.modules names a module that multi_agent.modules_to_train leaves out"
        yield Problem(what, where, module_id, ", ".join(trained or ()))


def _check_opponents(league: LeagueConfig, composed: Composed) -> Iterator[Problem]:
    key = "league.opponents"
    for kind, share in league.opponents.items():
        where = composed.where(f"{key}.{kind}")
        if kind not in KINDS_OF_OPPONENTS:
            nearest = nearest_match(kind, KINDS_OF_OPPONENTS)
            yield Problem(f"{key} has an unknown kind", where, kind, ", ".join(KINDS_OF_OPPONENTS), nearest)
        elif share < 0:
            yield Problem(f"{key}.{kind} is no share", where, show_value(share), "a number of 0 or more")
    if not any(share > 0 for share in league.opponents.values()):
        yield Problem(f"{key} has no kind with a share above 0", composed.where(key), show_value(league.opponents))
    if league.opponents.get(FIXED) and not league.fixed:
        what = f"{key}.{FIXED} has a share, and league.fixed has no player"
        given = show_value(league.opponents[FIXED])
        yield Problem(what, composed.where(f"{key}.{FIXED}"), given, "0, or players in league.fixed")


def _check_player(player_id: str, given: Any, league: LeagueConfig, composed: Composed) -> Iterator[Problem]:
    key = f"league.fixed.{player_id}"
    where = composed.where(key)
    if not _PLAYER_ID.fullmatch(player_id):
        yield Problem(f"{key}: a player's name becomes part of metrics", where, player_id, "letters, digits, _ and -")
    stem, _, number = player_id.rpartition("-")
    if player_id in league.modules or (stem in league.modules and number.isdigit()):
        yield Problem(f"{key} is the name of a module, or of a snapshot of it", where, player_id, "another name")
    files = {module_id: "POLICY.onnx" for module_id in league.modules}
    of_files = "policy.onnx" if len(files) == 1 else f"policy files of modules that it plays: {show_value(files)}"
    allowed = f"{of_files}, or {{_target_: package.module.Player, argument: value, ...}}"
    if isinstance(given, str):
        if len(files) > 1:
            what = f"{key}: a policy file was trained for one module's part, and the league has several modules"
            yield Problem(what, where, given, allowed)
        return
    if not isinstance(given, dict) or not given or not all(isinstance(one, str) for one in _files_or_target(given)):
        yield Problem(f"{key} is no player", where, show_value(given), allowed)
        return
    if "_target_" not in given:
        for name in [str(name) for name in given if name not in files]:
            what = f"{key} has a policy file for a module that league.modules does not name"
            yield Problem(what, composed.where(f"{key}.{name}"), name, ", ".join(files), nearest_match(name, files))
        return
    arguments = [str(name) for name in given if name != "_target_"]
    fault = find_target_fault(given["_target_"], arguments, kinds=PLAYERS, given=_SPACE_GIVEN)
    if fault is not None:
        yield describe_fault(f"{key}._target_", fault, where, given["_target_"])


def _files_or_target(given: Mapping[str, Any]) -> list[Any]:
    return [given["_target_"]] if "_target_" in given else list(given.values())


def league_metrics(config: ExperimentConfig) -> dict[str, str]:
    """Return metric -> meaning of the league, if there is one."""
    league = config.league
    if not league.modules:
        return {}
    names = {"league/num_players": "fixed players and snapshots so far"}
    of_module = dict(_STANDING) | {
        name: f"{meaning}, in this iteration's training" for name, meaning in _SHARES.items()
    }
    for module_id in league.modules:
        names |= {f"league/{module_id}/{name}": meaning for name, meaning in of_module.items()}
    if config.evaluation.evaluation_interval is not None:
        for player_id in evaluated_players(league):
            for name, meaning in _SHARES.items():
                names[f"evaluation/league/{player_id}/{name}"] = f"{meaning} against this player, in evaluations"
    return names
