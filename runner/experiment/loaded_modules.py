"""Loads module parameters from another run: `load_state_path` and `load_state_strict` of a module block.

A module loads parameters, and the connector states that env runners share (the moments of a `MeanStdFilter`).
Everything else starts from scratch: optimisers, counters, random streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runner.checkpoints import load_checkpoint, naming_checkpoint
from runner.checkpoints.checkpoint import config_of
from runner.checkpoints.folder import ModuleSource, module_sources, shared_state_in
from runner.config.errors import ConfigError, Problem, show_value
from runner.config.required_trust import mask_resolvers
from runner.config.schemas import ExperimentConfig
from runner.config.stored import compose_stored
from runner.module_building import BuiltModule
from runner.modules.flat_parameters import flat_images_fix
from runner.modules.multi_rl_module import parameters_by_module

_MOST_NAMES = 8


@dataclass(frozen=True)
class SavedModule:
    """A module in a checkpoint.

    Attributes:
        parameters: name -> array, buffers included.
        shared: connector name -> state.
        activations: field of the module block -> value; other activations would change the function.
    """

    source: ModuleSource
    module_id: str
    parameters: Mapping[str, Any]
    shared: Mapping[str, Any]
    activations: Mapping[str, Any]


@dataclass(frozen=True)
class LoadedModule:
    """A module with parameters loaded from a checkpoint.

    Attributes:
        saved: the module in the checkpoint.
        parameters, connectors: names of the loaded parameters and connectors.
        misfits: descriptions of names that only one of the two modules has; empty unless `load_state_strict` is false.
    """

    module_id: str
    saved: SavedModule
    parameters: tuple[str, ...]
    connectors: tuple[str, ...]
    misfits: tuple[str, ...]

    def __str__(self) -> str:
        """Describe the loaded module for the start of the run."""
        source, taken = self.saved.source, " and ".join([f"{len(self.parameters)} parameters", *self.connectors])
        other_id = "" if self.saved.module_id == self.module_id else f"{self.saved.module_id} in "
        origin = f"starts with {taken} of {other_id}{source.checkpoint} (digest {source.digest[:12]})"
        return "; ".join([origin, *self.misfits])


def load_modules(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> list[LoadedModule]:
    """Load the parameters of each module with a `load_state_path` from its checkpoint.

    Args:
        config: configuration of the run.
        built_modules: module id -> network, which is changed, and pipelines, which are not (see `shared_states`).

    Raises:
        ConfigError: a checkpoint is missing or does not fit; nothing was changed.
        CheckpointError: a checkpoint is truncated or altered.
    """
    sources = module_sources(config)
    contents = {source.checkpoint: load_checkpoint(source.checkpoint) for source in sources.values()}
    fits = []
    for module_id, built in built_modules.items():
        path = built.spec.module.load_state_path
        if path is not None:
            source = sources[path]
            fits.append(_Fit(built, _read_saved(module_id, source, *contents[source.checkpoint])))
    problems = [problem for fit in fits for problem in fit.problems()]
    if problems:
        raise ConfigError(problems)
    return [fit.load() for fit in fits]


def shared_states(loaded: Sequence[LoadedModule]) -> dict[str, Any]:
    """Return module id -> connector name -> state, for the processes that run the pipelines."""
    return {
        one.module_id: {name: one.saved.shared[name] for name in one.connectors} for one in loaded if one.connectors
    }


def _read_saved(
    module_id: str, source: ModuleSource, state: Mapping[str, Any], manifest: Mapping[str, Any]
) -> SavedModule:
    """Read the module with this id from a checkpoint; a checkpoint with a single module may use any id."""
    with naming_checkpoint(source.checkpoint):
        learners = parameters_by_module(state["learners"]["learners"])
        saved_id = next(iter(learners)) if len(learners) == 1 else module_id
        if saved_id not in learners:
            what = f"the checkpoint has several modules, but none is named {module_id}"
            where = f"load_state_path\n{source.checkpoint}"
            raise ConfigError(
                [Problem(what, where, ", ".join(learners), f"a module named {module_id}, or a single module")]
            )
        shared = shared_state_in(state).get(saved_id, {})
        values = compose_stored(mask_resolvers(config_of(manifest))[0], [], (), None).values
        own = values.get("multi_agent", {}).get("modules", {}).get(saved_id, {})
        block = own if "trains_on" in own else values["module"] | own
        activations = {name: block[name] for name in block if name.endswith(("_activation", "vf_normalization"))}
        return SavedModule(source, saved_id, learners[saved_id], shared, activations)


class _Fit:
    """Compares a module with a saved one, name by name."""

    def __init__(self, built: BuiltModule, saved: SavedModule) -> None:
        self._spec = built.spec
        self._saved = saved
        self._module, self._parameters = built.module, built.module.state_dict()
        pipeline = built.env_to_module
        connectors = pipeline.merge_states([pipeline.get_state()])  # initial states
        here = {name: _shape(value) for name, value in {**self._parameters, **connectors}.items()}
        there = {name: _shape(value) for name, value in {**saved.parameters, **saved.shared}.items()}
        self._here, self._there = here, there
        self._common = [name for name in here if name in there]
        self._taken_parameters = tuple(name for name in self._common if name in self._parameters)
        self._misfits = [
            *_describe_lack([name for name in there if name not in here], "in the checkpoint"),
            *_describe_lack([name for name in here if name not in there], "here"),
            *self._other_activations(),
        ]

    def problems(self) -> Iterator[Problem]:
        """Yield the reason why the parameters cannot be loaded."""
        where = f"module {self._spec.module_id}, load_state_path\n{self._saved.source.checkpoint}"
        here, there = self._here, self._there
        differing = [name for name in self._common if here[name] != there[name]]
        if differing:
            what = "the parameters in the checkpoint have different shapes: the network or its observations differ"
            got, expected = (_first([f"{name} {shapes[name]}" for name in differing]) for shapes in (there, here))
            fix = flat_images_fix(self._module, there)
            expected = f"{expected} in this configuration"
            yield Problem(what, where, f"{got} in the checkpoint", expected, fix=fix or None)
        elif not self._taken_parameters:
            what = "the checkpoint does not contain any parameter of this module"
            yield Problem(what, where, _first(list(self._saved.parameters)), _first(list(self._parameters)))
        elif self._misfits and self._spec.module.load_state_strict:
            what = "the module in the checkpoint differs from the module in this configuration"
            fix = "module.load_state_strict=false loads the parameters that both have"
            yield Problem(what, where, "; ".join(self._misfits), fix=fix)

    def load(self) -> LoadedModule:
        """Load the parameters."""
        with torch.no_grad():
            for name in self._taken_parameters:
                self._parameters[name].copy_(torch.as_tensor(self._saved.parameters[name]))
        connectors = tuple(name for name in self._common if name not in self._parameters)
        return LoadedModule(self._spec.module_id, self._saved, self._taken_parameters, connectors, tuple(self._misfits))

    def _other_activations(self) -> Iterator[str]:
        for name, value in self._saved.activations.items():
            configured = getattr(self._spec.module, name, value)
            if configured != value:
                yield f"{name} {show_value(value)} in the checkpoint, {show_value(configured)} here"


def _shape(value: Any) -> str:
    """Format the shape of an array, or the shapes of the arrays in a connector's state."""
    if not isinstance(value, Mapping):
        return str(tuple(np.shape(value)))
    return ", ".join(dict.fromkeys(_shape(leaf) for leaf in value.values() if np.ndim(leaf)))


def _describe_lack(names: Sequence[str], place: str) -> Iterator[str]:
    if names:
        yield f"only {place}: {_first(names)}"


def _first(texts: Sequence[str]) -> str:
    """List the first few strings and the number of the others."""
    more = len(texts) - _MOST_NAMES
    return ", ".join([*texts[:_MOST_NAMES], *([f"... ({more} more)"] if more > 0 else [])])
