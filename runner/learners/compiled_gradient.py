"""A loss, its gradient and the clipping as one function that torch compiles.

Dimension letters: P parameters that are learned.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from runner.compat.torch_compile import (
    COMPILE_ERRORS,
    DirectCall,
    allow_tracing,
    can_trace_gradients,
    cpp_compiler,
    is_recompile_limit,
    mark_static_address,
    reason_of,
    silence,
)
from runner.config.errors import ConfigError, Problem
from runner.learners.collective import Collective
from runner.learners.eager_gradient import EagerGradient
from runner.learners.loss import with_noise
from runner.learners.minibatches import Minibatch
from runner.learners.parameter_updater import ParameterUpdater
from runner.learners.trained_module import Record, TrainedModule

_log = logging.getLogger(__name__)

# Minibatches that a batch is cut into differ by one row at most.
_MOST_SIZES = 2
# Each size has one function that reports and one that does not; the rest are for values that change now and then.
_MOST_FUNCTIONS = 12


class CompiledGradient:
    """Computes the clipped gradient of a minibatch in one compiled function, equal to `EagerGradient` within rounding.

    A function is compiled for each of the first two sizes of minibatches, which takes seconds; other sizes are computed
    by `eager`. Values that the loss or the module reads while it is traced are checked at each call, and compiled
    anew once they differ; what the loss names in `varying` is read as tensors instead. Whoever draws random numbers of
    torch draws others than `eager`.

    Args:
        trained: module without memory, with its loss.
        eager: for other sizes.
        updater: of the module; the gradient is written into its `gradient`.
        collective: learners that update the same module on other rows.

    Attributes:
        sizes: rows of the minibatches that are compiled for.
        compile_s: seconds of compiling so far.

    Raises:
        ConfigError: the module has memory, torch is too old, or there is no compiler.
    """

    def __init__(
        self, trained: TrainedModule, eager: EagerGradient, updater: ParameterUpdater, collective: Collective
    ) -> None:
        if trained.module.is_stateful:
            what = "learners.compile: a module with memory has sequences of many lengths"
            got = type(trained.module).__name__
            raise ConfigError([Problem(what, "learners.compile", got, "learners.compile=false")])
        check_torch()
        if updater.device.type == "cpu":
            check_compiler()
        self.sizes: list[int] = []
        self.compile_s = 0.0
        self._trained, self._eager, self._updater, self._collective = trained, eager, updater, collective
        self._module, self._loss = trained.module, trained.loss
        self._norms: Record | None = None  # of the newest gradient, if it is clipped already
        self._varying = {name: torch.zeros((), device=updater.device) for name in trained.loss.varying}
        self._parameters, self._gradient = updater.parameters, updater.gradient
        self._case: tuple[int, bool] = (0, True)  # rows and whether they are reported on, of the newest call
        self._read: dict[tuple[int, bool], dict[str, Any]] = {}  # case -> values that its newest function has read
        self._changed: dict[tuple[int, bool], list[str]] = {}  # and names of them that the one before it read otherwise
        self._num_compiled = 0
        self._is_told = False
        silence()
        self._direct: dict[tuple[int, bool], DirectCall | None] = {}  # case -> its newest function
        # The checks of each call see the sizes of all tensors already.
        options: dict[str, Any] = {"guard_filter_fn": self._note_guards, "size_asserts": False}
        self._on_gpu = updater.device.type == "cuda"
        if self._on_gpu:
            options["triton.cudagraphs"] = True
            mark_static_address(self._gradient)
        self._traced = _with_own_code(self._compute)
        self._function = torch.compile(MethodType(self._traced, self), fullgraph=True, dynamic=False, options=options)

    def compute(self, minibatches: Mapping[TrainedModule, Minibatch]) -> dict[TrainedModule, Record]:
        """Compute the gradient of a minibatch, clipped, the mean over the peers; see `EagerGradient.compute`.

        Raises:
            ConfigError: the loss or the module cannot be compiled.
        """
        minibatch = minibatches[self._trained]
        if not self._takes(minibatch):
            self._norms = None
            return self._eager.compute(minibatches)
        [(columns, _)] = minibatch.microbatches()
        columns = with_noise(columns, self._loss, self._module)
        self._case = minibatch.num_rows, minibatch.is_last_epoch
        if self._varying:
            with self._varying_as_tensors():
                record, norms = self._computed(columns, minibatch.is_last_epoch)
        else:
            record, norms = self._computed(columns, minibatch.is_last_epoch)
        if self._on_gpu:  # the next call writes to the memory of these
            record, norms = _copied(record), _copied(norms)
        if self._collective.num_learners > 1:
            self._collective.mean(self._gradient)
            norms = self._updater.clip_vector(self._gradient)
        self._norms = norms
        return {self._trained: self._trained.rows.without_rows(record, minibatch)}

    def clip(self) -> Record:
        """Return the norms before clipping; see `EagerGradient.clip`."""
        return self._eager.clip() if self._norms is None else self._norms

    def _takes(self, minibatch: Minibatch) -> bool:
        """Return whether minibatches of this size are compiled; the first two sizes are."""
        num_rows = minibatch.num_rows
        if num_rows in self.sizes:
            return True
        if len(self.sizes) < _MOST_SIZES:
            self.sizes.append(num_rows)
            return True
        if not self._is_told:
            self._is_told = True
            sizes = " and ".join(map(str, self.sizes))
            _log.warning("minibatches of other sizes than %s rows are not compiled: %d", sizes, num_rows)
        return False

    def get_state(self) -> dict[str, Any]:
        """Return the sizes that are compiled, so that a resumed run computes each minibatch by the same code."""
        return {"compiled": {"of": self._cut, "sizes": list(self.sizes)}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sizes of a state of a learner, also of one that is not compiled."""
        compiled = state.get("compiled", {})  # another cut gives other sizes
        self.sizes = list(compiled["sizes"]) if compiled and compiled["of"] == self._cut else []

    @property
    def _cut(self) -> list[int | None]:
        return [self._trained.config.train_batch_size_per_learner, self._trained.config.minibatch_size]

    def _computed(self, columns: Mapping[str, Any], is_reporting: bool) -> tuple[Record, Record]:
        """Return what `_compute` does, by compiled code; compile it where there is none, or a value has changed."""
        arguments = self, columns, is_reporting
        direct = self._direct.get(self._case)
        if direct is not None and direct.takes(*arguments):
            return direct(*arguments)  # type: ignore[no-any-return]
        num_compiled, started = self._num_compiled, time.perf_counter()
        allow_tracing(_MOST_FUNCTIONS)
        try:
            computed: tuple[Record, Record] = self._function(columns, is_reporting)
        except COMPILE_ERRORS as error:
            raise ConfigError([self._problem(error)]) from error
        if self._num_compiled > num_compiled:
            self.compile_s += time.perf_counter() - started
        if not self._on_gpu:  # CUDA graphs are told of each call by what torch does around it
            self._direct[self._case] = DirectCall.of(self._traced, *arguments)
        return computed

    @contextmanager
    def _varying_as_tensors(self) -> Iterator[None]:
        """Make tensors of the attributes that the loss names in `varying`, and numbers again at the end."""
        values = {name: getattr(self._loss, name) for name in self._varying}
        for name, tensor in self._varying.items():
            setattr(self._loss, name, tensor.fill_(values[name]))
        try:
            yield
        finally:
            for name, value in values.items():
                setattr(self._loss, name, value)

    def _compute(self, columns: Mapping[str, Any], is_reporting: bool) -> tuple[Record, Record]:
        """Compute what `compute` does for a learner alone; this is what is compiled."""
        metrics = self._loss(self._module, columns, is_reporting)
        if metrics.losses is None:
            parts = _gradients(metrics.total_loss, self._parameters)
        else:
            parts = []
            for name, members in self._updater.members.items():
                parts += _gradients(metrics.losses.get(name), members)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        norms = self._updater.clip_vector(gradient) if self._collective.num_learners == 1 else {}
        self._gradient.copy_(gradient)
        # Older versions of torch cannot trace `vars`.
        names = [field.name for field in fields(metrics) if field.name != "losses"]
        reported = {name: getattr(metrics, name) for name in names}
        return {name: None if value is None else value.detach() for name, value in reported.items()}, norms

    # -- what is compiled ----------------------------------------------------------------------------------------------

    def _note_guards(self, guards: Sequence[Any]) -> list[bool]:
        """Note which values a new function has read; torch asks once for each function which guards it checks: all."""
        read = {guard.name: guard.value for guard in guards if isinstance(guard.value, (bool, int, float, str))}
        before = self._read.get(self._case, read)
        self._changed[self._case] = [name for name, value in read.items() if before.get(name, value) != value]
        self._read[self._case] = read
        self._num_compiled += 1
        return [True] * len(guards)

    def _problem(self, error: Exception) -> Problem:
        """Describe why the loss or the module cannot be compiled, with their line."""
        where = "learners.compile"
        reason, frame = reason_of(error)
        if is_recompile_limit(error):
            names = ", ".join(self._changed.get(self._case, [])) or "what it reads"
            names = names.replace("self._loss", "loss").replace("self._module", "module")
            reason = f"{names} changes from update to update (a tensor may)"
        elif frame is not None:
            where += f", {frame.filename}:{frame.lineno}"
        what = f"{type(self._loss).__name__} with {type(self._module).__name__} cannot be compiled: {reason}"
        return Problem(what, where, allowed="learners.compile=false")


