"""Experiment files that a program writes choose the same options as the overrides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from runner.config.compose import compose_experiment
from runner.config.experiment_file import experiment_text

WriteConfig = Callable[[str, str], Path]
OF_P1 = "algorithm@multi_agent.modules.p1.algorithm"


@pytest.mark.parametrize(
    ("overrides", "choices"),
    [
        (["multi_agent=centralised_critic"], [{"/multi_agent": "centralised_critic"}]),
        (["~evaluation"], [{"override /evaluation": None}]),
        ([f"{OF_P1}=rainbow"], [{f"override /{OF_P1}": "rainbow"}]),
        (
            ["learners=compiled", "multi_agent=centralised_critic"],
            [{"/multi_agent": "centralised_critic"}, {"override /learners": "compiled"}],
        ),
    ],
)
def test_options_of_groups(write_config: WriteConfig, overrides: list[str], choices: list[dict[str, str]]) -> None:
    overrides = ["+experiment=ppo_dqn_multi_agent_cartpole", *overrides]
    text = experiment_text(overrides, "Mine.", None)
    assert yaml.safe_load(text)["defaults"] == ["ppo_dqn_multi_agent_cartpole", *choices]
    written = compose_experiment(["+experiment=mine"], write_config("experiment/mine", text))
    typed = compose_experiment(overrides)
    assert (written.problems, typed.problems) == ((), ())
    assert written.values == typed.values


def test_a_removed_metric_of_stop(write_config: WriteConfig) -> None:
    overrides = ["+experiment=ppo_cartpole", "~stop.env_runners.episode_return_mean"]
    text = experiment_text(overrides, "Mine.", None)
    written = compose_experiment(["+experiment=mine"], write_config("experiment/mine", text))
    assert written.values == compose_experiment(overrides).values


def test_several_experiments() -> None:
    text = experiment_text(["+experiment=[ppo_cartpole,mine]"], "Both.", None)
    assert yaml.safe_load(text)["defaults"] == ["ppo_cartpole", "mine"]
