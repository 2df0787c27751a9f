"""`docs/tutorials/recorded_data.md`: its commands do what it says, for every seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import progress_of, result_of
from tests.learning.test_offline_learning import RLLIB_EPISODES, run_command

NETWORK = ("module.fcnet_hiddens=[32]", "module.vf_share_layers=false")
RETURN = "env_runners/episode_return_mean"


@pytest.mark.ray
@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_ppo_goes_on_from_a_cloned_policy_without_losing_it(tmp_path: Path, seed: int) -> None:
    both = (f"seed={seed}", "tracking=none")
    cloning = ("+experiment=bc_cartpole", f"offline.input_={RLLIB_EPISODES}", *NETWORK, "stop.training_iteration=20")
    run_command(tmp_path, *cloning, *both, "hydra.run.dir=bc")
    gentle = ("algorithm.lambda_=1.0", "algorithm.lr=1e-3")
    run_command(
        tmp_path, "resume", "bc", "--module-only", "experiment=ppo_cartpole", *gentle, *both, "hydra.run.dir=ppo"
    )
    returns = [line[RETURN] for line in progress_of(tmp_path / "ppo")]
    # The first line has a dozen episodes only. With PPO's usual lambda and learning rate it falls to 174 to 234.
    assert min(returns) > 250
    result = result_of(tmp_path / "ppo")
    assert result[RETURN] >= 450
    assert result["num_env_steps_sampled_lifetime"] < 100_000, "from scratch it takes 100,000 and more"
