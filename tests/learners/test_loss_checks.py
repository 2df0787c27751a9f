"""What a loss of the user's gets wrong is told at the first minibatch, with its line, and costs nothing later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from runner.config.algorithms import LossMetrics, PPOConfig, PPOMetrics
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, RunFailure
from runner.config.validation import build_experiment_config
from runner.experiment.rehearsal import rehearse
from runner.learners.ppo import PPOLoss
from runner.testing.module_learner import ModuleLearner
from runner.testing.sampled_items import small_module

HERE = "tests.learners.test_loss_checks"


@dataclass(frozen=True)
class Unnamed:
    total_loss: Any


def returning(make: Callable[[Any], Any]) -> type[PPOLoss]:
    """Return a loss that returns something else, made from PPO's record."""

    class Altered(PPOLoss):
        def __call__(self, *arguments: Any) -> Any:
            return make(super().__call__(*arguments))

    return Altered


Several = returning(lambda record: replace(record, total_loss=record.total_loss.expand(3)))
Number = returning(lambda record: replace(record, total_loss=1.5))
Detached = returning(lambda record: replace(record, total_loss=record.total_loss.detach()))
Nothing = returning(lambda _: None)
BareTensor = returning(lambda record: record.total_loss)
Dict = returning(vars)
OtherRecord = returning(lambda record: Unnamed(record.total_loss))
NumberMetric = returning(lambda record: replace(record, entropy=0.5))
TextMetric = returning(lambda record: replace(record, entropy="high"))
RowsMetric = returning(lambda record: replace(record, entropy=torch.ones(5)))
NotFinite = returning(lambda record: replace(record, total_loss=record.total_loss * torch.nan))


class MisspeltColumn(PPOLoss):
    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        return batch["advantage"]


class MisspeltOutput(PPOLoss):
    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        outputs = module.outputs_at_steps(batch)
        return outputs["vf_pred"]


class Unfinished(PPOLoss):
    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        raise NotImplementedError


class FewArguments(PPOLoss):
    def __call__(self, module: Any, batch: Any) -> Any:  # type: ignore[override]
        raise AssertionError("never called")


class ChangesBatch(PPOLoss):
    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        record = super().__call__(module, batch, is_reporting)
        batch["advantages"].mul_(2)
        return record


class MisspeltReads(PPOLoss):
    reads = (*PPOLoss.reads, "value_target")


class TextReads(PPOLoss):
    reads = "obs"  # type: ignore[assignment]


class NoArguments(PPOLoss):
    def __init__(self) -> None:
        pass


