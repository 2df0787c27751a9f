"""A network with one optimiser: a module, or the modules of a `MultiRLModule`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.compat.libraries import LibraryChangedError
from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import ConfigError, Problem
from runner.learners.collective import Collective
from runner.learners.eager_gradient import EagerGradient
from runner.learners.parameter_updater import ParameterUpdater
from runner.learners.trained_module import TrainedModule
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from runner.modules.rl_module import RLModule

if TYPE_CHECKING:
    from runner.learners.compiled_gradient import CompiledGradient

_log = logging.getLogger(__name__)


class TrainedNetwork:
    """The parameters of a network with their optimiser, and its trained modules.

    Args:
        network: network on the learner's device; parameters that no trained module uses are frozen.
        modules: the module, or the trained modules of a `MultiRLModule`.
        config: learning rate, optimiser and clipping.
        collective: learners that update the same network on other rows, or None.
        is_compiled: whether updates compute the gradient by compiled code.
        falls_back: whether updates become eager if the module cannot be compiled.

    Attributes:
        modules: trained modules by id.
        updater: holds the optimiser, and the vector of the gradient.
        eager: computes gradients operation by operation.
        gradient: computes the gradients of updates into the vector of `updater`: `eager`, or compiled code.

    Raises:
        ConfigError: the module cannot be compiled, and does not fall back.
    """

    def __init__(
        self,
        network: RLModule | MultiRLModule,
        modules: Sequence[TrainedModule],
        config: AlgorithmConfig,
        collective: Collective | None = None,
        is_compiled: bool = False,
        falls_back: bool = False,
    ) -> None:
        collective = collective or Collective()
        self.modules = {module.module_id: module for module in modules}
        self.updater = ParameterUpdater(network, config)
        self.eager = EagerGradient(self.updater, collective)
        self.gradient: EagerGradient | CompiledGradient = self.eager
        self._reset_interval, self._steps_since_reset = config.reset_interval, 0
        self._initial = None if config.reset_interval is None else self.updater.get_state()
        if is_compiled:
            try:
                self.gradient = _compiled_gradient(modules, self.eager, self.updater, collective, falls_back)
            except ConfigError as error:
                if not falls_back:
                    raise
                _log.warning("updates are not compiled: %s", error.problems[0].what)

    def end_step(self) -> None:
        """Count a gradient step, and reset parameters and optimiser if `reset_interval` is reached."""
        if self._initial is None or self._reset_interval is None:
            return
        self._steps_since_reset += 1
        if self._steps_since_reset >= self._reset_interval:
            self.updater.set_state(self._initial)
            self._steps_since_reset = 0

    def find_modules(self, module_ids: Collection[str]) -> list[TrainedModule]:
        """Return the trained modules of the network that have one of these ids."""
        return [module for module_id, module in self.modules.items() if module_id in module_ids]

    def get_state(self) -> dict[str, Any]:
        """Return parameters, optimiser, and the state of each module."""
        num_rows = {module_id: module.rows_since_target_update for module_id, module in self.modules.items()}
        resets = {} if self._initial is None else {"steps_since_reset": self._steps_since_reset}
        state = {**self.updater.get_state(), "rows_since_target_update": num_rows, **resets}
        return {**state, **self.get_unshared_state()}

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ between peers: losses, random streams, and compiled sizes."""
        modules = {module_id: module.get_state() for module_id, module in self.modules.items()}
        return {"modules": modules, **self.gradient.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; if the set of trained modules differs, the optimiser is reset.

        Raises:
            ConfigError: the parameters belong to a different network.
        """
        of_modules = state["modules"]
        self._steps_since_reset = int(state.get("steps_since_reset", 0))
        self.updater.set_state(state, has_same_parameters=of_modules.keys() == self.modules.keys())
        for module in self.find_modules(of_modules):
            module.set_state(of_modules[module.module_id])
            module.rows_since_target_update = int(state["rows_since_target_update"][module.module_id])
        self.gradient.set_state(state)


def _compiled_gradient(
    modules: Sequence[TrainedModule],
    eager: EagerGradient,
    updater: ParameterUpdater,
    collective: Collective,
    falls_back: bool,
) -> CompiledGradient:
    try:
        from runner.learners.compiled_gradient import CompiledGradient  # importing torch's compilers takes seconds
    except LibraryChangedError as error:
        raise ConfigError([Problem(str(error), "learners.compile", fix="learners.compile=false")]) from error
    [module] = modules
    return CompiledGradient(module, eager, updater, collective, falls_back)


# Names of values in a learner's state, which earlier versions stored per module instead of in `modules`.
_OF_MODULES = ("loss", "stream", "loss_stream")
_ROWS = "rows_since_target_update"


def in_present_layout(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the state of a learner from a checkpoint of any version to the present layout.

    Earlier versions stored the values of `modules` next to the parameters: for one module directly, otherwise by id.
    """
    learners = {key: _in_present_layout(key, of_network) for key, of_network in state["learners"].items()}
    return {**state, "learners": learners}


def _in_present_layout(key: str, state: Mapping[str, Any]) -> dict[str, Any]:
    if "modules" in state or "loss" not in state:
        return dict(state)
    values = {name: state[name] for name in _OF_MODULES if name in state}
    present = {name: value for name, value in state.items() if name not in values}
    if key == ALL_MODULES:
        ids = list(values["loss"])
        modules = {id_: {name: of_all[id_] for name, of_all in values.items() if id_ in of_all} for id_ in ids}
    else:
        modules = {key: values}
        if _ROWS in present:
            present[_ROWS] = {key: present[_ROWS]}
    return {**present, "modules": modules}
