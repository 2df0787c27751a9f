"""Choices among finite sets of actions: one (Discrete), several (MultiDiscrete, integer Box), or bits (MultiBinary)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from runner.modules.action_distribution import ActionDistribution, first_false, forbid, tables_on


class Bernoulli(ActionDistribution):
    """A independent bits; `dist_inputs` are the logits (B, A) of the 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self.num_inputs = self.num_noise = math.prod(shape)

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Draw uniform noise (*leading, A) in [0, 1)."""
        return stream.random((*leading, self.num_noise), dtype=np.float32)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B, *shape) int8; a bit of probability 0 is never 1, since the noise is not below 0."""
        return self._bits(noise < dist_inputs.sigmoid())

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B, *shape) int8."""
        return self._bits(dist_inputs > 0)

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log probabilities of (B, *shape) bits."""
        is_one = actions.reshape(dist_inputs.shape) != 0
        return F.logsigmoid(torch.where(is_one, dist_inputs, -dist_inputs)).sum(-1)

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return the entropy (B,) in nats."""
        log_one, log_zero = F.logsigmoid(dist_inputs), F.logsigmoid(-dist_inputs)
        return -(log_one.exp() * log_one + log_zero.exp() * log_zero).sum(-1)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return the KL divergence (B,) in nats."""
        log_one, log_zero = F.logsigmoid(dist_inputs), F.logsigmoid(-dist_inputs)
        one = log_one.exp() * (log_one - F.logsigmoid(other_inputs))
        zero = log_zero.exp() * (log_zero - F.logsigmoid(-other_inputs))
        return (one + zero).sum(-1)

    def masked(self, dist_inputs: Tensor, mask: Tensor) -> Tensor:
        """Return (B, A) logits under a mask (B, *shape); 0 forbids the 1."""
        return forbid(dist_inputs, mask.reshape(dist_inputs.shape))

    def _bits(self, is_one: Tensor) -> Tensor:
        return is_one.to(torch.int8).reshape(*is_one.shape[:-1], *self._shape)


# Lower than every meaningful logit, including MASKED_LOGIT, but finite, so that differences of logits are finite.
_PADDING_LOGIT = torch.finfo(torch.float32).min / 4


class Categorical(ActionDistribution):
    """One of A actions; `dist_inputs` are logits (B, A)."""

    def __init__(self, num_actions: int) -> None:
        self.num_inputs = num_actions
        self.num_noise = num_actions

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return standard Gumbel noise (*leading, A)."""
        return gumbel_noise(stream, (*leading, self.num_inputs))

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B,) int64; argmax of logits plus Gumbel noise is a sample of the distribution (Gumbel, 1954)."""
        if dist_inputs.is_cpu and not dist_inputs.requires_grad:  # for a few rows, numpy takes half of torch's time
            return torch.from_numpy((dist_inputs.numpy() + noise.numpy()).argmax(-1))
        return (dist_inputs + noise).argmax(-1)

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B,) int64."""
        return dist_inputs.argmax(-1)

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log probabilities of (B,) int64 actions."""
        return dist_inputs.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return the entropy (B,) in nats."""
        log_probs = dist_inputs.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return the KL divergence (B,) in nats."""
        log_probs = dist_inputs.log_softmax(-1)
        return (log_probs.exp() * (log_probs - other_inputs.log_softmax(-1))).sum(-1)

    def masked(self, dist_inputs: Tensor, mask: Tensor) -> Tensor:
        """Return (B, A) logits under a mask (B, A)."""
        return forbid(dist_inputs, mask)

    def first_fully_forbidden(self, mask: npt.NDArray[Any]) -> int | None:
        """Return the first row of a mask (B, A) that is all 0."""
        return first_false(np.any(mask, axis=-1, keepdims=True))


