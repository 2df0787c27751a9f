"""Fragments that modules with memory sampled, the states that they acted from, and train batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runner.config.schemas import ModuleConfig
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.runner_identity import RunnerIdentity
from runner.env_runners.vector_envs import SubEnvironments
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.module_building import make_connector
from runner.modules import ActorCriticModule, RLModule
from runner.modules.flat_parameters import FlatParameters
from runner.pipelines.connector import Connector
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from tests.support.coded_runs import CPU, coded_envs
from tests.support.environments import CodedEnv

SPACES = CodedEnv.observation_space, CodedEnv.action_space
GAMMA, LAMBDA = 0.9, 0.8
KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"use_lstm": True},
    "gru": {"use_gru": True},
    "lstm, own value net": {"use_lstm": True, "vf_share_layers": False},
    "gru, own value net": {"use_gru": True, "vf_share_layers": False},
}
Place = tuple[float, ...]


def make_module(kind: str) -> ActorCriticModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ActorCriticModule(*SPACES, ModuleConfig(fcnet_hiddens=[6], lstm_cell_size=5, **KINDS[kind]))


def remembering_runner(
    env: SubEnvironments, module: RLModule, num_lookback: int = 1
) -> tuple[SingleAgentEnvRunner, dict[Place, Any]]:
    """A runner, and by place (n, t, k) the states that its module acts from."""
    runner = SingleAgentEnvRunner(
        env,
        module,
        env_to_module_pipeline(*SPACES, CPU, [], make_connector, max_seq_len=7),
        module_to_env_pipeline(*SPACES, True, False, [], make_connector, has_memory=True),
        RunnerIdentity("env_runner", 0, 0, seed=0),
        num_lookback=num_lookback,
    )
    states: dict[Place, Any] = {}
    forward = module.forward_exploration

    def spy(batch: Mapping[str, Any]) -> dict[str, Any]:
        for row, place in enumerate(batch["obs"][:, 0].tolist()):
            states[tuple(place)] = nested.map_leaves(lambda leaf, row=row: leaf[row].clone(), batch["state_in"])
        return forward(batch)

    module.forward_exploration = spy  # type: ignore[method-assign]
    return runner, states


@dataclass
class Fragment:
    """What a runner sampled with `weights`, and by place (n, t, k) the state that its module acted from."""

    block: ColumnBlock
    weights: Any
    states: dict[Place, Any]


def sampled(
    kind: str, lengths: Sequence[int], fragments: Sequence[int], num_envs: int = 3, num_lookback: int = 1
) -> list[Fragment]:
    """Sample one fragment with at least each of these numbers of steps; the weights change before each."""
    env, _ = coded_envs("batched", num_envs, lengths)
    runner, states = remembering_runner(env, make_module(kind), num_lookback)
    found = []
    rng = np.random.default_rng(0)
    weights = runner._weights["default_policy"].to_numpy()
    for steps in fragments:
        weights = weights + rng.normal(scale=0.2, size=weights.shape).astype(np.float32)
        block = runner.sample(steps, True, {"default_policy": weights}, {}).rollout.blocks["default_policy"]
        block.columns["rewards"][:] *= 1e-4  # as large as the values
        found.append(Fragment(block, weights, dict(states)))
    return found


def acting_module(kind: str, fragment: Fragment) -> ActorCriticModule:
    module = make_module(kind)
    FlatParameters(module).load(fragment.weights)
    return module


def learner_batch(
    block: ColumnBlock, module: RLModule, max_seq_len: int, *extra: tuple[str, Connector]
) -> dict[str, Any]:
    edits = [
        {"prepend": {"_target_": "runner.pipelines.AddOneTsToEpisodesAndTruncate"}},
        {"append": {"_target_": "runner.pipelines.GeneralAdvantageEstimation", "gamma": GAMMA, "lambda_": LAMBDA}},
    ]
    pipeline = learner_pipeline(*SPACES, CPU, edits, make_connector, block.extra_columns, max_seq_len)
    for anchor, connector in extra:
        pipeline.insert_before(anchor, connector)
    batch: dict[str, Any] = pipeline(rl_module={"default_policy": module}, batch={}, episodes=block)["default_policy"]
    return batch
