"""The reference of metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.config.errors import ConfigError, Problem
from runner.config.metrics import producible_metrics
from tests.conftest import ROOT
from tests.support.configs import config_from

PAGE = Path(__file__).parent.parent.parent / "docs/reference/metrics_and_files.md"
RUNS = (
    ("ppo_cartpole", "learners.compile=true"),
    ("impala_cartpole", "env_runners.restart_failed_sub_environments=true"),
    ("sac_pendulum", "learners.num_gpus_per_learner=1"),
    ("td3_pendulum",),
    ("rainbow_cartpole",),
    ("apex_cartpole",),
    ("bc_cartpole", "offline.input_=data"),
    ("marwil_cartpole", "offline.input_=data"),
    ("iql_pendulum", "offline.input_=data"),
    ("cql_pendulum", "offline.input_=data"),
    ("ppo_external_cartpole",),
)


def test_the_page_lists_every_metric_with_its_meaning() -> None:
    text = PAGE.read_text().partition("\n### Leagues")[0]
    rows = dict(re.findall(r"^\| `([^`<>]+)` \| (.+) \|$", text, re.MULTILINE))
    metrics = {name: meaning for run in RUNS for name, meaning in metrics_of(*run).items()}
    of_evaluation = {name.removeprefix("evaluation/") for name in metrics if name.startswith("evaluation/")}
    assert of_evaluation <= rows.keys()
    assert rows == {name: meaning for name, meaning in metrics.items() if not name.startswith("evaluation/")}


def metrics_of(experiment: str, *overrides: str) -> dict[str, str]:
    return producible_metrics(config_from(f"+experiment={experiment}", *overrides))


def test_simulators_report_the_returns_of_their_agents() -> None:
    box = "{space: box, low: -1, high: 1, shape: [2], dtype: float32}"
    spaces = f"{{observation_space: {box}, action_space: {{space: discrete, n: 2}}}}"
    stop = "stop.env_runners={agent_episode_return_mean: {left: 5}, module_episode_return_mean: {default_policy: 5}}"
    config = config_from("env=external", f"env.agents={{left: {spaces}, right: {spaces}}}", stop)
    assert list(config.stop) == [
        "env_runners/agent_episode_return_mean/left",
        "env_runners/module_episode_return_mean/default_policy",
    ]


@pytest.mark.parametrize(("evaluation", "rest"), [("none", " with evaluation=periodic"), ("periodic", "")])
def test_a_run_on_recorded_data_needs_a_metric_that_it_produces(evaluation: str, rest: str) -> None:
    data = f"offline.input_={ROOT / 'tests' / 'data' / 'rllib_cartpole_episodes'}"
    chosen = ["algorithm=bc", "env=cartpole", data, "stop.training_iteration=1", f"evaluation={evaluation}"]
    with pytest.raises(ConfigError) as caught:
        config_from(*chosen)
    name = "env_runners/episode_return_mean"
    what = f"this run does not produce the metric {name}, because it does not sample"
    assert caught.value.problems == (Problem(what, "checkpoint.metric", name, f"evaluation/{name}{rest}"),)
