"""Check of an environment for faults and speed: single-agent, multi-agent, or vectorised."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.schemas import EnvConfig
from runner.env_runners.env_closing import closing_problem
from runner.env_runners.env_makers import Environment, check_made, make_environment, makes_all_at_once
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.observation_checks import ObservationChecks, outline
from runner.env_runners.petting_zoo import as_multi_agent
from runner.episodes import nested
from runner.testing.agent_checks import MultiAgentCheck, SingleAgentCheck
from runner.testing.environment_findings import (
    FINITE,
    NUM_REPEATED,
    NUM_TOGETHER,
    EnvironmentCheck,
    Make,
    answer_of,
    are_finite,
    copied,
    speed_together,
    text_of,
)
from runner.testing.rules import BrokenContract, are_equal

NUM_ENVS = 4
# Answers of one vector step: observations, rewards, terminateds, truncateds.
Answer = tuple[Any, Any, Any, Any]
_AUTORESET = gym.vector.AutoresetMode.NEXT_STEP


class VectorCheck:
    """Check of a vectorised environment with `NUM_ENVS` sub-environments.

    Args:
        env: the sub-environments.
        make: makes other instances.
        name: name of the environment in messages.
        validate_observations: see the `env` block.
        seed: seed of resets and actions.
    """

    def __init__(
        self, env: gym.vector.VectorEnv[Any, Any, Any], make: Make, name: str, validate_observations: str, seed: int
    ) -> None:
        self._env, self._make, self._seed = env, make, seed
        self._checks = ObservationChecks(env.single_observation_space, NUM_ENVS, name, validate_observations)
        self.found = EnvironmentCheck()

    def run(self, num_steps: int) -> None:
        """Run all checks; a fault that would end a run stops them."""
        env, found = self._env, self.found
        found.facts["observation space"] = f"{text_of(env.single_observation_space)} of each"
        found.facts["action space"] = f"{text_of(env.single_action_space)} of each"
        found.check_bounds(env.single_action_space, "single_action_space")
        found.check_images(env.single_observation_space, "single_observation_space")
        self._check_declarations()
        if found.faults:
            return
        answers = self._walk(num_steps)
        if found.faults:
            return
        self._check_repeated(answers[:NUM_REPEATED])
        self._check_seeds(answers[0][0])
        speed = speed_together(self._make, NUM_TOGETHER, num_steps, self._seed)
        found.facts["env steps/s"] = f"{speed:,.0f} with {NUM_TOGETHER} sub-environments and random actions"

    def _check_declarations(self) -> None:
        mode = self._env.metadata.get("autoreset_mode")
        if mode != _AUTORESET:
            what = "sub-environments are not reset in the step after the end of their episode"
            fix = 'implement it, and set metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}'
            self.found.report(Problem(what, "metadata", f"autoreset_mode {mode}", fix=fix), is_fault=True)
        for attribute in ("observation_space", "action_space"):
            expected = gym.vector.utils.batch_space(getattr(self._env, f"single_{attribute}"), self._env.num_envs)
            space = getattr(self._env, attribute, None)
            if space != expected:
                what = f"{attribute} is not single_{attribute} for all sub-environments"
                got = "nothing" if space is None else text_of(space)
                self.found.report(Problem(what, attribute, got, text_of(expected)), is_fault=False)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _walk(self, num_steps: int) -> list[Answer]:
        answers: list[Answer] = []
        lengths: list[int] = []
        returns: list[float] = []
        length, total = np.zeros(NUM_ENVS, np.int64), np.zeros(NUM_ENVS)
        is_done = np.zeros(NUM_ENVS, np.bool_)
        for number, answer in enumerate(self._answers(self._env, is_checked=True)):
            answers.append(answer)
            obs, rewards, terminateds, truncateds = answer
            method = "step" if number else "reset"
            self.found.check_observations(self._checks, obs, method, method)
            if number and not self._check_arrays(rewards, terminateds, truncateds):
                break
            if number:
                ends = terminateds | truncateds
                self._check_resets(is_done, rewards, ends)
                length, total = np.where(is_done, 0, length + 1), np.where(is_done, 0.0, total + rewards)
                is_done = ends
                lengths += length[ends].tolist()
                returns += total[ends].tolist()
            if self.found.faults or number * NUM_ENVS >= num_steps:
                break
        if not self.found.faults:
            self.found.report_episodes(lengths, returns, num_steps)
        return answers

    def _answers(self, env: gym.vector.VectorEnv[Any, Any, Any], is_checked: bool = False) -> Iterator[Answer]:
        """Yield the results of the reset and of vector steps with random actions, with the same seeds each time."""
        space = gym.vector.utils.batch_space(env.single_action_space, NUM_ENVS)
        space.seed(self._seed)
        sizes = "observations, infos (a dict)"
        obs, infos = answer_of(lambda: env.reset(seed=self._seed), f"reset(seed={self._seed})", "reset", sizes)
        if is_checked:
            self._check_infos(infos, "reset")
        yield copied(obs), np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, np.bool_), np.zeros(NUM_ENVS, np.bool_)
        sizes = "observations, rewards, terminateds, truncateds, infos (a dict)"
        while True:
            actions = space.sample()
            before = copy.deepcopy(actions)
            obs, rewards, terminateds, truncateds, infos = answer_of(
                partial(env.step, actions), "step", "step", sizes, f"actions {before}"
            )
            if is_checked:
                self.found.check_action(actions, before, "step")
                self._check_infos(infos, "step")
            yield copied(obs), np.array(rewards), np.array(terminateds), np.array(truncateds)

    def _check_arrays(self, rewards: Any, terminateds: Any, truncateds: Any) -> bool:
        """Check rewards and end flags; return whether they are usable."""
        has_numbers = rewards.shape == (NUM_ENVS,) and rewards.dtype.kind in "biuf"
        if not has_numbers:
            expected = f"numbers of shape ({NUM_ENVS},), one for each sub-environment"
            self.found.report(Problem("rewards are not numbers", "step", outline(rewards), expected), is_fault=True)
        elif not are_finite(rewards):
            problem = Problem("a reward is not finite", "step", str(rewards), FINITE)
            self.found.report(problem, is_fault=True)
        has_bools = True
        for name, ends in (("terminateds", terminateds), ("truncateds", truncateds)):
            if ends.shape != (NUM_ENVS,) or ends.dtype != np.bool_:
                has_bools = False
                problem = Problem(f"{name} are not bools", "step", outline(ends), f"bools of shape ({NUM_ENVS},)")
                self.found.report(problem, is_fault=True)
        return has_numbers and has_bools

    def _check_resets(self, is_done: npt.NDArray[np.bool_], rewards: Any, ends: npt.NDArray[np.bool_]) -> None:
        """Check the sub-environments whose episodes ended in the previous step, which this step resets."""
        if (rewards[is_done] != 0).any():
            what = "the step that resets a sub-environment returns a reward; was it reset in the previous step?"
            self.found.report(
                Problem(what, "step", str(rewards[is_done]), "0, because no action was taken"), is_fault=True
            )
        if ends[is_done].any():
            what = "the step that resets a sub-environment also ends its episode"
            expected = "a first observation, after which an action is taken"
            self.found.report(Problem(what, "step", expected=expected), is_fault=True)

    def _check_infos(self, infos: Mapping[str, Any], method: str) -> None:
        """Check infos in gymnasium's format: `key` holds a value for each sub-environment for which `_key` is true."""
        if "final_obs" in infos:
            what = "infos contain final_obs: sub-environments are reset in the step that ends their episode"
            fix = "return the last observation in `obs`, and reset in the next step"
            self.found.report(Problem(what, method, fix=fix), is_fault=True)
        for key, values in infos.items():
            if key.startswith("_") and key[1:] in infos:
                continue
            if isinstance(values, Mapping):
                self._check_infos(values, method)
            elif np.ndim(values) == 0 or len(values) != NUM_ENVS:
                what = f"info {key} does not contain a value per sub-environment"
                expected = f"an array of {NUM_ENVS} values, together with a mask _{key}"
                self.found.report(Problem(what, method, outline(values), expected), is_fault=True)
            mask = infos.get(f"_{key}")
            if mask is not None and np.shape(mask) != (NUM_ENVS,):
                what = f"info _{key} does not mark the sub-environments that have {key}"
                problem = Problem(what, method, outline(mask), f"bools of shape ({NUM_ENVS},)")
                self.found.report(problem, is_fault=True)

    # -- seeds ---------------------------------------------------------------------------------------------------------

    def _check_repeated(self, first: list[Answer]) -> None:
        """Compare with the results of other sub-environments to the same seed and actions."""
        others = self._make(NUM_ENVS)
        try:
            for number, (expected, got) in enumerate(zip(first, self._answers(others), strict=False)):
                if not are_equal(expected, got):
                    self.found.report_not_repeated(number, is_reset=number == 0)
                    return
        finally:
            closing_problem(others)

    def _check_seeds(self, first: Any) -> None:
        """Check the effect of seeds on the first observations."""
        again, other = (copied(self._env.reset(seed=self._seed + more)[0]) for more in (0, 1))
        if not nested.equal(first, again):
            what = "a second reset with the same seed returns different observations"
            problem = Problem(what, "reset", fix="reset all random generators in each reset(seed=...)")
            self.found.report(problem, is_fault=False)
        rows = nested.unstack(first)
        if not nested.equal(first, other) and all(nested.equal(rows[0], row) for row in rows[1:]):
            what = "all sub-environments start with the same observation although it depends on the seed"
            fix = "use a different seed for each, such as seed + its index"
            self.found.report(Problem(what, "reset", fix=fix), is_fault=False)


