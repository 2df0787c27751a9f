"""Callbacks of one process: calls, for each event, the hook of each callback that overrides it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from runner.callbacks.callback import EPISODE_HOOKS, EXTERNAL_HOOKS, HOOKS, Callback
from runner.config.callables import made_arguments
from runner.config.declared_metrics import callback_metric, meaning_of
from runner.config.errors import ConfigError, Problem, RunFailure, RunnerError, nearest_match
from runner.config.imports import import_target
from runner.config.operators import ENV_RUNNERS
from runner.config.plans.needs import needs_of
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import place_of
from runner.parts import Part
from runner.pipelines.custom_metrics import CustomMetrics, ReducedMetrics, ReducedValue
from runner.pipelines.pipeline_metrics import joined_reports


class Callbacks(Part):
    """Calls the hooks of several callbacks, in order.

    Args:
        callbacks: instances.
        context: arguments of all events, in addition to the event's arguments.

    Raises:
        ConfigError: a callback declares invalid metrics, or has a hook that no event calls.
    """

    name = "callbacks"

    def __init__(self, callbacks: Sequence[Callback] = (), **context: Any) -> None:
        self._callbacks = list(callbacks)
        self._context = context
        problems = [problem for index, one in enumerate(callbacks) for problem in _faults(one, f"callbacks.{index}")]
        if problems:
            raise ConfigError(problems)
        self._reports = joined_reports(callbacks, "callbacks")
        self._reduced: ReducedMetrics = {}
        self.take_metrics()
        metrics = [
            CustomMetrics(type(one).__name__, f"callbacks.{index}", one.reports, self._reduced)
            for index, one in enumerate(callbacks)
        ]
        self._overriding: dict[str, list[tuple[int, Callable[..., None], CustomMetrics]]] = {
            hook: [
                (index, getattr(one, hook), of_one)
                for index, (one, of_one) in enumerate(zip(callbacks, metrics, strict=True))
                if getattr(type(one), hook) is not getattr(Callback, hook)
            ]
            for hook in HOOKS
        }

    def overrides_any(self, *hooks: str) -> bool:
        """Return whether a callback overrides one of these hooks."""
        return any(self._overriding[hook] for hook in hooks)

    def __len__(self) -> int:
        return len(self._callbacks)

    def call(self, hook: str, own: Sequence[Mapping[str, Any] | None] | None = None, **event: Any) -> None:
        """Call the hook of each callback that overrides it.

        Args:
            hook: name of the method.
            own: further arguments for each callback, or None for callbacks to skip.
            event: arguments for all callbacks.

        Raises:
            RunFailure: a callback raised an error.
        """
        for index, method, metrics in self._overriding[hook]:
            of_callback = {} if own is None else own[index]
            if of_callback is not None:
                with _failures_reported(self._callbacks[index], hook):
                    method(**self._context, **event, **of_callback, metrics=metrics)

    # -- metrics -----------------------------------------------------------------------------------------------------

    @property
    def reported_metrics(self) -> dict[str, str]:
        """Metric of the run -> meaning."""
        return {callback_metric(name): meaning_of(self._reports, name) for name in self._reports}

    def take_metrics(self) -> ReducedMetrics:
        """Return metric of the run -> values reported since the last call, for all declared metrics."""
        taken = {callback_metric(name): reduced for name, reduced in self._reduced.items()}
        for name, (reduction, _) in self._reports.items():
            self._reduced[name] = ReducedValue(reduction)
        return taken

    # -- state -------------------------------------------------------------------------------------------------------

    def get_state(self) -> list[dict[str, Any]]:
        """Return class and state of each callback."""
        states = []
        for one in self._callbacks:
            with _failures_reported(one, "get_state"):
                states.append({"class": _path(one), "state": one.get_state()})
        return states

    def set_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore a state of `get_state`; callbacks missing from the state keep their current state."""
        self.restore(state)

    def restore(self, state: Sequence[Mapping[str, Any]]) -> list[int | None]:
        """Restore a state of `get_state`.

        Returns:
            Index of each callback's state in `state`, or None for callbacks missing from it.
        """
        places: list[int | None] = []
        for one in self._callbacks:
            free = (n for n, saved in enumerate(state) if saved["class"] == _path(one) and n not in places)
            place = next(free, None)
            places.append(place)
            if place is not None and state[place]["state"]:
                with _failures_reported(one, "set_state"):
                    one.set_state(state[place]["state"])
        return places


