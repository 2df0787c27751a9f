"""The policy as env runners run it, numpy connectors and all, to compare exported files with."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.episodes import nested
from runner.episodes.spaces import blank_item
from runner.module_parts import ActingParts
from runner.modules.flat_parameters import FlatParameters
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTIONS, ACTIONS_FOR_ENV
from runner.pipelines.module_to_env_connectors import ModuleToAgentUnmapping
from runner.rllink.client.local_policy import LocalPolicy
from runner.rows.lock_step_rows import LockStepRows

_HUGE = 1e6


class ReferencePolicy:
    """Acts greedily for B episodes at once, on copies of the parts.

    Args:
        parts: of the module.
        weights: (P,) parameters.
        shared_state: connector name -> state.
        num_rows: B.
    """

    def __init__(
        self, parts: ActingParts, weights: npt.NDArray[np.float32], shared_state: Mapping[str, Any], num_rows: int
    ) -> None:
        parts = copy.deepcopy(parts)
        self._module = parts.module.cpu().eval()
        self._env_to_module, self._module_to_env = parts.env_to_module, parts.module_to_env
        self._env_to_module.freeze()
        self._env_to_module.set_state(shared_state)
        FlatParameters(self._module).load(weights)
        lookback = max(self._env_to_module.num_lookback, self._module_to_env.num_lookback)
        blanks = blank_item(parts.plan.observation_space), blank_item(self._module.action_space)
        self._episodes = LockStepRows(num_rows, *blanks, "reference", lookback)
        self._is_first = True
        self._outputs: dict[str, Any] = {}

    @torch.no_grad()
    def act(self, obs: Any, rewards: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Return columns after the module-to-env connectors: `action_dist_inputs`, `actions`, `actions_for_env` and
        more.

        Args:
            obs: (B, ...) the observations now.
            rewards: (B,) for the actions before; not read in the first step.
        """
        if self._is_first:
            self._episodes.add_reset(obs, {})
        else:
            goes_on = np.zeros(len(rewards), np.bool_)
            self._episodes.add_step(obs, rewards, goes_on, goes_on, {}, self._outputs)
        self._is_first = False
        batch = self._env_to_module(rl_module=self._module, batch={}, episodes=self._episodes, explore=False)
        outputs = self._module.forward_inference(batch)
        acted_on = outputs[ACTION_DIST_INPUTS]
        for connector in self._module_to_env:
            if not isinstance(connector, ModuleToAgentUnmapping):
                outputs = connector(rl_module=self._module, batch=outputs, episodes=self._episodes, explore=False)
                # A connector that explores by itself takes it away, and a file gives it.
                acted_on = outputs.get(ACTION_DIST_INPUTS, acted_on)
        self._outputs = {name: column for name, column in outputs.items() if name != ACTIONS_FOR_ENV}
        return {ACTION_DIST_INPUTS: acted_on, **outputs}


class ProgramPolicy(LocalPolicy):
    """A `.pt2` file that acts as an ONNX file does.

    Args:
        content: of the file.
    """

    def __init__(self, content: bytes) -> None:
        files = {"manifest.json": ""}
        self._program = torch.export.load(io.BytesIO(content), extra_files=files).module()
        self._use(json.loads(files["manifest.json"]))

    @torch.no_grad()
    def _run(self, feeds: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        outputs = self._program({name: torch.from_numpy(value) for name, value in feeds.items()})
        return {name: value.numpy() for name, value in outputs.items()}


def random_observations(space: gym.Space[Any], num_rows: int) -> Any:
    """Return (num_rows, ...) samples of a space, of its dtypes and not too large; seed the space before."""
    return nested.map_leaves(_moderate, nested.stack([space.sample() for _ in range(num_rows)]))


def _moderate(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return items by their logarithms where bounds such as 3e38, which mean that there are none, made them huge."""
    is_huge = leaf.dtype.kind == "f" and np.abs(leaf).max(initial=0.0) > _HUGE
    return np.sign(leaf) * np.log1p(np.abs(leaf)) if is_huge else leaf


def largest_difference(
    policy: LocalPolicy,
    parts: ActingParts,
    weights: npt.NDArray[np.float32],
    shared_state: Mapping[str, Any],
    num_rows: int = 64,
    num_steps: int = 4,
) -> float:
    """Return how far a file's outputs are from the policy's on random observations, over a few steps of B episodes.

    Args:
        policy: the file with these parameters.
        parts, weights, shared_state: of the policy.
        num_rows: B.
        num_steps: of each episode.

    Returns:
        The largest difference of `action_dist_inputs` and `actions`, relative to values beyond 1.
    """
    reference = ReferencePolicy(parts, weights, shared_state, num_rows)
    space = copy.deepcopy(parts.plan.observation_space)
    space.seed(0)
    stream = np.random.default_rng(0)
    state: dict[str, Any] | None = None
    differences = [0.0]
    for _ in range(num_steps):
        obs = random_observations(space, num_rows)
        rewards = stream.normal(size=num_rows).astype(np.float32)
        expected = reference.act(obs, rewards)
        actions, extra = policy.act(obs, state, explore=False, rewards=None if state is None else rewards)
        pairs = [(extra["action_dist_inputs"], expected["action_dist_inputs"])]
        pairs += zip(nested.leaves(actions), nested.leaves(expected[ACTIONS_FOR_ENV]), strict=True)
        differences += [_difference(got, expected) for got, expected in pairs]
        state = policy.with_actions(extra["state_out"], expected[ACTIONS])
    return max(differences)


def _difference(a: Any, b: Any) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float((np.abs(a - b) / np.maximum(1.0, np.abs(b))).max(initial=0.0))