def check_environment(
    env: EnvConfig | Callable[..., Environment], num_steps: int = 1000, seed: int = 0
) -> EnvironmentCheck:
    """Check an environment like `check-env`.

    Args:
        env: the `env` block; or a class or function that returns an environment (with an argument `num_envs` if it is
            vectorised).
        num_steps: number of env steps.
        seed: seed of resets and actions.

    Returns:
        Warnings and measurements.

    Raises:
        BrokenContract: the environment has faults; the message lists all of them.
        ConfigError: see `inspect_environment`.
    """
    found = inspect_environment(env, num_steps, seed)
    if found.faults:
        raise BrokenContract(_name_of(env), found.faults)
    return found


def inspect_environment(
    env: EnvConfig | Callable[..., Environment], num_steps: int = 1000, seed: int = 0
) -> EnvironmentCheck:
    """Step an environment with random actions, and inspect all results.

    Args:
        env: see `check_environment`; `validate_observations` of a block decides how observations out of bounds are
            treated.
        num_steps: number of env steps.
        seed: seed of resets and actions.

    Raises:
        ConfigError: the environment cannot be created, or its spaces are not supported.
    """
    make: Make = partial(make_environment, env) if isinstance(env, EnvConfig) else partial(_make, env)
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
        except RunFailure as failure:  # the check cannot continue
            check.found.faults.append(failure.problem)
    finally:
        problem = closing_problem(made)
    if problem is not None:
        check.found.report(problem, is_fault=False)
    return check.found


def _name_of(env: EnvConfig | Callable[..., Environment]) -> str:
    return env.name if isinstance(env, EnvConfig) else getattr(env, "__name__", type(env).__name__)


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
            raise ConfigError([Problem(f"{name} does not define {attribute}", "env", got, "a gymnasium.spaces.Space")])
