"""What a learner asks of a loss. Put your own loss through it:

class TestMyLoss(LossContract):
    config = MyConfig()

    def make_loss(self):
        return MyLoss(self.config)

A loss that is not for every module or action space also gives `make_module` and `action_spaces`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.metrics import producible_metrics
from runner.config.schemas import ExperimentConfig, ModuleConfig
from runner.learners.learner import Learner
from runner.learners.loss import Loss, find_misfit, with_noise
from runner.learners.module_update import ModuleUpdate
from runner.modules import ActorCriticModule, RLModule

DISCRETE = gym.spaces.Discrete(3)
CONTINUOUS = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


class ReadsRecorded(Mapping[str, Tensor]):
    """A batch that knows which of its columns were read."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self._columns = columns
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def make_module(action_space: gym.Space[Any], seed: int = 0) -> RLModule:
    """A small policy for three observed numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCriticModule(gym.spaces.Box(-5, 5, (3,), np.float32), action_space, ModuleConfig(fcnet_hiddens=[8]))


def make_batch(module: RLModule, num_rows: int = 12, seed: int = 0) -> dict[str, Tensor]:
    """Random rows as a policy a little different from `module` could have sampled them."""
    stream = np.random.default_rng(seed)
    obs = torch.from_numpy(stream.normal(size=(num_rows, 3)).astype(np.float32))
    with torch.no_grad():
        theta = module.forward_train({"obs": obs})["action_dist_inputs"]
        theta = theta + torch.from_numpy(stream.normal(scale=0.3, size=theta.shape).astype(np.float32))
        noise = torch.from_numpy(module.action_dist.draw_noise(stream, (num_rows,)))
        actions = module.action_dist.sample(theta, noise)
        logp = module.action_dist.log_prob(theta, actions)
    rows = {name: torch.from_numpy(stream.normal(size=num_rows).astype(np.float32)) for name in ("a", "v", "r")}
    return {
        "obs": obs,
        "actions": actions,
        "action_dist_inputs": theta,
        "action_logp": logp,
        "advantages": rows["a"],
        "value_targets": 4 * rows["v"],
        "returns": 4 * rows["v"],
        "rewards": rows["r"],
        "terminateds": torch.zeros(num_rows, dtype=torch.bool),
        "truncateds": torch.zeros(num_rows, dtype=torch.bool),
        "n_step": torch.from_numpy(stream.integers(1, 4, num_rows)),
        "weights": torch.from_numpy(stream.random(num_rows, np.float32)),
        "new_obs": torch.from_numpy(stream.normal(size=(num_rows, 3)).astype(np.float32)),
    }


class LossContract:
    """Tests of one loss; subclasses give `config` and `make_loss`."""

    config: AlgorithmConfig
    action_spaces: tuple[str, ...] = ("discrete", "continuous")
    # Beginnings of the names of parameters that the loss has nothing to do with.
    untouched: tuple[str, ...] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every test for each action space."""
        spaces = {"discrete": DISCRETE, "continuous": CONTINUOUS}
        metafunc.parametrize("action_space", [spaces[name] for name in self.action_spaces], ids=self.action_spaces)

    def make_module(self, action_space: gym.Space[Any]) -> RLModule:
        """A small module that the loss can train."""
        return make_module(action_space)

    def make_loss(self) -> Loss:
        """A new loss for `config`."""
        raise NotImplementedError

    def _call(self, action_space: gym.Space[Any], is_reporting: bool = True) -> tuple[RLModule, Loss, LossMetrics]:
        module, loss = self.make_module(action_space), self.make_loss()
        loss.before_update(0)
        batch = make_batch(module)
        columns = {name: batch[name] for name in loss.reads}
        return module, loss, loss(module, with_noise(columns, loss, module), is_reporting)

    def test_reads_are_exactly_what_is_read(self, action_space: gym.Space[Any]) -> None:
        module, loss = self.make_module(action_space), self.make_loss()
        loss.before_update(0)
        columns = make_batch(module)
        noise = loss.draw_noise(module, columns)
        batch = ReadsRecorded(columns | noise)
        loss(module, batch)
        assert (batch.read & columns.keys()) <= set(loss.reads), "`reads` of the loss lacks a column that it reads"

    def test_metrics_are_a_record_of_single_numbers(self, action_space: gym.Space[Any]) -> None:
        _, _, metrics = self._call(action_space)
        assert isinstance(metrics, self.config.metrics), "`metrics` of the config class names another record"
        for field in dataclasses.fields(metrics):
            value = getattr(metrics, field.name)
            shape = (12,) if field.name in metrics.rows else ()
            assert isinstance(value, Tensor), f"{field.name} is no tensor"
            assert value.shape == shape, f"{field.name} has shape {tuple(value.shape)}, not {shape}"
            assert value.isfinite().all(), f"{field.name} is {value} on finite rows"

    def test_what_is_reported_for_rows_has_no_gradient(self, action_space: gym.Space[Any]) -> None:
        _, _, metrics = self._call(action_space)
        assert set(metrics.rows) <= {field.name for field in dataclasses.fields(metrics)}, "`rows` names no field"
        assert not any(getattr(metrics, name).requires_grad for name in metrics.rows)

    def test_total_loss_reaches_every_parameter(self, action_space: gym.Space[Any]) -> None:
        module, _, metrics = self._call(action_space)
        metrics.total_loss.backward()
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad or name.startswith(self.untouched or "-"):
                assert parameter.grad is None or not parameter.grad.any(), f"a gradient reaches {name}"
                continue
            assert parameter.grad is not None, f"no gradient reaches {name}"
            assert parameter.grad.abs().sum() > 0, f"the gradient of {name} is 0"

    def test_total_loss_is_the_same_without_reporting(self, action_space: gym.Space[Any]) -> None:
        _, _, reported = self._call(action_space)
        _, _, silent = self._call(action_space, is_reporting=False)
        assert torch.equal(reported.total_loss, silent.total_loss)

    def test_every_metric_can_be_named_in_stop(self, action_space: gym.Space[Any]) -> None:
        _, loss, metrics = self._call(action_space)
        known = producible_metrics(ExperimentConfig(algorithm=self.config))
        for name in (*metrics.names(), *loss.coefficients()):
            assert f"learners/default_policy/{name}" in known, f"producible_metrics does not list {name}"
        assert not {f"learners/default_policy/{name}" for name in metrics.rows} & set(known)

    def test_the_module_has_what_the_loss_needs(self, action_space: gym.Space[Any]) -> None:
        assert find_misfit(type(self.make_loss()), self.make_module(action_space), self.config) is None

    def test_the_inputs_stay_as_they_are(self, action_space: gym.Space[Any]) -> None:
        module, loss = self.make_module(action_space), self.make_loss()
        loss.before_update(0)
        batch = with_noise(make_batch(module), loss, module)
        before = {name: column.clone() for name, column in batch.items()}
        loss(module, batch).total_loss.backward()
        assert all(torch.equal(batch[name], column) for name, column in before.items())

    def test_an_update_stays_on_its_device(self, action_space: gym.Space[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        # A device without values: whatever mixes devices or reads a value back fails there. Metrics are read once, at
        # the end of an update.
        monkeypatch.setattr(ModuleUpdate, "means", lambda *_: {})
        monkeypatch.setattr(ModuleUpdate, "end", lambda *_: {})
        batch = make_batch(self.make_module(action_space), num_rows=12)
        with torch.device("meta"):
            learner = self._learner(action_space, "meta")
        learner.update({name: column.to("meta") for name, column in batch.items()}, 0)
        assert learner.device.type == "meta"

    def test_a_compiled_update_equals_the_eager_one(
        self, action_space: gym.Space[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Traced to one graph with its gradient; how torch makes code of it is tested with one loss.
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
        eager, compiled = self._learner(action_space), self._learner(action_space, is_compiled=True)
        batch = make_batch(eager.module, num_rows=12)
        for num_env_steps in (0, 100):
            expected, update = eager.update(batch, num_env_steps), compiled.update(batch, num_env_steps)
            assert update.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
            assert {name: rows.tolist() for name, rows in update.rows.items()} == {
                name: pytest.approx(rows, rel=1e-4, abs=1e-5) for name, rows in expected.rows.items()
            }
        np.testing.assert_allclose(compiled.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)
        assert compiled.update(batch, 0).compile_s == 0

    def _learner(self, action_space: gym.Space[Any], device: str = "cpu", is_compiled: bool = False) -> Learner:
        config = dataclasses.replace(self.config, minibatch_size=None, num_epochs=2)
        loss = self.make_loss()
        loss.use_stream(np.random.default_rng(0))
        module = self.make_module(action_space).to(device)
        return Learner(module, loss, config, np.random.default_rng(0), is_compiled=is_compiled)

    def test_state_goes_round(self, action_space: gym.Space[Any]) -> None:
        _, loss, metrics = self._call(action_space)
        values = {name: float(getattr(metrics, name).detach()) for name in metrics.names()}
        loss.after_update(values | {"mean_kl_loss": 1e3})  # something that adapts, if anything does
        other = self.make_loss()
        other.set_state(loss.get_state())
        assert other.get_state() == loss.get_state()
