"""TQC against its formula written anew, pair by pair; options that do not fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runner import Trainer
from runner.config.algorithms import TQCConfig
from runner.config.errors import ConfigError
from runner.learners.tqc import TQCLoss
from runner.modules import SACModule
from tests.learners.loss_contract import CONTINUOUS, LossContract
from tests.learners.offline_modules import CONFIG as MODULE
from tests.learners.offline_modules import check_losses, make, replayed_rows, reward_after_three_iterations, row_of
from tests.learners.squashed_policies import sampled
from tests.learners.test_sac import MATCHING, A

CONFIG = TQCConfig(gamma=0.9, initial_alpha=0.5, top_quantiles_to_drop_per_net=1)
QUANTILES = replace(MODULE, num_critics=3, q_distribution="quantile", num_atoms=4)


class TestTQCLossContract(LossContract):
    loss_class = TQCLoss
    module_class = SACModule
    module_config = QUANTILES
    config = CONFIG
    action_spaces = ("continuous",)
    untouched = ("log_alpha_prime",)


def quantiles_of(critic: Any, obs: Tensor, action: Tensor) -> Tensor:
    """(E, N) of one row."""
    quantiles: Tensor = critic.forward(obs, action[None])[:, 0]
    return quantiles


def naive_tqc(module: Any, batch: dict[str, Tensor], cfg: TQCConfig) -> dict[str, Tensor]:
    """The three terms; the draws in the order in which the loss makes them."""
    num_rows, stream = len(batch["obs"]), np.random.default_rng(7)
    noise, next_noise = (torch.from_numpy(stream.standard_normal((num_rows, A), np.float32)) for _ in range(2))
    log_alpha = module.log_alpha + math.log(cfg.initial_alpha)
    alpha = math.exp(log_alpha.item())
    terms: dict[str, list[Tensor]] = {"actor": [], "critic": [], "alpha": []}
    for i in range(num_rows):
        row = row_of(batch, i)
        obs, new_obs = row["obs"], row["new_obs"]
        action, logp = sampled(module.forward_train(row)["action_dist_inputs"][0], noise[i])
        terms["alpha"].append(-log_alpha * (logp.item() - A))
        pi_q = quantiles_of(module.critic, obs, action).mean(-1)
        terms["actor"].append(alpha * logp - (pi_q.mean() if cfg.policy_q == "mean" else pi_q.min()))
        next_theta = module.forward_train({"obs": new_obs})["action_dist_inputs"][0].detach()
        next_action, next_logp = sampled(next_theta, next_noise[i])
        z = sorted(quantiles_of(module.target_critic, new_obs, next_action).flatten().tolist())
        z = z[: len(z) - 3 * cfg.top_quantiles_to_drop_per_net]
        discount = 0.0 if row["terminateds"].item() else cfg.gamma ** row["n_step"].item()
        returns = [row["rewards"].item() + discount * (one - alpha * next_logp.item()) for one in z]
        of_row = torch.zeros(())
        for theta in quantiles_of(module.critic, obs, row["actions"][0].clamp(-1, 1)):
            for number, quantile in enumerate(theta):
                for y in returns:
                    u = y - quantile
                    huber = 0.5 * u**2 if abs(u.item()) <= 1 else u.abs() - 0.5
                    of_row = of_row + abs((number + 0.5) / 4 - (u.item() < 0)) * huber / (4 * len(returns))
        terms["critic"].append(row["weights"].item() * of_row)
    return {name: torch.stack(own).mean() for name, own in terms.items()}


@pytest.mark.parametrize("changes", [{}, {"top_quantiles_to_drop_per_net": 0}, {"policy_q": "min"}], ids=str)
def test_losses_and_gradients(changes: dict[str, Any]) -> None:
    config, module, batch = replace(CONFIG, **changes), make(SACModule, CONTINUOUS, config=QUANTILES), replayed_rows()
    expected = naive_tqc(module, batch, config)
    check_losses(TQCLoss(config), module, batch, expected)


@pytest.mark.slow
def test_it_learns_to_match_what_it_sees() -> None:
    assert reward_after_three_iterations("tqc_pendulum", MATCHING) > 0.9, "uniform actions have 0.45, the best have 1"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("module=sac",), "module.q_distribution: TQC learns quantiles"),
        (("algorithm.top_quantiles_to_drop_per_net=25",), "num_atoms: .*_per_net=25 would drop all quantiles"),
        (("algorithm.num_target_critics=6",), "num_critics: it must not be less than algorithm.num_target_critics=6"),
        (("algorithm=sac",), r"q_distribution: SACLoss does not support it[\s\S]*dqn or tqc"),
        (
            ("algorithm=td3", "module=td3", "module.critic_dropout=0.1"),
            r"critic_dropout: TD3Loss does not support it[\s\S]*sac, tqc or sac_discrete",
        ),
        (
            ("module.q_distribution=categorical", "module.v_min=0", "module.v_max=1"),
            "q_distribution: TQC learns quantiles",
        ),
        (("module.use_lstm=true", "learners.compile=true"), "sequences of a module with memory"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.from_experiment("tqc_pendulum", [*overrides, "tracking=none"])
