"""Compile a loss, its gradient and the clipping into one function with torch.

The plain version is `EagerGradient`. An update of `dqn_cartpole` (`benchmarks/dqn.py`) takes 230 us instead of 580, see
benchmarks/results/benchmarks.md.

Dimension letters: P learned parameters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

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
from runner.fast.onednn_products import OneDNNProducts, is_faster

Record = dict[str, Any]

# Each size needs a function that reports and one that does not; the rest are for values that change occasionally.
_MOST_FUNCTIONS = 12


class CompiledLoss:
    """Computes a loss, its gradient and the clipping of the gradient in one compiled function.

    Values that the loss or the module reads during tracing are checked at each call. If they differ, the function is
    compiled again. Attributes that the loss names in `varying` are read as tensors instead. Code that draws random
    numbers from torch draws different ones than eager code.

    Args:
        loss: called with module, columns and whether it reports.
        module: must be stateless.
        parameters: parameters of the module, in the order of the gradient.
        members: optimiser -> its parameters.
        gradient: (P,) gradient that is overwritten by each call.
        clip: clips a gradient (P,) in place and returns the norms before clipping, or None to clip later.

    Attributes:
        compile_s: seconds spent on compiling so far.

    Raises:
        ConfigError: torch is too old, or there is no compiler.
    """

    def __init__(
        self,
        loss: Any,
        module: nn.Module,
        parameters: Sequence[Tensor],
        members: Mapping[str, Sequence[Tensor]],
        gradient: Tensor,
        clip: Callable[[Tensor], dict[str, Tensor]] | None,
    ) -> None:
        check_torch()
        if gradient.is_cpu:
            check_compiler()
        self.compile_s = 0.0
        self._loss, self._module, self._clip = loss, module, clip
        self._parameters, self._members, self._gradient = parameters, members, gradient
        self._varying = {name: torch.zeros((), device=gradient.device) for name in loss.varying}
        self._case: tuple[int, bool] = (0, True)  # of the newest call: number of rows, and whether metrics are reported
        self._read: dict[tuple[int, bool], dict[str, Any]] = {}  # case -> values read by its newest function
        self._changed: dict[tuple[int, bool], list[str]] = {}  # names of the values that caused the last recompilation
        self._num_compiled = 0
        silence()
        self._direct: dict[tuple[int, bool], DirectCall | None] = {}  # case -> its newest function
        # The checks at each call already see the sizes of all tensors.
        options: dict[str, Any] = {"guard_filter_fn": self._note_guards, "size_asserts": False}
        self._on_gpu = gradient.is_cuda
        if self._on_gpu:
            options["triton.cudagraphs"] = True
            mark_static_address(self._gradient)
        else:
            options["cpp_wrapper"] = True  # calls the generated code from C++ too
            if is_faster():
                options["post_grad_custom_post_pass"] = OneDNNProducts()
        self._traced = _with_own_code(self._compute)
        self._function = torch.compile(MethodType(self._traced, self), fullgraph=True, dynamic=False, options=options)

    def __call__(self, columns: Mapping[str, Any], num_rows: int, is_reporting: bool) -> tuple[Record, Record]:
        """Compute the gradient of a minibatch.

        Args:
            columns: columns of the minibatch.
            num_rows: rows of the minibatch; a separate function is compiled for each size.
            is_reporting: whether the loss computes all metrics.

        Returns:
            The metrics of the loss, and the norms before clipping.

        Raises:
            ConfigError: the loss or the module cannot be compiled.
        """
        self._case = num_rows, is_reporting
        if self._varying:
            with self._varying_as_tensors():
                record, norms = self._computed(columns, is_reporting)
        else:
            record, norms = self._computed(columns, is_reporting)
        if self._on_gpu:  # the next call overwrites the memory of these records
            record, norms = _copied(record), _copied(norms)
        return record, norms

    def _computed(self, columns: Mapping[str, Any], is_reporting: bool) -> tuple[Record, Record]:
        """Return the result of `_compute` from compiled code; compile it first if needed or if a value has changed."""
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
        if not self._on_gpu:  # with CUDA graphs, torch's code around each call must run
            self._direct[self._case] = DirectCall.of(self._traced, *arguments)
        return computed

    @contextmanager
    def _varying_as_tensors(self) -> Iterator[None]:
        """Replace the attributes that the loss names in `varying` by tensors, and restore the numbers at the end."""
        values = {name: getattr(self._loss, name) for name in self._varying}
        for name, tensor in self._varying.items():
            setattr(self._loss, name, tensor.fill_(values[name]))
        try:
            yield
        finally:
            for name, value in values.items():
                setattr(self._loss, name, value)

    def _compute(self, columns: Mapping[str, Any], is_reporting: bool) -> tuple[Record, Record]:
        """Compute the results of `__call__`; this function is compiled."""
        metrics = self._loss(self._module, columns, is_reporting)
        if metrics.losses is None:
            parts = _gradients(metrics.total_loss, self._parameters)
        else:
            parts = []
            for name, members in self._members.items():
                parts += _gradients(metrics.losses.get(name), members)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        norms = {} if self._clip is None else self._clip(gradient)
        self._gradient.copy_(gradient)
        # Older versions of torch cannot trace `vars`.
        names = [field.name for field in fields(metrics) if field.name != "losses"]
        reported = {name: getattr(metrics, name) for name in names}
        return {name: None if value is None else value.detach() for name, value in reported.items()}, norms

    # -- compilation ---------------------------------------------------------------------------------------------------

    def _note_guards(self, guards: Sequence[Any]) -> list[bool]:
        """Record which values a new function has read, and return which guards torch checks at each call.

        Functions and classes in modules are assumed to stay the same; a quarter of all guards is for them.
        """
        read = {guard.name: guard.value for guard in guards if isinstance(guard.value, (bool, int, float, str))}
        before = self._read.get(self._case, read)
        self._changed[self._case] = [name for name, value in read.items() if before.get(name, value) != value]
        self._read[self._case] = read
        self._num_compiled += 1
        return [_may_change(guard) for guard in guards]

    def _problem(self, error: Exception) -> Problem:
        """Describe the reason why the loss or the module cannot be compiled, with its source line."""
        where = "learners.compile"
        reason, frame = reason_of(error)
        if is_recompile_limit(error):
            names = ", ".join(self._changed.get(self._case, [])) or "a value that it reads"
            names = names.replace("self._loss", "loss").replace("self._module", "module")
            reason = f"{names} changes from update to update (only a tensor may change)"
        elif frame is not None:
            where += f", {frame.filename}:{frame.lineno}"
        what = f"{type(self._loss).__name__} with {type(self._module).__name__} cannot be compiled: {reason}"
        return Problem(what, where, fix="learners.compile=false")


def _may_change(guard: Any) -> bool:
    """Return whether a guard checks something that may differ from one update to the next."""
    return not guard.is_global or isinstance(guard.value, (bool, int, float, str))


def _gradients(loss: Tensor | None, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss for each parameter, or zeros for parameters it does not depend on."""
    learned = [parameter for parameter in parameters if parameter.requires_grad]  # parameters may be frozen later
    if loss is None or not loss.requires_grad or not learned:
        return [torch.zeros_like(parameter) for parameter in parameters]
    found = iter(torch.autograd.grad(loss, learned, retain_graph=True, allow_unused=True, materialize_grads=True))
    return [next(found) if one.requires_grad else torch.zeros_like(one) for one in parameters]


def check_torch() -> None:
    """Check that torch can trace gradients.

    Raises:
        ConfigError: torch is too old.
    """
    if not can_trace_gradients():
        what = "the installed torch cannot trace gradients, which learners.compile needs"
        raise ConfigError([Problem(what, "learners.compile", f"torch {torch.__version__}", "torch 2.11 or newer")])


def check_compiler() -> None:
    """Check that torch finds a C++ compiler.

    Raises:
        ConfigError: no compiler was found.
    """
    if cpp_compiler() is None:
        what = "torch cannot find a C++ compiler, which learners.compile needs"
        fix = "install g++ or clang++, or set CXX to another compiler"
        raise ConfigError([Problem(what, "learners.compile", os.environ.get("CXX"), fix=fix)])


def _with_own_code(method: Any) -> FunctionType:
    """Return the function of a method with a copy of its code, because torch caches compiled functions by code.

    The method has neither a closure nor defaults.
    """
    return FunctionType(method.__code__.replace(), method.__func__.__globals__, method.__name__)


def _copied(record: Record) -> Record:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in record.items()}