class ShiftedCategorical(Categorical):
    """One of the A actions `start`, ..., `start + A - 1`, of any integer dtype."""

    def __init__(self, num_actions: int, start: int, dtype: torch.dtype) -> None:
        super().__init__(num_actions)
        self._start = start
        self._dtype = dtype

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B,) integers."""
        return (super().sample(dist_inputs, noise) + self._start).to(self._dtype)

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B,) integers."""
        return (super().mode(dist_inputs) + self._start).to(self._dtype)

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log probabilities of (B,) integer actions."""
        return super().log_prob(dist_inputs, actions.long() - self._start)


class MultiCategorical(ActionDistribution):
    """D independent choices, the d-th among `sizes[d]`; `dist_inputs` are all logits (B, sum(sizes)), choice by choice.

    All choices are computed together, on logits padded to (B, D, max(sizes)).

    Args:
        sizes: D numbers of actions.
        starts: D first actions.
        shape: shape of one action with D numbers.
        dtype: dtype of the actions.

    Attributes:
        sizes: as above.
    """

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        assert len(sizes) == len(starts) == math.prod(shape)
        self.num_inputs = self.num_noise = sum(sizes)
        self.sizes, self.starts = tuple(sizes), tuple(starts)
        self._shape = shape
        self._dtype = dtype
        self._is_even = len(set(sizes)) == 1
        self._first_columns = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
        self._tables = {torch.device("cpu"): _Tables.of(np.array(sizes), np.array(starts), self._first_columns)}

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return standard Gumbel noise (*leading, sum(sizes))."""
        return gumbel_noise(stream, (*leading, self.num_inputs))

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Return (B, *shape) integers."""
        return self.mode(dist_inputs + noise)

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """Return (B, *shape) integers."""
        chosen = self._padded(dist_inputs).argmax(-1) + tables_on(self._tables, dist_inputs.device).starts
        return chosen.to(self._dtype).reshape(*dist_inputs.shape[:-1], *self._shape)

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) log probabilities of (B, *shape) actions."""
        starts = tables_on(self._tables, dist_inputs.device).starts
        chosen = actions.reshape(*dist_inputs.shape[:-1], len(self.sizes)).long() - starts  # (B, D)
        return self._log_probs(dist_inputs).gather(-1, chosen.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return the entropy (B,) in nats."""
        log_probs = self._log_probs(dist_inputs)
        return -(log_probs.exp() * log_probs).sum((-2, -1))

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return the KL divergence (B,) in nats."""
        log_probs = self._log_probs(dist_inputs)
        return (log_probs.exp() * (log_probs - self._log_probs(other_inputs))).sum((-2, -1))

    def masked(self, dist_inputs: Tensor, mask: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Return (B, K) logits under a mask (B, sum(sizes)) or D masks (B, sizes[d])."""
        return forbid(dist_inputs, torch.cat(mask, -1) if isinstance(mask, tuple) else mask)

    def first_fully_forbidden(self, mask: npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]) -> int | None:
        """Return the first row of a mask that is all 0 for one of the choices."""
        if isinstance(mask, tuple):
            mask = np.concatenate(mask, -1)
        return first_false(np.logical_or.reduceat(mask != 0, self._first_columns, axis=-1))

    def _log_probs(self, dist_inputs: Tensor) -> Tensor:
        return self._padded(dist_inputs).log_softmax(-1)

    def _padded(self, logits: Tensor) -> Tensor:
        if self._is_even:
            return torch.unflatten(logits, -1, (len(self.sizes), -1))
        tables = tables_on(self._tables, logits.device)
        padded = torch.unflatten(logits.index_select(-1, tables.columns), -1, tables.is_padding.shape)
        return padded.masked_fill(tables.is_padding, _PADDING_LOGIT)


@dataclass(frozen=True)
class _Tables:
    """Positions of the logits of D choices of at most W actions.

    Attributes:
        columns: (D * W) int64 column of each padded logit; padding repeats a choice's last one.
        is_padding: (D, W).
        starts: (D,) int64 first action of each choice.
    """

    columns: Tensor
    is_padding: Tensor
    starts: Tensor

    @classmethod
    def of(cls, sizes: npt.NDArray[Any], starts: npt.NDArray[Any], first_columns: npt.NDArray[np.int64]) -> _Tables:
        action = np.arange(sizes.max())
        columns = first_columns[:, None] + np.minimum(action, sizes[:, None] - 1)
        is_padding = action >= sizes[:, None]
        with torch.inference_mode(False):
            arrays = (columns.reshape(-1), is_padding, starts.astype(np.int64))
            return cls(*(torch.from_numpy(array) for array in arrays))


def gumbel_noise(stream: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return standard Gumbel noise, finite."""
    exponential = stream.standard_exponential(shape, dtype=np.float32)
    noise: npt.NDArray[np.float32] = -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))
    return noise
