"""The block `algorithm.optimizer`: options that an optimiser does not have, and faults of its class."""

from __future__ import annotations

import re

import pytest

from runner.config.errors import ConfigError
from runner.config.optimizer import OptimizerConfig
from runner.module_building import make_module_specs
from tests.support.configs import config_from


def _optimizer(*overrides: str, experiment: str = "ppo_cartpole") -> OptimizerConfig:
    return config_from(f"+experiment={experiment}", *overrides).algorithm.optimizer


def test_options_are_read() -> None:
    assert _optimizer() == OptimizerConfig()
    got = _optimizer("algorithm.optimizer={name: rmsprop, epsilon: 1e-5, alpha: 0.9}")
    assert got == OptimizerConfig("rmsprop", epsilon=1e-5, alpha=0.9)
    got = _optimizer("algorithm.optimizer={_target_: torch.optim.NAdam, arguments: {momentum_decay: 0.1}}")
    assert got.arguments == {"momentum_decay": 0.1}


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        ("{momentum: 0.9}", r"momentum is not an option of adam.*momentum belongs to rmsprop, sgd"),
        ("{name: sgd, epsilon: 1e-5}", r"optimizer\.epsilon is not an option of sgd"),
        ("{name: adan}", r"optimizer\.name is not one of its choices.*did you mean adam"),
        ("{betas: [0.9]}", r"betas must be two decay rates"),
        ("{betas: [0.9, 1.0]}", r"betas is out of range"),
        ("{eps: 1e-5}", r"unknown key algorithm\.optimizer\.eps"),
        ("{arguments: {foreach: true}}", r"arguments needs"),
        ("{_target_: torch.optim.NAdam, epsilon: 0.1}", r"epsilon has no effect with algorithm\.optimizer\._target_"),
        (
            "{_target_: torch.optim.NAdam, arguments: {lr: 0.1}}",
            r"arguments must not contain lr, which the learner sets",
        ),
        ("{_target_: torch.optim.Nadam}", r"did you mean NAdam"),
        ("{_target_: runner.fast.flat_adam.FlatAdam}", r"not a subclass of torch\.optim\.Optimizer"),
    ],
)
def test_a_mistake_is_told(optimizer: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _optimizer(f"algorithm.optimizer={optimizer}")
    assert re.search(told, " ".join(str(caught.value).split())), caught.value


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        ("{name: sgd, alpha: 0.5}", r"p0\.optimizer\.alpha is not an option of sgd"),
        ("{nam: sgd}", r"unknown key .*p0\.optimizer\.nam"),
        ("{name: adan}", r"p0\.optimizer\.name is not one of its choices"),
        ("sgd", r"p0\.optimizer has the wrong type.*a block of the keys name, "),
    ],
)
def test_a_mistake_of_one_module_is_told(optimizer: str, told: str) -> None:
    mapping = "multi_agent.agent_to_module={'*': p0}"
    overrides = f"multi_agent.algorithm_config_overrides_per_module={{p0: {{optimizer: {optimizer}}}}}"
    with pytest.raises(ConfigError) as caught:
        _optimizer(mapping, overrides, experiment="ppo_multi_agent_cartpole")
    assert re.search(told, " ".join(str(caught.value).split())), caught.value


@pytest.mark.parametrize(
    ("of_all", "of_module", "expected"),
    [
        ("{epsilon: 1e-5, weight_decay: 0.1}", "{epsilon: 1e-4}", OptimizerConfig(epsilon=1e-4, weight_decay=0.1)),
        (
            "{name: sgd, momentum: 0.9}",
            "{name: sgd, weight_decay: 0.1}",
            OptimizerConfig("sgd", None, None, None, 0.9, 0.1),
        ),
        ("{epsilon: 1e-5}", "{name: sgd, momentum: 0.9}", OptimizerConfig("sgd", momentum=0.9)),
        ("{_target_: torch.optim.RAdam, arguments: {eps: 1e-4}}", "{name: adam}", OptimizerConfig()),
        ("{epsilon: 1e-5}", "{_target_: torch.optim.RAdam}", OptimizerConfig(_target_="torch.optim.RAdam")),
    ],
)
def test_a_module_replaces_fields_or_names_another_optimiser(
    of_all: str, of_module: str, expected: OptimizerConfig
) -> None:
    overrides = [
        f"algorithm.optimizer={of_all}",
        "multi_agent.agent_to_module={agent_0: p0, agent_1: p0}",
        f"multi_agent.algorithm_config_overrides_per_module={{p0: {{optimizer: {of_module}}}}}",
    ]
    config = config_from("+experiment=ppo_multi_agent_cartpole", *overrides)
    assert make_module_specs(config)["p0"].algorithm.optimizer == expected


def test_an_option_that_does_not_fit_the_optimiser_of_all_modules_is_told() -> None:
    overrides = [
        "algorithm.optimizer={name: sgd, momentum: 0.9}",
        "multi_agent.agent_to_module={agent_0: p0, agent_1: p0}",
        "multi_agent.algorithm_config_overrides_per_module={p0: {optimizer: {epsilon: 0.1}}}",
    ]
    with pytest.raises(ConfigError, match=r"p0\.optimizer\.epsilon is not an option of sgd"):
        _optimizer(*overrides, experiment="ppo_multi_agent_cartpole")
