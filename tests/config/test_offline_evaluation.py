"""The keys of evaluation on held-out data: messages, and what they become."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.config import build_experiment_config, compose_experiment
from runner.config.metrics import producible_metrics
from runner.config.offline_evaluation import (
    OFF_POLICY_METHODS,
    PREFIX,
    TIMER,
    FittedQConfig,
    evaluation_types,
    fitted_q_config,
)
from runner.config.schemas import EvaluationConfig, ModuleConfig
from runner.offline.evaluation.policy_evaluation import METHODS

KEY = "evaluation.offline_evaluation_"
DATA = (f"{KEY}input_=data", f"{KEY}interval=2")
MISTAKES: dict[str, list[str]] = {
    "held_out_interval_without_data": [f"{KEY}interval=2"],
    "held_out_types": [*DATA, f"{KEY}type=[eval_loss,wiss]"],
    "held_out_no_type": [*DATA, f"{KEY}type=[]"],
    "held_out_ranges": [*DATA, f"{KEY}level=1", f"{KEY}num_resamples=0"],
    "held_out_q_model": [
        *DATA,
        f"{KEY}type=dr",
        f"{KEY}q_model_config={{num_update: 3, lr: 0, network: {{fcnet_activation: tan, hiddens: 3}}}}",
    ],
    "held_out_q_network_of_text": [*DATA, f"{KEY}q_model_config={{network: large}}"],
    "held_out_metric_without_interval": [f"{KEY}input_=data", "stop.evaluation.offline.eval_loss=1"],
    "held_out_metric_of_another_type": [*DATA, f"{KEY}type=wis", "stop.evaluation.offline.wiss=1"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name: str, report_of: Callable[..., str], assert_golden: Callable[[str, str], None]) -> None:
    assert_golden(name, report_of(["+experiment=ppo_cartpole", *MISTAKES[name]]))


def test_every_method_has_a_name_and_a_metric() -> None:
    assert tuple(OFF_POLICY_METHODS) == METHODS
    overrides = ["+experiment=ppo_cartpole", *DATA, f"{KEY}type=[{','.join(METHODS)}]"]
    config = build_experiment_config(compose_experiment(overrides))
    metrics = producible_metrics(config)
    for method in METHODS:
        assert {f"{PREFIX}{method}{part}" for part in ("", "_low", "_high", "_effective_sample_size")} <= set(metrics)
    assert TIMER in metrics
    assert f"{PREFIX}eval_loss" not in metrics


def test_without_held_out_data_there_are_no_such_metrics() -> None:
    config = build_experiment_config(compose_experiment(["+experiment=ppo_cartpole"]))
    assert not [name for name in producible_metrics(config) if "offline" in name]


def test_types_and_the_q_model() -> None:
    assert evaluation_types(EvaluationConfig(offline_evaluation_type="wis")) == ["wis"]
    assert evaluation_types(EvaluationConfig(offline_evaluation_type=["wis", "dm", "wis"])) == ["wis", "dm"]
    assert fitted_q_config({}) == FittedQConfig()
    own = fitted_q_config({"lr": 1, "num_updates": 7, "network": {"fcnet_hiddens": [8]}})
    network = ModuleConfig(fcnet_hiddens=[8], fcnet_activation="relu")
    assert own == FittedQConfig(lr=1.0, num_updates=7, network=network)
    assert isinstance(own.lr, float)
