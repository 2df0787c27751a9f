"""What a learner asks of every loss, ours and yours."""

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
from runner.learners.parameter_updater import backward_each, members_of
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

_NUM_ROWS = 13  # a number that no other dimension has


def check_loss(
    make: Callable[[Any], Loss],
    config: AlgorithmConfig,
    make_module: Callable[[], RLModule] | None = None,
    *,
    action_space: Space = DISCRETE,
    untouched: Sequence[str] = (),
    is_compiled: bool = False,
) -> None:
    """Check a loss on random rows, and on sequences if it learns with memory.

    Args:
        make: makes the loss from the configuration: its class.
        config: of the algorithm.
        make_module: makes a small module that the loss trains, without memory; torch is seeded before each call. None:
            an actor-critic network.
        action_space: of this network.
        untouched: beginnings of the names of parameters that the loss has nothing to do with.
        is_compiled: whether it is to work with `learners.compile`, too.

    Raises:
        BrokenContract: the loss breaks rules; it lists all of them.
        TypeError: `config` is a class.
    """
    if isinstance(config, type):
        raise TypeError(f"config is the class {config.__name__}; give what it makes: {config.__name__}()")
    has_own_module = make_module is not None
    contract = _LossContract(
        make, config, make_module or (lambda: small_module(OBSERVATIONS, action_space)), tuple(untouched)
    )
    check_rules(contract.name, contract.rules(is_compiled, action_space=None if has_own_module else action_space))


