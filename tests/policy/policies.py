"""Policies of any spaces and connectors, without an environment."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.config.schemas import ExperimentConfig
from runner.episodes.spaces import blank_item
from runner.module_building import BuiltActingModule, ModuleSpec, build_acting_module
from runner.modules.flat_parameters import FlatParameters
from runner.policy.stored_policy import random_observations
from runner.rows.lock_step_rows import LockStepRows
from tests.support.configs import config_from

CONNECTORS = "runner.pipelines."


def make_parts(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *overrides: str,
    env_to_module: list[dict[str, Any]] | None = None,
    module_to_env: list[dict[str, Any]] | None = None,
    experiment: str = "ppo_cartpole",
) -> tuple[BuiltActingModule, ExperimentConfig]:
    """The acting parts of a small network for these spaces."""
    config = config_from(f"+experiment={experiment}", "module.fcnet_hiddens=[16,16]", *overrides)
    edits = replace(config.connectors, env_to_module=env_to_module or [], module_to_env=module_to_env or [])
    config = replace(config, connectors=edits)
    plan = ModuleSpec("default_policy", None, observation_space, action_space, config.module, config.algorithm)
    return build_acting_module(config, plan), config


def prepended(name: str, **arguments: Any) -> dict[str, Any]:
    """An edit that puts a connector of ours behind the one that adds observations."""
    return {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "connector": {"_target_": CONNECTORS + name, **arguments},
    }


def random_weights(parts: BuiltActingModule, seed: int = 1) -> npt.NDArray[np.float32]:
    """(P,) other parameters than those that the module was made with."""
    count = FlatParameters(parts.module).to_numpy().size
    return np.random.default_rng(seed).normal(0.0, 0.2, count).astype(np.float32)


def seen_state(parts: BuiltActingModule, num_rows: int = 50, seed: int = 3) -> dict[str, Any]:
    """The state that runners share after some random observations; that of `parts` stays."""
    pipeline = copy.deepcopy(parts.env_to_module)
    parts.spec.observation_space.seed(seed)
    obs = random_observations(parts.spec.observation_space, num_rows)
    blanks = blank_item(parts.spec.observation_space), blank_item(parts.module.action_space)
    episodes = LockStepRows(num_rows, *blanks, "seen", pipeline.requires.num_lookback)
    episodes.add_reset(obs, {})
    pipeline(rl_module=parts.module, batch={}, episodes=episodes)
    return pipeline.merge_states([pipeline.get_state()])
