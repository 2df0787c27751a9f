"""What an environment does wrong, and how fast it is: of one agent, of several, or stepped together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.schemas import EnvConfig
from runner.env_runners.env_closing import closing_problem
from runner.env_runners.env_makers import Environment, check_made, make_environment, makes_all_at_once
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.petting_zoo import as_multi_agent
from runner.testing.environment_findings import EnvironmentCheck as EnvironmentCheck
from runner.testing.environment_findings import Make
from runner.testing.multi_agent_check import MultiAgentCheck
from runner.testing.rules import BrokenContract
from runner.testing.single_agent_check import SingleAgentCheck
from runner.testing.vector_check import NUM_ENVS, VectorCheck


def check_environment(
    env: EnvConfig | Callable[..., Environment], num_steps: int = 1000, seed: int = 0
) -> EnvironmentCheck:
    """Check an environment as `check-env` does.

    Args:
        env: the `env` block; or a class, or a function that returns an environment (with an argument `num_envs` where
            it steps several together).
        num_steps: env steps.
        seed: of resets and actions.

    Returns:
        Warnings and what was measured.

    Raises:
        BrokenContract: the environment has faults; it lists all of them.
        ConfigError: see `inspect_environment`.
    """
    found = inspect_environment(env, num_steps, seed)
    if found.faults:
        raise BrokenContract(_name_of(env), found.faults)
    return found


def inspect_environment(
    env: EnvConfig | Callable[..., Environment], num_steps: int = 1000, seed: int = 0
) -> EnvironmentCheck:
    """Step an environment with random actions, and look at everything that it returns.

    Args:
        env: see `check_environment`; `validate_observations` of a block decides what an observation out of bounds is.
        num_steps: env steps.
        seed: of resets and actions.

    Raises:
        ConfigError: the environment cannot be made, or its spaces are not supported.
    """
    make = _maker_of(env)
    name, rule = _name_of(env), env.validate_observations if isinstance(env, EnvConfig) else "warn"
    made = make(1)
    check: SingleAgentCheck | VectorCheck | MultiAgentCheck
    try:
        if isinstance(made, MultiAgentEnv):
            check = MultiAgentCheck(made, make, name, rule, seed)
        elif isinstance(made, gym.vector.VectorEnv):
            _check_spaces(made, name, ("single_observation_space", "single_action_space"))
            closing_problem(made)
            made = make(NUM_ENVS)
            check = VectorCheck(made, make, name, rule, seed)
        else:
            _check_spaces(made, name, ("observation_space", "action_space"))
            check = SingleAgentCheck(made, make, name, rule, seed)
        try:
            check.run(num_steps)
        except RunFailure as failure:  # it cannot go on
            check.found.faults.append(failure.problem)
    finally:
        problem = closing_problem(made)
    if problem is not None:
        check.found.tell(problem, is_fault=False)
    return check.found


def _name_of(env: EnvConfig | Callable[..., Environment]) -> str:
    return env.name if isinstance(env, EnvConfig) else getattr(env, "__name__", type(env).__name__)


def _maker_of(env: EnvConfig | Callable[..., Environment]) -> Make:
    """Return what makes the environment, for so many sub-environments."""
    return partial(make_environment, env) if isinstance(env, EnvConfig) else partial(_make, env)


def _make(make: Callable[..., Environment], num_envs: int) -> Environment:
    made = make(num_envs=num_envs) if makes_all_at_once(make) else make()
    name = _name_of(make)
    check_made(made, num_envs, name, name, type(made).__name__)
    return as_multi_agent(made)


def _check_spaces(env: Any, name: str, attributes: tuple[str, ...]) -> None:
    for attribute in attributes:
        space = getattr(env, attribute, None)
        if not isinstance(space, gym.Space):
            got = "nothing" if space is None else repr(space)
            raise ConfigError([Problem(f"{name} has no {attribute}", "env", got, "a gymnasium.spaces.Space")])
