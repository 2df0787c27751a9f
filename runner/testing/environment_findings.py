"""What is found in environments, and what checks of all kinds of them look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import Problem, RunFailure
from runner.config.schemas import ModuleConfig
from runner.env_runners.env_answers import flag_of
from runner.env_runners.env_makers import Environment, sub_environments
from runner.env_runners.observation_checks import ObservationChecks, outline
from runner.episodes import nested
from runner.episodes.spaces import leaf_spaces
from runner.modules.images import image_doubts

NUM_REPEATED = 200  # steps that are taken a second time
NUM_TOGETHER = 8  # sub-environments of the measurement
_BOOLS = (bool, np.bool_)
# Makes the environment, for so many sub-environments.
Make = Callable[[int], Environment]


@dataclass
class EnvironmentCheck:
    """What was found.

    Attributes:
        faults: a run would end with an error, or learn from wrong numbers.
        warnings: a run works, and something that users count on does not.
        facts: name -> value: spaces, episodes, speed.
    """

    faults: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def tell(self, problem: Problem, is_fault: bool) -> None:
        """Add a problem, of each kind the first."""
        if all(known.what != problem.what for known in (*self.faults, *self.warnings)):
            (self.faults if is_fault else self.warnings).append(problem)

    def tell_misfit(self, checks: ObservationChecks, rows: Any, method: str, where: str) -> None:
        """Check (rows, ...) observations; raises `RunFailure` where they have another structure, shape or dtype."""
        checks.check_shapes(rows, method)
        misfit = checks.find_misfit(rows)
        if misfit is not None:
            self.tell(replace(misfit.problem, where=where), is_fault=misfit.is_error)

    def check_reward(self, reward: Any, where: str) -> float:
        """Check a reward; 0 where it is no number."""
        if np.size(reward) != 1 or np.asarray(reward).dtype.kind not in "biuf":
            self.tell(Problem("a reward is no number", where, outline(reward), "a float"), is_fault=True)
            return 0.0
        if not np.isfinite(reward).all():
            self.tell(Problem("a reward is not finite", where, str(reward), "finite numbers"), is_fault=True)
        return float(np.asarray(reward).item())

    def check_end(self, name: str, value: Any, where: str) -> None:
        """Check `terminated` or `truncated`."""
        if isinstance(value, _BOOLS):
            return
        try:
            flag_of(value, name, where)
        except RunFailure as failure:
            self.tell(failure.problem, is_fault=True)
        else:
            self.tell(Problem(f"{name} is no bool", where, repr(value), "True or False"), is_fault=False)

    def check_action(self, given: Any, before: Any, where: str) -> None:
        """Check that `step` has left an action as it was before."""
        if not nested.equal(given, before):
            what = "the environment changed its action: other code that steps it would record the changed one"
            got = f"{_short(before)}, and {_short(given)} after the step"
            self.tell(Problem(what, where, got, "a copy that is changed, such as action = 2 - action"), is_fault=False)

    def check_bounds(self, space: gym.Space[Any], where: str = "action_space") -> None:
        """Check that actions can be scaled."""
        for _, part in leaf_spaces(space):
            if isinstance(part, gym.spaces.Box) and not part.is_bounded():
                what = "actions have no bounds: they are neither scaled nor clipped"
                self.tell(Problem(what, where, str(part), "a Box with finite low and high"), is_fault=False)

    def check_images(self, space: gym.Space[Any], where: str = "observation_space") -> None:
        """Check that images among observations are read in the intended layout and scale."""
        for doubt in image_doubts(space, ModuleConfig()):
            self.tell(Problem(doubt, where), is_fault=False)

    def tell_episodes(self, lengths: Sequence[int], returns: Sequence[float], num_steps: int) -> None:
        """Say how long episodes were, or that none has ended."""
        if not lengths:
            what = f"no episode has ended after {num_steps:,} env steps: returns are counted when episodes end"
            expected = "an end of its own, or gymnasium.wrappers.TimeLimit among env.wrappers"
            self.tell(Problem(what, "step", expected=expected), is_fault=False)
            return
        self.facts["episodes"] = (
            f"{len(lengths)} of {min(lengths)} to {max(lengths)} env steps (mean {np.mean(lengths):.1f}), "
            f"mean return {np.mean(returns):.4g} with random actions"
        )

    def tell_not_repeated(self, number: int, is_reset: bool) -> None:
        """Say that a second environment gives another answer to the same seed and actions."""
        what = (
            f"the same seed and actions give other {'observations' if is_reset else 'answers'} in a second "
            f"environment, first after {number} answers: a run is not reproducible, and one that is "
            "resumed goes on with other episodes"
        )
        expected = "randomness from self.np_random alone, which super().reset(seed=seed) seeds"
        self.tell(Problem(what, "reset" if is_reset else "step", expected=expected), is_fault=False)


def answer_of(call: Callable[[], Any], called: str, method: str, sizes: str, got: str | None = None) -> tuple[Any, ...]:
    """Return what `reset` or `step` returned.

    Args:
        call: calls it.
        called: the call as text.
        method: `reset` or `step`.
        sizes: what it should return, in words.
        got: what it was called with, for messages.

    Raises:
        RunFailure: it raised, or returned something else.
    """
    try:
        answer = call()
    except Exception as error:  # a user's environment may raise anything
        expected = "reset(*, seed=None, options=None)" if method == "reset" else "every action of its action space"
        raise RunFailure(Problem(f"{called} raised {type(error).__name__}: {error}", method, got, expected)) from error
    count, word = (2, "two") if method == "reset" else (5, "five")
    if not isinstance(answer, tuple) or len(answer) != count or not isinstance(answer[-1], Mapping):
        raise RunFailure(Problem(f"{method} does not return {word} values", method, _outline(answer), sizes))
    return answer


def _outline(answer: Any) -> str:
    if isinstance(answer, tuple):
        return f"{len(answer)} values: {', '.join(type(part).__name__ for part in answer)}"
    return outline(answer)


def _short(value: Any) -> str:
    return " ".join(str(value).split())


def copied(obs: Any) -> Any:
    """Return the observation as arrays, safe from an environment that writes into it in its next step."""
    try:
        return nested.map_leaves(np.array, obs)
    except ValueError as error:  # lists of different lengths
        raise RunFailure(Problem(f"an observation is no array: {error}", got=type(obs).__name__)) from error


def speed_together(make: Make, num_envs: int, num_steps: int, seed: int) -> float:
    """Return the env steps per second of so many sub-environments; a reset is time, and no env step."""
    envs = sub_environments(make(num_envs), lambda: make(num_envs), num_envs, seed)
    space = gym.vector.utils.batch_space(envs.single_action_space, num_envs)
    space.seed(seed)
    all_actions = [space.sample() for _ in range(-(-num_steps // num_envs))]
    num_taken, are_reset = 0, np.zeros(num_envs, np.bool_)
    try:
        envs.reset(("check", 0, 0))
        start_s = time.perf_counter()
        for actions in all_actions:
            _, _, terminateds, truncateds, _ = envs.step(actions)
            num_taken += num_envs - int(np.count_nonzero(are_reset))
            are_reset = terminateds | truncateds
        return num_taken / (time.perf_counter() - start_s)
    finally:
        envs.close()


def text_of(space: gym.Space[Any]) -> str:
    """Return a space in one line."""
    return " ".join(str(space).split())
