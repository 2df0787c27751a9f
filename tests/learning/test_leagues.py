"""What leagues promise: a policy of tic-tac-toe that hardly ever loses, whoever it meets."""

from __future__ import annotations

import pytest

from runner.experiment.trainer import Trainer

LOSS_RATE = "evaluation/league/{}/loss_rate"


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(10))
def test_a_league_learns_tic_tac_toe(seed: int) -> None:
    """At most 5 % losses against a perfect player within 1,000,000 env steps, of 1,000 greedy games on either seat."""
    overrides = [f"seed={seed}", "evaluation.evaluation_interval=null"]
    with Trainer.from_experiment("ppo_league_tictactoe", overrides) as one:
        while one.last_result.get("num_env_steps_sampled_lifetime", 0) < 1_000_000:
            one.train()
        result = one.evaluate(1000)
    assert result[LOSS_RATE.format("perfect")] <= 0.05  # type: ignore[operator]
