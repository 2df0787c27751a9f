"""Gradients without an update: equal to the update's, applied once, averaged, sent, and what rows report."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import ConfigError
from runner.experiment.trainer import Trainer
from runner.learners.gradients import GroupGradients, ModuleGradient, average_gradients
from runner.learners.loss_failure import LossNotFinite
from runner.learners.train_batch import TrainBatch
from runner.testing.module_learner import ModuleLearner
from tests.learners.offline_modules import recorded_rows
from tests.learners.test_optimizers import CASES
from tests.support.configs import config_from

ONE_STEP = {"num_epochs": 1, "minibatch_size": None, "minibatching": "time_ordered"}


def _learner(name: str, **fields: Any) -> ModuleLearner:
    case = CASES[name]
    config: AlgorithmConfig = replace(case.config, **fields)
    return replace(case, config=config).learner()


def _rows(name: str, num_rows: int = 40, seed: int = 0) -> dict[str, Any]:
    return {column: values[:num_rows] for column, values in recorded_rows(CASES[name].space, seed=seed).items()}


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_apply_are_an_update_of_one_step(name: str) -> None:
    straight, apart = _learner(name, grad_clip=0.1, **ONE_STEP), _learner(name, grad_clip=0.1, **ONE_STEP)
    for seed in range(4):
        batch, num_env_steps = _rows(name, seed=seed), 3 * seed
        expected = straight.update(batch, num_env_steps)
        before = apart.get_weights()
        gradients = apart.gradients(batch, num_env_steps)
        np.testing.assert_array_equal(apart.get_weights(), before)
        sent = pickle.loads(pickle.dumps(gradients))
        assert apart.apply(sent, num_env_steps) == expected.metrics
        np.testing.assert_array_equal(apart.get_weights(), straight.get_weights())
    np.testing.assert_equal(apart.loss.get_state(), straight.loss.get_state())


def test_the_average_of_parts_counts_rows() -> None:
    name, batch = "bc", _rows("bc", 30)
    whole, parts = _learner(name), [slice(0, 5), slice(5, 30)]
    expected = whole.gradients(batch, 0)
    gradients = [whole.gradients({column: values[rows] for column, values in batch.items()}, 0) for rows in parts]
    got = average_gradients([GroupGradients({"a": one}, 0.5) for one in gradients])
    np.testing.assert_allclose(got.modules["a"].vector, expected.vector, rtol=1e-4, atol=1e-7)
    assert got.modules["a"].metrics["policy_loss"] == pytest.approx(expected.metrics["policy_loss"], rel=1e-5)
    assert got.modules["a"].num_rows == 30
    assert got.connector_s == 1.0


@pytest.mark.parametrize(
    "plan",
    ["[AsyncGradients, {ApplyGradients: {update_all: false}}]", "[{_target_: tests.support.own_plans.gradients}]"],
)
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["+experiment=ppo_cartpole", "algorithm.use_kl_loss=true"], "PPOLoss adapts to updates"),
        (["+experiment=ppo_cartpole", "algorithm.use_kl_loss=false"], None),
        (["+experiment=a2c_cartpole"], None),
    ],
)
def test_env_runners_compute_no_gradients_of_a_loss_that_adapts(
    overrides: list[str], told: str | None, plan: str
) -> None:
    overrides = [*overrides, f"algorithm.plan={plan}", "engine=inline", "module.fcnet_hiddens=[4]", "tracking=none"]
    config = config_from(*overrides)
    if told is None:
        Trainer(config).close()
        return
    with pytest.raises(ConfigError, match=told):
        Trainer(config)


def test_an_average_has_the_modules_of_all_parts() -> None:
    def gradient(value: float, num_rows: int) -> ModuleGradient:
        vector = np.full(2, value, np.float32)
        return ModuleGradient(vector, {"total_loss": value}, {"td_error": np.full(num_rows, value)}, num_rows)

    parts = [GroupGradients({"a": gradient(1.0, 1)}), GroupGradients({"a": gradient(5.0, 3), "b": gradient(2.0, 2)})]
    got = average_gradients(parts).modules
    assert list(got) == ["a", "b"]
    np.testing.assert_array_equal(got["a"].vector, [4.0, 4.0])
    np.testing.assert_array_equal(got["a"].rows["td_error"], [1.0, 5.0, 5.0, 5.0])
    assert got["a"].metrics == {"total_loss": 4.0}
    assert got["b"] is parts[1].modules["b"]
    with pytest.raises(ValueError, match="no gradients to average"):
        average_gradients([])


def test_a_gradient_of_another_network_is_refused() -> None:
    learner = _learner("bc")
    gradients = replace(learner.gradients(_rows("bc"), 0), vector=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"a gradient has 3 values, but this module learns \d+ parameters"):
        learner.apply(gradients, 0)


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    learner, batch = _learner("marwil"), _rows("marwil")
    batch["value_targets"][3] = torch.nan
    with pytest.raises(LossNotFinite, match="total_loss is nan"):
        learner.gradients(batch, 0)


def test_a_step_along_a_gradient_that_is_not_finite_ends_the_run() -> None:
    learner = _learner("bc")
    gradients = learner.gradients(_rows("bc"), 0)
    gradients.vector[2] = np.inf
    with pytest.raises(LossNotFinite, match="gradients_default_optimizer_global_norm is inf"):
        learner.apply(gradients, 0)


def test_nothing_to_learn_from() -> None:
    learner, batch = _learner("bc"), _rows("bc", 4)
    batch["loss_mask"] = torch.zeros(4, dtype=torch.bool)
    assert not learner.learner.gradients(TrainBatch({"default_policy": batch}), 0).modules
    before = learner.get_weights()
    assert learner.update(batch, 0).metrics == {}
    np.testing.assert_array_equal(learner.get_weights(), before)