class _LossContract:
    """The rules of one loss."""

    def __init__(
        self,
        make: Callable[[Any], Loss],
        config: AlgorithmConfig,
        make_module: Callable[[], RLModule],
        untouched: tuple[str, ...],
    ) -> None:
        self._make, self._config, self._make_new_module, self._untouched = make, config, make_module, untouched
        self.name = type(make(config)).__name__

    def _make_module(self) -> RLModule:
        """Return a new module, with the same parameters and buffers each time: a pass may change its buffers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return copy.deepcopy(self._make_new_module())

    def rules(self, is_compiled: bool, action_space: Space | None) -> Iterator[Rule]:
        """Yield the rules; a loss that does not fit its module at all is asked nothing else."""
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
        yield from (self.stays_on_its_device, self.goes_on_from_its_state)
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
        """Return random rows with only the columns in `reads`, as in a run; a column of a user-defined connector is
        0.
        """
        rows = make_batch(self._make_module(), _NUM_ROWS)
        return {column: rows[column] if column in rows else torch.zeros(_NUM_ROWS) for column in loss.reads}

    def _batch(self, module: RLModule, loss: Loss) -> dict[str, Any]:
        return with_noise(self._rows(loss), loss, module)

    def _call(self, is_reporting: bool = True) -> tuple[RLModule, Loss, LossMetrics]:
        module, loss = self._make_module(), self._loss()
        return module, loss, loss(module, self._batch(module, loss), is_reporting)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def declares_what_it_reads(self) -> Iterator[Problem]:
        """Every column that it reads is in `reads`; batches of a run have no others."""
        module, loss = self._make_module(), self._loss()
        columns = make_batch(self._make_module(), _NUM_ROWS) | self._rows(loss)
        batch = ReadColumns(columns | loss.draw_noise(module, columns))
        loss(module, batch)
        for column in sorted((batch.read & columns.keys()) - set(loss.reads)):
            yield Problem(f"`reads` lacks column {column}, which the loss reads", "reads", repr(loss.reads))

    def gives_a_record_of_single_numbers(self) -> Iterator[Problem]:
        """Metrics are 0-d tensors, what it gives for rows has one value a row and no gradient, and all is finite."""
        _, _, metrics = self._call()
        if not isinstance(metrics, self._config.metrics):
            what = f"`metrics` of {type(self._config).__name__} names another record than the loss returns"
            yield Problem(what, "metrics", type(metrics).__name__, self._config.metrics.__name__)
            return
        names = list(metrics.reported())
        for name in sorted(set(metrics.rows) - set(names)):
            yield Problem(f"`rows` of {type(metrics).__name__} names no field", "rows", name, ", ".join(names))
        for name in names:
            value, shape = getattr(metrics, name), (_NUM_ROWS,) if name in metrics.rows else ()
            if not isinstance(value, Tensor) or value.shape != shape:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                yield Problem(f"{name} is no tensor of shape {shape}", "__call__", got)
            elif not value.isfinite().all():
                yield Problem(f"{name} is not finite on finite rows", "__call__", str(value.detach()))
            elif name in metrics.rows and value.requires_grad:
                yield Problem(f"{name}, which is given for rows, has a gradient", "__call__", expected="detach()")

    def is_known_by_its_metrics(self) -> Iterator[Problem]:
        """Each metric can be named in `stop`, and what it gives for rows can not."""
        _, loss, metrics = self._call()
        known = producible_metrics(ExperimentConfig(algorithm=self._config))
        for name in (*metrics.names(), *loss.coefficients()):
            if f"learners/default_policy/{name}" not in known:
                what = f"metric {name} is none of the run's"
                yield Problem(
                    what, "coefficients", name, "fields of `metrics`, and `coefficients` of the configuration"
                )
        for name in metrics.rows:
            if f"learners/default_policy/{name}" in known:
                what = f"{name} is given for rows, and named as a metric of the run, too"
                yield Problem(what, "rows", name, "another name for what is reported as one number")

    def reaches_every_parameter(self) -> Iterator[Problem]:
        """The gradient of each learned parameter is finite and not 0; of all others there is none."""
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
                expected = "every learned parameter, but for those named by `untouched`"
                yield Problem(what, "__call__", expected=expected)

    def _differentiate(self, module: RLModule, metrics: LossMetrics) -> None:
        if metrics.losses is None:
            metrics.total_loss.backward()
        else:
            backward_each(metrics.losses, members_of(module, list(self._config.optimizers)))

    def keeps_optimizers_apart(self) -> Iterator[Problem]:
        """No term of `total_loss` reaches the parameters of several optimisers; `losses` separate them."""
        module, _, metrics = self._call()
        members = members_of(module, list(self._config.optimizers))
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
            expected = f"losses={{{optimizers}}} in the record, or runner.modules.frozen(network)"
            yield Problem(what, "__call__", got, expected)
            return

    def is_the_same_without_reporting(self) -> Iterator[Problem]:
        """What is left out unless reporting is no part of `total_loss`."""
        (_, _, reported), (_, _, silent) = self._call(), self._call(is_reporting=False)
        if not torch.equal(reported.total_loss, silent.total_loss):
            got, expected = f"{silent.total_loss.item():.6g}", f"{reported.total_loss.item():.6g}"
            yield Problem("total_loss differs without reporting", "__call__", got, expected)

    def leaves_inputs_alone(self) -> Iterator[Problem]:
        """It does not write into the batch."""
        module, loss = self._make_module(), self._loss()
        batch = self._batch(module, loss)
        kept = {name: nested.map_leaves(torch.clone, column) for name, column in batch.items()}
        loss(module, batch)
        for name in [name for name in kept if name not in batch or not are_equal(batch[name], kept[name])]:
            yield Problem(f"the loss writes into column {name} of the batch", "__call__", expected="tensors of its own")

    def is_a_mean_over_rows(self) -> Iterator[Problem]:
        """The same rows twice have the same loss: learning rates do not depend on the size of minibatches."""
        once, twice = (self._total_loss(lambda n: np.arange(n)), self._total_loss(lambda n: np.tile(np.arange(n), 2)))
        if not are_close(once, twice):
            what = "total_loss of the same rows twice is another one"
            yield Problem(what, "__call__", f"{twice.item():.6g}", f"{once.item():.6g}: a mean over rows")

    def ignores_the_order_of_rows(self) -> Iterator[Problem]:
        """Rows in another order have the same loss."""
        straight, reverse = self._total_loss(lambda n: np.arange(n)), self._total_loss(lambda n: np.arange(n)[::-1])
        if not are_close(straight, reverse):
            what = "total_loss depends on the order of rows"
            yield Problem(what, "__call__", f"{reverse.item():.6g}", f"{straight.item():.6g}, in whatever order")

    def _total_loss(self, order: Callable[[int], Any]) -> Tensor:
        module, loss = self._make_module(), self._loss()
        batch = reordered(self._batch(module, loss), order(_NUM_ROWS).copy(), _NUM_ROWS)
        total_loss: Tensor = loss(module, batch).total_loss.detach()
        return total_loss

    def draws_from_its_stream(self) -> Iterator[Problem]:
        """The same batch has the same loss, and no global random number is drawn."""
        modules = [self._make_module() for _ in range(2)]
        before = process_streams()
        loss = self._loss()
        batch = self._batch(modules[0], loss)
        first, second = (loss(module, batch, True).total_loss for module in modules)
        expected = "draw_noise, from the stream that use_stream gives: columns of the batch"
        if not are_equal(process_streams(), before):
            yield Problem("the loss draws random numbers of the process", "__call__", expected=expected)
        elif not torch.equal(first, second):
            yield Problem("the same batch has another loss", "__call__", expected=expected)

    def stays_on_its_device(self) -> Iterator[Problem]:
        """It mixes no devices and reads no value back: torch's device without values fails where it would."""
        rows = self._rows(self._loss())
        columns = {name: nested.map_leaves(_without_values, column) for name, column in rows.items()}
        with torch.device("meta"):
            module, loss = self._make_module().to("meta"), self._loss()
        try:
            self._differentiate(module, loss(module, with_noise(columns, loss, module)))
            loss.after_step(module, _NUM_ROWS)
        except (NotImplementedError, RuntimeError) as error:
            what = f"the loss waits for its device, or leaves it: {type(error).__name__}: {error}"
            expected = "tensors on the module's device, without .item(), float(...), .cpu() and branches on values"
            yield Problem(what, "__call__", expected=expected)

    def goes_on_from_its_state(self) -> Iterator[Problem]:
        """Its state is plain, and a new loss with this state and its random stream continues as this one."""
        stream, module = np.random.default_rng(0), self._make_module()
        loss = self._loss(stream)
        metrics = loss(module, self._batch(module, loss))
        reported = {name: getattr(metrics, name) for name in metrics.names()}
        values = {name: float(value.detach()) for name, value in reported.items() if value.numel() == 1}
        loss.after_step(module, _NUM_ROWS)
        loss.after_update(values | {"mean_kl_loss": 1e3})  # something that adapts, if anything does
        state = through_checkpoint(loss.get_state(), self.name)
        other = self._loss(copy.deepcopy(stream))
        other.set_state(copy.deepcopy(state))
        key = find_difference(state, other.get_state())
        if key is not None:
            what = f"get_state after set_state gives another {key}"
            yield Problem(what, "set_state", str(other.get_state().get(key)), str(state.get(key)))
        attributes = [f"self.{name}" for name in differing_attributes(loss, other)]
        got_keys = f"another {', '.join(attributes)} after set_state" if attributes else None
        rows, modules = self._rows(loss), [self._make_module() for _ in range(2)]
        for one in (loss, other):
            one.before_update(0)
        for _ in range(3):
            (expected, total), (got, other_total) = map(self._drawn, modules, (loss, other), [rows, rows])
            column = find_difference(expected, got)
            if column is not None or not torch.equal(total, other_total):
                result = f"draws other {column}" if column else "computes another total_loss"
                what = f"a loss with the state of another one {result}"
                advice = "get_state includes all that later calls depend on; the learner saves the stream itself"
                yield Problem(what, "get_state, set_state", got_keys, advice)
                return

    def _drawn(self, module: RLModule, loss: Loss, rows: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Return what a loss draws for rows, and its total."""
        noise = loss.draw_noise(module, rows)
        total: Tensor = loss(module, {**rows, **noise}).total_loss.detach()
        loss.after_step(module, _NUM_ROWS)
        return noise, total

    def compiles(self) -> Iterator[Problem]:
        """An update as one traced graph equals the eager one."""
        # Traced only: how torch makes code of a graph is nothing that a loss could get wrong.
        with mock.patch.object(torch, "compile", functools.partial(torch.compile, backend="aot_eager")):
            eager, compiled = self._learner(), self._learner(is_compiled=True)
            batch = self._rows(self._loss())
            for num_env_steps in (0, 100):
                expected, update = eager.update(batch, num_env_steps), compiled.update(batch, num_env_steps)
                for name, value in expected.metrics.items():
                    if not np.allclose(update.metrics[name], value, rtol=1e-4, atol=1e-6, equal_nan=True):
                        what = f"a compiled update reports another {name}"
                        yield Problem(what, "__call__", str(update.metrics[name]), str(value))
                for name, rows in expected.rows.items():
                    if not np.allclose(update.rows[name], rows, rtol=1e-4, atol=1e-5):
                        yield Problem(f"a compiled update gives other {name} for rows", "__call__")
            if not np.allclose(compiled.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6):
                yield Problem("a compiled update learns other weights", "__call__")
            if compiled.update(batch, 0).compile_s:
                what = "the second update is compiled again"
                yield Problem(what, "__call__", expected="coefficients that change named by `varying`, as tensors")

    def _learner(self, is_compiled: bool = False) -> ModuleLearner:
        config = dataclasses.replace(self._config, minibatch_size=None, num_epochs=2)
        stream = np.random.default_rng(0)
        return ModuleLearner(self._make_module(), self._loss(), config, stream, is_compiled=is_compiled)

    def ignores_padded_steps(self, make_module: Callable[[], RLModule]) -> Iterator[Problem]:
        """What lies in padded steps of sequences changes no gradient."""
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
            yield Problem(what, "__call__", expected="outputs_at_steps, or at_steps, of the module for env steps alone")


def _without_values(leaf: Tensor) -> Tensor:
    return leaf.to("meta")
