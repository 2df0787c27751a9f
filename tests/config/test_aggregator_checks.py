"""Aggregators in runs whose samples they cannot prepare."""

from __future__ import annotations

import pytest

from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.metrics import producible_metrics
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.experiment.ray_resources import bundles_of

TWO = "learners.num_aggregator_actors=2"
SAMPLE = "{ParallelRollouts: {mode: async}}"


def config_of(experiment: str, *overrides: str) -> ExperimentConfig:
    return build_experiment_config(compose_experiment([f"+experiment={experiment}", *overrides], None))


@pytest.mark.parametrize(
    ("experiment", "overrides", "reason"),
    [
        ("ppo_cartpole", [], r"the plan has\s+no\s+ParallelRollouts with mode async"),
        ("a3c_cartpole", [], r"the plan has\s+no\s+ParallelRollouts with mode async"),
        ("impala_cartpole", ["engine=inline"], "engine=inline is one process"),
        ("impala_cartpole", ["env_runners.num_env_runners=0"], "sample when the learner asks"),
        ("impala_cartpole", ["learners.num_learners=2"], r"num_learners=2 learns\s+from\s+rows"),
        ("apex_cartpole", [], "from replayed samples alone"),
        (
            "impala_cartpole",
            [f"algorithm.plan=[{SAMPLE}, CompleteEpisodes, ConcatBatches, TrainOneStep]"],
            r"CompleteEpisodes \(algorithm.plan.1\) may change",
        ),
        ("impala_cartpole", ["learners.num_aggregator_actors=-1"], "num_aggregator_actors"),
    ],
)
def test_runs_whose_samples_cannot_be_prepared(experiment: str, overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config_of(experiment, TWO, *overrides)


@pytest.mark.parametrize("experiment", ["impala_cartpole", "appo_cartpole", "appo_multi_agent_cartpole"])
def test_runs_with_aggregators(experiment: str) -> None:
    without, config = config_of(experiment), config_of(experiment, TWO, "learners.num_learners=1")
    assert bundles_of(config) == [*bundles_of(without), {"CPU": 1.0, "GPU": 0.0}, {"CPU": 1.0}, {"CPU": 1.0}]
    assert producible_metrics(config).keys() - producible_metrics(without).keys() == {
        "fault_tolerance/num_aggregator_restarts"
    }
