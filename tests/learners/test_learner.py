"""The learner: which rows a minibatch holds, what a step does, what it refuses, and how it goes on from a state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from runner.config.algorithms import LossMetrics, PPOConfig
from runner.config.errors import ConfigError, RunFailure
from runner.config.schemas import ModuleConfig
from runner.learners.loss import Loss
from runner.learners.minibatches import even_sizes, num_microbatches, num_minibatches
from runner.learners.ppo import PPOLoss
from runner.modules import ActorCriticModule, RLModule
from runner.modules.flat_parameters import FlatParameters
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import CONTINUOUS, DISCRETE, make_batch, make_module

CONFIG = PPOConfig(lr=1e-2, num_epochs=3, minibatch_size=5)


class RowRecorder(Loss):
    """A loss that notes the rows of every minibatch."""

    reads = ("obs", "row")

    def __init__(self) -> None:
        self.minibatches: list[list[int]] = []

    def __call__(self, module: RLModule, batch: Mapping[str, Tensor], is_reporting: bool = True) -> LossMetrics:
        self.minibatches.append(batch["row"].tolist())
        return LossMetrics(module.forward_train(batch)["vf_preds"].square().mean())


def _recorded(num_rows: int, mask: Tensor | None, config: PPOConfig, seed: int = 0) -> list[list[int]]:
    loss = RowRecorder()
    learner = ModuleLearner(make_module(DISCRETE), loss, config, np.random.default_rng(seed))
    batch = {"obs": torch.zeros(num_rows, 3), "row": torch.arange(num_rows)}
    if mask is not None:
        batch["loss_mask"] = mask
    learner.update(batch, 0)
    return loss.minibatches


@given(num_rows=st.integers(1, 5000), minibatch_size=st.integers(1, 600) | st.none())
def test_minibatch_sizes(num_rows: int, minibatch_size: int | None) -> None:
    sizes = even_sizes(num_rows, num_minibatches(num_rows, minibatch_size))
    assert sum(sizes) == num_rows
    assert max(sizes) - min(sizes) <= 1
    exact = 1.0 if minibatch_size is None else num_rows / minibatch_size
    assert len(sizes) == 1 or abs(len(sizes) - exact) <= 0.5
    assert len(sizes) > 1 or exact < 1.5


@pytest.mark.parametrize("num_rows", [448, 511, 512, 575])
def test_a_few_rows_more_or_fewer_do_not_change_the_number_of_minibatches(num_rows: int) -> None:
    sizes = [len(rows) for rows in _recorded(num_rows, None, replace(CONFIG, minibatch_size=128, num_epochs=1))]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 1


@given(num_rows=st.integers(1, 5000), microbatch_size=st.integers(1, 600))
def test_a_microbatch_never_has_more_rows_than_its_limit(num_rows: int, microbatch_size: int) -> None:
    sizes = even_sizes(num_rows, num_microbatches(num_rows, microbatch_size))
    assert sum(sizes) == num_rows
    assert max(sizes) <= microbatch_size


@given(mask=st.lists(st.booleans(), min_size=1, max_size=40).filter(any), minibatch_size=st.integers(1, 12))
def test_every_valid_row_once_per_epoch(mask: list[bool], minibatch_size: int) -> None:
    config = replace(CONFIG, minibatch_size=minibatch_size)
    minibatches = _recorded(len(mask), torch.tensor(mask), config)
    valid = [row for row, is_valid in enumerate(mask) if is_valid]
    per_epoch = len(minibatches) // config.num_epochs
    for epoch in range(config.num_epochs):
        rows = list(chain(*minibatches[epoch * per_epoch : (epoch + 1) * per_epoch]))
        assert sorted(rows) == valid


def test_all_rows_count_without_a_mask() -> None:
    assert sorted(chain(*_recorded(12, None, replace(CONFIG, num_epochs=1)))) == list(range(12))


def test_rows_are_shuffled_from_the_first_epoch_on() -> None:
    halves = replace(CONFIG, minibatch_size=20)
    minibatches = _recorded(40, None, halves)
    assert list(range(20)) not in minibatches
    assert len({tuple(rows) for rows in minibatches}) == 6, "epochs repeat the same order"
    assert minibatches == _recorded(40, None, halves), "the stream decides the order"
    assert minibatches != _recorded(40, None, halves, seed=1)


def test_rows_that_are_one_minibatch_stay_in_their_order() -> None:
    minibatches = _recorded(40, None, replace(CONFIG, minibatch_size=None))
    assert minibatches == [list(range(40))] * 3


def _learner(config: PPOConfig = CONFIG, space: Any = DISCRETE, seed: int = 0) -> ModuleLearner:
    return ModuleLearner(make_module(space, seed), PPOLoss(config), config, np.random.default_rng(5))


def _gradient(learner: ModuleLearner) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in learner.module.parameters()])


def test_clipping_bounds_the_norm_and_keeps_the_direction() -> None:
    one_step = replace(CONFIG, num_epochs=1, minibatch_size=None)
    free, clipped = _learner(one_step), _learner(replace(one_step, grad_clip=0.01))
    batch = make_batch(free.module)
    norm = free.update(batch, 0).metrics["gradients_default_optimizer_global_norm"]
    assert norm == pytest.approx(float(_gradient(free).norm()), rel=1e-5)
    assert norm > 0.1
    reported = clipped.update(batch, 0).metrics["gradients_default_optimizer_global_norm"]
    assert reported == pytest.approx(norm, rel=1e-5), "the norm before clipping is reported"
    assert float(_gradient(clipped).norm()) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(_gradient(clipped) * (norm / 0.01), _gradient(free), rtol=1e-3, atol=1e-5)


def test_clipping_leaves_small_gradients_alone() -> None:
    one_step = replace(CONFIG, num_epochs=1, minibatch_size=None)
    free, clipped = _learner(one_step), _learner(replace(one_step, grad_clip=1e4))
    batch = make_batch(free.module)
    free.update(batch, 0)
    clipped.update(batch, 0)
    assert np.array_equal(free.get_weights(), clipped.get_weights())


def test_updates_equal_those_of_torch_adam() -> None:
    config = replace(CONFIG, num_epochs=20, minibatch_size=None, grad_clip=0.5)
    learner, module = _learner(config), make_module(DISCRETE)
    batch = make_batch(module)
    learner.update(batch, 0)
    optimizer, loss = torch.optim.Adam(module.parameters(), lr=1e-2), PPOLoss(config)
    for _ in range(20):
        optimizer.zero_grad()
        loss(module, batch).total_loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    for ours, theirs in zip(learner.module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4)


def test_the_learning_rate_follows_its_schedule() -> None:
    learner = _learner(replace(CONFIG, lr=[[0, 1e-3], [1000, 0.0]]))
    batch = make_batch(learner.module)
    assert learner.update(batch, 500).metrics["default_optimizer_learning_rate"] == pytest.approx(5e-4)
    before = learner.get_weights()
    assert learner.update(batch, 1000).metrics["default_optimizer_learning_rate"] == 0.0
    assert np.array_equal(before, learner.get_weights()), "a learning rate of 0 changes nothing"


@pytest.mark.parametrize(("advantage", "lr"), [(torch.nan, CONFIG.lr), (1.0, 1e30)], ids=["nan_advantage", "huge_lr"])
def test_a_loss_that_is_not_finite_ends_the_run(advantage: float, lr: float) -> None:
    learner = _learner(replace(CONFIG, lr=lr), CONTINUOUS)
    batch = make_batch(learner.module)
    batch["advantages"][3] = advantage
    with pytest.raises(RunFailure, match="the loss is not finite: total_loss is ") as caught:
        learner.update(batch, 0)
    assert "minibatch" in (caught.value.problem.where or "")
    assert "algorithm.lr" in (caught.value.problem.fix or "")


def test_a_nan_in_a_masked_row_does_no_harm() -> None:
    learner = _learner()
    batch = make_batch(learner.module)
    batch["advantages"][3] = torch.nan
    batch["loss_mask"] = torch.ones(12, dtype=torch.bool)
    batch["loss_mask"][3] = False
    assert np.isfinite(learner.update(batch, 0).metrics["total_loss"])


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_state_gives_the_same_next_update(space: Any) -> None:
    config = replace(CONFIG, kl_target=1e-6)  # the coefficient grows in each update
    straight = _learner(config, space)
    batch = make_batch(straight.module)
    straight.update(batch, 0)
    other = _learner(config, space, seed=9)
    other.set_state(straight.get_state())
    assert np.array_equal(other.get_weights(), straight.get_weights())
    first, second = straight.update(batch, 10).metrics, other.update(batch, 10).metrics
    assert first == second
    assert first["curr_kl_coeff"] > config.kl_coeff
    assert np.array_equal(other.get_weights(), straight.get_weights())


def test_the_state_is_a_copy() -> None:
    learner = _learner()
    batch = make_batch(learner.module)
    learner.update(batch, 0)
    other = _learner()
    state = learner.get_state()
    expected = learner.update(batch, 0).metrics
    learner.update(batch, 0)
    other.set_state(state)
    assert other.update(batch, 0).metrics == expected, "the state changed while the learner went on"


def test_the_state_of_another_network_is_refused() -> None:
    learner = _learner()
    spaces = learner.module.observation_space, learner.module.action_space
    wider = ModuleLearner(
        ActorCriticModule(*spaces, ModuleConfig(fcnet_hiddens=[9])), PPOLoss(CONFIG), CONFIG, np.random.default_rng(0)
    )
    before = wider.get_weights()
    with pytest.raises(ConfigError, match=r"(?s)encoder\.layers\.0\.weight \(8, 3\).*in the checkpoint"):
        wider.set_state(learner.get_state())
    assert np.array_equal(before, wider.get_weights())


def test_metrics_of_an_update() -> None:
    learner = _learner()
    metrics = learner.update(make_batch(learner.module), 0).metrics
    assert {"total_loss", "policy_loss", "vf_loss", "entropy", "mean_kl_loss"} <= set(metrics)
    assert metrics["num_minibatch_updates"] == 6  # 3 epochs of 12 rows in minibatches of about 5
    assert all(isinstance(value, (float, int)) for value in metrics.values())


def test_a_learner_whose_network_something_else_keeps_says_so() -> None:
    learner = ModuleLearner(make_module(DISCRETE), RowRecorder(), CONFIG, np.random.default_rng(0))
    batch = {"obs": torch.zeros(4, 3), "row": torch.arange(4)}
    FlatParameters(copy.deepcopy(learner.module))
    learner.update(batch, 0)
    FlatParameters(learner.module)  # as an env runner of this very module does
    with pytest.raises(RuntimeError, match=r"ActorCriticModule was passed to another object .* pass a copy"):
        learner.update(batch, 0)
