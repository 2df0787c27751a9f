"""Builds the league of a run, and the environments in which its players act."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

from runner.config.callables import made_arguments
from runner.config.documents import read_regular
from runner.config.errors import ConfigError, Problem, nearest_match, show_value
from runner.config.imports import import_target
from runner.config.league import policy_files
from runner.config.schemas import ExperimentConfig
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.teams import agents_of_teams
from runner.episodes.spaces import space_from_dict
from runner.feature import Feature
from runner.league.league import League
from runner.league.match_listener import MatchListener
from runner.league.opponent_environments import OpponentEnvironments, Team
from runner.league.players import Player, PolicyPlayer, find_misfits
from runner.module_building import (
    BuiltModule,
    ModuleSpec,
    build_acting_modules,
    check_acts_alone,
    has_several_agents,
    weights_by_module,
)
from runner.pipelines.description import space_text
from runner.policy import OnnxPolicy
from runner.rllink.client.local_policy import PolicyFileError

# Valid fixed players without a class.
_POLICY_FILES = "a file of `runner export` or a snapshot, or a _target_ that names a runner.league.Player"


class LeagueFeature(Feature):
    """Makes players act for some of the agents."""

    title = "the league"

    def make_part(self, built_modules: Mapping[str, BuiltModule]) -> League:
        """Make the league.

        Raises:
            ConfigError: a module does not act here or not alone, or a policy file or class cannot be used.
        """
        config, block = self.config, self.config.league
        specs = {module_id: of_module.spec for module_id, of_module in built_modules.items()}
        _check_modules(config, specs)
        teams = [team for team in _teams(config, specs) if team.module_id in block.modules]
        if len(teams) < 2:
            what = "the modules of the league do not have opponents: fewer than two teams use modules of league.modules"
            got, expected = ", ".join(block.modules), f"modules of two teams: {', '.join(specs)}"
            raise ConfigError([Problem(what, "league.modules", got, expected)])
        fixed = {
            player_id: {
                module_id: _content(player_id, path) for module_id, path in policy_files(given, block.modules).items()
            }
            for player_id, given in block.fixed.items()
        }
        for player_id, contents in fixed.items():
            _check_player(config, specs, player_id, contents)
        check_acts_alone(config, "be a player of a league")
        acting = build_acting_modules(config, specs)
        policies = {module_id: OnnxPolicy.of_module(acting[module_id], config) for module_id in block.modules}
        return League(block, policies, fixed, partial(weights_by_module, acting))

    def make_envs(
        self, specs: Mapping[str, ModuleSpec], make_env: Callable[[], MultiAgentEnv], num_envs: int, explore: bool
    ) -> OpponentEnvironments:
        """Make sub-environments in which players of the league act for some of the agents."""
        config = self.config
        spaces = {module_id: spec.action_space for module_id, spec in specs.items()}
        make_player = partial(_make_player, config.league.fixed, spaces, explore)
        return OpponentEnvironments(
            make_env, num_envs, config.seed, _teams(config, specs), make_player, config.env.max_replayed_steps
        )

    def make_listener(self, env: OpponentEnvironments) -> MatchListener:
        """Make the listener that reports matches."""
        return MatchListener(env)


def _teams(config: ExperimentConfig, specs: Mapping[str, ModuleSpec]) -> list[Team]:
    """Return the teams of `multi_agent.teams`, and each other agent as a team.

    Raises:
        ConfigError: the agents of a team have different modules, so one snapshot cannot play all of them.
    """
    module_of = {agent: module_id for module_id, spec in specs.items() for agent in spec.agents or ()}
    named = agents_of_teams(config.multi_agent.teams, sorted(module_of))
    alone = sorted(set(module_of) - {agent for members in named.values() for agent in members})
    for name, members in named.items():
        modules = sorted({module_of[agent] for agent in members})
        if len(modules) > 1:
            what = f"in a league all agents of a team must share one module, but team {name} uses several"
            raise ConfigError([Problem(what, f"multi_agent.teams.{name}", ", ".join(modules))])
    return [Team(tuple(members), module_of[members[0]]) for members in (*named.values(), *([agent] for agent in alone))]


def _make_player(
    fixed: Mapping[str, Any],
    spaces: Mapping[str, gym.Space[Any]],
    explore: bool,
    player_id: str,
    content: bytes | None,
    module_id: str,
) -> Player:
    if content is not None:
        return PolicyPlayer(content, explore)
    block, key = fixed[player_id], f"league.fixed.{player_id}"
    positional, arguments = made_arguments(block, key)
    player: Player = import_target(block["_target_"], f"{key}._target_", Player)(
        spaces[module_id], *positional, **arguments
    )
    return player


def _content(player_id: str, path: str) -> bytes:
    try:
        return read_regular(Path(path))
    except (OSError, ValueError) as error:
        what = f"the policy file of player {player_id} cannot be read: {error}"
        raise ConfigError([Problem(what, f"league.fixed.{player_id}", path, _POLICY_FILES)]) from error


def _check_player(
    config: ExperimentConfig, specs: Mapping[str, ModuleSpec], player_id: str, contents: Mapping[str, bytes]
) -> None:
    given, first = config.league.fixed[player_id], config.league.modules[0]
    problems: list[Problem] = []
    try:
        for module_id, content in contents.items():
            problems += _find_misfits(PolicyPlayer(content, True), specs[module_id], player_id)
        if not contents:
            _make_player(config.league.fixed, {first: specs[first].action_space}, True, player_id, None, first)
    except (PolicyFileError, KeyError, TypeError, ValueError) as error:
        what, where = f"player {player_id} cannot be created: {error}", f"league.fixed.{player_id}"
        got = given if isinstance(given, str) else show_value(given)
        raise ConfigError([Problem(what, where, got, _POLICY_FILES if contents else None)]) from error
    if problems:
        raise ConfigError(problems)


def _find_misfits(player: PolicyPlayer, spec: ModuleSpec, player_id: str) -> Iterator[Problem]:
    """Yield the spaces of a policy file that differ from the spaces of the agents it may play."""
    of_agents = {"observation_space": spec.observation_space, "action_space": spec.action_space}
    for name, agents in of_agents.items():
        policy = space_from_dict(player.manifest[name], name)
        for path, got, expected in find_misfits(policy, agents, name == "action_space"):
            what = f"the policy file of player {player_id} does not fit {name}{path} of module {spec.module_id}"
            who = f"{space_text(expected)} of {', '.join(spec.agents or ())}"
            yield Problem(what, f"league.fixed.{player_id}", space_text(got), who)


def _check_modules(config: ExperimentConfig, specs: Mapping[str, ModuleSpec]) -> None:
    if not has_several_agents(specs):
        what = f"a league needs several agents, but {config.env.name} has a single one"
        raise ConfigError([Problem(what, "league.modules", ", ".join(config.league.modules), "[]")])
    for module_id in config.league.modules:
        if module_id not in specs:
            what = "league.modules names a module that does not act for any agent"
            known = ", ".join(specs)
            raise ConfigError([Problem(what, "league.modules", module_id, known, nearest_match(module_id, specs))])
