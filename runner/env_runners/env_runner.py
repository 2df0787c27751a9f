"""One env runner: N sub-environments stepped by a module, through the env-to-module and module-to-env pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.env_runners.rollout_buffer import FinishedEpisodes, RolloutBuffer
from runner.env_runners.vector_envs import SubEnvironments
from runner.episodes.columns import ColumnBlock
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.pipelines.piece import ACTIONS_FOR_ENV, DEFAULT_MODULE_ID
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline
from runner.streams import random_stream

# Module id -> (P,) parameters.
Weights = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Sample:
    """What one call of `sample` yields.

    `shared_state` is the state of pieces that runners share (running means and the like), before merging.
    """

    block: ColumnBlock
    finished: FinishedEpisodes
    shared_state: dict[str, Any]


_EVALUATION_FRAGMENT = 256


class SingleAgentEnvRunner:
    """Steps N sub-environments and returns what happened as column blocks.

    Args:
        env: the sub-environments.
        module: acts on the CPU; its weights come through `set_weights`.
        env_to_module, module_to_env: the pipelines around it.
        seed_name: `(role, index, generation)`; names all random streams of this runner within the run's seed.
        seed: of the run.
        num_lookback: past steps that chunks can see.
    """

    def __init__(
        self,
        env: SubEnvironments,
        module: RLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        seed_name: tuple[str, int, int],
        seed: int,
        num_lookback: int,
    ) -> None:
        self.env = env
        self.module = module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._weights = FlatParameters(module)
        self._seed_name = seed_name
        self._seed = seed
        space = env.single_observation_space
        self._bounds = _bounds(space)
        # A piece that rewrites observations in place leaves nothing to check afterwards.
        rewriting = [piece for piece in env_to_module if "obs" in piece.writes]
        self._checks_every_step = len(rewriting) > 1
        role, index, generation = seed_name
        prefix = f"{role}-{index}" if generation == 0 else f"{role}-{index}.{generation}"
        if space.shape is None or space.dtype is None:
            where = type(env).__name__
            problem = Problem("this observation space is not supported", where, str(space), "Box, Discrete")
            raise ConfigError([problem])
        self._buffer = RolloutBuffer(env.num_envs, space.shape, space.dtype, f"{seed}-{prefix}", num_lookback)
        self._to_module: dict[str, Any] | None = None
        self._give_streams()

    def _give_streams(self) -> None:
        role, index, generation = self._seed_name
        for pipeline in (self.env_to_module, self.module_to_env):
            pipeline.give_streams(
                lambda name, position: random_stream(self._seed, f"{role}/{name}", index, generation, position)
            )

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(self, num_env_steps: int, explore: bool, weights: Weights, shared_state: Mapping[str, Any]) -> Sample:
        """Step until at least `num_env_steps` env steps are made; running episodes are cut and go on next time.

        Args:
            num_env_steps: at most N - 1 more are made.
            explore: sample actions; false: the distribution's mode.
            weights: module id -> (P,) parameters to act with.
            shared_state: merged state of pieces that runners share.
        """
        self._take_over(weights, shared_state)
        buffer = self._buffer
        buffer.reserve(-(-num_env_steps // self.env.num_envs) + 1)
        with torch.inference_mode():
            self._start_if_needed(explore)
            while buffer.num_env_steps < num_env_steps:
                self._step(explore)
            block, finished = buffer.cut(lambda columns: self.module_to_env.complete_fragment(columns, self.module))
        self._check_block(block)
        return Sample(block, finished, self.env_to_module.get_state())

    def evaluate(
        self, num_episodes: int, explore: bool, weights: Weights, shared_state: Mapping[str, Any]
    ) -> FinishedEpisodes:
        """Run exactly `num_episodes` whole episodes from fresh resets, always with the same seeds.

        Every sub-environment runs a quota of episodes to their ends, so that short ones are not preferred.
        """
        self._take_over(weights, shared_state)
        quotas = np.full(self.env.num_envs, num_episodes // self.env.num_envs)
        quotas[: num_episodes % self.env.num_envs] += 1
        remaining = quotas.copy()
        self._give_streams()
        self._to_module = None
        buffer = self._buffer
        parts: list[FinishedEpisodes] = []
        with torch.inference_mode():
            self._start_if_needed(explore)
            while (remaining > 0).any():
                self._step(explore)
                remaining -= buffer.awaits_reset
                if buffer.t == _EVALUATION_FRAGMENT:
                    parts.append(self._cut_checked())
            if buffer.t:
                parts.append(self._cut_checked())
        return _first_of_each(parts, quotas)

    def _cut_checked(self) -> FinishedEpisodes:
        block, finished = self._buffer.cut()
        self._check_block(block)
        return finished

    def _start_if_needed(self, explore: bool) -> None:
        if self._to_module is not None:
            return
        self._buffer.clear()
        obs, infos = self.env.reset(self._seed_name)
        self._check_shape(obs, "reset")
        if self._checks_every_step:
            self._check_newest(obs)
        self._buffer.add_reset(obs, infos)
        self._to_module = self._run_env_to_module(explore)

    def _step(self, explore: bool) -> None:
        """One vector step. `_to_module` was made right after the step before, so that a fragment's last observation
        has passed the pipeline when the fragment is cut, and none passes it twice.
        """
        assert self._to_module is not None
        forward = self.module.forward_exploration if explore else self.module.forward_inference
        batch = self.module_to_env(
            rl_module=self.module,
            batch=forward(self._to_module),
            episodes=self._buffer,
            explore=explore,
            shared_data=self._shared_data,
        )
        actions = batch.pop(ACTIONS_FOR_ENV)
        try:
            obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        except RunFailure:
            if not self._checks_every_step:
                self._check_newest(self._buffer.current_obs)  # a bad one made the action that made the step fail
            raise
        self._check_shape(obs, "step")
        if self._checks_every_step:
            self._check_newest(obs)
        self._buffer.add_step(obs, rewards, terminateds, truncateds, infos, batch)
        self._to_module = self._run_env_to_module(explore)

    def _run_env_to_module(self, explore: bool) -> dict[str, Any]:
        self._shared_data: dict[str, Any] = {}
        return self.env_to_module(
            rl_module=self.module,
            batch={},
            episodes=self._buffer,
            explore=explore,
            shared_data=self._shared_data,
        )

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check_shape(self, obs: npt.NDArray[Any], method: str) -> None:
        space = self.env.single_observation_space
        expected = (self.env.num_envs, *(space.shape or ()))
        if np.shape(obs) != expected:
            problem = Problem(
                "the environment's observations do not have the shape of its space",
                where=method,
                got=f"shape {np.shape(obs)}",
                allowed=f"shape {expected}, {self.env.num_envs} rows of {space}",
            )
            raise RunFailure(problem)

    def _check_newest(self, obs: npt.NDArray[Any]) -> None:
        """Check (N, ...) observations before the pipeline rewrites them."""
        bad = self._first_bad(obs)
        if bad is not None:
            self._fail_observation(obs, bad, f"sub-environment {bad[0]}")

    def _check_block(self, block: ColumnBlock) -> None:
        """Check all rewards of a fragment at once, and all observations unless each step's were checked."""
        is_bad_reward = ~np.isfinite(block.columns["rewards"])
        if is_bad_reward.any():
            row = int(np.flatnonzero(is_bad_reward)[0])
            chunk = int(np.searchsorted(block.offsets, row, side="right")) - 1
            where = _place(block, chunk, row - int(block.offsets[chunk]))
            got = f"{block.columns['rewards'][row]}"
            raise RunFailure(Problem("the environment's reward is not finite", where=where, got=got))
        bad = None if self._checks_every_step else self._first_bad(block.columns["obs"])
        if bad is not None:
            first_rows = block.offsets + np.arange(len(block) + 1)
            chunk = int(np.searchsorted(first_rows, bad[0], side="right")) - 1
            self._fail_observation(block.columns["obs"], bad, _place(block, chunk, bad[0] - int(first_rows[chunk])))

    def _first_bad(self, obs: npt.NDArray[Any]) -> tuple[int, ...] | None:
        if self._bounds is None:
            return None
        low, high = self._bounds
        is_inside = (obs >= low) & (obs <= high)  # false for NaN
        if is_inside.all():
            return None
        return tuple(int(i) for i in np.argwhere(~is_inside)[0])

    def _fail_observation(self, obs: npt.NDArray[Any], bad: tuple[int, ...], where: str) -> None:
        assert self._bounds is not None
        low, high = (np.broadcast_to(bound, obs.shape[1:])[bad[1:]] for bound in self._bounds)
        index = f"[{', '.join(map(str, bad[1:]))}]" if bad[1:] else ""
        problem = Problem(
            "an observation leaves the environment's observation space",
            where=where,
            got=f"obs{index} = {obs[bad]}",
            allowed=f"{low} to {high}",
        )
        raise RunFailure(problem)

    # -- state -----------------------------------------------------------------------------------------------------

    def _take_over(self, weights: Weights, shared_state: Mapping[str, Any]) -> None:
        self._weights.load(weights[DEFAULT_MODULE_ID])
        self.env_to_module.set_state(shared_state)

    def get_state(self) -> dict[str, Any]:
        """Everything that the next `sample` depends on, except the weights; empty before the first one."""
        if self._to_module is None:
            return {}
        return {
            "env": self.env.get_state(),
            "buffer": self._buffer.get_state(),
            "to_module": {column: np.asarray(rows).copy() for column, rows in self._to_module.items()},
            "shared_data": self._shared_data,
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        if not state:
            return
        self.env.set_state(state["env"])
        self._buffer.set_state(state["buffer"])
        self._to_module = {column: torch.from_numpy(np.array(rows)) for column, rows in state["to_module"].items()}
        self._shared_data = dict(state["shared_data"])
        self.env_to_module.set_state(state["env_to_module"])
        self.module_to_env.set_state(state["module_to_env"])

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


def _bounds(space: gym.Space[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Lowest and highest admitted values, None where the dtype admits nothing else."""
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    return None


def _place(block: ColumnBlock, chunk: int, row: int) -> str:
    return f"episode {block.episode_ids[chunk]}, time step {int(block.t_started[chunk]) + row}"


def _first_of_each(parts: list[FinishedEpisodes], quotas: npt.NDArray[np.int64]) -> FinishedEpisodes:
    """The first `quotas[n]` finished episodes of each sub-environment n."""
    env_of, returns, lengths = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("env_of", "returns", "lengths")
    )
    counted = np.concatenate([np.flatnonzero(env_of == n)[:quota] for n, quota in enumerate(quotas)])
    return FinishedEpisodes(returns[counted], lengths[counted], env_of[counted])
