"""Contract of callbacks, built-in and user-defined."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from runner.callbacks import HOOKS, Callback, Callbacks
from runner.config.compose import compose_experiment
from runner.config.errors import Problem
from runner.config.validation import build_experiment_config
from runner.episodes import nested
from runner.experiment.trainer import Trainer
from runner.pipelines.custom_metrics import CustomMetrics, ReducedValue
from runner.testing.rules import Rule, are_equal, check_rules, problems_of, through_checkpoint

_RUN = (
    *("+experiment=ppo_cartpole", "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=32"),
    *("algorithm.num_epochs=1", "module.fcnet_hiddens=[8]", "env_runners.num_envs_per_env_runner=2"),
    *("evaluation.evaluation_interval=2", "evaluation.evaluation_duration=1", "tracking=none"),
)
_NUM_ITERATIONS = 4
_RESUMED_AFTER = 2  # iterations until a second instance continues from a state
_CURRENT_CHECK: ContextVar[_CallbackCheck] = ContextVar("callback check")


def check_callback(make: Callable[[], Callback], overrides: Sequence[str] = ()) -> None:
    """Check a callback in a small training run, PPO on CartPole for a few iterations.

    After half of them, a second instance continues from the state of the first one, and both run side by side.

    Args:
        make: the class of the callback, or a function that makes it.
        overrides: overrides of the run as on the command line, for example `env.env=LunarLander-v3`.

    Raises:
        BrokenContract: the callback breaks rules; the message lists all of them.
        ConfigError: an override is not valid.
        TypeError: `make` is a callback.
    """
    if isinstance(make, Callback):
        raise TypeError(f"make is a {type(make).__name__}; pass its class, or a function that makes one")
    check_rules(type(make()).__name__, _rules(make, overrides))


def _rules(make: Callable[[], Callback], overrides: Sequence[str]) -> Iterator[Rule]:
    """Yield the rules; a callback that a run would reject is not tested in one."""
    yield lambda: _unfit_for_runs(make)
    if not list(problems_of(lambda: _unfit_for_runs(make))):
        yield lambda: _faults_in_a_run(make, overrides)


def _unfit_for_runs(make: Callable[[], Callback]) -> Iterator[Problem]:
    """Check that it is a Callback with known hooks and valid declarations of metrics."""
    callback = make()
    if not isinstance(callback, Callback):
        yield Problem(
            "make does not return a callback", None, type(callback).__name__, "a subclass of runner.callbacks.Callback"
        )
        return
    Callbacks([callback])  # raises an error if something is wrong


class _CallbackCheck:
    """All instances of one check, and their problems."""

    def __init__(self, make: Callable[[], Callback]) -> None:
        self.make = make
        self.problems: list[Problem] = []


class _CheckedInstance:
    """One instance, its metrics and its data of episodes.

    Attributes:
        reported: hook, metric and value of everything it has reported since the list was last cleared.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.reported: list[tuple[str, str, float]] = []
        self.custom_data: dict[int, dict[str, Any]] = {}
        self._reduced = {name: ReducedValue(reduction) for name, (reduction, _) in callback.reports.items()}

    def call(self, hook: str, event: dict[str, Any]) -> tuple[Problem, ...]:
        """Call a hook with separate data and metrics; return the problem if it raises an error."""
        if "custom_data" in event:
            if hook == "on_episode_created":
                self.custom_data[event["env_index"]] = {}
            event = event | {"custom_data": self.custom_data[event["env_index"]]}
        metrics = _Reporter(type(self.callback).__name__, "callbacks", self.callback.reports, self._reduced)
        metrics.reported, metrics.hook = self.reported, hook
        getattr(self.callback, hook)(**event | {"metrics": metrics})
        return ()


class _Reporter(CustomMetrics):
    """Metrics of a callback that also record the reported values."""

    reported: list[tuple[str, str, float]]
    hook: str

    def report(self, name: str, value: Any, weight: Any = 1.0) -> None:
        """See `CustomMetrics`."""
        super().report(name, value, weight)
        self.reported.append((self.hook, name, float(value)))


