"""Modules with memory learn from replay: states, burn-in and next states of sampled chunks, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.algorithms import DQNConfig
from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.episodes.rollout_parts import split_rollout
from runner.learners.dqn import DQNLoss
from runner.module_building import make_connector
from runner.modules import DoubleQModule
from runner.modules.flat_parameters import flat_values
from runner.pipelines.defaults import learner_pipeline
from runner.replay import PrioritizedReplayBuffer, ReplayBuffer
from runner.replay.replay_buffer import REPLAYED
from runner.streams import random_stream
from runner.testing.module_learner import ModuleLearner
from tests.learners.memory_runs import SPACES, Place, remembering_runner
from tests.support.coded_runs import CPU, coded_envs

ID = "default_policy"
CONFIG = DQNConfig(gamma=0.9, double_q=True, td_error_loss_fn="mse")
EDITS = [
    {
        "insert_after": "AddObservationsFromEpisodesToBatch",
        "connector": {"_target_": "runner.pipelines.AddNextObservationsFromEpisodesToTrainBatch"},
    }
]


def make_module(memory: str) -> DoubleQModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DoubleQModule(*SPACES, ModuleConfig(fcnet_hiddens=[6], lstm_cell_size=5, **{memory: True}))


def filled(buffer: ReplayBuffer, module: DoubleQModule, fragments: list[int]) -> dict[Place, Any]:
    """Fill a buffer, each fragment with other weights; returns by place (n, t, k) the state that was acted from."""
    env, _ = coded_envs("batched", 3, [9, 4, 14])
    runner, states = remembering_runner(env, module)
    rng, weights = np.random.default_rng(0), flat_values(module)
    buffer.use_lookback({ID: 1})
    buffer.use_stream(random_stream(0, "test"))
    for steps in fragments:
        weights = weights + rng.normal(scale=0.2, size=weights.shape).astype(np.float32)
        rollout = runner.sample(steps, True, {ID: weights}, {}).rollout
        rollout.blocks[ID].columns["rewards"][:] *= 1e-4
        buffer.add(rollout)
    del module.forward_exploration
    with torch.no_grad():  # the target is another network
        for target, _ in module.target_networks():
            for parameter in target.parameters():
                parameter.add_(torch.from_numpy(rng.normal(scale=0.1, size=parameter.shape).astype(np.float32)))
    return states


def td_errors(module: DoubleQModule, rollout: Rollout, states: Mapping[Place, Any]) -> list[float]:
    """TD errors of the steps to train on, one chunk after the other, each from the state before it."""
    found: list[float] = []
    for chunk in rollout.blocks[ID]:
        obs = torch.tensor(chunk.get_observations())[None]
        state_in = states[tuple(obs[0, 0].tolist())]
        state_after = nested.take(chunk.get_extra_model_outputs("state_out"), 0)
        steps = {"obs": obs[:, :-1], "state_in": with_batch(state_in)}
        after = {"obs": obs[:, 1:], "state_in": with_batch(state_after)}
        with torch.no_grad():
            q = module.forward_train(steps)["qf_preds"][0]  # (L, A)
            best = module.forward_train(after)["qf_preds"][0].argmax(-1, keepdim=True)
            next_q = module.forward_target(after)["qf_preds"][0].gather(-1, best).squeeze(-1)
        not_over = torch.ones(len(chunk))
        not_over[-1] = float(not chunk.is_terminated)
        y = torch.tensor(chunk.get_rewards()) + CONFIG.gamma * not_over * next_q
        chosen = q.gather(-1, torch.tensor(chunk.get_actions())[:, None]).squeeze(-1)
        extra = chunk.extra_model_outputs
        is_trained = (
            ~chunk.get_extra_model_outputs("is_burn_in") if "is_burn_in" in extra else np.ones(len(chunk), bool)
        )
        found += (chosen - y).abs()[torch.tensor(is_trained)].tolist()
    return found


def with_batch(state: Any) -> dict[str, Tensor]:
    return {name: torch.tensor(np.asarray(leaf))[None] for name, leaf in state.items()}


@pytest.mark.parametrize("memory", ["use_lstm", "use_gru"])
@pytest.mark.parametrize(
    ("batch_length", "burn_in_len", "max_seq_len"), [(1, 0, 4), (4, 0, 4), (5, 0, 5), (3, 2, 5), (1, 4, 7), (6, 3, 20)]
)
@pytest.mark.parametrize("is_prioritized", [False, True])
@pytest.mark.parametrize("capacity", [60, 1000])
def test_dqn_learns_from_the_states_that_acted(
    memory: str, batch_length: int, burn_in_len: int, max_seq_len: int, is_prioritized: bool, capacity: int
) -> None:
    kind = PrioritizedReplayBuffer if is_prioritized else ReplayBuffer
    buffer = kind(capacity, batch_length_T=batch_length, burn_in_len=burn_in_len)
    module = make_module(memory)
    states = filled(buffer, module, [30, 7, 45, 20])
    replayed = buffer.sample(50)
    block = replayed.rollout.blocks[ID]
    num_burn_in = np.count_nonzero(block.columns["is_burn_in"]) if burn_in_len else 0
    assert block.num_rows == 50 + num_burn_in
    assert (num_burn_in > 0) == (burn_in_len > 0)
    assert max(block.lengths) <= batch_length + burn_in_len

    pipeline = learner_pipeline(*SPACES, CPU, EDITS, make_connector, (*block.extra_columns, *REPLAYED), max_seq_len)
    batch = pipeline(rl_module={ID: module}, batch={}, episodes=block)[ID]
    learner = ModuleLearner(module, DQNLoss(CONFIG), CONFIG, random_stream(0, "shuffle"))
    gradients = learner.gradients(batch, 0)
    assert gradients.num_rows == 50
    expected = td_errors(module, replayed.rollout, states)
    np.testing.assert_allclose(gradients.rows["td_error"], expected, rtol=2e-4, atol=2e-5)
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer.update_priorities(ID, replayed.rows[ID], gradients.rows["td_error"])

    parts = split_rollout(replayed.rollout, 3, 1)  # as several learners get it
    errors = []
    for part in parts:
        columns = pipeline(rl_module={ID: module}, batch={}, episodes=part.blocks[ID])[ID]
        errors.append(learner.gradients(columns, 0).rows.get("td_error", np.empty(0)))
    assert len(np.concatenate(errors)) == 50
    if batch_length == 1 and not burn_in_len:
        np.testing.assert_allclose(np.concatenate(errors), expected, rtol=2e-4, atol=2e-5)


def test_states_of_sequences_within_a_chunk_are_recorded_ones() -> None:
    buffer, module = ReplayBuffer(1000, batch_length_T=12), make_module("use_gru")
    states = filled(buffer, module, [60])
    block = buffer.sample(80).rollout.blocks[ID]
    pipeline = learner_pipeline(*SPACES, CPU, EDITS, make_connector, (*block.extra_columns, *REPLAYED), 5)
    batch = pipeline(rl_module={ID: module}, batch={}, episodes=block)[ID]
    for obs, new_obs, state, new_state in zip(
        batch["obs"][:, 0], batch["new_obs"][:, 0], batch["state_in"]["h"], batch["new_state_in"]["h"], strict=True
    ):
        np.testing.assert_allclose(state, states[tuple(obs.tolist())]["h"])
        if tuple(new_obs.tolist()) in states:  # a last observation was never acted on
            np.testing.assert_allclose(new_state, states[tuple(new_obs.tolist())]["h"])


def test_sequences_of_steps_without_states_begin_with_the_initial_state() -> None:
    buffer, module = ReplayBuffer(1000, batch_length_T=12), make_module("use_lstm")
    filled(buffer, module, [60])
    block = buffer.sample(80).rollout.blocks[ID]
    without = {name: column for name, column in block.columns.items() if name != "state_out"}
    block = replace(block, columns=without)
    pipeline = learner_pipeline(*SPACES, CPU, EDITS, make_connector, (*block.extra_columns, *REPLAYED), 5)
    batch = pipeline(rl_module={ID: module}, batch={}, episodes=block)[ID]
    for column in ("state_in", "new_state_in"):
        assert {name: tuple(state.shape) for name, state in batch[column].items()} == {
            name: (len(batch["obs"]), *state.shape) for name, state in module.get_initial_state().items()
        }
        assert not any(state.any() for state in batch[column].values())
