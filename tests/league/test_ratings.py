"""Ratings against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from runner.league.ratings import BASE, POINTS_PER_NAT, elo_ratings


@pytest.mark.parametrize(("wins", "losses"), [(3e6, 1e6), (1e6, 1e6), (1e5, 9e6)])
def test_two_players_differ_by_the_logarithm_of_their_odds(wins: float, losses: float) -> None:
    ratings = elo_ratings({"b": {"a": (wins, 0.0, losses)}}, ["a", "b"])
    assert ratings["a"].value == BASE
    assert ratings["b"].value - BASE == pytest.approx(400 * np.log10(wins / losses), abs=0.01)


def test_a_draw_is_half_a_win_for_each() -> None:
    drawn = elo_ratings({"b": {"a": (1.0, 4.0, 3.0)}}, ["a", "b"])
    decided = elo_ratings({"b": {"a": (3.0, 0.0, 5.0)}}, ["a", "b"])
    assert drawn == decided


def test_intervals_are_those_of_the_likelihood() -> None:
    """n games at even odds: the information is n / 4, beside the prior's."""
    num_games, prior = 64.0, (400 / POINTS_PER_NAT) ** -2
    ratings = elo_ratings({"b": {"a": (num_games / 2, 0.0, num_games / 2)}}, ["a", "b"])
    assert ratings["a"].margin == 0
    assert ratings["b"].margin == pytest.approx(1.959964 * POINTS_PER_NAT / np.sqrt(num_games / 4 + prior), rel=1e-6)


def test_three_players_agree_with_a_fit_by_hand() -> None:
    """Bradley and Terry's example is solved by minorisation (Hunter, 2004), another way to the same maximum."""
    scores = np.array([[0, 7, 9], [3, 0, 6], [1, 4, 0]], float) * 1e5
    strength = np.ones(3)
    for _ in range(2000):
        games = scores + scores.T
        strength = scores.sum(1) / (games / (strength[:, None] + strength[None, :])).sum(1)
    expected = 400 * np.log10(strength / strength[0])
    games_of = {"abc"[i]: {"abc"[j]: (scores[i, j], 0.0, scores[j, i]) for j in range(3) if j > i} for i in range(3)}
    ratings = elo_ratings(games_of, ["a", "b", "c"])
    assert [ratings[player].value - BASE for player in "abc"] == pytest.approx(expected, abs=0.05)


def test_who_has_won_all_games_has_a_finite_rating() -> None:
    rating = elo_ratings({"b": {"a": (3.0, 0.0, 0.0)}}, ["a", "b"])["b"]
    assert BASE + 100 < rating.value < BASE + 800
    assert rating.margin > 200


def test_a_version_without_games_is_near_the_one_before() -> None:
    games = {"b": {"a": (800.0, 0.0, 200.0)}}
    alone = elo_ratings(games, ["a", "b", "c"])
    after = elo_ratings(games, ["a", "b", "c"], {"c": "b"})
    assert alone["c"].value == pytest.approx(BASE)
    assert after["c"].value == pytest.approx(after["b"].value) != BASE
    assert after["c"].margin == pytest.approx(np.hypot(after["b"].margin, 1.959964 * 200), rel=1e-6)
