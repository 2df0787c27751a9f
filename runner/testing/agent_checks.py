"""Checks of environments with one or several agents: they take random actions and inspect every result."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import ConfigError, Problem, RunFailure, nearest_match
from runner.env_runners.env_closing import closing_problem
from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, PatternMapping, agents_by_module
from runner.env_runners.multi_agent_envs import EnvStep, MultiAgentEnvironments
from runner.env_runners.observation_checks import ObservationChecks, outline
from runner.env_runners.running_agents import FinishedEpisode, RunningAgents
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
    """Check of a single-agent environment.

    Args:
        env: the environment.
        make: makes another instance.
        name: name of the environment in messages.
        validate_observations: see the `env` block.
        seed: seed of resets and actions.
    """

    def __init__(self, env: gym.Env[Any, Any], make: Make, name: str, validate_observations: str, seed: int) -> None:
        self._env, self._make, self._seed = env, make, seed
        self._checks = ObservationChecks(env.observation_space, 1, name, validate_observations)
        self.found = EnvironmentCheck()
        self._seeded: gym.Space[Any] | None = None
        self._num_seeded = 0

    def run(self, num_steps: int) -> None:
        """Run all checks; a fault that would end a run stops them."""
        spaces = {"observation space": self._env.observation_space, "action space": self._env.action_space}
        self.found.facts.update({name: text_of(space) for name, space in spaces.items()})
        self.found.check_bounds(self._env.action_space)
        self.found.check_images(self._env.observation_space)
        answers = self._walk(num_steps)
        if self.found.faults:
            return
        self._check_repeated(answers[:NUM_REPEATED])
        speed = speed_together(self._make, 1, num_steps, self._seed)
        self.found.facts["env steps/s"] = f"{speed:,.0f} with one environment and random actions"
        together = f"{NUM_TOGETHER} sub-environments in one env runner"
        speed = speed_together(self._make, NUM_TOGETHER, num_steps, self._seed)
        self.found.facts["env steps/s, together"] = f"{speed:,.0f} with {together}"

    def _walk(self, num_steps: int) -> list[Answer]:
        answers: list[Answer] = []
        lengths: list[int] = []
        returns: list[float] = []
        length, total, num_taken = 0, 0.0, 0
        for answer, is_new in self._answers(self._env):
            obs, reward, terminated, truncated = answer
            if is_new:
                length, total = 0, 0.0
            method, rows = "reset" if is_new else "step", nested.map_leaves(lambda leaf: leaf[None], obs)
            self.found.check_observations(self._checks, rows, method, method)
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
        self.found.report_episodes(lengths, returns, num_steps)
        return answers

    def _answers(self, env: gym.Env[Any, Any]) -> Iterator[tuple[Answer, bool]]:
        """Yield the results of resets (True) and of steps with random actions, with the same seeds each time."""
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
            raise RunFailure(Problem("terminated or truncated is not a bool", "step", got, "True or False"))
        return copied(obs), reward, terminated, truncated

    def _sampled_action(self, env: gym.Env[Any, Any]) -> Any:
        """Return a random action; if the action space was replaced by another one, it is seeded again."""
        space = env.action_space
        if space is not self._seeded:
            space.seed(self._seed + self._num_seeded)
            self._seeded, self._num_seeded = space, self._num_seeded + 1
        return space.sample()

    def _check_repeated(self, first: list[Answer]) -> None:
        """Compare with the results of a second environment to the same seeds and actions."""
        another = self._make(1)
        try:
            for number, (expected, (got, is_new)) in enumerate(zip(first, self._answers(another), strict=False)):
                if not are_equal(expected, got):
                    self.found.report_not_repeated(number, is_new)
                    return
        finally:
            closing_problem(another)


_MOST_IDLE = 100  # maximum number of consecutive env steps in which no agent acts


class MultiAgentCheck:
    """Check of a multi-agent environment.

    Args:
        env: the environment.
        make: makes another instance.
        name: name of the environment in messages.
        validate_observations: see the `env` block.
        seed: seed of resets and actions.

    Raises:
        ConfigError: the space of an agent is missing, or is not supported by columns.
    """

    def __init__(self, env: MultiAgentEnv, make: Make, name: str, validate_observations: str, seed: int) -> None:
        self._env, self._make, self._seed = env, make, seed
        self.found = EnvironmentCheck()
        self._agents = list(env.possible_agents)
        self._check_ids()
        agents_by_module(env, PatternMapping({"*": "of_{agent}"}))  # checks that each agent has spaces
        self._checks = {
            agent: ObservationChecks(env.observation_spaces[agent], 1, f"{name}, agent {agent}", validate_observations)
            for agent in self._agents
        }
        self._seen: set[str] = set()

    def _check_ids(self) -> None:
        if len(set(self._agents)) < len(self._agents) or not all(isinstance(one, str) for one in self._agents):
            what = "possible_agents is not a list of distinct names"
            raise ConfigError([Problem(what, "possible_agents", repr(self._agents), "a string for each agent")])

    def run(self, num_steps: int) -> None:
        """Run all checks; a fault that would end a run stops them."""
        env, found = self._env, self.found
        for agent in self._agents:
            spaces = f"{text_of(env.observation_spaces[agent])} -> {text_of(env.action_spaces[agent])}"
            found.facts[f"agent {agent}"] = spaces
            found.check_bounds(env.action_spaces[agent], f"action_spaces[{agent!r}]")
            found.check_images(env.observation_spaces[agent], f"observation_spaces[{agent!r}]")
        steps = self._walk(num_steps)
        if found.faults:
            return
        for agent in [agent for agent in self._agents if agent not in self._seen]:
            what = f"agent {agent} was never observed in {num_steps:,} env steps"
            problem = Problem(what, "possible_agents", expected="only agents that can appear")
            found.report(problem, is_fault=False)
        self._check_repeated(steps[:NUM_REPEATED])
        self._measure(num_steps)

    # -- episodes ------------------------------------------------------------------------------------------------------

    def _walk(self, num_steps: int) -> list[EnvStep]:
        environments = _Watched(self._env, self._seed, self.found)
        answers: list[EnvStep] = []
        lengths: list[int] = []
        returns: list[float] = []
        has_ended: set[str] = set()
        num_taken = num_idle = 0
        for step, acting, finished in self._answers(environments):
            answers.append(copy.deepcopy(step))  # the environment may write into it in its next step
            where = "reset" if step.is_reset else "step"
            has_ended = set() if step.is_reset else has_ended
            self._check_answer(step, where, has_ended)
            has_ended |= {agent for agent in acting if step.terminateds.get(agent) or step.truncateds.get(agent)}
            lengths += [episode.length for episode in finished]
            returns += [sum(episode.returns.values()) for episode in finished]
            num_taken += not step.is_reset
            num_idle = 0 if acting or step.is_reset else num_idle + 1
            if num_idle > _MOST_IDLE:
                what = f"no agent has acted in {_MOST_IDLE} env steps, but the episode has not ended"
                expected = "observations of agents that act next, or `__all__` in terminateds or truncateds"
                raise RunFailure(Problem(what, "step", expected=expected))
            if num_taken == num_steps:
                break
        self.found.report_episodes(lengths, returns, num_steps)
        return answers

    def _answers(
        self, environments: MultiAgentEnvironments
    ) -> Iterator[tuple[EnvStep, AgentDict, list[FinishedEpisode]]]:
        """Yield the results of resets and of steps with random actions, the acting agents, and the ended episodes.

        Seeds are the same each time.

        Raises:
            RunFailure: an env runner would also reject the result.
        """
        running = RunningAgents(environments, {agent: [agent] for agent in self._agents})
        spaces = {agent: copy.deepcopy(self._env.action_spaces[agent]) for agent in self._agents}
        for number, space in enumerate(spaces.values()):
            space.seed(self._seed + number)
        [step] = environments.reset(("check", 0, 0))
        acting: AgentDict = {}
        while True:
            _, finished = running.update([step])
            yield step, {} if step.is_reset else acting, finished
            ended = {agent for ends in (step.terminateds, step.truncateds) for agent in ends if ends[agent]}
            acting = {
                agent: spaces[agent].sample() for agent in self._agents if agent in step.obs and agent not in ended
            }
            [step] = environments.step([acting])

    # -- single answers ------------------------------------------------------------------------------------------------

    def _check_answer(self, step: EnvStep, where: str, has_ended: set[str]) -> None:
        """Check a result, except for conditions that `RunningAgents` checks."""
        if step.is_reset and not step.obs:
            what = "reset does not return any observation"
            raise RunFailure(Problem(what, where, expected="observations of the agents that act first"))
        for agent, obs in step.obs.items():
            if agent in self._checks:
                self._seen.add(agent)
                rows = nested.map_leaves(lambda leaf: leaf[None], copied(obs))
                self.found.check_observations(
                    self._checks[agent], rows, f"{where}, agent {agent}", f"{where}, agent {agent}"
                )
        for agent, reward in step.rewards.items():
            self.found.check_reward(reward, f"{where}, agent {agent}")
            if agent in has_ended:
                what = "an agent gets a reward after its end, which is ignored"
                expected = "rewards of agents that have not ended"
                self.found.report(Problem(what, f"{where}, agent {agent}", str(reward), expected), is_fault=False)
        for name, ends in (("terminated", step.terminateds), ("truncated", step.truncateds)):
            for agent, value in ends.items():
                self.found.check_end(name, value, f"{where}, agent {agent}")
        self._check_infos(step.infos, where)

    def _check_infos(self, infos: Mapping[str, Any], where: str) -> None:
        for agent, info in infos.items():
            if agent not in self._checks:
                what = "infos name an agent that is not in possible_agents; they are ignored"
                nearest = nearest_match(str(agent), self._agents)
                problem = Problem(what, where, str(agent), ", ".join(self._agents), nearest)
                self.found.report(problem, is_fault=False)
            elif not isinstance(info, Mapping):
                problem = Problem("an info is not a dict", f"{where}, agent {agent}", outline(info), "a dict")
                self.found.report(problem, is_fault=True)

    # -- several answers -----------------------------------------------------------------------------------------------

    def _check_repeated(self, first: list[EnvStep]) -> None:
        """Compare with the results of a second environment to the same seeds and actions."""
        others = MultiAgentEnvironments(lambda: self._make(1), 1, self._seed)
        try:
            for number, (expected, (got, _, _)) in enumerate(zip(first, self._answers(others), strict=False)):
                if not all(map(are_equal, _compared(expected), _compared(got))):
                    self.found.report_not_repeated(number, got.is_reset)
                    return
        finally:
            others.close()

    def _measure(self, num_steps: int) -> None:
        """Measure the speed; resets take time but do not count as env steps."""
        environments = MultiAgentEnvironments(lambda: self._make(1), 1, self._seed)
        num_taken = num_actions = 0
        try:
            start_s = time.perf_counter()
            for step, acting, _ in self._answers(environments):
                num_taken, num_actions = num_taken + (not step.is_reset), num_actions + len(acting)
                if num_taken == num_steps:
                    break
            seconds = time.perf_counter() - start_s
        finally:
            environments.close()
        per_step = f"{num_actions / seconds:,.0f} agent actions"
        self.found.facts["env steps/s"] = (
            f"{num_taken / seconds:,.0f} with one environment, {per_step}, with random actions"
        )


class _Watched(MultiAgentEnvironments):
    """An environment whose actions are checked for changes after each step."""

    def __init__(self, env: MultiAgentEnv, seed: int, found: EnvironmentCheck) -> None:
        super().__init__(lambda: env, 1, seed)
        self._found = found

    def _call(self, method: str, n: int, *args: Any, **kwargs: Any) -> Any:
        given = [dict(actions) for actions in args]  # the environment may remove agents from its dict
        before = copy.deepcopy(given)
        result = super()._call(method, n, *args, **kwargs)
        for actions in before:
            for agent, action in actions.items():
                self._found.check_action(given[0][agent], action, f"step, agent {agent}")
        return result


def _compared(step: EnvStep) -> tuple[Any, ...]:
    return step.obs, step.rewards, step.terminateds, step.truncateds
