"""The glossary of metrics."""

from __future__ import annotations

import re
from pathlib import Path

from runner.config import build_experiment_config, compose_experiment
from runner.config.metrics import producible_metrics

PAGE = Path(__file__).parent.parent.parent / "docs/guides/callbacks_and_metrics.md"
RESTARTS = "env_runners.restart_failed_sub_environments=true"


def test_the_page_lists_every_metric_with_its_meaning() -> None:
    in_rounds = metrics_of("ppo_cartpole")
    asynchronously = metrics_of("impala_cartpole", RESTARTS)
    own = ("env_runners/weights_lag_mean", "env_runners/weights_lag_max")
    own = (*own, "timers/env_runner_idle", "timers/learner_idle", "env_runners/num_samples_ready")
    own = (*own, "env_runners/sample_bytes_per_env_step", "env_runners/num_env_restarts")
    lags = {name: asynchronously[name] for name in own}
    rows = dict(
        re.findall(r"^\| `(.+?)` \| (.+) \|$", PAGE.read_text().partition("\n## Metrics\n")[2], flags=re.MULTILINE)
    )
    assert rows == in_rounds | lags


def metrics_of(experiment: str, *overrides: str) -> dict[str, str]:
    composed = compose_experiment([f"+experiment={experiment}", *overrides])
    return producible_metrics(build_experiment_config(composed))
