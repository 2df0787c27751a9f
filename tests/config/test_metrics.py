"""The glossary of metrics."""

from __future__ import annotations

import re
from pathlib import Path

from runner.config import build_experiment_config, compose_experiment
from runner.config.metrics import producible_metrics

PAGE = Path(__file__).parent.parent.parent / "docs" / "metrics.md"


def test_the_page_lists_every_metric_with_its_meaning() -> None:
    config = build_experiment_config(compose_experiment(["+experiment=ppo_cartpole"]))
    rows = dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", PAGE.read_text(), flags=re.MULTILINE))
    assert rows == producible_metrics(config)
