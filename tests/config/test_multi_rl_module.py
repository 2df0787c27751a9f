"""`multi_agent.multi_rl_module`: mistakes that validate finds."""

from __future__ import annotations

import pytest

from tests.config.conftest import ReportOf

AGENTS = "ppo_multi_agent_cartpole"
MODULES = "tests.support.joint_modules"
KEY = "multi_agent.multi_rl_module"
ENCODER = (f"{KEY}={{_target_: {MODULES}.SharedEncoder}}",)


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([f"{KEY}={{hidden: 3}}"], [f"{KEY} must have a _target_"]),
        ([f"{KEY}={{_target_: {MODULES}.SharedCritc}}"], [f"{KEY}._target_", "did you mean  SharedCritic"]),
        (
            [f"{KEY}={{_target_: runner.pipelines.MeanStdFilter}}"],
            ["runner.pipelines.MeanStdFilter is no", "runner.modules.MultiRLModule", "got           runner.pipelines"],
        ),
        (
            [f"{KEY}={{_target_: {MODULES}.SharedCritic, hiden: 3}}"],
            ["SharedCritic does not take the argument hiden", "did you mean  hidden"],
        ),
        (
            [*ENCODER, "multi_agent.algorithm_config_overrides_per_module.p1.lr=1e-4"],
            [
                "algorithm_config_overrides_per_module.p1.lr has no effect, because o",
                "expected      algorithm.lr",
            ],
        ),
    ],
)
def test_mistakes_that_validate_finds(report_of: ReportOf, overrides: list[str], lines: list[str]) -> None:
    report = report_of([f"+experiment={AGENTS}", *overrides])
    for line in lines:
        assert line in report


def test_a_single_agent_has_no_modules_to_join(report_of: ReportOf) -> None:
    report = report_of(["+experiment=ppo_cartpole", *ENCODER])
    assert "multi_agent is set, but CartPole-v1 has a single agent" in report


def test_simulators_that_connect_act_with_each_module_by_itself(report_of: ReportOf) -> None:
    report = report_of(["+experiment=ppo_external_multi_agent_cartpole", *ENCODER])
    assert "does not work with external simulators (env.port)" in report
