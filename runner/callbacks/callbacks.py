"""The callbacks of one process as one: each event goes to the callbacks that override its hook."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.callbacks.callback import HOOKS, Callback
from runner.config.callback_checks import callback_metric
from runner.config.errors import ConfigError, Problem, RunFailure, RunnerError, nearest_match
from runner.config.imports import import_target
from runner.config.piece_reports import Reports, find_report_fault, meaning_of
from runner.pipelines.piece_metrics import ConnectorMetrics, PieceMetrics, ReducedValue


class Callbacks:
    """Several callbacks, in order.

    Args:
        callbacks: instances.

    Attributes:
        context: arguments that every event has besides its own.

    Raises:
        ConfigError: a callback declares metrics that cannot be, or has a hook that no event calls.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        self.context: dict[str, Any] = {}
        problems = [problem for index, one in enumerate(callbacks) for problem in _faults(one, f"callbacks.{index}")]
        if problems:
            raise ConfigError(problems)
        self._reports = _joined_reports(callbacks)
        self._reduced: ConnectorMetrics = {}
        self.take_metrics()
        metrics = [
            PieceMetrics(type(one).__name__, f"callbacks.{index}", one.reports, self._reduced)
            for index, one in enumerate(callbacks)
        ]
        self._heard: dict[str, list[tuple[Callable[..., None], PieceMetrics]]] = {
            hook: [
                (getattr(one, hook), of_one)
                for one, of_one in zip(callbacks, metrics, strict=True)
                if getattr(type(one), hook) is not getattr(Callback, hook)
            ]
            for hook in HOOKS
        }

    def hears(self, *hooks: str) -> bool:
        """Return whether a callback overrides one of these hooks."""
        return any(self._heard[hook] for hook in hooks)

    def call(self, hook: str, **event: Any) -> None:
        """Tell each callback that overrides the hook.

        Raises:
            RunFailure: a callback raised an error.
        """
        for method, metrics in self._heard[hook]:
            try:
                method(**self.context, **event, metrics=metrics)
            except RunnerError:
                raise
            except Exception as error:
                raise _failure(method, hook, error) from error

    # -- metrics -----------------------------------------------------------------------------------------------------

    @property
    def reported_metrics(self) -> dict[str, str]:
        """Metric of the run -> meaning."""
        return {callback_metric(name): meaning_of(self._reports, name) for name in self._reports}

    def take_metrics(self) -> ConnectorMetrics:
        """Return metric of the run -> what was reported since the last call, of all that are declared."""
        taken = {callback_metric(name): reduced for name, reduced in self._reduced.items()}
        for name, (reduction, _) in self._reports.items():
            self._reduced[name] = ReducedValue(reduction)
        return taken

    # -- state -------------------------------------------------------------------------------------------------------

    def get_state(self) -> list[dict[str, Any]]:
        """Return class and state of each callback."""
        return [{"class": _path(one), "state": one.get_state()} for one in self._callbacks]

    def set_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state of `get_state`; callbacks that it does not have begin anew."""
        waiting = list(state)
        for one in self._callbacks:
            saved = next((entry for entry in waiting if entry["class"] == _path(one)), None)
            if saved is not None:
                waiting.remove(saved)
                if saved["state"]:
                    one.set_state(saved["state"])


def build_callbacks(blocks: Sequence[Mapping[str, Any]]) -> Callbacks:
    """Make the callbacks of `callbacks` in a configuration.

    Raises:
        ConfigError: a path names no callback, or its constructor does not take the arguments.
    """
    made = []
    for index, block in enumerate(blocks):
        key, path = f"callbacks.{index}", str(block["_target_"])
        arguments = {name: value for name, value in block.items() if name != "_target_"}
        target = import_target(path, f"{key}._target_", Callback)
        try:
            made.append(target(**arguments))
        except (TypeError, ValueError) as error:
            raise ConfigError([Problem(f"{path} cannot be made: {error}", key, repr(arguments))]) from error
    return Callbacks(made)


def _joined_reports(callbacks: Sequence[Callback]) -> Reports:
    """Return the metrics that callbacks declare together.

    Raises:
        ConfigError: two declare one metric differently.
    """
    joined: dict[str, tuple[str, str]] = {}
    for index, one in enumerate(callbacks):
        for name, report in one.reports.items():
            before = joined.setdefault(name, report)
            if before != report:
                what = f"{type(one).__name__}.reports[{name!r}] differs from what a callback before it declares"
                raise ConfigError([Problem(what, f"callbacks.{index}", str(report), str(before))])
    return joined


def _faults(callback: Callback, key: str) -> list[Problem]:
    """Return what is wrong with the class of a callback."""
    name = type(callback).__name__
    problems = []
    fault = find_report_fault(callback.reports)
    if fault is not None:
        allowed = 'reports = {"is_success": ("mean", "share of the episodes that reached the goal")}'
        problems.append(Problem(f"{name}.{fault}", key, allowed=allowed))
    for method in dir(type(callback)):
        if method.startswith("on_") and method not in HOOKS:
            what = f"{name} has a hook {method}, which no event calls"
            problems.append(Problem(what, key, method, ", ".join(HOOKS), nearest_match(method, HOOKS)))
    return problems


def _failure(method: Callable[..., None], hook: str, error: Exception) -> RunFailure:
    """Return the error of a hook with the line of the user's file that it passed last."""
    callback = method.__self__  # type: ignore[attr-defined]
    file = inspect.getsourcefile(type(callback))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f"{file}:{lines[-1]}" if lines else f"{_path(callback)}.{hook}"
    return RunFailure(Problem(f"{type(callback).__name__}.{hook} failed: {type(error).__name__}: {error}", where))


def _path(callback: Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"
