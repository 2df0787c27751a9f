"""Contract of losses, built-in and user-defined."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.errors import Problem
from runner.config.metrics import producible_metrics
from runner.config.schemas import ExperimentConfig
from runner.episodes import nested
from runner.learners.loss import Loss, find_misfit, with_noise
from runner.learners.parameter_updater import backward_each, parameters_by_optimizer
from runner.modules.rl_module import RLModule
from runner.testing.module_learner import ModuleLearner
from runner.testing.rules import (
    Rule,
    are_equal,
    check_rules,
    differing_attributes,
    find_difference,
    through_checkpoint,
)
from runner.testing.sampled_items import (
    DISCRETE,
    OBSERVATIONS,
    ReadColumns,
    Space,
    are_close,
    make_batch,
    make_sequences,
    mixed_terms,
    process_streams,
    reordered,
    small_module,
)

_NUM_ROWS = 13  # a number that no other dimension uses


def check_loss(
    make: Callable[[Any], Loss],
    config: AlgorithmConfig,
    make_module: Callable[[], RLModule] | None = None,
    *,
    action_space: Space = DISCRETE,
    untouched: Sequence[str] = (),
    is_compiled: bool = False,
) -> None:
    """Check a loss on random rows, and on sequences if it supports stateful modules.

    Args:
        make: the class of the loss, or a function that makes it from the configuration.
        config: configuration of the algorithm.
        make_module: makes a small stateless module for the loss, or None for an actor-critic network; torch is seeded
            before each call.
        action_space: action space of the actor-critic network.
        untouched: prefixes of names of parameters that the loss does not affect.
        is_compiled: whether to check that it works with `learners.compile`.

    Raises:
        BrokenContract: the loss breaks rules; the message lists all of them.
        TypeError: `config` is a class.
    """
    if isinstance(config, type):
        raise TypeError(f"config is the class {config.__name__}; pass an instance: {config.__name__}()")
    has_own_module = make_module is not None
    make_module = make_module or (lambda: small_module(OBSERVATIONS, action_space))
    contract = _LossContract(make, config, make_module, tuple(untouched), has_own_module)
    check_rules(contract.name, contract.rules(is_compiled, action_space=None if has_own_module else action_space))


class _LossContract:
    def __init__(
        self,
        make: Callable[[Any], Loss],
        config: AlgorithmConfig,
        make_module: Callable[[], RLModule],
        untouched: tuple[str, ...],
        has_own_module: bool,
    ) -> None:
        self._make, self._config, self._make_new_module, self._untouched = make, config, make_module, untouched
        self._has_own_module = has_own_module
        self.name = type(make(config)).__name__

    def _make_module(self) -> RLModule:
        """Return a new module, always with the same parameters and buffers, since a pass may change its buffers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return copy.deepcopy(self._make_new_module())

    def rules(self, is_compiled: bool, action_space: Space | None) -> Iterator[Rule]:
        """Yield the rules; if the loss does not match its module, no other rules are checked."""
        misfit = find_misfit(type(self._loss()), self._make_module(), self._config)
        if misfit is not None:
            yield lambda: [misfit]
            return
        yield from (self.declares_what_it_reads, self.gives_a_record_of_single_numbers, self.is_known_by_its_metrics)
        yield from (
            self.reaches_every_parameter,
            self.keeps_optimizers_apart,
            self.is_the_same_without_reporting,
            self.leaves_inputs_alone,
        )
        yield from (self.is_a_mean_over_rows, self.ignores_the_order_of_rows, self.draws_from_its_stream)
        yield from (self.stays_on_its_device, self.continues_from_its_state)
        if is_compiled:
            yield self.compiles
        if action_space is not None:
            memory = functools.partial(small_module, OBSERVATIONS, action_space, use_lstm=True, lstm_cell_size=4)
            if find_misfit(type(self._loss()), memory(), self._config) is None:
                yield lambda: self.ignores_padded_steps(memory)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _loss(self, stream: np.random.Generator | None = None) -> Loss:
        loss = self._make(self._config)
        loss.use_stream(stream or np.random.default_rng(0))
        loss.before_update(0)
        return loss

    def _rows(self, loss: Loss) -> dict[str, Any]:
        """Return random rows with only the columns in `reads`, as in a run; unknown columns are 0."""
        rows = make_batch(self._make_module(), _NUM_ROWS)
        return {column: rows[column] if column in rows else torch.zeros(_NUM_ROWS) for column in loss.reads}

    def _batch(self, module: RLModule, loss: Loss) -> dict[str, Any]:
        return with_noise(self._rows(loss), loss, module)

    def _call(self, is_reporting: bool = True) -> tuple[RLModule, Loss, LossMetrics]:
        module, loss = self._make_module(), self._loss()
        return module, loss, loss(module, self._batch(module, loss), is_reporting)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def declares_what_it_reads(self) -> Iterator[Problem]:
        """Check that every column it reads is in `reads`; the batches of a run contain no other columns."""
        module, loss = self._make_module(), self._loss()
        columns = make_batch(self._make_module(), _NUM_ROWS) | self._rows(loss)
        batch = ReadColumns(columns | loss.draw_noise(module, columns))
        loss(module, batch)
        for column in sorted((batch.read & columns.keys()) - set(loss.reads)):
            yield Problem(f"`reads` lacks column {column}, which the loss reads", "reads", repr(loss.reads))

    def gives_a_record_of_single_numbers(self) -> Iterator[Problem]:
        """Check that metrics are 0-d tensors, per-row values are detached, and all of them are finite."""
        _, _, metrics = self._call()
        if not isinstance(metrics, self._config.metrics):
            what = f"`metrics` of {type(self._config).__name__} names a different record class than the loss returns"
            yield Problem(what, "metrics", type(metrics).__name__, self._config.metrics.__name__)
            return
        names = list(metrics.reported())
        for name in sorted(set(metrics.rows) - set(names)):
            yield Problem(f"`rows` of {type(metrics).__name__} names an unknown field", "rows", name, ", ".join(names))
        for name in names:
            value, shape = getattr(metrics, name), (_NUM_ROWS,) if name in metrics.rows else ()
            if not isinstance(value, Tensor) or value.shape != shape:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                yield Problem(f"{name} is not a tensor of shape {shape}", "__call__", got)
            elif not value.isfinite().all():
                yield Problem(f"{name} is not finite although the rows are", "__call__", str(value.detach()))
            elif name in metrics.rows and value.requires_grad:
                yield Problem(f"the per-row values {name} have a gradient", "__call__", fix="call detach()")

    def is_known_by_its_metrics(self) -> Iterator[Problem]:
        """Check that each metric can be named in `stop`, and that per-row values cannot."""
        _, loss, metrics = self._call()
        known = producible_metrics(ExperimentConfig(algorithm=self._config))
        for name in (*metrics.names(), *loss.coefficients()):
            if f"learners/default_policy/{name}" not in known:
                what = f"metric {name} is not a metric of the run"
                yield Problem(
                    what, "coefficients", name, "a field of `metrics`, or a name in `coefficients` of the configuration"
                )
        for name in metrics.rows:
            if f"learners/default_policy/{name}" in known:
                what = f"{name} is both a per-row value and a metric of the run"
                yield Problem(what, "rows", name, fix="use another name for the metric")

    def reaches_every_parameter(self) -> Iterator[Problem]:
        """Check that the gradient of each learned parameter is finite and not 0, and that others are not affected."""
        module, _, metrics = self._call()
        self._differentiate(module, metrics)
        for name, parameter in module.named_parameters():
            is_meant = parameter.requires_grad and not name.startswith(self._untouched or "-")
            gradient = parameter.grad
            if gradient is not None and not gradient.isfinite().all():
                yield Problem(f"the gradient of parameter {name} is not finite", "__call__", expected="finite numbers")
            is_reached = gradient is not None and bool(gradient.any())
            if is_reached != is_meant:
                what = f"a gradient reaches parameter {name}" if is_reached else f"no gradient reaches parameter {name}"
                expected = "a gradient for every learned parameter whose name does not start with one of `untouched`"
                is_of_default = not is_reached and not self._has_own_module
                fix = "pass make_module, or name the parameter in `untouched`" if is_of_default else None
                yield Problem(what, "__call__", expected=expected, fix=fix)

    def _differentiate(self, module: RLModule, metrics: LossMetrics) -> None:
        if metrics.losses is None:
            metrics.total_loss.backward()
        else:
            backward_each(metrics.losses, parameters_by_optimizer(module, list(self._config.optimizers)))

    def keeps_optimizers_apart(self) -> Iterator[Problem]:
        """Check that no term of `total_loss` affects the parameters of several optimisers, unless it uses `losses`."""
        module, _, metrics = self._call()
        members = parameters_by_optimizer(module, list(self._config.optimizers))
        if metrics.losses is not None or len(members) < 2:
            return
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        of_record = {name: value for name, value in metrics.reported().items() if name != "total_loss"}
        blamed = [
            name
            for name, value in of_record.items()
            if isinstance(value, Tensor) and value.requires_grad and any(mixed_terms(value, members, names))
        ]
        for reached in mixed_terms(metrics.total_loss, members, names):
            term = blamed[0] if blamed else "a term of total_loss"
            what = f"{term} reaches the parameters of several optimisers: {', '.join(reached)}"
            got = "; ".join(f"{optimizer}: {parameter}" for optimizer, parameter in reached.items())
            optimizers = ", ".join(f'"{name}": …' for name in members)
            fix = f"return losses={{{optimizers}}} in the record, or use runner.modules.frozen(network)"
            yield Problem(what, "__call__", got, fix=fix)
            return

    def is_the_same_without_reporting(self) -> Iterator[Problem]:
        """Check that metrics omitted without reporting are not part of `total_loss`."""
        (_, _, reported), (_, _, silent) = self._call(), self._call(is_reporting=False)
        if not torch.equal(reported.total_loss, silent.total_loss):
            got, expected = f"{silent.total_loss.item():.6g}", f"{reported.total_loss.item():.6g}"
            yield Problem("total_loss differs without reporting", "__call__", got, expected)

    def leaves_inputs_alone(self) -> Iterator[Problem]:
        """Check that it does not write into the batch."""
        module, loss = self._make_module(), self._loss()
        batch = self._batch(module, loss)
        kept = {name: nested.map_leaves(torch.clone, column) for name, column in batch.items()}
        loss(module, batch)
        for name in [name for name in kept if name not in batch or not are_equal(batch[name], kept[name])]:
            yield Problem(f"the loss writes into column {name} of the batch", "__call__", fix="write to new tensors")

    def is_a_mean_over_rows(self) -> Iterator[Problem]:
        """Check that duplicated rows have the same loss, so that learning rates do not depend on minibatch sizes."""
        once, twice = (self._total_loss(lambda n: np.arange(n)), self._total_loss(lambda n: np.tile(np.arange(n), 2)))
        if not are_close(once, twice):
            what = "total_loss changes if all rows are duplicated"
            yield Problem(what, "__call__", f"{twice.item():.6g}", f"{once.item():.6g}, a mean over rows")

    def ignores_the_order_of_rows(self) -> Iterator[Problem]:
        """Check that the order of rows does not change the loss."""
        straight, reverse = self._total_loss(lambda n: np.arange(n)), self._total_loss(lambda n: np.arange(n)[::-1])
        if not are_close(straight, reverse):
            what = "total_loss depends on the order of rows"
            yield Problem(what, "__call__", f"{reverse.item():.6g}", f"{straight.item():.6g} in any order")

    def _total_loss(self, order: Callable[[int], Any]) -> Tensor:
        module, loss = self._make_module(), self._loss()
        batch = reordered(self._batch(module, loss), order(_NUM_ROWS).copy(), _NUM_ROWS)
        total_loss: Tensor = loss(module, batch).total_loss.detach()
        return total_loss

    def draws_from_its_stream(self) -> Iterator[Problem]:
        """Check that the same batch has the same loss, and that no global random number is drawn."""
        modules = [self._make_module() for _ in range(2)]
        before = process_streams()
        loss = self._loss()
        batch = self._batch(modules[0], loss)
        first, second = (loss(module, batch, True).total_loss for module in modules)
        fix = "draw random columns of the batch in draw_noise, from the stream of use_stream"
        if not are_equal(process_streams(), before):
            yield Problem("the loss draws from the global random generators", "__call__", fix=fix)
        elif not torch.equal(first, second):
            yield Problem("the same batch has a different loss in a second call", "__call__", fix=fix)

    def stays_on_its_device(self) -> Iterator[Problem]:
        """Check that it mixes no devices and reads no values back, by computing on torch's meta device."""
        rows = self._rows(self._loss())
        columns = {name: nested.map_leaves(lambda leaf: leaf.to("meta"), column) for name, column in rows.items()}
        with torch.device("meta"):
            module, loss = self._make_module().to("meta"), self._loss()
        try:
            self._differentiate(module, loss(module, with_noise(columns, loss, module)))
            loss.after_step(module, _NUM_ROWS)
        except (NotImplementedError, RuntimeError) as error:
            what = (
                f"the loss reads values back from its device, or uses another device: {type(error).__name__}: {error}"
            )
            fix = "use tensors on the module's device, without .item(), float(...), .cpu() and branches on values"
            yield Problem(what, "__call__", fix=fix)

    def continues_from_its_state(self) -> Iterator[Problem]:
        """Check that its state is plain, and that a new loss with its state and random stream continues it."""
        stream, module = np.random.default_rng(0), self._make_module()
        loss = self._loss(stream)
        metrics = loss(module, self._batch(module, loss))
        reported = {name: getattr(metrics, name) for name in metrics.names()}
        values = {name: float(value.detach()) for name, value in reported.items() if value.numel() == 1}
        loss.after_step(module, _NUM_ROWS)
        loss.after_update(values | {"mean_kl_loss": 1e3})  # a value that causes every adaptation
        state = through_checkpoint(loss.get_state(), self.name)
        other = self._loss(copy.deepcopy(stream))
        other.set_state(copy.deepcopy(state))
        key = find_difference(state, other.get_state())
        if key is not None:
            what = f"get_state after set_state returns a different {key}"
            yield Problem(what, "set_state", str(other.get_state().get(key)), str(state.get(key)))
        attributes = [f"self.{name}" for name in differing_attributes(loss, other)]
        got_keys = f"different {', '.join(attributes)} after set_state" if attributes else None
        rows, modules = self._rows(loss), [self._make_module() for _ in range(2)]
        for one in (loss, other):
            one.before_update(0)
        for _ in range(3):
            (expected, total), (got, other_total) = map(self._drawn, modules, (loss, other), [rows, rows])
            column = find_difference(expected, got)
            if column is not None or not torch.equal(total, other_total):
                result = f"draws different {column}" if column else "computes a different total_loss"
                what = f"a loss with the state of another one {result}"
                fix = "return everything that later calls depend on from get_state; the learner saves the stream itself"
                yield Problem(what, "get_state, set_state", got_keys, fix=fix)
                return

    def _drawn(self, module: RLModule, loss: Loss, rows: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Return the random columns that a loss draws for rows, and its total loss."""
        noise = loss.draw_noise(module, rows)
        total: Tensor = loss(module, {**rows, **noise}).total_loss.detach()
        loss.after_step(module, _NUM_ROWS)
        return noise, total

    def compiles(self) -> Iterator[Problem]:
        """Check that an update as one traced graph equals the eager one."""
        # Only traced: the code that torch generates from a graph does not depend on the loss.
        with mock.patch.object(torch, "compile", functools.partial(torch.compile, backend="aot_eager")):
            eager, compiled = self._learner(), self._learner(is_compiled=True)
            batch = self._rows(self._loss())
            for num_env_steps in (0, 100):
                expected, update = eager.update(batch, num_env_steps), compiled.update(batch, num_env_steps)
                for name, value in expected.metrics.items():
                    if not np.allclose(update.metrics[name], value, rtol=1e-4, atol=1e-6, equal_nan=True):
                        what = f"a compiled update reports a different {name}"
                        yield Problem(what, "__call__", str(update.metrics[name]), str(value))
                for name, rows in expected.rows.items():
                    if not np.allclose(update.rows[name], rows, rtol=1e-4, atol=1e-5):
                        yield Problem(f"a compiled update returns different per-row values of {name}", "__call__")
            if not np.allclose(compiled.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6):
                yield Problem("a compiled update leads to different weights", "__call__")
            if compiled.update(batch, 0).compile_s:
                what = "the second update is compiled again"
                yield Problem(
                    what, "__call__", fix="name coefficients that change in `varying`, so that they are tensors"
                )

    def _learner(self, is_compiled: bool = False) -> ModuleLearner:
        config = dataclasses.replace(self._config, minibatch_size=None, num_epochs=2)
        stream = np.random.default_rng(0)
        return ModuleLearner(self._make_module(), self._loss(), config, stream, is_compiled=is_compiled)

    def ignores_padded_steps(self, make_module: Callable[[], RLModule]) -> Iterator[Problem]:
        """Check that padded steps of sequences do not change the gradient."""
        gradients: list[Any] = []
        for padding in (0.0, 0.5):
            module = make_module()
            loss = self._loss()
            learner = ModuleLearner(module, loss, self._config, np.random.default_rng(0))
            sequences = make_sequences(module, padding)
            own = {column: torch.zeros(sequences["loss_mask"].shape) for column in loss.reads}
            gradients.append(learner.gradients(own | sequences, 0).vector)
        if not np.allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-5):
            what = "padded steps of sequences change the gradient"
            yield Problem(what, "__call__", fix="use outputs_at_steps or at_steps of the module to get env steps only")
