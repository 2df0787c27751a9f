"""Checks of a user-defined module: its outputs for a few rows, computed before anything else is built."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.config.errors import ConfigError, Problem, nearest_match
from runner.config.user_code import is_user_defined_method, outline, place_of
from runner.environments.stand_in import item_of
from runner.episodes import nested
from runner.modules.rl_module import RLModule

_ROWS, _STEPS = 5, 3
_ACTING = ("forward_exploration", "forward_inference")
_NO_USERS: Mapping[str, Sequence[str]] = MappingProxyType({})
_DIST, _VALUES, _STATE = "action_dist_inputs", "vf_preds", "state_out"

SUPER_FIRST = "call super().__init__(observation_space, action_space, config) in the first line of __init__"


def find_wrong_class(module: RLModule, acts: bool = True) -> Problem | None:
    """Find a mistake in the class of a user-defined module before calling its methods; `acts`: for agents."""
    part = type(module)
    name, where = part.__name__, place_of(part, "__init__")
    if "_parameters" not in vars(module) or not hasattr(module, "action_dist"):
        return Problem(f"{name}.__init__ does not call RLModule.__init__", where, fix=SUPER_FIRST)
    if next(module.parameters(), None) is None:
        fix = "assign layers or nn.Parameters to attributes of the module, and lists of them as nn.ModuleList"
        return Problem(f"{name} does not have any parameters to learn", where, fix=fix)
    for attribute, column in (("inputs", "state_in"), *([("outputs", _STATE)] if acts else ())):
        declared = getattr(module, attribute)
        if (column in declared) != module.is_stateful:
            what = f"{name}.{attribute} {'lacks' if module.is_stateful else 'contains'} {column}"
            got = f"{attribute} {', '.join(declared)}; is_stateful = {module.is_stateful}"
            return Problem(
                what, place_of(part), got, "is_stateful = True together with state_in and state_out, or none of them"
            )
    return None


class ModuleCheck:
    """Compares the outputs of a module for random observations with the requirements of runners and losses.

    The check runs a copy of the module, and draws no random numbers from the run's streams. A pass that raises an error
    is skipped, since random observations may not be realistic enough for it.

    Raises:
        ConfigError: the module cannot be copied.
    """

    def __init__(self, module: RLModule) -> None:
        self._class = type(module)
        try:
            self._module = copy.deepcopy(module).eval()
        except Exception as error:  # attributes of user-defined modules may raise anything
            what, place = f"{self._class.__name__} cannot be copied: {error}", place_of(self._class, "__init__")
            fix = "remove the attribute that cannot be copied, such as a lock, a file or a generator"
            raise ConfigError([Problem(what, place, fix=fix)]) from error

    def acting(self) -> Iterator[Problem]:
        """Yield problems in the outputs of the passes for acting."""
        problem = self._wrong_initial_state() if self._module.is_stateful else None
        if problem is not None:
            yield problem
            return
        for name in [name for name in _ACTING if is_user_defined_method(self._class, name)] or _ACTING[:1]:
            yield from self._wrong(name, self._module.outputs, 1)

    def learning(self, needs: Mapping[str, Iterable[str]]) -> Iterator[Problem]:
        """Yield outputs of `forward_train` that the loss or a connector of the learner pipeline cannot use.

        Args:
            needs: name of a loss or connector -> outputs, methods and attributes of the module that it uses.
        """
        module = self._module
        users: dict[str, list[str]] = {_DIST: []} if _DIST in module.train_outputs else {}
        for user, need in [(user, need) for user, names in needs.items() for need in names]:
            if need in module.train_outputs or not hasattr(module, need):
                users.setdefault(need, []).append(user)
            elif need == "compute_values" and self._class.compute_values is RLModule.compute_values:
                through = f"{user} (through compute_values, which {self._class.__name__} does not override)"
                users.setdefault(_VALUES, []).append(through)
        yield from self._wrong("forward_train", list(users), _STEPS, users)

    def _batch(self, num_steps: int) -> dict[str, Any]:
        """Return rows of random observations; for a stateful module, sequences of `num_steps` rows."""
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
        """Return a list with the output of a pass for a batch; empty if the pass raises an error."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                return [getattr(self._module, name)(batch)]
            except Exception:  # reported if real observations cause it
                return []

    def _wrong(
        self, name: str, columns: Sequence[str], num_steps: int, users: Mapping[str, Sequence[str]] = _NO_USERS
    ) -> Iterator[Problem]:
        """Yield problems in the outputs of a pass.

        Args:
            name: name of the pass.
            columns: columns that its outputs must have.
            num_steps: length of the sequences for a stateful module.
            users: column -> names of the loss and the connectors that need it.
        """
        batch = self._batch(num_steps)
        what, where = f"{self._class.__name__}.{name}", self._place(name)
        for outputs in self._returned(name, dict(batch)):
            if not isinstance(outputs, Mapping):
                got = (
                    "None"
                    if outputs is None
                    else f"{type(outputs).__name__}: {outline(outputs)}".removesuffix(": None")
                )
                yield Problem(f"{what} does not return a dict", where, got, f"a dict with {', '.join(columns)}")
                return
            for column in columns:
                if column not in outputs:
                    got = ", ".join(map(str, outputs)) or "an empty dict"
                    near = nearest_match(column, [str(other) for other in outputs if other not in columns])
                    yield Problem(
                        f"{what} does not return {column}{_needed_by(users.get(column, ()))}",
                        where,
                        got,
                        f"a dict with {', '.join(columns)}",
                        near,
                    )
            yield from self._misfits(name, outputs, num_steps)
            if _STATE in columns and _STATE in outputs:
                yield from self._wrong_state(what, where, outputs[_STATE], batch["state_in"])

    def _misfits(self, name: str, outputs: Mapping[str, Any], num_steps: int) -> Iterator[Problem]:
        what, where, leading = f"{self._class.__name__}.{name}", self._place(name), self._leading(num_steps)
        dist, shapes = self._module.action_dist, {}
        if hasattr(dist, "num_inputs"):  # other objects are not our distributions, and are reported by their users
            meaning = f"for each row of obs, the {dist.num_inputs} inputs of {type(dist).__name__}"
            shapes[_DIST] = ((*leading, dist.num_inputs), meaning)
        if name == "forward_train":
            shapes[_VALUES] = (leading, "one number per row of obs")
        for column, (shape, meaning) in shapes.items():
            if column in outputs:
                yield from self._misfit(f"{column} returned by {what}", where, outputs[column], shape, meaning)

    def _leading(self, num_steps: int) -> tuple[int, ...]:
        return (_ROWS, num_steps) if self._module.is_stateful else (_ROWS,)

    def _misfit(self, what: str, where: str, output: Any, shape: tuple[int, ...], meaning: str) -> Iterator[Problem]:
        expected, got = f"{shape} float32: {meaning}", outline(output)
        if not isinstance(output, Tensor):
            yield Problem(f"{what} is not a tensor", where, got or type(output).__name__, expected)
            return
        # A stateful module may omit the axis of a single step.
        shapes = {shape, (shape[0], *shape[2:])} if self._module.is_stateful and shape[1] == 1 else {shape}
        if tuple(output.shape) not in shapes:
            fix = "remove the last axis with .squeeze(-1)" if tuple(output.shape) == (*shape, 1) else None
            yield Problem(f"{what} has the wrong shape", where, got, expected, fix=fix)
        elif output.dtype != torch.float32:
            yield Problem(f"{what} has the wrong dtype", where, got, expected, fix="convert it with .float()")

    def _wrong_initial_state(self) -> Problem | None:
        state: Any = self._module.get_initial_state()
        what, where = f"{self._class.__name__}.get_initial_state", self._place("get_initial_state")
        expected = 'a dict of tensors, {"h": torch.zeros(64)}'
        if not isinstance(state, dict) or not state:
            got = "an empty dict" if isinstance(state, dict) else outline(state) or type(state).__name__
            return Problem(f"{what} does not return a dict of tensors, but is_stateful is true", where, got, expected)
        wrong = [leaf for leaf in nested.leaves(state) if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32]
        if wrong:
            got = f"{type(wrong[0]).__name__} {outline(wrong[0]) or ''}".rstrip()
            return Problem(f"{what} returns a state that is not a float32 tensor", where, got, expected)
        return None

    def _wrong_state(self, what: str, where: str, state: Any, state_in: Any) -> Iterator[Problem]:
        try:
            nested.map_leaves(_check_same, state_in, state)
        except (TypeError, ValueError):
            got = outline(state) or type(state).__name__
            expected = f"{outline(state_in)}, the names and shapes of state_in"
            yield Problem(f"{_STATE} returned by {what} does not match state_in", where, got, expected)

    def _place(self, name: str) -> str:
        return place_of(self._class, name, *(("forward_train",) if name in _ACTING else ()))


def _needed_by(users: Sequence[str]) -> str:
    return f", which {' and '.join(users)} {'need' if len(users) > 1 else 'needs'}" if users else ""


def _check_same(given: Tensor, returned: Any) -> None:
    if not isinstance(returned, Tensor) or given.shape != returned.shape or given.dtype != returned.dtype:
        raise ValueError("different shape or dtype")
