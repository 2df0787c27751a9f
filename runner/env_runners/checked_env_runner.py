"""The check that a custom env runner calls the hooks of its callbacks."""

from __future__ import annotations

from typing import Any

from runner.config.errors import Problem, RunFailure
from runner.config.user_code import place_of
from runner.env_runners.episode_callbacks import EpisodeCallbacks
from runner.env_runners.protocol import EnvRunner
from runner.env_runners.sample import Sample


class CheckedEnvRunner:
    """An env runner of a user's class, which must have notified its callbacks by the end of the first sample.

    Args:
        runner: samples; all other calls reach it, too.
        callbacks: a listener of the env runner.
        given: the callbacks, for the message.
    """

    def __init__(self, runner: EnvRunner, callbacks: EpisodeCallbacks, given: str) -> None:
        self._runner, self._callbacks, self._given = runner, callbacks, given
        self._is_checked = False

    def sample(self, *arguments: Any, **options: Any) -> Sample:
        """Sample; see `EnvRunner.sample`.

        Raises:
            RunFailure: the first sample has called no hook of the callbacks.
        """
        sample = self._runner.sample(*arguments, **options)
        if not self._is_checked:
            self._check()
        return sample

    def _check(self) -> None:
        self._is_checked = True
        if self._callbacks.has_missed_episodes:
            made = type(self._runner)
            what = f"{made.__name__} never calls the episode hooks of `callbacks`"
            where = f"env_runners.env_runner_class, {place_of(made, 'sample')}"
            allowed = (
                f"a {made.__name__} that calls before_reset and on_step of its `listeners`, as SteppingEnvRunner does; "
                "or callbacks=[]"
            )
            raise RunFailure(Problem(what, where, self._given, allowed))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)
