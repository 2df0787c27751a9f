"""`multi_agent.modules.<id>.algorithm`: modules that another algorithm trains."""

from __future__ import annotations

import pytest

from runner.config.algorithms import DQNConfig, PPOConfig
from runner.config.compose import compose_experiment
from runner.config.metrics import producible_metrics
from runner.config.schemas import ExperimentConfig
from runner.config.stored import compose_stored
from runner.config.validation import build_experiment_config
from runner.module_building import make_module_specs
from tests.config.conftest import ReportOf
from tests.support.configs import config_from

EXPERIMENT = "+experiment=ppo_dqn_multi_agent_cartpole"
OWN = "multi_agent.modules.p1.algorithm"
OVERRIDES = "multi_agent.algorithm_config_overrides_per_module"


def config_of(*overrides: str) -> ExperimentConfig:
    return config_from(EXPERIMENT, *overrides)


def test_each_module_has_its_algorithm_and_the_plan_of_the_run() -> None:
    config = config_of()
    own = config.algorithm_of("p1")
    assert isinstance(config.algorithm_of("p0"), PPOConfig)
    assert isinstance(own, DQNConfig)
    assert list(config.algorithms) == ["algorithm", OWN]
    assert own.plan == config.algorithm.plan
    assert own.replay_buffers == config.algorithm.replay_buffers
    plans = make_module_specs(config)
    assert plans["p0"].algorithm == config.algorithm
    assert plans["p1"].algorithm == own


def test_what_a_group_refers_to_is_of_its_own_block() -> None:
    config = config_of(f"{OWN}.epsilon=0.25", "algorithm.lambda_=0.5")
    (edit,) = config.algorithm_of("p1").module_to_env_pipeline
    assert edit["connector"]["epsilon"] == 0.25
    assert config.algorithm.learner_pipeline[1]["append"]["lambda_"] == 0.5


def test_what_an_override_refers_to_is_of_the_whole_configuration() -> None:
    overrides = "algorithm.gamma=0.9", f"{OWN}.gamma=${{algorithm.gamma}}", "algorithm.replay_buffers.replay.gamma=0.9"
    assert config_of(*overrides).algorithm_of("p1").gamma == 0.9


def test_defaults_of_the_named_dataclass_lie_under_the_block() -> None:
    composed = compose_experiment([EXPERIMENT])
    assert composed.values["multi_agent"]["modules"]["p1"]["algorithm"]["tau"] == DQNConfig().tau
    assert composed.where(f"{OWN}.tau") is None
    assert composed.where(f"{OWN}.loss").startswith("conf/algorithm/dqn.yaml:")  # type: ignore[union-attr]
    assert composed.where(f"{OWN}.lr").startswith("conf/experiment/")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("experiment", "choice"),
    [
        ("ppo_multi_agent_cartpole", f"+algorithm@{OWN}=a2c"),
        ("ppo_dqn_multi_agent_cartpole", f"algorithm@{OWN}=a2c"),
    ],
)
def test_an_algorithm_is_chosen_on_the_command_line(experiment: str, choice: str) -> None:
    config = compose_experiment([f"+experiment={experiment}", choice, f"{OWN}.lambda_=0.5"])
    own = config.values["multi_agent"]["modules"]["p1"]["algorithm"]
    assert own["schema"].endswith("A2CConfig")
    assert own["learner_pipeline"][1]["append"]["lambda_"] == 0.5
    assert not config.problems


def test_edits_add_up_to_the_ones_of_the_group() -> None:
    edit = "{append: {_target_: runner.pipelines.NumpyToTensor}}"
    config = config_of(f"{OWN}.learner_pipeline=[{edit}]")
    assert len(config.algorithm_of("p1").learner_pipeline) == 2
    assert len(config.algorithm.learner_pipeline) == 2


def test_a_stored_configuration_is_composed_as_it_was() -> None:
    composed = compose_experiment([EXPERIMENT])
    stored = compose_stored(composed.unresolved, [f"{OWN}.epsilon=0.5"], composed.overrides, composed.experiment)
    own = build_experiment_config(stored).algorithm_of("p1")
    assert isinstance(own, DQNConfig)
    assert own.module_to_env_pipeline[0]["connector"]["epsilon"] == 0.5


def test_overrides_of_a_module_are_of_its_own_algorithm() -> None:
    config = config_of(f"{OVERRIDES}.p1.double_q=false")
    algorithm = make_module_specs(config)["p1"].algorithm
    assert isinstance(algorithm, DQNConfig)
    assert algorithm.double_q is False


def test_metrics_are_of_the_modules_algorithm() -> None:
    known = producible_metrics(config_of())
    assert "learners/p1/qf_loss" in known
    assert "learners/p0/vf_loss" in known
    assert "learners/p1/vf_loss" not in known
    assert "learners/p0/qf_loss" not in known


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([f"{OWN}.lrr=1"], [f"unknown key {OWN}.lrr", "did you mean  lr"]),
        ([f"{OWN}.gamma=2"], [f"{OWN}.gamma is out of range", "got           2"]),
        ([f"{OWN}.loss=runner.learners.dqn.DQNLos"], [f"{OWN}.loss", "did you mean  DQNLoss"]),
        ([f"{OWN}.schema=runner.config.algorithms.DQN"], [f"{OWN}.schema is not a valid dataclass"]),
        ([f"{OWN}.train_batch_size_per_learner=8"], ["cannot be set per module", "algorithm.train_batch_size_per"]),
        ([f"{OWN}.plan=[TrainOneStep]"], [f"{OWN}.plan cannot be set per module", "expected      algorithm.plan"]),
        ([f"{OWN}.n_step=[3,1]"], [f"{OWN}.n_step is not a valid range"]),
        ([f"{OVERRIDES}.p1.clip_param=0.1"], [f"unknown key {OVERRIDES}.p1.clip_param"]),
        (
            ["multi_agent.modules.p0.algorithm={lr: 1}"],
            ["p0.algorithm does not choose an algorithm", f"{OVERRIDES}.p0"],
        ),
        (["multi_agent.modules.p1.noisy=true", f"{OWN}.gamma=0.9"], ["discounts n-step rewards by 0.99"]),
        (["multi_agent.modules.p0.noisy=true"], ["multi_agent.modules.p0.noisy: PPOLoss does not support it"]),
        (["stop={learners/p1/vf_loss: 1}"], ["this run does not produce the metric learners/p1/vf_loss"]),
        (
            ["multi_agent.multi_rl_module={_target_: tests.support.joint_modules.SharedEncoder}"],
            [f"{OWN} has no effect, because one optimiser updates all modules"],
        ),
        (
            ["+algorithm@multi_agent.modules.p0.algorithm=a2cc"],
            ["unknown algorithm 'a2cc'", "did you mean  a2c"],
        ),
    ],
)
def test_mistakes_that_validate_finds(report_of: ReportOf, overrides: list[str], lines: list[str]) -> None:
    report = report_of([EXPERIMENT, *overrides])
    for line in lines:
        assert line in report
