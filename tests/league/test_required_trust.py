"""What a league and a curriculum out of somebody else's checkpoint ask for is told before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.required_trust import find_trust_requirements


@pytest.mark.parametrize(
    ("values", "verb", "key"),
    [
        ({"league": {"fixed": {"old": "/home/u/secret"}}}, "reads", "league.fixed.old"),
        ({"league": {"fixed": {"old": {"main": "secret"}}}}, "reads", "league.fixed.old.main"),
        ({"league": {"fixed": {"x": {"_target_": "their.Player"}}}}, "imports", "league.fixed.x._target_"),
        (
            {"league": {"fixed": {"x": {"_target_": "runner.league.RandomPlayer", "path": "/etc"}}}},
            "reads",
            "league.fixed.x.path",
        ),
        (
            {"curriculum": {"tasks": {"a": {"env_config": {"path": "/etc"}}}}},
            "reads",
            "curriculum.tasks.a.env_config.path",
        ),
        ({"curriculum": {"tasks": {"a": {"options": {"file": "/x/y"}}}}}, "reads", "curriculum.tasks.a.options.file"),
    ],
)
def test_paths_and_classes_are_demands(values: dict[str, Any], verb: str, key: str) -> None:
    assert [(demand.verb, demand.key) for demand in find_trust_requirements(values)] == [(verb, key)]


def test_bundled_players_and_numbers_are_none() -> None:
    fixed = {"r": {"_target_": "runner.league.RandomPlayer", "mask_key": "action_mask"}}
    assert find_trust_requirements({"league": {"fixed": fixed, "modules": ["main"]}}) == []
    assert find_trust_requirements({"curriculum": {"tasks": {"a": {"options": {"level": 3}}}}}) == []