class CheckedCallback(Callback):
    """Forwards events to an instance of the callback, and to a second one that continues from its state."""

    def __init__(self) -> None:
        self._check = _CURRENT_CHECK.get()
        self._first = _CheckedInstance(self._check.make())
        self._second: _CheckedInstance | None = None
        self._created: dict[str, Any] | None = None
        self._num_rounds = 0

    def hear(self, hook: str, event: dict[str, Any]) -> None:
        """Forward an event to both instances, and check their reactions."""
        if hook == "on_environment_created":
            self._created = event
        before = _rows_of(event)
        for one in (self._first, *([] if self._second is None else [self._second])):
            self._check.problems += problems_of(partial(one.call, hook, event))
        if before is not None and not are_equal(before, _rows_of(event)):
            what = f"{hook} writes into its episode"
            self._check.problems.append(
                Problem(what, hook, fix="change a copy: the rows of the episode are used for training")
            )
        if hook in ("on_sample_end", "on_train_result"):
            self._check.problems += problems_of(self._end_round)

    def _end_round(self) -> Iterator[Problem]:
        """Check states after an iteration; after some, a second instance continues from the state of the first one."""
        self._num_rounds += 1
        name = type(self._first.callback).__name__
        state = through_checkpoint(self._first.callback.get_state(), name)
        data = through_checkpoint({str(n): one for n, one in self._first.custom_data.items()}, f"custom_data of {name}")
        if self._num_rounds == _RESUMED_AFTER:
            self._second = _CheckedInstance(self._check.make())
            if self._created is not None:
                self._second.call("on_environment_created", self._created)
            if state:
                self._second.callback.set_state(copy.deepcopy(state))
            self._second.custom_data = {int(n): dict(one) for n, one in data.items()}
            self._first.reported.clear()
            self._second.reported.clear()
        if self._second is not None:
            second = self._second.callback.get_state()
            if not are_equal(second, state):
                what = "an instance that continues from the state of another one has a different state"
                yield Problem(what, "get_state, set_state", str(second), str(state))
            elif self._second.reported != self._first.reported:
                what = "an instance that continues from the state of another one reports different values"
                fix = "return everything that later events depend on from get_state"
                yield Problem(
                    what,
                    "get_state, set_state",
                    str(self._second.reported[-1:]),
                    str(self._first.reported[-1:]),
                    fix=fix,
                )


def _passing_on(hook: str) -> Any:
    def pass_on(self: CheckedCallback, **event: Any) -> None:
        self.hear(hook, event)

    return pass_on


for _hook in HOOKS:
    setattr(CheckedCallback, _hook, _passing_on(_hook))


def _rows_of(event: dict[str, Any]) -> Any:
    """Copy the newest step of an event's episode; None for events without an episode."""
    episode = event.get("episode")
    if episode is None:
        return None
    parts = [episode.get_observations(-1)]
    if len(episode):
        parts += [episode.get_actions(-1), episode.get_rewards(-1)]
    return [nested.map_leaves(np.array, part) for part in parts]


def _faults_in_a_run(make: Callable[[], Callback], overrides: Sequence[str]) -> Iterator[Problem]:
    """Check in a run that hooks raise no errors, states are plain and complete, and episodes are unchanged."""
    check = _CallbackCheck(make)
    token = _CURRENT_CHECK.set(check)
    block = "callbacks=[{_target_: " + f"{CheckedCallback.__module__}.{CheckedCallback.__name__}" + "}]"
    try:
        with Trainer(build_experiment_config(compose_experiment([*_RUN, *overrides, block]))) as trainer:
            for _ in range(_NUM_ITERATIONS):
                trainer.train()
            _call_remaining_hooks(trainer.callbacks)
    finally:
        _CURRENT_CHECK.reset(token)
    yield from dict.fromkeys(check.problems)


def _call_remaining_hooks(callbacks: Callbacks) -> None:
    """Call the hooks of checkpoints, restarts, failures and the end of a run."""
    with tempfile.TemporaryDirectory() as folder:
        callbacks.call("on_checkpoint_saved", path=Path(folder))
        callbacks.call("on_checkpoint_loaded")
    callbacks.call("on_env_runners_recreated", num_restarts=1)
    callbacks.call("on_exception", error=RuntimeError("an error of a check"))
    callbacks.call("on_stop", status="finished", reason="the check has ended")