def _gradients(loss: Tensor | None, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss for each parameter, 0 where there is none."""
    learned = [parameter for parameter in parameters if parameter.requires_grad]  # others were frozen since
    if loss is None or not loss.requires_grad or not learned:
        return [torch.zeros_like(parameter) for parameter in parameters]
    found = iter(torch.autograd.grad(loss, learned, retain_graph=True, allow_unused=True, materialize_grads=True))
    return [next(found) if one.requires_grad else torch.zeros_like(one) for one in parameters]


def check_torch() -> None:
    """Check that torch can trace gradients.

    Raises:
        ConfigError: it is too old.
    """
    if not can_trace_gradients():
        what = "this torch cannot trace gradients, which learners.compile needs"
        raise ConfigError([Problem(what, "learners.compile", f"torch {torch.__version__}", "torch 2.11 or newer")])


def check_compiler() -> None:
    """Check that torch finds a C++ compiler.

    Raises:
        ConfigError: it does not.
    """
    if cpp_compiler() is None:
        what = "torch finds no C++ compiler, which learners.compile needs"
        got, allowed = os.environ.get("CXX"), "g++ or clang++; CXX names another one"
        raise ConfigError([Problem(what, "learners.compile", got, allowed)])


def _with_own_code(method: Any) -> FunctionType:
    """Return the function of a method over a copy of its code, since torch keeps and counts what it compiles by code.

    The method has neither a closure nor defaults.
    """
    return FunctionType(method.__code__.replace(), method.__func__.__globals__, method.__name__)


def _copied(record: Record) -> Record:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in record.items()}
