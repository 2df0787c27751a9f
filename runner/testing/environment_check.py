"""What an environment does wrong, and how fast it is: random actions, every answer looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_environment, make_vector_env
from runner.env_runners.observation_checks import ObservationChecks, leaf_spaces, outline
from runner.episodes import nested

_NUM_REPEATED = 200  # steps that are taken a second time
_NUM_TOGETHER = 8  # sub-environments of the measurement
_BOOLS = (bool, np.bool_)
# Answers of one step: observation, reward, terminated, truncated.
Answer = tuple[Any, Any, Any, Any]


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


def check_environment(config: EnvConfig, num_steps: int = 1000, seed: int = 0) -> EnvironmentCheck:
    """Step an environment with random actions, and look at everything that it returns.

    Args:
        config: the `env` block; its `observation_check` decides what an observation out of bounds is.
        num_steps: env steps.
        seed: of resets and actions.

    Raises:
        ConfigError: the environment cannot be made, its spaces are not supported, or it has several agents or steps all
            sub-environments together.
    """
    env = make_environment(config)
    if not isinstance(env, gym.Env):
        allowed = "a gymnasium.Env; validate --build takes some steps with others"
        raise ConfigError([Problem("check-env looks at one environment with one agent", "env", config.name, allowed)])
    _check_spaces(env, config.name)
    check = _Check(env, config, seed)
    try:
        check.run(num_steps)
    except RunFailure as failure:  # it cannot go on
        check.found.faults.append(failure.problem)
    finally:
        env.close()
    return check.found


def _check_spaces(env: gym.Env[Any, Any], name: str) -> None:
    for attribute in ("observation_space", "action_space"):
        space = getattr(env, attribute, None)
        if not isinstance(space, gym.Space):
            got = "nothing" if space is None else repr(space)
            raise ConfigError([Problem(f"{name} has no {attribute}", "env", got, "a gymnasium.spaces.Space")])


class _Check:
    """One check; problems of a kind are told once."""

    def __init__(self, env: gym.Env[Any, Any], config: EnvConfig, seed: int) -> None:
        self._env, self._config, self._seed = env, config, seed
        self._checks = ObservationChecks(env.observation_space, 1, config.name, config.observation_check)
        self._kinds: set[str] = set()
        self.found = EnvironmentCheck()

    def run(self, num_steps: int) -> None:
        """Check all there is to check; the first thing that no run survives ends it."""
        spaces = {"observation space": self._env.observation_space, "action space": self._env.action_space}
        self.found.facts.update({name: " ".join(str(space).split()) for name, space in spaces.items()})
        self._check_bounds(self._env.action_space)
        answers = self._walk(num_steps)
        if self.found.faults:
            return
        self._check_repeated(answers[:_NUM_REPEATED])
        self.found.facts["env steps/s"] = f"{self._speed(1, num_steps):,.0f} of one, with random actions"
        together = f"{_NUM_TOGETHER} sub-environments, as one env runner steps them"
        self.found.facts["env steps/s, together"] = f"{self._speed(_NUM_TOGETHER, num_steps):,.0f} of {together}"

    # -- episodes ------------------------------------------------------------------------------------------------------

    def _walk(self, num_steps: int) -> list[Answer]:
        """Take the steps, check each answer, and return the answers."""
        answers: list[Answer] = []
        lengths: list[int] = []
        returns: list[float] = []
        length, total, num_taken = 0, 0.0, 0
        for answer, is_new in self._answers(self._env):
            obs, reward, terminated, truncated = answer
            if is_new:
                length, total = 0, 0.0
            self._check_observation(obs, "reset" if is_new else "step")
            if not is_new:
                self._check_ends(terminated, truncated)
                total += self._number_of(reward)
                length, num_taken = length + 1, num_taken + 1
                if terminated or truncated:
                    lengths.append(length)
                    returns.append(total)
            answers.append(answer)
            if num_taken == num_steps:
                break
        self._tell_episodes(lengths, returns, num_steps)
        return answers

    def _answers(self, env: gym.Env[Any, Any]) -> Iterator[tuple[Answer, bool]]:
        """Yield what resets (True) and steps with random actions return, with the same seeds each time."""
        env.action_space.seed(self._seed)
        episode = 0
        while True:
            yield (self._reset(env, self._seed + episode), 0.0, False, False), True
            episode += 1
            is_over = False
            while not is_over:
                answer = self._step(env)
                is_over = bool(answer[2]) or bool(answer[3])
                yield answer, False

    def _reset(self, env: gym.Env[Any, Any], seed: int) -> Any:
        try:
            answer = env.reset(seed=seed)
        except Exception as error:
            what = f"reset(seed={seed}) raised {type(error).__name__}: {error}"
            raise RunFailure(Problem(what, "reset", allowed="reset(*, seed=None, options=None)")) from error
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
            got = _outline(answer)
            raise RunFailure(Problem("reset does not return two values", "reset", got, "observation, info (a dict)"))
        return _copy(answer[0])

    def _step(self, env: gym.Env[Any, Any]) -> Answer:
        action = env.action_space.sample()
        try:
            answer = env.step(action)
        except Exception as error:
            what = f"step raised {type(error).__name__}: {error}"
            raise RunFailure(Problem(what, "step", f"action {action}", "every action of its action space")) from error
        if not isinstance(answer, tuple) or len(answer) != 5 or not isinstance(answer[4], Mapping):
            allowed = "observation, reward, terminated, truncated, info (a dict)"
            raise RunFailure(Problem("step does not return five values", "step", _outline(answer), allowed))
        obs, reward, terminated, truncated, _ = answer
        if np.ndim(terminated) or np.ndim(truncated):
            got = f"{outline(terminated)}, {outline(truncated)}"
            raise RunFailure(Problem("terminated or truncated is no bool", "step", got, "True or False"))
        return _copy(obs), reward, terminated, truncated

    # -- single answers ------------------------------------------------------------------------------------------------

    def _check_observation(self, obs: Any, method: str) -> None:
        row = nested.map_leaves(lambda leaf: leaf[None], obs)
        self._checks.check_shapes(row, method)
        misfit = self._checks.find_misfit(row)
        if misfit is not None:
            self._tell(replace(misfit.problem, where=method), is_fault=misfit.is_error)

    def _number_of(self, reward: Any) -> float:
        """Check a reward; 0 where it is no number."""
        if np.ndim(reward) or np.asarray(reward).dtype.kind not in "biuf":
            self._tell(Problem("a reward is no number", "step", outline(reward), "a float"), is_fault=True)
            return 0.0
        if not math.isfinite(reward):
            self._tell(Problem("a reward is not finite", "step", str(reward), "finite numbers"), is_fault=True)
        return float(reward)

    def _check_ends(self, terminated: Any, truncated: Any) -> None:
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, _BOOLS):
                self._tell(Problem(f"{name} is no bool", "step", repr(value), "True or False"), is_fault=False)

    def _check_bounds(self, space: gym.Space[Any]) -> None:
        for _, part in leaf_spaces(space):
            if isinstance(part, gym.spaces.Box) and not part.is_bounded():
                what = "actions have no bounds: they are neither scaled nor clipped"
                allowed = "a Box with finite low and high"
                self._tell(Problem(what, "action_space", str(part), allowed), is_fault=False)

    # -- what several answers tell -------------------------------------------------------------------------------------

    def _tell_episodes(self, lengths: list[int], returns: list[float], num_steps: int) -> None:
        if not lengths:
            what = f"no episode has ended after {num_steps:,} env steps: returns are counted when episodes end"
            allowed = "an end of its own, or gymnasium.wrappers.TimeLimit among env.wrappers"
            self._tell(Problem(what, "step", allowed=allowed), is_fault=False)
            return
        mean_length, mean_return = np.mean(lengths), np.mean(returns)
        self.found.facts["episodes"] = (
            f"{len(lengths)} of {min(lengths)} to {max(lengths)} env steps (mean {mean_length:.1f}), "
            f"mean return {mean_return:.4g} with random actions"
        )

    def _check_repeated(self, first: list[Answer]) -> None:
        """Compare with what another environment returns for the same seeds and actions."""
        another = make_environment(self._config)
        try:
            for number, (expected, (got, is_new)) in enumerate(zip(first, self._answers(another), strict=False)):
                if not _are_equal(expected, got):
                    what = (
                        f"the same seed and actions give other {'observations' if is_new else 'answers'} in a second "
                        f"environment, first after {number} answers: a run is not reproducible, and one that is "
                        "resumed goes on with other episodes"
                    )
                    allowed = "randomness from self.np_random alone, which super().reset(seed=seed) seeds"
                    self._tell(Problem(what, "reset" if is_new else "step", allowed=allowed), is_fault=False)
                    return
        finally:
            another.close()

    def _tell(self, problem: Problem, is_fault: bool) -> None:
        if problem.what not in self._kinds:
            self._kinds.add(problem.what)
            (self.found.faults if is_fault else self.found.warnings).append(problem)

    def _speed(self, num_envs: int, num_steps: int) -> float:
        """Return the env steps per second of so many sub-environments; a reset is time, and no env step."""
        envs = make_vector_env(self._config, num_envs, "auto", self._seed)
        space = gym.vector.utils.batch_space(envs.single_action_space, num_envs)
        space.seed(self._seed)
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


def _copy(obs: Any) -> Any:
    """Return the observation as arrays, safe from an environment that writes into it in its next step."""
    try:
        return nested.map_leaves(np.array, obs)
    except ValueError as error:  # lists of different lengths
        raise RunFailure(Problem(f"an observation is no array: {error}", got=type(obs).__name__)) from error


def _are_equal(first: Answer, second: Answer) -> bool:
    if first[1:] != second[1:]:
        return False
    leaves = zip(nested.leaves(first[0]), nested.leaves(second[0]), strict=True)
    return all(np.array_equal(one, other) for one, other in leaves)


def _outline(answer: Any) -> str:
    """Return what `reset` or `step` returned."""
    if isinstance(answer, tuple):
        return f"{len(answer)} values: {', '.join(type(part).__name__ for part in answer)}"
    return outline(answer)
