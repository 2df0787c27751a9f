"""Minibatches: rows in time order, microbatches, and what a loss reports for each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig, LossMetrics, PPOConfig
from runner.episodes import nested
from runner.learners.loss import Loss
from runner.learners.ppo import PPOLoss
from runner.modules import RLModule
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import DISCRETE, make_batch, make_module
from tests.learners.memory_runs import make_module as make_memory
from tests.learners.offline_modules import recorded_rows
from tests.learners.test_optimizers import CASES

CONFIG = PPOConfig(lr=1e-2, num_epochs=2, minibatch_size=5)


@dataclass(frozen=True)
class NumberMetrics(LossMetrics):
    """The number of each row."""

    number: Any

    rows: ClassVar[tuple[str, ...]] = ("number",)


@dataclass(frozen=True)
class NumberConfig(PPOConfig):
    """A loss that reports the number of each row."""

    metrics: ClassVar[type[LossMetrics]] = NumberMetrics
    coefficients: ClassVar[tuple[str, ...]] = ()


class NumberLoss(Loss):
    """Reports the column `number`, and notes the numbers of each call."""

    reads = ("obs", "number")

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, module: RLModule, batch: Mapping[str, Tensor], is_reporting: bool = True) -> NumberMetrics:
        self.calls.append(batch["number"].tolist())
        values = module.outputs_at_steps(batch)["vf_preds"]
        return NumberMetrics(values.square().mean(), batch["number"])


def _numbered(module: RLModule, loss: NumberLoss, **fields: Any) -> ModuleLearner:
    config: AlgorithmConfig = NumberConfig(**fields)
    return ModuleLearner(module, loss, config, np.random.default_rng(0))


def test_time_ordered_minibatches_hold_rows_in_their_order() -> None:
    loss = NumberLoss()
    learner = _numbered(make_module(DISCRETE), loss, num_epochs=2, minibatch_size=4, minibatching="time_ordered")
    mask = torch.ones(12, dtype=torch.bool)
    mask[5] = False
    rows = learner.update({"obs": torch.zeros(12, 3), "number": torch.arange(12), "loss_mask": mask}, 0).rows
    assert loss.calls == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10, 11]] * 2
    assert rows["number"].tolist() == [*range(5), *range(6, 12)]


@given(
    mask=st.lists(st.booleans(), min_size=1, max_size=30).filter(any),
    minibatch_size=st.integers(1, 12) | st.none(),
    microbatch_size=st.integers(1, 5) | st.none(),
    minibatching=st.sampled_from(["shuffled", "time_ordered"]),
)
@settings(deadline=None, max_examples=40)
def test_rows_come_back_in_the_order_of_the_batch(
    mask: list[bool], minibatch_size: int | None, microbatch_size: int | None, minibatching: str
) -> None:
    loss = NumberLoss()
    learner = _numbered(
        make_module(DISCRETE),
        loss,
        num_epochs=2,
        minibatch_size=minibatch_size,
        microbatch_size=microbatch_size,
        minibatching=minibatching,
    )
    batch = {"obs": torch.zeros(len(mask), 3), "number": torch.arange(len(mask)), "loss_mask": torch.tensor(mask)}
    valid = np.flatnonzero(mask).tolist()
    update = learner.update(batch, 0)
    assert update.rows["number"].tolist() == valid
    assert "number" not in update.metrics
    num_minibatches = max(1, int(len(valid) / minibatch_size + 0.5)) if minibatch_size else 1
    assert max(map(len, loss.calls)) <= min(-(-len(valid) // num_minibatches), microbatch_size or 99)
    assert learner.gradients(batch, 0).rows["number"].tolist() == valid


@given(
    steps=st.lists(st.integers(0, 6), min_size=1, max_size=10).filter(any),
    minibatch_size=st.none() | st.integers(1, 20),
    microbatch_size=st.none() | st.integers(1, 8),
)
@settings(max_examples=15, deadline=None)
def test_rows_of_sequences_come_back_in_the_order_of_time(
    steps: list[int], minibatch_size: int | None, microbatch_size: int | None
) -> None:
    number = torch.arange(len(steps) * 6).reshape(len(steps), 6)
    module = make_memory("lstm")
    batch = {
        "obs": number[..., None].expand(-1, -1, 3).float(),
        "number": number,
        "loss_mask": torch.arange(6) < torch.tensor(steps)[:, None],
        "state_in": nested.map_leaves(lambda leaf: leaf.expand(len(steps), -1), module.get_initial_state()),
    }
    fields = {"num_epochs": 2, "minibatch_size": minibatch_size, "microbatch_size": microbatch_size}
    learner = _numbered(module, NumberLoss(), **fields)
    expected = number[batch["loss_mask"]].tolist()
    assert learner.update(batch, 0).rows["number"].tolist() == expected
    assert learner.gradients(batch, 0).rows["number"].tolist() == expected


def test_microbatches_add_up_to_the_gradient_of_the_minibatch() -> None:
    config = PPOConfig(num_epochs=1, minibatch_size=None, minibatching="time_ordered")
    batch = make_batch(make_module(DISCRETE), num_rows=13)
    whole, parts = (
        ModuleLearner(make_module(DISCRETE), PPOLoss(one), one, np.random.default_rng(0)).gradients(batch, 0)
        for one in (config, replace(config, microbatch_size=5))
    )
    np.testing.assert_allclose(parts.vector, whole.vector, rtol=1e-3, atol=1e-6)
    assert parts.metrics == pytest.approx(dict(whole.metrics), rel=1e-4, abs=1e-6)
    assert parts.num_rows == whole.num_rows == 13


def test_an_update_in_microbatches_is_the_update() -> None:
    batch = make_batch(make_module(DISCRETE), num_rows=23)
    results = []
    for microbatch_size in (None, 2):
        config = replace(CONFIG, microbatch_size=microbatch_size)
        learner = ModuleLearner(make_module(DISCRETE), PPOLoss(config), config, np.random.default_rng(0))
        results.append((learner.update(batch, 0).metrics, learner.get_weights()))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], atol=1e-4)


def test_td_errors_of_discrete_cql() -> None:
    case = CASES["cql discrete"]
    learner = replace(case, config=replace(case.config, minibatch_size=7)).learner()
    batch = recorded_rows(case.space)
    got = learner.gradients(batch, 0).rows["td_error"]
    module, config = learner.module, case.config
    with torch.no_grad():
        new = {"obs": batch["new_obs"]}
        best = module.forward_train(new)["qf_preds"].argmax(-1)
        next_q = module.forward_target(new)["qf_preds"][torch.arange(len(best)), best]  # type: ignore[operator]
        y = batch["rewards"] + config.gamma * ~batch["terminateds"] * next_q
        q = module.q_of(module.forward_train(batch)["qf_preds"], batch["actions"])  # type: ignore[operator]
    np.testing.assert_allclose(got, (y - q).abs().numpy(), rtol=1e-5)
    assert learner.update(batch, 0).rows["td_error"].shape == (len(best),)
