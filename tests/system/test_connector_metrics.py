"""Metrics of connectors as metrics of runs: the same numbers in one process and on Ray, and checked at the start."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.errors import ConfigError, RunFailure
from runner.config.metrics import producible_metrics
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, without_times
from tests.support.configs import config_from

CONNECTORS = "tests.support.reporting_connectors"
AFTER_OBS = "insert_after: AddObservationsFromEpisodesToBatch"
POSITIONS = f"connectors.env_to_module=[{{{AFTER_OBS}, connector: {{_target_: {CONNECTORS}.CartPositions}}}}]"
ACTIONS = f"connectors.module_to_env=[{{insert_after: GetActions, connector: {{_target_: {CONNECTORS}.ActionCount}}}}]"


def learner_connector(name: str) -> str:
    after = "insert_after: AddColumnsFromEpisodesToTrainBatch"
    return f"connectors.learner=[{{{after}, connector: {{_target_: {CONNECTORS}.{name}}}}}]"


REWARDS = learner_connector("RewardSum")
REPORTING = (POSITIONS, ACTIONS, REWARDS)


def train(*overrides: str, experiment: str = "ppo_cartpole", iterations: int = 2) -> list[dict[str, Any]]:
    with Trainer.from_experiment(experiment, [*QUICK, *overrides]) as trainer:
        return [without_times(trainer.train()) for _ in range(iterations)]


def of_connectors(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name.startswith("connectors/")}


def test_what_connectors_report_is_in_the_result_of_the_iteration() -> None:
    for result in train(*REPORTING):
        assert 0 < result["connectors/env_to_module/left_fraction"] < 1
        assert result["connectors/env_to_module/rightmost"] >= result["connectors/env_to_module/newest_position"]
        assert result["connectors/learner/reward_sum"] == result["num_env_steps_sampled"], "CartPole pays 1 a step"
        # A sub-environment that is reset takes an action that is no env step.
        assert result["connectors/module_to_env/num_actions"] >= result["num_env_steps_sampled"]
        assert result["connectors/learner/advantages_std"] > 0


def test_connectors_of_ours_report_what_they_clip() -> None:
    clips = "connectors.learner=[{insert_after: AddColumnsFromEpisodesToTrainBatch, connector: {_target_: "
    overrides = ["connectors=mean_std_filter", "connectors.env_to_module.0.connector.clip_by_value=0.5"]
    (result,) = train(*overrides, f"{clips}runner.pipelines.ClipRewards, low: 0.0, high: 0.25}}}}]", iterations=1)
    assert 0.2 < result["connectors/env_to_module/observations_clipped_fraction"] < 0.9
    assert result["connectors/learner/rewards_clipped_fraction"] == 1.0


def test_metrics_of_connectors_do_not_change_a_run() -> None:
    reporting, silent = train(*REPORTING), train()
    names = {*of_connectors(reporting[0])} - {*of_connectors(silent[0])}
    assert len(names) == 9
    assert [{name: value for name, value in one.items() if name not in names} for one in reporting] == silent


def test_evaluation_reports_nothing() -> None:
    evaluated = ["evaluation.evaluation_interval=1", "evaluation.evaluation_duration=2"]
    assert [of_connectors(result) for result in train(*REPORTING, *evaluated)] == [
        of_connectors(result) for result in train(*REPORTING)
    ]


def test_an_iteration_of_several_samples_counts_all_of_them() -> None:
    """64 env steps a sample, 256 an iteration; the reset of the first one adds a row for each sub-environment."""
    result, *_ = train(*REPORTING, "env_runners.rollout_fragment_length=16")
    num_actions = result["connectors/module_to_env/num_actions"]
    assert result["connectors/env_to_module/num_observed"] == num_actions + 4
    assert num_actions >= result["num_env_steps_sampled"] >= 256


def test_several_modules_report_under_their_ids() -> None:
    (result,) = train(*REPORTING, experiment="ppo_multi_agent_cartpole", iterations=1)
    found = of_connectors(result)
    for module_id in ("p0", "p1"):
        assert found[f"connectors/{module_id}/module_to_env/num_actions"] > 0
        assert 0 < found[f"connectors/{module_id}/env_to_module/left_fraction"] < 1
        assert found[f"connectors/{module_id}/learner/reward_sum"] > 0
    config = config_from("+experiment=ppo_multi_agent_cartpole", *REPORTING)
    agents = {"p0": ["p0"], "p1": ["p1"]}
    assert set(found) == {name for name in producible_metrics(config, agents) if name.startswith("connectors/")}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_the_same_numbers_inline_and_on_ray() -> None:
    two_runners = ["env_runners.num_env_runners=2", "connectors=mean_std_filter"]
    inline = train(*two_runners, *REPORTING, "engine=inline")
    assert len(of_connectors(inline[0])) == 12
    assert None not in of_connectors(inline[1]).values()
    assert train(*two_runners, *REPORTING) == inline


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_several_learners_report_each_row_once() -> None:
    (result,) = train(REWARDS, "learners.num_learners=2", iterations=1)
    assert result["connectors/learner/reward_sum"] == result["num_env_steps_sampled"]


# -- names in `stop` and the like --------------------------------------------------------------------------------------


def check(*overrides: str) -> None:
    config_from("+experiment=ppo_cartpole", *overrides)


def stop(name: str) -> str:
    return f"+stop.connectors.{name}=1"


@pytest.mark.parametrize(
    "overrides",
    [
        ["+stop.connectors.learner.advantages_std=1"],
        [POSITIONS, stop("env_to_module.left_fraction"), "checkpoint.metric=connectors/env_to_module/rightmost"],
        [learner_connector("SubclassedSum"), stop("learner.reward_sum")],
        [learner_connector("ComputedNames"), stop("learner.anything")],
        [learner_connector("SetByInstance"), stop("learner.of_instance")],
    ],
    ids=["default", "own", "of_base", "computed_names", "set_by_instance"],
)
def test_declared_metrics_may_be_named(overrides: list[str]) -> None:
    check(*overrides)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([POSITIONS, stop("env_to_module.left_fractions")], "env_to_module/left_fractions"),
        ([stop("env_to_module.left_fraction")], "env_to_module/left_fraction"),
        ([POSITIONS, stop("learner.left_fraction")], "learner/left_fraction"),
        (
            ["connectors.learner=[{remove: GeneralAdvantageEstimation}]", stop("learner.advantages_std")],
            "advantages_std",
        ),
        ([learner_connector("ComputedNames"), stop("env_to_module.anything")], "env_to_module/anything"),
    ],
    ids=["misspelt", "no_such_connector", "other_pipeline", "removed", "computed_names_elsewhere"],
)
def test_a_metric_that_no_connector_declares_is_an_error(overrides: list[str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"this run does not produce the metric connectors/.*{name}"):
        check(*overrides)


def test_names_that_only_python_knows_are_checked_at_the_start() -> None:
    declared = stop("learner.left_fraction")
    Trainer.from_experiment("ppo_cartpole", [*QUICK, learner_connector("ComputedNames"), declared]).close()
    with pytest.raises(ConfigError, match="this run does not produce the metric connectors/learner/anything"):
        Trainer.from_experiment("ppo_cartpole", [*QUICK, learner_connector("ComputedNames"), stop("learner.anything")])


def test_a_run_ends_with_the_connector_that_reports_an_undeclared_name() -> None:
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, learner_connector("Misspelt")]) as trainer:
        with pytest.raises(
            RunFailure, match="Misspelt reports rewards_sum, which its `reports` does not declare"
        ) as caught:
            trainer.train()
        assert caught.value.problem.nearest == "reward_sum"
