"""What an operator of the user's gets wrong is told by the plan, with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from runner.config.errors import ConfigError, RunnerError
from runner.experiment.rehearsal import rehearse
from runner.experiment.trainer import Trainer
from runner.learners.ppo import PPOLoss
from runner.plans import Operator
from tests.support.configs import config_from

HERE = "tests.plans.test_own_operators"
SMALL = ["env_runners.num_envs_per_env_runner=2", "module.fcnet_hiddens=[4]", "evaluation=none", "tracking=none"]


class Nothing(Operator):
    def transform(self, item: Any) -> Any:
        pass


class BareItem(Operator):
    def transform(self, item: Any) -> Any:
        return item


class LaterNothing(Operator):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.num_seen = 0

    def transform(self, item: Any) -> Any:
        self.num_seen += 1
        return [] if self.num_seen == 1 else None


class OtherItem(Operator):
    takes: ClassVar = ("Experiences",)
    gives: ClassVar = ("Experiences",)

    def transform(self, item: Any) -> Any:
        return [item.rollout]


class NoTransform(Operator):
    pass


class NoSuper(Operator):
    def __init__(self, context: Any) -> None:
        self.count = 0


class Copies(Operator):
    takes: ClassVar = ("Experiences",)
    gives: ClassVar = ("Experiences",)

    def transform(self, item: Any) -> Any:
        yield item


class AddsHeights(Operator):
    takes: ClassVar = ("Experiences",)
    writes: ClassVar = ("height",)

    def transform(self, item: Any) -> Any:
        heights = {id_: {"height": np.full(block.num_rows, 7.0)} for id_, block in item.rollout.blocks.items()}
        return [item.with_columns(heights)]


class ReadsHeights(PPOLoss):
    reads = ("obs", "actions", "action_logp", "action_dist_inputs", "advantages", "value_targets", "height")

    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        assert (batch["height"] == 7).all()
        return super().__call__(module, batch, is_reporting)


def train(name: str) -> None:
    plan = f"algorithm.plan=[ParallelRollouts,ConcatBatches,{{_target_: {HERE}.{name}}},TrainOneStep]"
    overrides = [*SMALL, plan, "algorithm.train_batch_size_per_learner=40", "algorithm.minibatch_size=20"]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        trainer.train()


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("Nothing", ["Nothing.transform does not return a list of items", "got None", "return [item]"]),
        ("LaterNothing", ["LaterNothing.transform does not return a list of items", "got None", "return [item]"]),
        ("BareItem", ["BareItem.transform does not return a list of items", "got Experiences", "return [item]"]),
        (
            "OtherItem",
            [
                "OtherItem.transform returned an item of a class that its `gives` does not name",
                "got Rollout for",
                "expected Experiences",
            ],
        ),
        ("NoTransform", ["NoTransform does not implement transform"]),
        (
            "NoSuper",
            ["NoSuper.__init__ does not call Operator.__init__", "super().__init__(context)", "algorithm.plan.2"],
        ),
    ],
)
def test_a_mistake_is_told(name: str, messages: list[str]) -> None:
    with pytest.raises(RunnerError) as caught:
        train(name)
    for message in (*messages, f"{Path(__file__)}:"):
        assert message in " ".join(str(caught.value).split())


def test_a_good_operator_goes_on() -> None:
    train("Copies")


def test_a_loss_reads_columns_that_an_operator_adds() -> None:
    plan = f"algorithm.plan=[ParallelRollouts,ConcatBatches,{{_target_: {HERE}.AddsHeights}},TrainOneStep]"
    sizes = ["algorithm.train_batch_size_per_learner=40", "algorithm.minibatch_size=20"]
    overrides = [plan, f"algorithm.loss={HERE}.ReadsHeights", *sizes]
    with Trainer.from_experiment("ppo_cartpole", [*SMALL, *overrides]) as trainer:
        trainer.train()
    done = rehearse(config_from("+experiment=ppo_cartpole", *SMALL, *overrides))
    assert "an update (operators of the plan add height)" in done.not_made
    with pytest.raises(ConfigError, match=r"ReadsHeights reads height"):
        config_from("+experiment=ppo_cartpole", f"algorithm.loss={HERE}.ReadsHeights")


@pytest.mark.parametrize("plan", ["[ParallelRollouts]", "[ParallelRollouts,ConcatBatches]"])
def test_a_plan_that_trains_nothing(plan: str) -> None:
    arguments = ["+experiment=ppo_cartpole", f"algorithm.plan={plan}"]
    with pytest.raises(ConfigError) as caught:
        config_from(*arguments)
    report = " ".join(str(caught.value).split())
    for message in (
        "algorithm.plan does not update any module",
        "where override algorithm.plan=",
        "TrainOneStep or ApplyGradients",
    ):
        assert message in report
    config_from(*arguments, "offline.output=data")
