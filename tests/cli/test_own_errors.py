"""Errors that the user's code raises in a run are told by its line and by what it was given; no trace is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.conftest import Run
from tests.experiment.test_module_checks import Good

HERE = "tests.cli.test_own_errors"


class MisspeltColumn(Good):
    def forward_exploration(self, batch: Any) -> Any:
        return {"action_dist_inputs": self.pi(batch["observations"])}


class MisspeltLayer(Good):
    def forward_exploration(self, batch: Any) -> Any:
        return {"action_dist_inputs": self.pi_net(batch["obs"])}


class OtherWidth(Good):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pi = nn.Linear(5, 2)

    def forward_exploration(self, batch: Any) -> Any:
        return {"action_dist_inputs": self.pi(batch["obs"])}


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("MisspeltColumn", ["KeyError: 'observations'", "batch: obs (8, 4) float32", "expected obs"]),
        ("MisspeltLayer", ["has no attribute 'pi_net'"]),
        ("OtherWidth", ["shapes cannot be multiplied (8x4 and 5x2)", "batch: obs (8, 4) float32"]),
    ],
)
def test_a_module_that_raises(run_main: Run, name: str, messages: list[str]) -> None:
    outcome = run_main("+experiment=ppo_cartpole", f"module._target_={HERE}.{name}", "tracking=none")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    for message in (*messages, f"{Path(__file__)}:", f"{name}.forward_exploration", "the stack trace is in"):
        assert message in " ".join(outcome.err.split())
    assert "Traceback" in next(Path("outputs").rglob("runner.log")).read_text()


def test_an_error_in_an_actor(run_main: Run) -> None:
    module = f"module._target_={HERE}.MisspeltColumn"
    outcome = run_main("+experiment=ppo_cartpole", module, "tracking=none", "env_runners.num_env_runners=1")
    assert outcome.code == 1
    text = " ".join(outcome.err.split())
    for message in ("KeyError: 'observations'", f"{Path(__file__)}:", "MisspeltColumn.forward_exploration", "(8, 4)"):
        assert message in text
