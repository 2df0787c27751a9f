"""V-trace against the sum of the paper in float64, and against GAE on policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from runner.modules.rl_module import RLModule
from runner.pipelines.advantages import GeneralAdvantageEstimation
from runner.pipelines.vtrace import TargetVTrace, VTrace, VTraceSettings, compute_vtrace
from tests.learners.memory_runs import GAMMA, acting_module, learner_batch, sampled

Chunk = dict[str, Any]


def summed_vtrace(chunk: Chunk, settings: VTraceSettings) -> tuple[list[float], list[float]]:
    """v and A of one chunk by equation 1 of the paper: a sum of discounted differences, each cut by a product."""
    gamma = settings.gamma
    rewards, values, ratios = chunk["rewards"], list(chunk["values"]), chunk["ratios"]
    if chunk["is_terminated"]:
        values[-1] = 0.0
    steps = range(len(rewards))
    deltas = [min(settings.rho, ratios[t]) * (rewards[t] + gamma * values[t + 1] - values[t]) for t in steps]
    targets = [
        values[s]
        + sum(
            gamma ** (t - s) * np.prod([settings.lambda_ * min(settings.c, ratios[i]) for i in range(s, t)]) * deltas[t]
            for t in range(s, len(rewards))
        )
        for s in steps
    ]
    nexts = [*targets[1:], values[-1]]
    advantages = [min(settings.pg_rho, ratios[t]) * (rewards[t] + gamma * nexts[t] - values[t]) for t in steps]
    return targets, advantages


numbers = st.floats(-3, 3, width=32)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    length = draw(st.integers(1, 9))
    return {
        "rewards": draw(st.lists(numbers, min_size=length, max_size=length)),
        "values": draw(st.lists(numbers, min_size=length + 1, max_size=length + 1)),
        "ratios": draw(st.lists(st.floats(0.015625, 4, width=32), min_size=length, max_size=length)),
        "is_terminated": draw(st.booleans()),
    }


def column(of_chunks: list[Chunk], key: str, last: float) -> Tensor:
    return torch.tensor([value for chunk in of_chunks for value in (*chunk[key], last)], dtype=torch.float64)


@settings(max_examples=200, deadline=None)
@given(
    of_chunks=st.lists(chunks(), min_size=1, max_size=4),
    gamma=st.floats(0.5, 1),
    lambda_=st.sampled_from([1.0, 0.9, 0.0]),
    clips=st.sampled_from([(1.0, 1.0, 1.0), (2.0, 0.5, 1.5), (100.0, 100.0, 100.0)]),
)
def test_the_closed_form_is_the_sum_of_the_paper(
    of_chunks: list[Chunk], gamma: float, lambda_: float, clips: tuple[float, float, float]
) -> None:
    values = torch.tensor([value for chunk in of_chunks for value in chunk["values"]], dtype=torch.float64)
    lengths = [len(chunk["rewards"]) for chunk in of_chunks]
    is_step = torch.tensor([flag for length in lengths for flag in (*[True] * length, False)])
    ends = torch.zeros_like(is_step)
    ends[torch.tensor(lengths).add(1).cumsum(0) - 2] = torch.tensor([chunk["is_terminated"] for chunk in of_chunks])
    with_clips = VTraceSettings(gamma, lambda_, *clips)
    targets, advantages = compute_vtrace(
        column(of_chunks, "rewards", 0.0), values, column(of_chunks, "ratios", 1.0), ends, is_step,
        with_clips, max(lengths),
    )  # fmt: skip
    summed = [summed_vtrace(chunk, with_clips) for chunk in of_chunks]
    assert torch.allclose(targets[is_step], torch.tensor([v for v_of, _ in summed for v in v_of], dtype=torch.float64))
    assert torch.allclose(
        advantages[is_step], torch.tensor([a for _, a_of in summed for a in a_of], dtype=torch.float64)
    )
    assert not advantages[~is_step].any()
    assert torch.equal(targets[~is_step], values[~is_step])


def added(connector: VTrace | GeneralAdvantageEstimation, module: RLModule, batch: dict[str, Any], block: Any) -> Any:
    columns = {"default_policy": {**batch}}
    return connector(rl_module={"default_policy": module}, batch=columns, episodes=block)["default_policy"]


KINDS = ["lstm", "gru, own value net"]


@pytest.mark.parametrize("kind", KINDS)
def test_on_policy_it_is_gae_with_lambda_1(kind: str) -> None:
    fragment = sampled(kind, [2, 30, 4, 11], [60])[0]
    module = acting_module(kind, fragment)
    batch = learner_batch(fragment.block, module, 8)
    mask = batch["loss_mask"]
    corrected = added(VTrace(GAMMA), module, batch, fragment.block)
    estimated = added(GeneralAdvantageEstimation(GAMMA, 1.0, standardize=False), module, batch, fragment.block)
    for name in ("advantages", "value_targets", "vf_preds"):
        torch.testing.assert_close(corrected[name][mask], estimated[name][mask], rtol=1e-4, atol=1e-4)
        assert torch.isfinite(corrected[name]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_rows", [65536, 8])
def test_ratios_are_of_the_module_that_learns_to_the_one_that_acted(kind: str, max_rows: int) -> None:
    """Steps that the module would take more often count fully, others by how much rarer it takes them."""
    fragment = sampled(kind, [2, 30, 4, 11], [60])[0]
    module = acting_module(kind, fragment)
    batch = learner_batch(fragment.block, module, 8)
    mask = batch["loss_mask"]
    moved(module, 1)
    outputs = module.outputs_at_steps({**batch})
    theta, values = outputs["action_dist_inputs"], outputs["vf_preds"]
    log_probs = module.action_dist.log_prob(theta, batch["actions"][mask])
    ratios = (log_probs - batch["action_logp"][mask]).exp().detach()
    assert ratios.min() < 0.9
    assert ratios.max() > 1.1
    # With c = 0 a target is one temporal difference away, so that the difference is the ratio's.
    short = VTrace(GAMMA, 0.0, 10.0, 1.0, 10.0, max_rows_per_pass=max_rows)
    clipped = VTrace(GAMMA, 0.0, 1.0, 1.0, 1.0, max_rows_per_pass=max_rows)
    whole, bounded = (added(connector, module, batch, fragment.block) for connector in (short, clipped))
    difference = whole["value_targets"][mask] - whole["vf_preds"][mask]
    torch.testing.assert_close(whole["vf_preds"][mask], values.detach())
    torch.testing.assert_close(
        bounded["value_targets"][mask] - bounded["vf_preds"][mask], difference / ratios * ratios.clamp(max=1.0)
    )
    estimated = added(GeneralAdvantageEstimation(GAMMA, 0.0, standardize=False), module, batch, fragment.block)
    torch.testing.assert_close(difference, ratios * estimated["advantages"][mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_of_the_target_policy_and_ratios_are_bounded(kind: str) -> None:
    """What PPO's loss then calls the ratio is pi / max(pi_target, mu / rho)."""
    rho = 1.1
    fragment = sampled(kind, [2, 30, 4, 11], [60])[0]
    module, target = (acting_module(kind, fragment) for _ in range(2))
    batch = learner_batch(fragment.block, module, 8)
    mask = batch["loss_mask"]
    moved(target, 1)
    on_target = added(VTrace(GAMMA), target, batch, fragment.block)
    module.target = target
    result = added(TargetVTrace(GAMMA, rho), module, batch, fragment.block)
    outputs = target.outputs_at_steps({**batch})
    theta = outputs["action_dist_inputs"].detach()
    log_target = module.action_dist.log_prob(theta, batch["actions"][mask])
    acted = batch["action_logp"][mask]
    assert (acted - log_target).exp().max() > rho > (acted - log_target).exp().min()
    torch.testing.assert_close(result["action_dist_inputs"][mask], theta)
    expected = torch.maximum(log_target.exp(), acted.exp() / rho)
    torch.testing.assert_close(result["action_logp"][mask].exp(), expected.detach())
    # Values are the module's own; with those of the target the estimates would be V-trace's for it.
    torch.testing.assert_close(result["vf_preds"][mask], module.outputs_at_steps({**batch})["vf_preds"].detach())
    assert not torch.allclose(result["advantages"][mask], on_target["advantages"][mask])
    moved(module, 1)
    result = added(TargetVTrace(GAMMA, rho), module, batch, fragment.block)
    for name in ("advantages", "value_targets", "vf_preds"):
        torch.testing.assert_close(result[name][mask], on_target[name][mask])


def moved(module: RLModule, seed: int) -> None:
    """Add the same noise to the parameters, for each seed."""
    own = [parameter for name, parameter in module.named_parameters() if not name.startswith("target.")]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in own:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
