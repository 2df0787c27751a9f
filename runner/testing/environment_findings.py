"""Findings of environment checks, and functions shared by all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import Problem, RunFailure
from runner.config.schemas import ModuleConfig
from runner.config.user_code import USER_ERRORS, problem_of
from runner.env_runners.env_answers import flag_of
from runner.env_runners.env_makers import Environment, sub_environments
from runner.env_runners.observation_checks import ObservationChecks, outline
from runner.episodes import nested
from runner.episodes.spaces import leaf_spaces
from runner.modules.images import image_doubts

NUM_REPEATED = 200  # number of steps that are repeated
NUM_TOGETHER = 8  # number of sub-environments in the speed measurement
FINITE = "finite numbers of float32"  # expected rewards
_BOOLS = (bool, np.bool_)
# Makes the environment with a number of sub-environments.
Make = Callable[[int], Environment]


@dataclass
class EnvironmentCheck:
    """Findings of a check.

    Attributes:
        faults: problems that would end a run with an error, or falsify its results.
        warnings: problems that do not stop a run but break something users rely on.
        facts: name -> value: spaces, episodes, speed.
    """

    faults: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def report(self, problem: Problem, is_fault: bool) -> None:
        """Add a problem, unless the same kind was already found."""
        if all(known.what != problem.what for known in (*self.faults, *self.warnings)):
            (self.faults if is_fault else self.warnings).append(problem)

    def check_observations(self, checks: ObservationChecks, rows: Any, method: str, where: str) -> None:
        """Check (rows, ...) observations; raises `RunFailure` if their structure, shape or dtype is wrong."""
        checks.check(rows, method)
        misfit = checks.find_misfit(rows)
        if misfit is not None:
            self.report(replace(misfit.problem, where=where), is_fault=misfit.is_error)

    def check_reward(self, reward: Any, where: str) -> float:
        """Check a reward and return it, or 0 if it is not a number."""
        if np.size(reward) != 1 or np.asarray(reward).dtype.kind not in "biuf":
            self.report(Problem("a reward is not a number", where, outline(reward), "a float"), is_fault=True)
            return 0.0
        if not are_finite(reward):
            self.report(Problem("a reward is not finite", where, str(reward), FINITE), is_fault=True)
        return float(np.asarray(reward).item())

    def check_end(self, name: str, value: Any, where: str) -> None:
        """Check `terminated` or `truncated`."""
        if isinstance(value, _BOOLS):
            return
        try:
            flag_of(value, name, where)
        except RunFailure as failure:
            self.report(failure.problem, is_fault=True)
        else:
            self.report(Problem(f"{name} is not a bool", where, repr(value), "True or False"), is_fault=False)

    def check_action(self, given: Any, before: Any, where: str) -> None:
        """Check that `step` did not change an action."""
        if not nested.equal(given, before):
            what = "the environment changed its action in place, so the changed action would be recorded"
            got = f"{_short(before)}, and {_short(given)} after the step"
            self.report(Problem(what, where, got, fix="change a copy, for example action = 2 - action"), is_fault=False)

    def check_bounds(self, space: gym.Space[Any], where: str = "action_space") -> None:
        """Check that actions can be scaled."""
        for _, part in leaf_spaces(space):
            if isinstance(part, gym.spaces.Box) and not part.is_bounded():
                what = "actions are unbounded, so they are neither scaled nor clipped"
                self.report(Problem(what, where, str(part), "a Box with finite low and high"), is_fault=False)

    def check_images(self, space: gym.Space[Any], where: str = "observation_space") -> None:
        """Check that images in observations are read with the intended layout and scale."""
        for doubt in image_doubts(space, ModuleConfig()):
            self.report(Problem(doubt, where), is_fault=False)

    def report_episodes(self, lengths: Sequence[int], returns: Sequence[float], num_steps: int) -> None:
        """Report the length of episodes, or that none has ended."""
        if not lengths:
            what = f"no episode has ended after {num_steps:,} env steps, so no returns are reported"
            fix = "end episodes in the environment, or add gymnasium.wrappers.TimeLimit to env.wrappers"
            self.report(Problem(what, "step", fix=fix), is_fault=False)
            return
        self.facts["episodes"] = (
            f"{len(lengths)} of {min(lengths)} to {max(lengths)} env steps (mean {np.mean(lengths):.1f}), "
            f"mean return {np.mean(returns):.4g} with random actions"
        )

    def report_not_repeated(self, number: int, is_reset: bool) -> None:
        """Report that a second environment gives a different result for the same seed and actions."""
        what = (
            f"the same seed and actions give different {'observations' if is_reset else 'answers'} in a second "
            f"environment, first after {number} answers: runs are not reproducible, and a "
            "resumed run continues with different episodes"
        )
        fix = "draw all random numbers from self.np_random, which super().reset(seed=seed) seeds"
        self.report(Problem(what, "reset" if is_reset else "step", fix=fix), is_fault=False)


def answer_of(call: Callable[[], Any], called: str, method: str, sizes: str, got: str | None = None) -> tuple[Any, ...]:
    """Return the result of `reset` or `step`.

    Args:
        call: calls the method.
        called: the call as text.
        method: `reset` or `step`.
        sizes: expected results, in words.
        got: arguments of the call, for messages.

    Raises:
        RunFailure: the call raised an error, or returned an unexpected result.
    """
    try:
        answer = call()
    except USER_ERRORS as error:
        problem = problem_of(error, method)
        what = f"{called} raised {problem.what}"
        expected = "reset(*, seed=None, options=None)" if method == "reset" else "every action of its action space"
        raise RunFailure(replace(problem, what=what, got=got, expected=expected)) from error
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
    """Return a copy of the observation as arrays, since the environment may write into it in its next step."""
    try:
        return nested.map_leaves(np.array, obs)
    except ValueError as error:  # lists of different lengths
        raise RunFailure(Problem(f"an observation is not an array: {error}", got=type(obs).__name__)) from error


def speed_together(make: Make, num_envs: int, num_steps: int, seed: int) -> float:
    """Return the env steps per second of `num_envs` sub-environments; resets take time but do not count as steps."""
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


def are_finite(rewards: Any) -> bool:
    """Return whether rewards are finite in the precision of rows."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(rewards, np.float32)).all())


def text_of(space: gym.Space[Any]) -> str:
    """Return a space as one line."""
    return " ".join(str(space).split())
