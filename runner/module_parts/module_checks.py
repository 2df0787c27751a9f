"""Checks of a module of the user's: what its passes return for a few rows, before anything of a run is made."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.config.errors import Problem, nearest_match
from runner.config.user_code import is_user_defined_method, outline, place_of
from runner.environments.stand_in import item_of
from runner.episodes import nested
from runner.modules.rl_module import RLModule

_ROWS, _STEPS = 5, 3
_ACTING = ("forward_exploration", "forward_inference")
_NOBODY: Mapping[str, Sequence[str]] = MappingProxyType({})
_DIST, _VALUES, _STATE = "action_dist_inputs", "vf_preds", "state_out"

SUPER_FIRST = "super().__init__(observation_space, action_space, config) as its first line"


def find_wrong_class(module: RLModule) -> Problem | None:
    """Find what is wrong with a module of the user's before it is asked anything."""
    part = type(module)
    name, where = part.__name__, place_of(part, "__init__")
    if "_parameters" not in vars(module) or not hasattr(module, "action_dist"):
        return Problem(f"the __init__ of {name} does not call RLModule's", where, expected=SUPER_FIRST)
    if next(module.parameters(), None) is None:
        expected = "layers or nn.Parameters as attributes of the module; a list of them in nn.ModuleList"
        return Problem(f"{name} has no parameters, so that nothing can be learned", where, expected=expected)
    for attribute, column in (("inputs", "state_in"), ("outputs", _STATE)):
        declared = getattr(module, attribute)
        if (column in declared) != module.is_stateful:
            what = f"{name}.{attribute} {'lacks' if module.is_stateful else 'has'} {column}"
            got = f"{attribute} {', '.join(declared)}; is_stateful {str(module.is_stateful).lower()}"
            return Problem(what, place_of(part), got, "is_stateful = True with state_in and state_out, or none of them")
    return None


