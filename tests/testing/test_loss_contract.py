"""`check_loss` names what is wrong with a loss; our own losses are checked beside their mathematics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium as gym
import pytest
import torch
from torch import Tensor, nn

from runner.config.algorithms import A2CConfig, A2CMetrics, LossMetrics
from runner.config.schemas import ModuleConfig
from runner.learners.a2c import A2CLoss
from runner.learners.loss import Loss
from runner.modules import RLModule
from runner.testing import BrokenContract, check_loss
from tests.testing.changed_classes import changed


def test_a_loss_keeps_the_contract() -> None:
    check_loss(A2CLoss, A2CConfig())


class Changed(A2CLoss):
    """A2C's loss with its metrics changed."""

    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        return self.changed(super().__call__(module, batch, is_reporting), module, batch, is_reporting)

    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        """Return other metrics."""
        raise NotImplementedError


def changing(change: Callable[[Any, Any], dict[str, Any]]) -> Any:
    """Return a loss with other values in its metrics, computed from the metrics and the batch."""
    return changed(Changed, changed=lambda self, metrics, module, batch, _: replace(metrics, **change(metrics, batch)))


ReadsInSecret = changing(lambda metrics, batch: {"total_loss": metrics.total_loss + batch["rewards"].mean()})
GivesRows = changing(lambda metrics, batch: {"vf_loss": batch["value_targets"]})
IsNotFinite = changing(lambda metrics, batch: {"vf_loss": metrics.vf_loss / 0})
ForgetsValues = changing(lambda metrics, batch: {"total_loss": metrics.policy_loss})
HasInfiniteGradient = changing(lambda metrics, batch: {"total_loss": metrics.total_loss + (metrics.vf_loss * 0).sqrt()})
IsASum = changing(lambda metrics, batch: {"total_loss": metrics.total_loss * len(batch["advantages"])})
WeighsByPlace = changing(lambda metrics, batch: {"total_loss": metrics.total_loss * batch["advantages"][0]})
DrawsFromTorch = changing(lambda metrics, batch: {"total_loss": metrics.total_loss * torch.rand(())})
ReadsValuesBack = changing(lambda metrics, batch: {"total_loss": metrics.total_loss * float(metrics.vf_loss)})


class ReadsMoreInSilence(A2CLoss):
    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> Any:
        if not is_reporting:
            _ = batch["rewards"]
        return super().__call__(module, batch, is_reporting)


class ReadsAColumnOfItsOwn(Changed):
    """Nothing is wrong with it."""

    reads = (*A2CLoss.reads, "novelty")

    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        return replace(metrics, total_loss=metrics.total_loss + batch["novelty"].mean())


@dataclass(frozen=True)
class MetricsWithRows(A2CMetrics):
    error: Any = None

    rows: ClassVar[tuple[str, ...]] = ("error",)


@dataclass(frozen=True)
class NamesRowsAsMetrics(A2CConfig):
    metrics: ClassVar[type[LossMetrics]] = MetricsWithRows
    coefficients: ClassVar[tuple[str, ...]] = ("curr_entropy_coeff", "error")


class GivesErrors(Changed):
    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        return MetricsWithRows(**vars(metrics), error=batch["advantages"].detach())


@dataclass(frozen=True)
class OtherMetrics(LossMetrics):
    pass


class GivesAnotherRecord(Changed):
    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        return OtherMetrics(metrics.total_loss)


class ReportsCoefficients(A2CLoss):
    def coefficients(self) -> dict[str, float]:
        return {"temperature": 1.0}


class ChangesUnlessReporting(Changed):
    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        return metrics if is_reporting else replace(metrics, total_loss=2 * metrics.total_loss)


class WritesIntoBatch(Changed):
    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        batch["advantages"].sub_(1.0)
        return metrics


class CountsCalls(Changed):
    num_calls = 0

    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        self.num_calls += 1
        return replace(metrics, total_loss=metrics.total_loss * self.num_calls)


class Adapts(Changed):
    """Nothing is wrong with it."""

    scale = 1.0

    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        return replace(metrics, total_loss=metrics.total_loss * self.scale)

    def after_update(self, metrics: Mapping[str, float]) -> None:
        self.scale *= 2.0

    def get_state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.scale = state["scale"]


class ForgetsWhatAdapts(Adapts):
    def set_state(self, state: Mapping[str, Any]) -> None:
        pass


class KeepsItsState(Adapts):
    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        pass


class HasAStateOfObjects(Adapts):
    def get_state(self) -> dict[str, Any]:
        return {"scale": self}


class NeedsACritic(A2CLoss):
    needs = ("critic",)


class LearnsFromPadding(Changed):
    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        everywhere = module.forward_train(batch)["vf_preds"]
        return replace(metrics, total_loss=metrics.total_loss + everywhere.mean())


