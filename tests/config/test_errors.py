"""Nearest matches."""

from __future__ import annotations

import pytest

from runner.config.errors import nearest_match
from runner.config.fields import names_of
from runner.config.metrics import producible_metrics
from runner.config.schemas import EnvRunnersConfig, ExperimentConfig

METRICS = tuple(producible_metrics(ExperimentConfig()))


@pytest.mark.parametrize(
    ("name", "options", "nearest"),
    [
        ("num_envs", names_of(EnvRunnersConfig), "num_envs_per_env_runner"),
        ("num_env_runner", names_of(EnvRunnersConfig), "num_env_runners"),
        ("episode_return", METRICS, "env_runners/episode_return_mean"),
        ("env_runners/episode_return", METRICS, "env_runners/episode_return_mean"),
        ("env_runners/episode_retrn_mean", METRICS, "env_runners/episode_return_mean"),
        ("Gama", ("gamma", "grad_clip"), "gamma"),
        ("lr", ("clip_param", "gamma"), None),
        ("nothing_alike", ("gamma", "lambda_"), None),
        ("gamma", (), None),
    ],
)
def test_nearest_match(name: str, options: tuple[str, ...], nearest: str | None) -> None:
    assert nearest_match(name, options) == nearest