class MisspeltField(PPOLoss):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.weight = config.entropy_coef


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("Several", ["a total_loss of several numbers", "got total_loss (3,) float32", "return its .mean()"]),
        ("Number", ["a total_loss that is not a tensor", "got total_loss 1.5", "a 0-d tensor with a gradient"]),
        ("Detached", ["a total_loss without a gradient", "got total_loss () float32", ".detach()"]),
        ("Nothing", ["does not return PPOMetrics", "got None", "expected PPOMetrics(total_loss, policy_loss, vf_loss"]),
        ("BareTensor", ["does not return PPOMetrics", "got Tensor () float32"]),
        ("Dict", ["does not return PPOMetrics", "got dict total_loss () float32"]),
        ("OtherRecord", ["does not return PPOMetrics", "got Unnamed"]),
        ("NumberMetric", ["a metric entropy that is not a 0-d tensor", "got entropy 0.5", "torch.tensor(x)"]),
        ("TextMetric", ["a metric entropy that is not a 0-d tensor", "got entropy 'high'"]),
        ("RowsMetric", ["a metric entropy that is not a 0-d tensor", "got entropy (5,) float32", ".mean()"]),
        ("MisspeltColumn", ["KeyError: 'advantage'", "MisspeltColumn.__call__", "obs (", "did you mean advantages"]),
        ("MisspeltOutput", ["KeyError: 'vf_pred'", "MisspeltOutput.__call__", "did you mean vf_preds"]),
        ("Unfinished", ["1. NotImplementedError", "test_loss_checks.py:", "Unfinished.__call__"]),
        ("FewArguments", ["takes 3 positional arguments but 4 were given", "(self, module, batch, is_reporting=True)"]),
        ("ChangesBatch", ["ChangesBatch changes column advantages of the batch", "2 * x instead of x *= 2"]),
        ("TextReads", ["TextReads.reads is not a tuple of column names", "got 'obs'", "('obs',)"]),
        ("NoArguments", ["takes 1 positional argument but 2 were given", "algorithm.loss", "__init__(self, config)"]),
        ("MisspeltField", ["no attribute 'entropy_coef'", "algorithm.loss", "did you mean entropy_coeff"]),
    ],
)
def test_a_mistake_is_told(name: str, messages: list[str]) -> None:
    report = report_of(name)
    assert report.startswith("1 problem")
    for message in (*messages, f"{Path(__file__)}:"):
        assert message in report


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (
            "MisspeltReads",
            ["reads value_target, which no connector of the learner pipeline", "did you mean value_targets"],
        ),
        ("NotFinite", ["the loss is not finite: total_loss is nan", "policy_loss "]),
    ],
)
def test_a_mistake_that_others_make_too(name: str, messages: list[str]) -> None:
    report = report_of(name)
    for message in messages:
        assert message in report


def report_of(name: str) -> str:
    config = compose_experiment(["+experiment=ppo_cartpole", f"algorithm.loss={HERE}.{name}"])
    with pytest.raises(ConfigError) as caught:
        rehearse(build_experiment_config(config))
    return " ".join(str(caught.value).split())


def six_rows() -> dict[str, Any]:
    """Return a batch for `small_module`."""
    rows = torch.ones(6)
    return {
        "obs": torch.zeros(6, 3),
        "actions": torch.zeros(6, dtype=torch.int64),
        "action_logp": -rows,
        "action_dist_inputs": torch.zeros(6, 5),
        "vf_preds": rows,
        "advantages": rows,
        "value_targets": rows,
    }


def test_later_minibatches_go_to_the_loss_itself() -> None:
    module = small_module()
    loss = returning(lambda record: record)(PPOConfig())
    learner = ModuleLearner(module, loss, PPOConfig(), np.random.default_rng(0))
    assert learner.trained.compute_loss is not loss
    learner.update(six_rows(), 0)
    assert learner.trained.compute_loss is loss


@dataclass(frozen=True)
class MetricsWithRows(PPOMetrics):
    error: Any = None

    rows: ClassVar[tuple[str, ...]] = ("error",)


@dataclass(frozen=True)
class ConfigWithRows(PPOConfig):
    metrics: ClassVar[type[LossMetrics]] = MetricsWithRows


def test_a_loss_with_limits_reports_no_values_per_row() -> None:
    """An update that ends early would not have all of them."""
    loss_class = returning(lambda record: MetricsWithRows(**vars(record), error=torch.zeros(6)))
    for target_kl in (None, 0.1):
        config = ConfigWithRows(target_kl=target_kl)
        learner = ModuleLearner(small_module(), loss_class(config), config, np.random.default_rng(0))
        if target_kl is None:
            assert learner.update(six_rows(), 0).rows["error"].shape == (6,)
        else:
            with pytest.raises(RunFailure) as caught:
                learner.update(six_rows(), 0)
            report = " ".join(str(caught.value).split())
            assert "its limits may end an update before all rows have one" in report
            assert "got limits of mean_kl_loss, and rows error" in report


def test_runner_s_own_losses_are_not_checked() -> None:
    loss = PPOLoss(PPOConfig())
    assert ModuleLearner(small_module(), loss, PPOConfig(), np.random.default_rng(0)).trained.compute_loss is loss