@pytest.mark.parametrize("loss_class", [Adapts, ReadsAColumnOfItsOwn])
def test_losses_of_users(loss_class: type[Loss]) -> None:
    check_loss(loss_class, A2CConfig())


@pytest.mark.parametrize(
    ("loss_class", "message"),
    [
        (ReadsInSecret, "`reads` lacks column rewards, which the loss reads"),
        (ReadsMoreInSilence, "KeyError: 'rewards'"),
        (GivesAnotherRecord, "`metrics` of A2CConfig names a different record class than the loss returns"),
        (GivesRows, r"vf_loss is not a tensor of shape \(\)"),
        (IsNotFinite, "vf_loss is not finite although the rows are"),
        (ReportsCoefficients, "metric temperature is not a metric of the run"),
        (ForgetsValues, "no gradient reaches parameter vf"),
        (HasInfiniteGradient, "the gradient of parameter .* is not finite"),
        (ChangesUnlessReporting, "total_loss differs without reporting"),
        (WritesIntoBatch, "the loss writes into column advantages of the batch"),
        (IsASum, "total_loss changes if all rows are duplicated"),
        (WeighsByPlace, "total_loss depends on the order of rows"),
        (DrawsFromTorch, "the loss draws from the global random generators"),
        (CountsCalls, "the same batch has a different loss in a second call"),
        (ReadsValuesBack, "the loss reads values back from its device, or uses another device"),
        (ForgetsWhatAdapts, "get_state after set_state returns a different scale"),
        (KeepsItsState, "a loss with the state of another one computes a different total_loss"),
        (HasAStateOfObjects, "state/scale: HasAStateOfObjects cannot be part of a checkpoint"),
        (NeedsACritic, "NeedsACritic needs critic, which ActorCriticModule does not provide"),
        (LearnsFromPadding, "padded steps of sequences change the gradient"),
    ],
)
def test_refuses(loss_class: type[Loss], message: str) -> None:
    with pytest.raises(BrokenContract, match=message) as caught:
        check_loss(loss_class, A2CConfig())
    assert str(caught.value).startswith(f"{loss_class.__name__} breaks ")


def test_rows_that_are_named_as_a_metric() -> None:
    message = "GivesErrors breaks 1 rule of its contract\n\n1. error is both a per-row value and a metric of the run"
    with pytest.raises(BrokenContract, match=message):
        check_loss(GivesErrors, NamesRowsAsMetrics())


def test_gradients_that_should_not_be() -> None:
    with pytest.raises(BrokenContract, match="a gradient reaches parameter vf"):
        check_loss(A2CLoss, A2CConfig(), untouched=["vf"])


class BranchesOnValues(Changed):
    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        return metrics if metrics.vf_loss > 0 else replace(metrics, total_loss=2 * metrics.total_loss)


class CountsInPython(Changed):
    num_updates = 0.0

    def before_update(self, num_env_steps: int) -> None:
        self.num_updates += 1.0

    def changed(self, metrics: Any, module: Any, batch: Any, is_reporting: bool) -> Any:
        return replace(metrics, total_loss=metrics.total_loss * self.num_updates)


@pytest.mark.parametrize("loss_class", [BranchesOnValues, CountsInPython])
def test_losses_that_cannot_be_compiled(loss_class: type[Loss]) -> None:
    with pytest.raises(BrokenContract, match="compile"):
        check_loss(loss_class, A2CConfig(), is_compiled=True)


def test_a_loss_that_is_compiled() -> None:
    check_loss(A2CLoss, A2CConfig(), is_compiled=True)


class Normalises(RLModule):
    """Changes buffers while it is in training mode."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.norm = nn.BatchNorm1d(3)
        self.pi, self.vf = nn.Linear(3, self.action_dist.num_inputs), nn.Linear(3, 1)

    def normalised(self, obs: Tensor) -> Tensor:
        return self.norm(obs)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        obs = self.normalised(batch["obs"])
        return {"action_dist_inputs": self.pi(obs), "vf_preds": self.vf(obs).squeeze(-1)}


class SubtractsARunningMean(Normalises):
    """Its outputs depend on a buffer that each pass replaces."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.norm = nn.Identity()
        self.register_buffer("mean", torch.zeros(3))

    def normalised(self, obs: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * obs.mean(0)
        return obs - self.mean


@pytest.mark.parametrize("module_class", [Normalises, SubtractsARunningMean])
@pytest.mark.parametrize("is_shared", [False, True])
def test_modules_that_change_their_buffers(module_class: type[RLModule], is_shared: bool) -> None:
    def make() -> RLModule:
        return module_class(gym.spaces.Box(-5, 5, (3,)), gym.spaces.Discrete(3), ModuleConfig())

    module = make()
    buffers = [buffer.clone() for buffer in module.buffers()]
    check_loss(A2CLoss, A2CConfig(), (lambda: module) if is_shared else make, is_compiled=True)
    assert all(map(torch.equal, module.buffers(), buffers))