def build_callbacks(config: ExperimentConfig, **context: Any) -> Callbacks:
    """Make the callbacks of a configuration; all of their events get the arguments `context`.

    Raises:
        ConfigError: a path is not a callback, its constructor fails, or the run never calls a hook that it overrides.
    """
    made = []
    for index, block in enumerate(config.callbacks):
        key, path = f"callbacks.{index}", str(block["_target_"])
        positional, arguments = made_arguments(block, key)
        target = import_target(path, f"{key}._target_", Callback)
        try:
            made.append(target(*positional, **arguments))
        except Exception as error:  # the user's code may raise anything
            raise ConfigError([Problem(f"{path} cannot be created: {error}", key, repr(arguments))]) from error
    callbacks = Callbacks(made, **context)
    is_evaluated = config.evaluation.evaluation_interval is not None
    if ENV_RUNNERS not in needs_of(config) and not is_evaluated:
        _reject(callbacks, EPISODE_HOOKS, "recorded data alone, without evaluation")
    elif config.env.is_external and not is_evaluated:
        _reject(callbacks, set(EPISODE_HOOKS) - set(EXTERNAL_HOOKS), "simulators that connect")
    return callbacks


def _reject(callbacks: Callbacks, hooks: Collection[str], run: str) -> None:
    heard = [hook for hook in HOOKS if hook in hooks and callbacks.overrides_any(hook)]
    if heard:
        what = "the callbacks override hooks that no env runner of this run calls"
        raise ConfigError([Problem(what, "callbacks", f"{', '.join(heard)}, with {run}")])


def _faults(callback: Callback, key: str) -> list[Problem]:
    name = type(callback).__name__
    problems = []
    for method in dir(type(callback)):
        if method.startswith("on_") and method not in HOOKS and callable(getattr(type(callback), method)):
            what = f"{name} has a hook {method}, which no event calls"
            problems.append(Problem(what, key, method, ", ".join(HOOKS), nearest_match(method, HOOKS)))
    return problems + [problem for hook in HOOKS for problem in _unbound(callback, hook, key)]


def _unbound(callback: Callback, hook: str, key: str) -> Iterator[Problem]:
    """Yield a problem if a hook does not accept its event's arguments and arguments that later versions add."""
    given = inspect.signature(getattr(Callback, hook)).parameters
    names = [name for name in given if name not in ("self", "kwargs")]
    method = getattr(callback, hook)
    try:
        inspect.signature(method).bind(**dict.fromkeys([*names, "a_later_one"]))
    except (TypeError, ValueError) as error:  # it may not even be a function
        what = f"{hook} does not take all arguments of its event: {error}"
        where = f"{key}, {place_of(type(callback), hook)}"
        got = str(inspect.signature(method)) if callable(method) else repr(method)
        yield Problem(what, where, got, f"(self, *, {', '.join(names)}, **kwargs), or a subset of these arguments")


@contextmanager
def _failures_reported(callback: Callback, method: str) -> Iterator[None]:
    """Convert an error of the callback's method to a failure of the run that shows the last line in its file."""
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        code = getattr(getattr(type(callback), method), "__code__", None)
        file = None if code is None else code.co_filename
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        where = f"{file}:{lines[-1]}" if lines else f"{_path(callback)}.{method}"
        what = f"{type(callback).__name__}.{method} failed: {type(error).__name__}: {error}"
        raise RunFailure(Problem(what, where)) from error


def _path(callback: Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"
