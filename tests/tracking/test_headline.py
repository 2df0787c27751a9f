"""The hint on rewards that are too large for the value function."""

from __future__ import annotations

import pytest

from runner.tracking.headline import Losses, reward_scale_hint

RETURN, LEARNER = "env_runners/episode_return_mean", "learners/default_policy"


@pytest.mark.parametrize(
    ("mean_return", "policy_loss", "vf_loss", "is_told"),
    [
        (-780.0, -0.01, 9.8, True),
        (-780.0, 0.5, 80.0, True),
        (-780.0, 0.5, 8.0, False),
        (-50.0, -0.01, 9.8, False),
        (500.0, -0.01, 0.4, False),
        (None, -0.01, 9.8, False),
        (float("nan"), -0.01, 9.8, False),
        (-780.0, -0.01, float("nan"), False),
        (-780.0, None, None, False),
    ],
)
def test_large_returns(
    mean_return: float | None, policy_loss: float | None, vf_loss: float | None, is_told: bool
) -> None:
    values = {RETURN: mean_return, f"{LEARNER}/policy_loss": policy_loss, f"{LEARNER}/vf_loss": vf_loss}
    hint = reward_scale_hint(values)
    assert (hint is not None) == is_told
    assert hint is None or "connectors=normalize" in hint


def test_the_losses_of_the_default_policy_are_shown() -> None:
    metrics = {"learners/disc/total_loss": 1.0, "learners/default_policy/total_loss": 2.0}
    assert Losses().texts(metrics) == [("loss", "2")]
    assert Losses().texts({"learners/b/vf_loss": 3.0, "learners/a/vf_loss": 4.0}) == [("vf", "3")]
