"""Memory from the env runner to the gradient: fragments cut episodes, sequences cut chunks, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from runner.config.algorithms import LossMetrics, PPOConfig
from runner.episodes import nested
from runner.episodes.columns import concat_blocks
from runner.learners.loss import Loss
from runner.learners.ppo import PPOLoss
from runner.modules import RLModule
from runner.pipelines.advantages import GeneralAdvantageEstimation, MonteCarloReturns
from runner.pipelines.connector import Batch, Connector
from runner.testing.module_learner import ModuleLearner
from tests.learners.memory_runs import (
    GAMMA,
    KINDS,
    LAMBDA,
    Fragment,
    Place,
    acting_module,
    learner_batch,
    make_module,
    sampled,
)

CONFIG = PPOConfig(lr=1e-2, num_epochs=2, minibatch_size=16, entropy_coeff=0.01)


def one_chunk_at_a_time(module: RLModule, fragment: Fragment) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Rows of the steps of each chunk, and the outputs of one pass over all of it."""
    block = fragment.block
    for chunk, first in enumerate(block.first_obs_rows.tolist()):
        length = int(block.lengths[chunk])
        obs = torch.from_numpy(block.columns["obs"][first : first + length + 1])[None]
        place = tuple(obs[0, 0].tolist())
        state_in = nested.map_leaves(lambda leaf: leaf[None], fragment.states[place])
        with torch.no_grad():
            outputs = module.forward_train({"obs": obs, "state_in": state_in})
        steps = slice(int(block.offsets[chunk]), int(block.offsets[chunk]) + length)
        yield steps, {name: output[0] for name, output in outputs.items()}


runs = given(
    kind=st.sampled_from(list(KINDS)),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    fragments=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    max_seq_len=st.sampled_from([1, 3, 4, 50]),
    num_envs=st.integers(1, 3),
)
some_runs = settings(max_examples=6, deadline=None, derandomize=True)
LONG_AND_SHORT = {"lengths": [2, 30, 4, 11], "fragments": [7, 25, 1, 40], "max_seq_len": 4, "num_envs": 3}


@runs
@example(kind="lstm", **LONG_AND_SHORT)
@example(kind="gru, own value net", **LONG_AND_SHORT)
@some_runs
def test_the_learner_computes_what_the_policy_did(
    kind: str, lengths: list[int], fragments: list[int], max_seq_len: int, num_envs: int
) -> None:
    for fragment in sampled(kind, lengths, fragments, num_envs):
        module = acting_module(kind, fragment)
        batch = learner_batch(fragment.block, module, max_seq_len)
        with torch.no_grad():
            outputs = module.outputs_at_steps(batch)
        columns = fragment.block.columns
        dist_inputs = torch.from_numpy(columns["action_dist_inputs"])
        torch.testing.assert_close(outputs["action_dist_inputs"], dist_inputs, rtol=1e-4, atol=1e-5)
        logp = module.action_dist.log_prob(outputs["action_dist_inputs"], torch.from_numpy(columns["actions"]))
        ratio = (logp - torch.from_numpy(columns["action_logp"])).exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)


@runs
@example(kind="gru", **LONG_AND_SHORT)
@example(kind="lstm, own value net", **LONG_AND_SHORT)
@some_runs
def test_states_before_sequences_are_those_that_the_policy_acted_from(
    kind: str, lengths: list[int], fragments: list[int], max_seq_len: int, num_envs: int
) -> None:
    parts = sampled(kind, lengths, fragments, num_envs)
    states: dict[Place, Any] = {}
    for part in parts:
        states |= part.states
    module = acting_module(kind, parts[0])  # other weights than most fragments had: nothing may be computed anew
    for block in (*(part.block for part in parts), concat_blocks([part.block for part in parts])):
        batch = learner_batch(block, module, max_seq_len)
        assert int(batch["seq_lens"].sum()) == block.num_rows + len(block)
        for sequence, place in enumerate(batch["obs"][:, 0].tolist()):
            if tuple(place) not in states:  # the last observation of all, which nothing was done on
                assert not batch["loss_mask"][sequence].any()
                continue
            got = nested.map_leaves(lambda leaf, row=sequence: leaf[row], batch["state_in"])
            assert nested.equal(_arrays(got), _arrays(states[tuple(place)])), f"sequence that starts at {place}"
        for place, state in states.items():
            assert place[1] > 0 or not any(leaf.any() for leaf in nested.leaves(state)), "an episode starts with none"


def test_the_state_before_a_chunk_is_that_of_the_newest_step_of_its_lookback() -> None:
    """A longer lookback holds older states, which are others."""
    _, second = sampled("gru", [30], [12, 12], num_lookback=3)
    batch = learner_batch(second.block, acting_module("gru", second), max_seq_len=50)
    assert second.block.lookback is not None
    assert len(batch["seq_lens"]) == len(second.block) == 3
    for chunk in range(3):
        past = second.block.lookback.columns_before(chunk)["state_out"]
        states = [nested.take(past, age) for age in (-3, -2, -1)]
        got = _arrays(nested.map_leaves(lambda leaf, row=chunk: leaf[row], batch["state_in"]))
        assert [nested.equal(got, state) for state in states] == [False, False, True]


