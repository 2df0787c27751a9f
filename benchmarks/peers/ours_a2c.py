"""`runner`'s A2C with the settings of `a2c_cli.A2CSettings`."""

from __future__ import annotations

from a2c_cli import A2CSettings
from ours_cli import run
from peer_cli import HIDDEN, MAX_GRAD_NORM


def overrides(cfg: A2CSettings) -> list[str]:
    return [
        f"algorithm.lr={cfg.lr}",
        f"algorithm.lambda_={cfg.lambda_}",
        "algorithm.standardize_advantages=false",
        f"algorithm.vf_loss_coeff={cfg.vf_loss_coeff}",
        f"algorithm.entropy_coeff={cfg.entropy_coeff}",
        f"algorithm.grad_clip={MAX_GRAD_NORM}",
        f"algorithm.train_batch_size_per_learner={cfg.rows}",
        f"algorithm.min_sample_timesteps_per_iteration={cfg.rows_per_iteration}",
        f"module.fcnet_hiddens=[{HIDDEN}]",
        "module.fcnet_activation=tanh",
        "module.vf_share_layers=true",
    ]


if __name__ == "__main__":
    run(__doc__, A2CSettings, lambda cfg: "a2c_cartpole", overrides)
