"""Discrete SAC against its formulas written anew, action by action; masks; actions that do not begin at 0."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner import Trainer
from runner.config.algorithms import DiscreteSACConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.learners.sac_discrete import DiscreteSACLoss
from runner.modules import DiscreteSACModule
from tests.learners.loss_contract import LossContract
from tests.learners.offline_modules import check_losses, make, replayed_rows, reward_after_three_iterations, row_of
from tests.modules.spaces import items_of

CONFIG = DiscreteSACConfig(gamma=0.9, initial_alpha=0.5)
SPACE = gym.spaces.Discrete(3, start=-1)
A = 3


class TestDiscreteSACLossContract(LossContract):
    loss_class = DiscreteSACLoss
    module_class = DiscreteSACModule
    config = CONFIG
    action_spaces = ("discrete",)


def naive_sac(module: Any, batch: dict[str, Tensor], cfg: DiscreteSACConfig) -> dict[str, Tensor]:
    """The three terms."""
    log_alpha = module.log_alpha + math.log(cfg.initial_alpha)
    alpha = math.exp(log_alpha.item())
    target_entropy = 0.5 * math.log(A) if cfg.target_entropy == "auto" else float(cfg.target_entropy)
    terms: dict[str, list[Tensor]] = {"actor": [], "critic": [], "alpha": []}
    for i in range(len(batch["obs"])):
        row = row_of(batch, i)
        p = module.forward_train(row)["action_dist_inputs"][0].softmax(-1)
        q = module.critic.forward(row["obs"])[:, 0]  # (E, A)
        pi_q = q.detach().min(0).values if cfg.policy_q == "min" else q.detach().mean(0)
        terms["actor"].append(sum((p[a] * (alpha * p[a].log() - pi_q[a]) for a in range(A)), torch.zeros(())))
        entropy = -sum(p[a].item() * math.log(p[a].item()) for a in range(A))
        terms["alpha"].append(log_alpha * (entropy - target_entropy))
        next_p = module.forward_train({"obs": row["new_obs"]})["action_dist_inputs"][0].softmax(-1).tolist()
        next_q = module.target_critic.forward(row["new_obs"])[:, 0].min(0).values.tolist()
        value = sum(next_p[a] * (next_q[a] - alpha * math.log(next_p[a])) for a in range(A))
        discount = 0.0 if row["terminateds"].item() else cfg.gamma ** row["n_step"].item()
        td = row["rewards"].item() + discount * value - q[:, row["actions"].item() + 1]
        terms["critic"].append(row["weights"].item() * (td**2).sum())
    return {name: torch.stack(own).mean() for name, own in terms.items()}


@pytest.mark.parametrize("changes", [{}, {"target_entropy": 0.3}, {"policy_q": "mean"}], ids=str)
def test_losses_and_gradients(changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    module, batch = make(DiscreteSACModule, SPACE), replayed_rows(SPACE)
    with torch.no_grad():
        module.log_alpha.fill_(0.2)
    expected = naive_sac(module, batch, config)
    check_losses(DiscreteSACLoss(config), module, batch, expected)


def test_forbidden_actions_change_nothing() -> None:
    seen = gym.spaces.Box(-5, 5, (3,), np.float32)
    space = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "seen": seen})
    module = make_masked(space)
    batch = replayed_rows(SPACE)
    mask = torch.tensor([[1, 0, 1]] * 30, dtype=torch.int8)
    for name in ("obs", "new_obs"):
        batch[name] = {"mask": mask, "seen": batch[name]}  # type: ignore[assignment]
    loss = DiscreteSACLoss(CONFIG)
    batch["actions"] = batch["actions"].clamp(max=-1)
    before: Any = loss(module, batch)
    assert bool(before.total_loss.isfinite())
    before.total_loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters() if p.grad is not None)
    with torch.no_grad():
        for critic in (module.critic, module.target_critic):
            critic.head.biases[-1][..., 1] += 100.0  # the forbidden action's values
    after: Any = loss(module, batch)
    torch.testing.assert_close(after.policy_loss, before.policy_loss)
    torch.testing.assert_close(after.qf_loss, before.qf_loss)
    assert bool(
        (module.action_dist.mode(module.forward_train({"obs": items_of(space, 5)})["action_dist_inputs"]) < 2).all()
    )


def make_masked(space: gym.Space[Any]) -> Any:
    config = ModuleConfig(fcnet_hiddens=[8], action_mask_key="mask")
    return DiscreteSACModule(space, SPACE, config)


@pytest.mark.slow
def test_it_learns_to_match_what_it_sees() -> None:
    overrides = ["env._target_=tests.support.environments.MatchDiscrete"]
    assert reward_after_three_iterations("sac_cartpole_discrete", overrides) > 0.9


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env=pendulum",), "DiscreteSACModule computes a Q value for each action: got Box"),
        (
            ("module=sac",),
            r"squashed Gaussian cannot give actions of Discrete\(2\); expected:[\s\S]*algorithm=sac_discrete",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.from_experiment("sac_cartpole_discrete", [*overrides, "tracking=none"])
