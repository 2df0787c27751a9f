"""Entropy and KL under a mask are those of distributions over the allowed actions alone, in torch.distributions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, kl_divergence

from runner.episodes import nested
from runner.modules import distribution_for
from tests.modules.test_action_masks import ACTIONS, CASES, MASKS, random_mask

Space = gym.Space[Any]
ROWS = 25


def over_allowed(space: Space, logits: Tensor, mask: Any) -> list[Distribution]:
    """The independent choices that a mask of one row leaves, made of the allowed logits alone."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
        found, start = [], 0
        for key, part in parts:
            stop = start + distribution_for(part).num_inputs
            own = mask.get(key) if isinstance(mask, dict) else mask[key]
            own = None if isinstance(own, (dict, tuple)) and not own else own
            found += over_allowed(part, logits[start:stop], own)
            start = stop
        return found
    if isinstance(space, gym.spaces.Box):
        mean, log_std = logits.chunk(2)
        return [Normal(mean, log_std.exp())]
    if isinstance(mask, tuple):
        mask = np.concatenate(mask)
    allowed = torch.ones(len(logits), dtype=torch.bool) if mask is None else torch.from_numpy(mask.reshape(-1) != 0)
    if isinstance(space, gym.spaces.MultiBinary):
        return [Bernoulli(logits=logits[allowed])]
    sizes = space.nvec.tolist() if isinstance(space, gym.spaces.MultiDiscrete) else [int(space.n)]  # type: ignore[attr-defined]
    pairs = zip(logits.split(sizes), allowed.split(sizes), strict=True)  # type: ignore[no-untyped-call]
    return [Categorical(logits=own[is_allowed]) for own, is_allowed in pairs]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_only_allowed_actions_count(name: str, number: int) -> None:
    space, rng = ACTIONS[name], np.random.default_rng(0)
    dist = distribution_for(space)
    mask = random_mask(space, MASKS[name][number], rng, ROWS)
    ours, others = (torch.from_numpy(rng.normal(0, 1.5, (ROWS, dist.num_inputs)).astype(np.float32)) for _ in range(2))
    as_tensors = nested.map_leaves(torch.from_numpy, mask)
    masked, others_masked = dist.masked(ours, as_tensors), dist.masked(others, as_tensors)
    for row in range(ROWS):
        own_mask = nested.take(mask, row)
        left = over_allowed(space, ours[row], own_mask)
        entropy = sum(part.entropy().sum() for part in left)
        pairs = zip(left, over_allowed(space, others[row], own_mask), strict=True)
        kl = sum(kl_divergence(part, other).sum() for part, other in pairs)
        torch.testing.assert_close(dist.entropy(masked)[row], entropy, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(dist.kl(masked, others_masked)[row], kl, rtol=1e-4, atol=1e-5)