class ModuleCheck:
    """What a module returns for random rows of its observation space, against what runners and losses take.

    A copy of the module is asked, and no random number of the run is drawn. A pass that raises for such rows is passed
    over: real rows may be more particular than their space says.
    """

    def __init__(self, module: RLModule) -> None:
        self._class = type(module)
        self._module = copy.deepcopy(module).eval()

    def acting(self) -> Iterator[Problem]:
        """Yield what runners could not use of the passes for acting."""
        problem = self._wrong_initial_state() if self._module.is_stateful else None
        if problem is not None:
            yield problem
            return
        for name in [name for name in _ACTING if is_user_defined_method(self._class, name)] or _ACTING[:1]:
            yield from self._wrong(name, self._module.outputs, 1)

    def learning(self, needs: Mapping[str, Iterable[str]]) -> Iterator[Problem]:
        """Yield outputs of `forward_train` that the loss or a connector of the learner pipeline cannot use.

        Args:
            needs: name of a loss or a connector -> outputs, methods and attributes of the module that it uses.
        """
        module = self._module
        askers: dict[str, list[str]] = {_DIST: []} if _DIST in module.train_outputs else {}
        for asker, need in [(asker, need) for asker, names in needs.items() for need in names]:
            if need in module.train_outputs or not hasattr(module, need):
                askers.setdefault(need, []).append(asker)
            elif need == "compute_values" and self._class.compute_values is RLModule.compute_values:
                through = f"{asker} (through compute_values, which {self._class.__name__} does not override)"
                askers.setdefault(_VALUES, []).append(through)
        yield from self._wrong("forward_train", list(askers), _STEPS, askers)

    def _batch(self, num_steps: int) -> dict[str, Any]:
        """Return rows of random observations; of a module with memory in sequences of so many steps."""
        module = self._module
        leading = self._leading(num_steps)
        space = copy.deepcopy(module.observation_space)
        space.seed(0)
        items = nested.stack([item_of(space) for _ in range(int(np.prod(leading)))])
        rows = nested.map_leaves(lambda leaf: torch.from_numpy(leaf.reshape(*leading, *leaf.shape[1:])), items)
        batch: dict[str, Any] = {"obs": rows}
        if module.num_noise:
            batch["noise"] = torch.from_numpy(module.draw_noise(np.random.default_rng(0), leading))
        if module.is_stateful:
            state = module.get_initial_state()
            batch["state_in"] = nested.map_leaves(lambda leaf: leaf.expand(_ROWS, *leaf.shape).clone(), state)
        return batch

    def _returned(self, name: str, batch: dict[str, Any]) -> list[Any]:
        """Return what a pass returns for a batch, alone in a list; an empty one where it raises."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                return [getattr(self._module, name)(batch)]
            except Exception:  # told where real rows raise it
                return []

    def _wrong(
        self, name: str, columns: Sequence[str], num_steps: int, askers: Mapping[str, Sequence[str]] = _NOBODY
    ) -> Iterator[Problem]:
        """Yield what is wrong with the outputs of a pass, which must have these columns.

        Args:
            name: of the pass.
            columns: that its outputs must have.
            num_steps: of the sequences that a module with memory is given.
            askers: column -> names of the loss and the connectors that need it.
        """
        batch = self._batch(num_steps)
        what, where = f"{self._class.__name__}.{name} returns", self._place(name)
        for outputs in self._returned(name, dict(batch)):
            if not isinstance(outputs, Mapping):
                got = (
                    "None"
                    if outputs is None
                    else f"{type(outputs).__name__}: {outline(outputs)}".removesuffix(": None")
                )
                yield Problem(f"{what} no dict", where, got, f"a dict with {', '.join(columns)}")
                return
            for column in columns:
                if column not in outputs:
                    got = ", ".join(map(str, outputs)) or "an empty dict"
                    near = nearest_match(column, [str(other) for other in outputs if other not in columns])
                    yield Problem(
                        f"{what} no {column}{_needed_by(askers.get(column, ()))}",
                        where,
                        got,
                        f"a dict with {', '.join(columns)}",
                        near,
                    )
            yield from self._misfits(name, outputs, num_steps)
            if _STATE in columns and _STATE in outputs:
                yield from self._wrong_state(what, where, outputs[_STATE], batch["state_in"])

    def _misfits(self, name: str, outputs: Mapping[str, Any], num_steps: int) -> Iterator[Problem]:
        """Yield outputs with another shape or dtype than they must have."""
        what, where, leading = f"{self._class.__name__}.{name} returns", self._place(name), self._leading(num_steps)
        dist, shapes = self._module.action_dist, {}
        if hasattr(dist, "num_inputs"):  # other objects are no distribution of ours, and what needs one says so
            meaning = f"a row for each of obs, of {dist.num_inputs} numbers as {type(dist).__name__} takes them"
            shapes[_DIST] = ((*leading, dist.num_inputs), meaning)
        if name == "forward_train":
            shapes[_VALUES] = (leading, "a number for each row of obs")
        for column, (shape, meaning) in shapes.items():
            if column in outputs:
                yield from self._misfit(f"{what} {column}", where, outputs[column], shape, meaning)

    def _leading(self, num_steps: int) -> tuple[int, ...]:
        return (_ROWS, num_steps) if self._module.is_stateful else (_ROWS,)

    def _misfit(self, what: str, where: str, output: Any, shape: tuple[int, ...], meaning: str) -> Iterator[Problem]:
        expected = f"{shape} float32: {meaning}"
        if not isinstance(output, Tensor):
            yield Problem(f"{what} that is not a tensor", where, outline(output) or type(output).__name__, expected)
            return
        fits = tuple(output.shape) in {shape, (shape[0], *shape[2:]) if shape[1:2] == (1,) else shape}
        if not fits:
            hint = "; .squeeze(-1) takes the last axis away" if tuple(output.shape) == (*shape, 1) else ""
            yield Problem(f"{what} of another shape", where, outline(output), f"{expected}{hint}")
        elif output.dtype != torch.float32:
            yield Problem(f"{what} of another dtype", where, outline(output), f"{expected}; .float() makes it")

    def _wrong_initial_state(self) -> Problem | None:
        state: Any = self._module.get_initial_state()
        what, expected = (
            f"{self._class.__name__}.get_initial_state returns",
            'a dict of tensors, {"h": torch.zeros(64)}',
        )
        where = self._place("get_initial_state")
        if not isinstance(state, dict) or not state:
            got = "an empty dict" if isinstance(state, dict) else outline(state) or type(state).__name__
            return Problem(f"{what} no dict of tensors, and is_stateful is true", where, got, expected)
        wrong = [leaf for leaf in nested.leaves(state) if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32]
        if wrong:
            got = f"{type(wrong[0]).__name__} {outline(wrong[0]) or ''}".rstrip()
            return Problem(f"{what} memory that is no float32 tensor", where, got, expected)
        return None

    def _wrong_state(self, what: str, where: str, state: Any, state_in: Any) -> Iterator[Problem]:
        try:
            nested.map_leaves(_check_same, state_in, state)
        except (TypeError, ValueError):
            got = outline(state) or type(state).__name__
            expected = f"{outline(state_in)}, as state_in: memory of the same names and shapes"
            yield Problem(f"{what} {_STATE} of another form than state_in", where, got, expected)

    def _place(self, name: str) -> str:
        return place_of(self._class, name, *(("forward_train",) if name in _ACTING else ()))


def _needed_by(askers: Sequence[str]) -> str:
    return f", which {' and '.join(askers)} {'need' if len(askers) > 1 else 'needs'}" if askers else ""


def _check_same(given: Tensor, returned: Any) -> None:
    if not isinstance(returned, Tensor) or given.shape != returned.shape or given.dtype != returned.dtype:
        raise ValueError("another shape or dtype")
