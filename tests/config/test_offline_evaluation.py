"""Keys of the evaluation on held-out data: problems and converted values."""

from __future__ import annotations

import pytest

from runner.config.blocks import EvaluationConfig
from runner.config.errors import Problem
from runner.config.metrics import producible_metrics
from runner.config.offline_evaluation import (
    OFF_POLICY_METHODS,
    PREFIX,
    TIMER,
    FittedQConfig,
    evaluation_types,
    fitted_q_config,
)
from runner.config.schemas import ModuleConfig
from runner.offline.evaluation.policy_evaluation import METHODS
from tests.config.conftest import ProblemsOf
from tests.support.configs import config_from
from tests.support.problems import Including, not_a_choice, out_of_range

KEY = "evaluation.offline_evaluation_"
DATA = (f"{KEY}input_=data", f"{KEY}interval=2")
Q_MODEL = f"{KEY}q_model_config={{num_update: 3, lr: 0, network: {{fcnet_activation: tan, hiddens: 3}}}}"
TYPES = "eval_loss, is, wis, pdis, wpdis, dm, dr, wdr"
NETWORK_KEYS = (
    "conv_activation, conv_bias_initializer, conv_bias_initializer_kwargs, conv_filters, conv_kernel_initializer, "
    "conv_kernel_initializer_kwargs, conv_use_layernorm, fcnet_activation, fcnet_bias_initializer, "
    "fcnet_bias_initializer_kwargs, fcnet_hiddens, fcnet_kernel_initializer, fcnet_kernel_initializer_kwargs, "
    "fcnet_use_layernorm"
)
MISTAKES = [
    pytest.param(
        [f"{KEY}interval=2"],
        [
            Problem(
                "evaluation.offline_evaluation_interval is set, but there is no held-out data",
                where="override evaluation.offline_evaluation_interval=2",
                got="2",
                expected="null, or evaluation.offline_evaluation_input_=PATH",
            )
        ],
        id="interval_without_data",
    ),
    pytest.param(
        [*DATA, f"{KEY}type=[eval_loss,wiss]"],
        [
            Problem(
                "evaluation.offline_evaluation_type does not have a type wiss",
                where="override evaluation.offline_evaluation_type=[eval_loss,wiss]",
                got="wiss",
                expected=TYPES,
                nearest="wis",
            )
        ],
        id="types",
    ),
    pytest.param(
        [*DATA, f"{KEY}type=[]"],
        [
            Problem(
                "evaluation.offline_evaluation_type is empty",
                where="override evaluation.offline_evaluation_type=[]",
                got="[]",
                expected=TYPES,
            )
        ],
        id="no_type",
    ),
    pytest.param(
        [*DATA, f"{KEY}level=1", f"{KEY}num_resamples=0"],
        [
            out_of_range("evaluation.offline_evaluation_level", "1", "a number > 0 and < 1"),
            out_of_range("evaluation.offline_evaluation_num_resamples", "0", "an integer >= 1"),
        ],
        id="ranges",
    ),
    pytest.param(
        [*DATA, f"{KEY}type=dr", Q_MODEL],
        [
            Problem(
                "unknown key evaluation.offline_evaluation_q_model_config.num_update",
                where=f"override {Q_MODEL}",
                got="3",
                expected="batch_size, lr, network, num_action_samples, num_folds, num_updates, target_update_period",
                nearest="num_updates",
            ),
            out_of_range(
                "evaluation.offline_evaluation_q_model_config.lr", "0", "a number > 0", where=f"override {Q_MODEL}"
            ),
            Problem(
                "unknown key evaluation.offline_evaluation_q_model_config.network.hiddens",
                where=f"override {Q_MODEL}",
                got="3",
                expected=NETWORK_KEYS,
                nearest="fcnet_hiddens",
            ),
            not_a_choice(
                "evaluation.offline_evaluation_q_model_config.network.fcnet_activation",
                '"tan"',
                "tanh, relu, silu, elu, gelu, linear",
                nearest="tanh",
                where=f"override {Q_MODEL}",
            ),
        ],
        id="q_model",
    ),
    pytest.param(
        [*DATA, f"{KEY}q_model_config={{network: large}}"],
        [
            Problem(
                "evaluation.offline_evaluation_q_model_config.network must be a block",
                where="override evaluation.offline_evaluation_q_model_config={network: large}",
                got='"large"',
                expected=NETWORK_KEYS,
            )
        ],
        id="q_network_of_text",
    ),
    pytest.param(
        [f"{KEY}input_=data", "stop.evaluation.offline.eval_loss=1"],
        [
            Problem(
                (
                    "this run does not produce the metric evaluation/offline/eval_loss, because "
                    "evaluation.offline_evaluation_interval is null"
                ),
                where="override stop.evaluation.offline.eval_loss=1",
                got="evaluation/offline/eval_loss",
                expected="evaluation.offline_evaluation_interval=10 with evaluation.offline_evaluation_input_=PATH",
            )
        ],
        id="metric_without_interval",
    ),
    pytest.param(
        [*DATA, f"{KEY}type=wis", "stop.evaluation.offline.wiss=1"],
        [
            Problem(
                "this run does not produce the metric evaluation/offline/wiss",
                where="override stop.evaluation.offline.wiss=1",
                got="evaluation/offline/wiss",
                expected=Including("env_runners/episode_return_mean, ", "evaluation/offline/wis, ", " more)"),
                nearest="evaluation/offline/wis",
            )
        ],
        id="metric_of_another_type",
    ),
]


@pytest.mark.parametrize(("overrides", "expected"), MISTAKES)
def test_message(overrides: list[str], expected: list[Problem], problems_of: ProblemsOf) -> None:
    assert problems_of(["+experiment=ppo_cartpole", *overrides]) == expected


def test_every_method_has_a_name_and_a_metric() -> None:
    assert tuple(OFF_POLICY_METHODS) == METHODS
    overrides = ["+experiment=ppo_cartpole", *DATA, f"{KEY}type=[{','.join(METHODS)}]"]
    config = config_from(*overrides)
    metrics = producible_metrics(config)
    for method in METHODS:
        assert {f"{PREFIX}{method}{part}" for part in ("", "_low", "_high", "_effective_sample_size")} <= set(metrics)
    assert TIMER in metrics
    assert f"{PREFIX}eval_loss" not in metrics


def test_without_held_out_data_there_are_no_such_metrics() -> None:
    config = config_from("+experiment=ppo_cartpole")
    assert not [name for name in producible_metrics(config) if "offline" in name]


def test_types_and_the_q_model() -> None:
    assert evaluation_types(EvaluationConfig(offline_evaluation_type="wis")) == ["wis"]
    assert evaluation_types(EvaluationConfig(offline_evaluation_type=["wis", "dm", "wis"])) == ["wis", "dm"]
    assert fitted_q_config({}) == FittedQConfig()
    own = fitted_q_config({"lr": 1, "num_updates": 7, "network": {"fcnet_hiddens": [8]}})
    network = ModuleConfig(fcnet_hiddens=[8], fcnet_activation="relu")
    assert own == FittedQConfig(lr=1.0, num_updates=7, network=network)
    assert isinstance(own.lr, float)
