"""Check that a custom env runner calls the hooks of its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from runner.config.errors import Problem
from runner.config.first_call import Contract, FirstCall
from runner.config.user_code import place_of
from runner.env_runners.episode_callbacks import EpisodeCallbacks
from runner.env_runners.protocol import EnvRunner
from runner.env_runners.sample import Sample


class CheckedEnvRunner:
    """An env runner of a user-defined class that must call its callbacks by the end of the first sample.

    Args:
        runner: the env runner, which also receives all other calls.
        callbacks: a listener of the env runner.
        given: names of the callbacks, for the message.
    """

    def __init__(self, runner: EnvRunner, callbacks: EpisodeCallbacks, given: str) -> None:
        self._runner = runner
        name, where = type(runner).__name__, f"env_runners.env_runner_class, {place_of(type(runner), 'sample')}"

        def find_problems(*_: Any, **__: Any) -> Iterator[Problem]:
            if callbacks.has_missed_episodes:
                what = f"{name} never calls the episode hooks of `callbacks`"
                fix = "call before_reset and on_step of its `listeners`, as SteppingEnvRunner does, or set callbacks=[]"
                yield Problem(what, where, given, fix=fix)

        contract = Contract[Sample](where, "sample(self, num_env_steps, explore, weights, ...)", find_problems)
        self.sample: Callable[..., Sample] = FirstCall(runner.sample, contract, self._use)

    def _use(self, sample: Callable[..., Sample]) -> None:
        self.sample = sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)
