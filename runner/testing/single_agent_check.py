"""What an environment with one agent does wrong: random actions, every answer looked at."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import Problem, RunFailure
from runner.env_runners.env_closing import closing_problem
from runner.env_runners.observation_checks import ObservationChecks, outline
from runner.episodes import nested
from runner.testing.environment_findings import (
    NUM_REPEATED,
    NUM_TOGETHER,
    EnvironmentCheck,
    Make,
    answer_of,
    copied,
    speed_together,
    text_of,
)
from runner.testing.rules import are_equal

# Answers of one step: observation, reward, terminated, truncated.
Answer = tuple[Any, Any, Any, Any]


class SingleAgentCheck:
    """One check.

    Args:
        env: the environment.
        make: makes another one.
        name: for messages.
        validate_observations: of the `env` block.
        seed: of resets and actions.
    """

    def __init__(self, env: gym.Env[Any, Any], make: Make, name: str, validate_observations: str, seed: int) -> None:
        self._env, self._make, self._seed = env, make, seed
        self._checks = ObservationChecks(env.observation_space, 1, name, validate_observations)
        self.found = EnvironmentCheck()
        self._seeded: gym.Space[Any] | None = None
        self._num_seeded = 0

    def run(self, num_steps: int) -> None:
        """Check all there is to check; the first thing that no run survives ends it."""
        spaces = {"observation space": self._env.observation_space, "action space": self._env.action_space}
        self.found.facts.update({name: text_of(space) for name, space in spaces.items()})
        self.found.check_bounds(self._env.action_space)
        self.found.check_images(self._env.observation_space)
        answers = self._walk(num_steps)
        if self.found.faults:
            return
        self._check_repeated(answers[:NUM_REPEATED])
        speed = speed_together(self._make, 1, num_steps, self._seed)
        self.found.facts["env steps/s"] = f"{speed:,.0f} of one, with random actions"
        together = f"{NUM_TOGETHER} sub-environments, as one env runner steps them"
        speed = speed_together(self._make, NUM_TOGETHER, num_steps, self._seed)
        self.found.facts["env steps/s, together"] = f"{speed:,.0f} of {together}"

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
                self.found.check_end("terminated", terminated, "step")
                self.found.check_end("truncated", truncated, "step")
                total += self.found.check_reward(reward, "step")
                length, num_taken = length + 1, num_taken + 1
                if terminated or truncated:
                    lengths.append(length)
                    returns.append(total)
            answers.append(answer)
            if num_taken == num_steps:
                break
        self.found.tell_episodes(lengths, returns, num_steps)
        return answers

    def _answers(self, env: gym.Env[Any, Any]) -> Iterator[tuple[Answer, bool]]:
        """Yield what resets (True) and steps with random actions return, with the same seeds each time."""
        self._seeded, self._num_seeded = None, 0
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
        sizes = "observation, info (a dict)"
        obs, _ = answer_of(lambda: env.reset(seed=seed), f"reset(seed={seed})", "reset", sizes)
        return copied(obs)

    def _step(self, env: gym.Env[Any, Any]) -> Answer:
        action = self._sampled_action(env)
        before = copy.deepcopy(action)
        sizes = "observation, reward, terminated, truncated, info (a dict)"
        obs, reward, terminated, truncated, _ = answer_of(
            lambda: env.step(action), "step", "step", sizes, f"action {before}"
        )
        self.found.check_action(action, before, "step")
        if np.size(terminated) != 1 or np.size(truncated) != 1:
            got = f"{outline(terminated)}, {outline(truncated)}"
            raise RunFailure(Problem("terminated or truncated is no bool", "step", got, "True or False"))
        return copied(obs), reward, terminated, truncated

    def _sampled_action(self, env: gym.Env[Any, Any]) -> Any:
        """Return a random action; a space that has replaced another one gets a seed of its own."""
        space = env.action_space
        if space is not self._seeded:
            space.seed(self._seed + self._num_seeded)
            self._seeded, self._num_seeded = space, self._num_seeded + 1
        return space.sample()

    def _check_observation(self, obs: Any, method: str) -> None:
        self.found.tell_misfit(self._checks, nested.map_leaves(lambda leaf: leaf[None], obs), method, method)

    def _check_repeated(self, first: list[Answer]) -> None:
        """Compare with what another environment returns for the same seeds and actions."""
        another = self._make(1)
        try:
            for number, (expected, (got, is_new)) in enumerate(zip(first, self._answers(another), strict=False)):
                if not are_equal(expected, got):
                    self.found.tell_not_repeated(number, is_new)
                    return
        finally:
            closing_problem(another)
