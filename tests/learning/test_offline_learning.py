"""The experiments that learn from recorded data reach what they promise."""

from __future__ import annotations

import pytest

from runner.trainer import Trainer
from tests.conftest import ROOT

RETURN = "evaluation/env_runners/episode_return_mean"
RLLIB_EPISODES = ROOT / "tests" / "data" / "rllib_cartpole_episodes"


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
@pytest.mark.learning
@pytest.mark.parametrize(("experiment", "target"), [("bc_cartpole", 350)])
def test_episodes_that_rllib_recorded(experiment: str, target: float, ray_cluster: None) -> None:
    returns = []
    with Trainer.from_experiment(experiment, [f"offline.input_={RLLIB_EPISODES}"]) as trainer:
        for _ in range(60):
            result = trainer.train()
            if RETURN in result:
                returns.append(result[RETURN])
    assert max(returns) >= target, returns
