"""Gradients by compiled code, for minibatches of at most two sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from runner.config.errors import ConfigError, Problem
from runner.fast.compiled_loss import CompiledLoss
from runner.learners.collective import Collective
from runner.learners.eager_gradient import EagerGradient
from runner.learners.loss import with_noise
from runner.learners.minibatches import Minibatch
from runner.learners.parameter_updater import ParameterUpdater
from runner.learners.trained_module import Record, TrainedModule

_log = logging.getLogger(__name__)

# The minibatches of one batch differ by at most one row.
_MOST_SIZES = 2


class CompiledGradient:
    """Computes the clipped gradient of a minibatch by a `CompiledLoss`, equal to `EagerGradient` within rounding.

    Code is compiled for the first two sizes of minibatches; `eager` computes other sizes.

    Args:
        trained: stateless module with its loss.
        eager: used for other sizes.
        updater: updater of the module; the gradient is written to its `gradient`.
        collective: learners that update the same module on other rows.
        falls_back: whether `eager` also computes the gradient if the loss or the module cannot be compiled.

    Attributes:
        compiled: the loss with its gradient.
        sizes: numbers of rows for which code is compiled.

    Raises:
        ConfigError: the module is stateful, torch is too old, or there is no compiler.
    """

    def __init__(
        self,
        trained: TrainedModule,
        eager: EagerGradient,
        updater: ParameterUpdater,
        collective: Collective,
        falls_back: bool = False,
    ) -> None:
        if trained.module.is_stateful:
            what = "learners.compile does not support stateful modules, whose sequences have many lengths"
            got = type(trained.module).__name__
            raise ConfigError([Problem(what, "learners.compile", got, fix="learners.compile=false")])
        self._trained, self._eager, self._updater, self._collective = trained, eager, updater, collective
        clip = updater.clip_vector if collective.num_learners == 1 else None
        self.compiled = CompiledLoss(
            trained.loss, trained.module, updater.parameters, updater.members, updater.gradient, clip
        )
        self.sizes: list[int] = []
        self._norms: Mapping[str, Tensor] | None = None  # of the newest gradient, if it is already clipped
        self._has_warned = False
        self._falls_back, self._is_given_up = falls_back, False

    @property
    def compile_s(self) -> float:
        """Seconds spent on compiling so far."""
        return self.compiled.compile_s

    def compute(self, minibatches: Mapping[TrainedModule, Minibatch]) -> dict[TrainedModule, Record]:
        """Compute the clipped gradient of a minibatch, averaged over the peers; see `EagerGradient.compute`.

        Raises:
            ConfigError: the loss or the module cannot be compiled, and does not fall back.
        """
        minibatch = minibatches[self._trained]
        if not self._takes(minibatch):
            self._norms = None
            return self._eager.compute(minibatches)
        [(columns, _)] = minibatch.microbatches()
        columns = with_noise(columns, self._trained.loss, self._trained.module)
        try:
            record, self._norms = self.compiled(columns, minibatch.num_rows, minibatch.is_last_epoch)
        except ConfigError as error:
            if not self._falls_back:
                raise
            _log.warning("updates are no longer compiled: %s", error.problems[0].what)
            self._is_given_up = True
            return self.compute(minibatches)
        if self._collective.num_learners > 1:
            self._collective.mean(self._updater.gradient)
            self._norms = self._updater.clip_vector(self._updater.gradient)
        return {self._trained: self._trained.rows.extract(record, minibatch)}

    def clip(self) -> dict[str, Tensor]:
        """Return the norms before clipping; see `EagerGradient.clip`."""
        return self._eager.clip() if self._norms is None else dict(self._norms)

    def _takes(self, minibatch: Minibatch) -> bool:
        """Return whether minibatches of this size are compiled, which is the case for the first two sizes."""
        num_rows = minibatch.num_rows
        if self._is_given_up:
            return False
        if num_rows in self.sizes:
            return True
        if len(self.sizes) < _MOST_SIZES:
            self.sizes.append(num_rows)
            return True
        if not self._has_warned:
            self._has_warned = True
            sizes = " and ".join(map(str, self.sizes))
            _log.warning("minibatches of %d rows are not compiled, only minibatches of %s rows", num_rows, sizes)
        return False

    def get_state(self) -> dict[str, Any]:
        """Return which sizes are compiled, so that a resumed run computes each minibatch by the same code."""
        return {"compiled": {"of": self._cut, "sizes": list(self.sizes), "is_given_up": self._is_given_up}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sizes from a state of a learner, which may not be compiled."""
        compiled = state.get("compiled", {})  # a different split has other sizes
        is_same = bool(compiled) and compiled["of"] == self._cut
        self.sizes = list(compiled["sizes"]) if is_same else []
        self._is_given_up = is_same and compiled.get("is_given_up", False)

    @property
    def _cut(self) -> list[int | None]:
        return [self._trained.config.train_batch_size_per_learner, self._trained.config.minibatch_size]