def _arrays(state: Any) -> Any:
    return nested.map_leaves(lambda leaf: leaf.numpy(), state)


@pytest.mark.parametrize("max_seq_len", [1, 4, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_advantages_of_sequences_are_those_of_the_chunks(kind: str, max_seq_len: int) -> None:
    for fragment in sampled(kind, [2, 30, 4, 11], [7, 25, 40]):
        module, block = acting_module(kind, fragment), fragment.block
        batch = learner_batch(block, module, max_seq_len)
        raw, targets = np.zeros(block.num_rows), np.zeros(block.num_rows)
        for chunk, (steps, outputs) in enumerate(one_chunk_at_a_time(module, fragment)):
            values, rewards = outputs["vf_preds"].double().numpy(), block.columns["rewards"][steps]
            last = 0.0
            for t in reversed(range(len(rewards))):
                is_end = block.is_terminated[chunk] and t == len(rewards) - 1
                delta = rewards[t] + (0.0 if is_end else GAMMA * values[t + 1]) - values[t]
                last = delta + (0.0 if is_end else GAMMA * LAMBDA * last)
                raw[steps.start + t], targets[steps.start + t] = last, last + values[t]
        mask = batch["loss_mask"]
        np.testing.assert_allclose(batch["value_targets"][mask].numpy(), targets, rtol=1e-4, atol=1e-5)
        expected = (raw - raw.mean()) / raw.std()
        np.testing.assert_allclose(batch["advantages"][mask].numpy(), expected, rtol=1e-3, atol=1e-4)


# -- padding -----------------------------------------------------------------------------------------------------------


class PoisonPadding(Connector):
    """Puts NaN (integers: what is no action, observations: a number beyond all others) into all padded rows."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        for columns in batch.values():
            is_padding = torch.arange(columns["loss_mask"].shape[1]) >= columns["seq_lens"][:, None]
            assert is_padding.any()
            for name in ("actions", "rewards", "action_logp", "action_dist_inputs", "obs"):
                columns[name] = poisoned(columns[name], is_padding, 1e6 if name == "obs" else np.nan)
        return batch


def poisoned(column: Tensor, where: Tensor, poison: float) -> Tensor:
    column = column.clone()
    column[where] = poison if column.is_floating_point() else 10**9
    return column


def learned(batch: Mapping[str, Any], module: RLModule) -> tuple[dict[str, float], Any]:
    learner = ModuleLearner(module, PPOLoss(CONFIG), CONFIG, np.random.default_rng(3))
    return learner.update(batch, 0).metrics, learner.get_weights()


@pytest.mark.parametrize("kind", ["lstm", "gru, own value net"])
def test_padding_reaches_no_estimate_no_loss_and_no_gradient(kind: str) -> None:
    fragment = sampled(kind, [2, 30, 4, 11], [60])[0]
    clean = learner_batch(fragment.block, acting_module(kind, fragment), 8)
    gae = "GeneralAdvantageEstimation"
    spoilt = learner_batch(fragment.block, acting_module(kind, fragment), 8, (gae, PoisonPadding()))
    mask = clean["loss_mask"]
    for name in ("advantages", "value_targets", "vf_preds"):
        assert torch.equal(spoilt[name][mask], clean[name][mask]), name
        assert torch.isfinite(spoilt[name]).all(), name
    # From here on also the bootstrap rows, and what GAE wrote.
    for name in ("actions", "action_logp", "action_dist_inputs", "advantages", "value_targets", "vf_preds", "rewards"):
        spoilt[name] = poisoned(spoilt[name], ~mask, np.nan)
    spoilt["obs"] = poisoned(spoilt["obs"], ~mask, 1e6)
    metrics, weights = learned(clean, acting_module(kind, fragment))
    spoilt_metrics, spoilt_weights = learned(spoilt, acting_module(kind, fragment))
    assert spoilt_metrics == metrics
    assert np.array_equal(spoilt_weights, weights)
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("kind", ["lstm", "gru, own value net"])
def test_returns_of_sequences_are_what_gae_makes_with_lambda_1(kind: str) -> None:
    fragment = sampled(kind, [2, 30, 4, 11], [60])[0]
    module = acting_module(kind, fragment)
    batch = learner_batch(
        fragment.block, module, 8, ("GeneralAdvantageEstimation", MonteCarloReturns(GAMMA, use_baseline=True))
    )
    modules, columns = {"default_policy": module}, {"default_policy": dict(batch)}
    estimated = GeneralAdvantageEstimation(GAMMA, 1.0)(rl_module=modules, batch=columns, episodes=fragment.block)
    mask = batch["loss_mask"]
    torch.testing.assert_close(batch["returns"][mask], estimated["default_policy"]["value_targets"][mask])
    assert not batch["returns"][~mask].any()


@pytest.mark.parametrize("kind", ["lstm", "gru, own value net"])
def test_loss_and_gradient_are_those_of_one_sequence_after_the_other(kind: str) -> None:
    fragment = sampled(kind, [2, 30, 4, 11], [60])[0]
    config = replace(CONFIG, minibatch_size=None, num_epochs=1, lr=0.0)
    batch = learner_batch(fragment.block, acting_module(kind, fragment), 8)
    module = acting_module(kind, fragment)
    learner = ModuleLearner(module, PPOLoss(config), config, np.random.default_rng(3))
    metrics = learner.update(batch, 0).metrics
    gradient = learner.network.updater.gradient.clone()

    naive = acting_module(kind, fragment)
    loss = PPOLoss(config)
    num_steps = int(batch["loss_mask"].sum())
    totals: dict[str, Tensor] = {}
    for sequence, mask in enumerate(batch["loss_mask"]):
        if not mask.any():
            continue
        rows = {
            name: nested.map_leaves(
                lambda leaf, name=name, row=sequence, mask=mask: (
                    leaf[row : row + 1]
                    if name == "state_in"
                    else leaf[row, mask][None]
                    if name == "obs"
                    else leaf[row, mask]
                ),
                batch[name],
            )
            for name in (*loss.reads, "state_in")
        }
        one = {name: output.flatten(0, 1) for name, output in naive.forward_train(rows).items()}
        attributes = {
            "action_dist": naive.action_dist,
            "normalize_values": naive.normalize_values,
            "outputs_at_steps": lambda _, b, one=one: one,
        }
        shell = type("Shell", (), attributes)()
        for name, value in loss(shell, rows).reported().items():
            totals[name] = totals.get(name, torch.zeros(())) + value * int(mask.sum()) / num_steps
    totals["total_loss"].backward()  # type: ignore[no-untyped-call]
    for name, value in totals.items():
        assert metrics[name] == pytest.approx(float(value.detach()), rel=1e-4, abs=1e-5), name
    expected = torch.cat([parameter.grad.flatten() for parameter in naive.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


# -- minibatches -------------------------------------------------------------------------------------------------------


class SequenceRecorder(Loss):
    """A loss that notes the numbers of the env steps of every minibatch, and checks that they are those of its obs."""

    reads = ("obs", "number")

    def __init__(self) -> None:
        self.minibatches: list[list[int]] = []

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        assert batch["obs"].ndim == 3
        assert len(batch["state_in"]["h"]) == len(batch["obs"])
        seen = batch["obs"].flatten(0, 1)[batch["step_rows"], 0]
        assert torch.equal(seen, batch["number"].float()), "rows of the loss are not those that the module reads"
        self.minibatches.append(batch["number"].tolist())
        return LossMetrics(module.outputs_at_steps(batch)["vf_preds"].square().mean())

    def coefficients(self) -> dict[str, float]:
        return {}


@given(
    steps=st.lists(st.integers(0, 6), min_size=1, max_size=12).filter(any),
    minibatch_size=st.none() | st.integers(1, 30),
    seed=st.integers(0, 3),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_minibatches_hold_whole_sequences_and_each_step_once_an_epoch(
    steps: list[int], minibatch_size: int | None, seed: int
) -> None:
    longest, num_sequences = 6, len(steps)
    number = torch.arange(num_sequences * longest).reshape(num_sequences, longest)
    module = make_module("lstm")
    batch = {
        "obs": number[..., None].expand(-1, -1, 3).float(),
        "number": number,
        "loss_mask": torch.arange(longest) < torch.tensor(steps)[:, None],
        "state_in": nested.map_leaves(lambda leaf: leaf.expand(num_sequences, -1), module.get_initial_state()),
    }
    loss = SequenceRecorder()
    config = replace(CONFIG, minibatch_size=minibatch_size, num_epochs=3)
    ModuleLearner(module, loss, config, np.random.default_rng(seed)).update(batch, 0)
    per_epoch, rest = divmod(len(loss.minibatches), 3)
    num_filled = sum(count > 0 for count in steps)
    assert rest == 0
    assert per_epoch <= (1 if minibatch_size is None else -(-sum(steps) // minibatch_size))
    assert per_epoch <= num_filled
    for epoch in range(3):
        minibatches = loss.minibatches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(chain(*minibatches)) == number[batch["loss_mask"]].tolist()
        for minibatch in minibatches:
            assert minibatch, "a minibatch without a step"
            for sequence in {row // longest for row in minibatch}:
                own = [row for row in minibatch if row // longest == sequence]
                assert own == [sequence * longest + t for t in range(steps[sequence])], "a sequence is torn"
