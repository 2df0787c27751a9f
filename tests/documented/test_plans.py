"""The operators and plans that docs/guides/training_loop.md shows in Python work."""

from __future__ import annotations

import copy
import re
import sys
from types import ModuleType

import pytest

from runner.experiment.trainer import Trainer
from runner.testing import check_operator
from tests.conftest import ROOT

PAGE = (ROOT / "docs/guides/training_loop.md").read_text(encoding="utf-8")
SMALL = (
    "env_runners.num_env_runners=0",
    "env_runners.num_envs_per_env_runner=2",
    "algorithm.train_batch_size_per_learner=16",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
)
ON_POLICY = ("algorithm.minibatch_size=null", "algorithm.num_epochs=1")
PLANS = {
    "a2c": ("a2c_cartpole", ["algorithm.plan={_target_: my_plans.a2c}"]),
    "a3c": ("a3c_cartpole", ["algorithm.plan={_target_: my_plans.a3c}"]),
    "EveryOther": (
        "ppo_cartpole",
        [*ON_POLICY, "algorithm.plan=[ParallelRollouts,{_target_: my_plans.EveryOther,every: 3},TrainOneStep]"],
    ),
    "FullReplay": (
        "dqn_cartpole",
        [
            "algorithm.training_intensity=null",
            "algorithm.replay_buffers.replay.capacity=40",
            "algorithm.plan=[{Concurrently: {output_indexes: [1], plans: "
            "[[ParallelRollouts,StoreToReplayBuffer],[{_target_: my_plans.FullReplay},TrainOneStep]]}}]",
        ],
    ),
}


@pytest.fixture(autouse=True)
def my_plans(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("my_plans")
    monkeypatch.setitem(sys.modules, "my_plans", module)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "plans.md", "exec"), vars(module))
    return module


@pytest.mark.parametrize("name", PLANS)
def test_plan(name: str) -> None:
    """It trains, and resumes exactly."""
    experiment, overrides = PLANS[name]
    with Trainer.from_experiment(experiment, [*SMALL, *overrides]) as trainer:
        trainer.train()
        state = copy.deepcopy(trainer.get_state())
        trainer.train()
        expected = trainer.learners.get_weights()["default_policy"]
        assert trainer.context.metrics.num_env_steps_trained_lifetime > 0
    with Trainer.from_experiment(experiment, [*SMALL, *overrides]) as trainer:
        trainer.set_state(state)
        trainer.train()
        assert (trainer.learners.get_weights()["default_policy"] == expected).all()


def test_operator_keeps_the_contract(my_plans: ModuleType) -> None:
    check_operator(my_plans.EveryOther)
