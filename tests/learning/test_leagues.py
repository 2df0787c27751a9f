"""What leagues promise: policies that hardly ever lose, or beat players that they have not met."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import fit
from runner.experiment.trainer import Trainer

LOSS_RATE = "evaluation/league/perfect/loss_rate"


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(10))
def test_a_league_learns_tic_tac_toe(seed: int, tmp_path: Path) -> None:
    """At most 5 % losses against a perfect player within 1,000,000 env steps, of 1,000 greedy games on either seat.

    The run ends where about 200 games of an evaluation have at most 3 %; most of the games here are others.
    """
    overrides = [f"seed={seed}", "tracking=none", f"hydra.run.dir={tmp_path / 'run'}"]
    with Trainer.from_experiment("ppo_league_tictactoe", overrides) as one:
        fit(one)
        assert one.last_result["num_env_steps_sampled_lifetime"] <= 1_001_000  # type: ignore[operator]
        result = one.evaluate(2000)
    assert result[LOSS_RATE] <= 0.05  # type: ignore[operator]


# League -> least share of games that it wins against fixed players.
WINS = {"ppo_league_connect_four": {"random": 0.95, "one_ahead": 0.5}, "ppo_league_pursuit": {"random": 0.95}}


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("experiment", WINS)
def test_a_league_beats_fixed_players(experiment: str, seed: int, tmp_path: Path) -> None:
    """By about 500 greedy games against each of them, on either seat by turns."""
    overrides = [f"seed={seed}", "tracking=none", f"hydra.run.dir={tmp_path / 'run'}"]
    with Trainer.from_experiment(experiment, overrides) as one:
        fit(one)
        result = one.evaluate(500 * len(WINS[experiment]))
    for player, least in WINS[experiment].items():
        assert result[f"evaluation/league/{player}/win_rate"] >= least, player  # type: ignore[operator]
