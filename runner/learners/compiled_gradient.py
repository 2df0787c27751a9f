"""A loss, its gradient and the clipping as one function that torch compiles.

Dimension letters: P parameters that are learned.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException, TorchRuntimeError
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

from runner.config.errors import ConfigError, Problem
from runner.learners.gradient_steps import GradientSteps
from runner.learners.loss import Loss, with_noise
from runner.learners.minibatches import Minibatch
from runner.learners.peers import Peers
from runner.modules.rl_module import RLModule

_log = logging.getLogger(__name__)

# Minibatches that a batch is cut into differ by one row at most.
_MOST_SIZES = 2
_TALKATIVE = ("torch._dynamo.convert_frame", "torch._subclasses.fake_tensor")

Record = dict[str, Any]


class CompiledGradient:
    """Computes the gradient of a minibatch in one compiled function, equal to the eager one within rounding.

    A function is compiled for each of the first two sizes of minibatches, which takes seconds; other sizes are for the
    eager learner. Numbers, flags and texts that the loss or the module reads while it is traced are checked at each
    call, and compiled anew once they differ; what the loss names in `varying` is read as tensors instead.

    Args:
        module: without memory, on the learner's device.
        loss: of the algorithm.
        steps: of the module; the gradient is written into its `gradient`.
        peers: learners that update the same module on other rows.

    Attributes:
        sizes: rows of the minibatches that are compiled for.
        compile_s: seconds of compiling so far.

    Raises:
        ConfigError: the module has memory.
    """

    def __init__(self, module: RLModule, loss: Loss, steps: GradientSteps, peers: Peers) -> None:
        if module.is_stateful:
            what = "learners.compile: a module with memory has sequences of many lengths"
            raise ConfigError([Problem(what, "learners.compile", type(module).__name__, "learners.compile=false")])
        self.sizes: list[int] = []
        self.compile_s = 0.0
        self._module, self._given, self._steps, self._peers = module, loss, steps, peers
        self._traced = copy.copy(loss)
        self._varying = {name: torch.zeros((), device=steps.device) for name in loss.varying}
        self._values = dict.fromkeys(loss.varying, 0.0)
        self._parameters, self._gradient = steps.parameters, steps.gradient
        self._num_compiled = 0
        self._read: dict[str, Any] = {}  # by the function that was compiled last
        self._changed: list[str] = []  # since the function before it
        self._is_told = False
        torch._dynamo.config.trace_autograd_ops = True
        for name in _TALKATIVE:  # what they log is in the error
            logging.getLogger(name).setLevel(logging.CRITICAL)
        options: dict[str, Any] = {"guard_filter_fn": self._checked_guards}
        if steps.device.type == "cuda":
            options["triton.cudagraphs"] = True
            torch._dynamo.mark_static_address(self._gradient)
        self._function = torch.compile(  # type: ignore[call-overload]  # the stubs lack isolate_recompiles
            self._compute, fullgraph=True, dynamic=False, isolate_recompiles=True, options=options
        )

    def takes(self, minibatch: Minibatch) -> bool:
        """Return whether minibatches of this size are compiled."""
        if minibatch.num_rows in self.sizes:
            return minibatch.num_parts == 1
        if len(self.sizes) < _MOST_SIZES and minibatch.num_parts == 1:
            self.sizes.append(minibatch.num_rows)
            return True
        if not self._is_told:
            self._is_told = True
            sizes = " and ".join(map(str, self.sizes))
            _log.warning("minibatches of other sizes than %s rows are not compiled: %d", sizes, minibatch.num_rows)
        return False

    def __call__(self, minibatch: Minibatch) -> tuple[Record, Record]:
        """Compute the gradient of a minibatch, clipped, the mean over the peers.

        Returns:
            What the loss reports, and the norms before clipping.

        Raises:
            ConfigError: the loss or the module cannot be compiled.
        """
        [(columns, _)] = minibatch.microbatches()
        columns = with_noise(columns, self._given, self._module)
        self._follow_loss()
        num_compiled, started = self._num_compiled, time.perf_counter()
        try:
            record, norms = self._function(columns, minibatch.is_last_epoch)
        except (TorchDynamoException, FailOnRecompileLimitHit, CppCompileError, InvalidCxxCompiler) as error:
            raise ConfigError([self._problem(error)]) from error
        if self._num_compiled > num_compiled:
            self.compile_s += time.perf_counter() - started
        if self._peers.num_learners > 1:
            self._peers.mean(self._gradient)
            norms = self._steps.clip(self._gradient)
        return record, norms

    def _follow_loss(self) -> None:
        """Let the loss that is traced have the values of the loss that adapts."""
        vars(self._traced).update(vars(self._given))
        for name, tensor in self._varying.items():
            value = getattr(self._given, name)
            if value != self._values[name]:
                self._values[name] = value
                tensor.fill_(value)
            setattr(self._traced, name, tensor)

    def _compute(self, columns: Mapping[str, Any], is_reporting: bool) -> tuple[Record, Record]:
        """Compute what `__call__` does for a learner alone; this is what is compiled."""
        metrics = self._traced(self._module, columns, is_reporting)
        parts = torch.autograd.grad(metrics.total_loss, self._parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        norms = self._steps.clip(gradient) if self._peers.num_learners == 1 else {}
        self._gradient.copy_(gradient)
        return {name: None if value is None else value.detach() for name, value in vars(metrics).items()}, norms

    def _checked_guards(self, guards: Sequence[Any]) -> list[bool]:
        """Return which guards of a new function are checked at each call; torch asks once for each function.

        Left out are the most numerous ones: global names, and the shapes of parameters.
        """
        self._num_compiled += 1
        read = {guard.name: guard.value for guard in guards if isinstance(guard.value, (bool, int, float, str))}
        self._changed = [name for name, value in read.items() if self._read.get(name, value) != value]
        self._read = read
        return [not guard.is_global and not isinstance(guard.value, nn.Parameter) for guard in guards]

    def _problem(self, error: Exception) -> Problem:
        """Describe why the loss or the module cannot be compiled, with their line."""
        error = getattr(error, "inner_exception", error)
        if isinstance(error, InvalidCxxCompiler):
            what = "torch finds no C++ compiler, which learners.compile needs"
            return Problem(what, "learners.compile", os.environ.get("CXX"), "g++ or clang++; CXX names another one")
        text, where = str(error), "learners.compile"
        reason = text.splitlines()[0]
        if isinstance(error, TorchRuntimeError) and ": got " in text:
            reason = text.split(": got ")[1].splitlines()[0]
        if isinstance(error, FailOnRecompileLimitHit):
            names = [name.replace("self._traced", "loss").replace("self._module", "module") for name in self._changed]
            reason = f"{', '.join(names) or 'what it reads'} changes from update to update (a tensor may)"
        elif frames := list(getattr(error, "real_stack", None) or ()):
            where += f", {frames[-1].filename}:{frames[-1].lineno}"
        what = f"{type(self._given).__name__} with {type(self._module).__name__} cannot be compiled: {reason}"
        return Problem(what, where, allowed="learners.compile=false")
