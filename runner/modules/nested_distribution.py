"""Dict and Tuple actions: independent distributions side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.modules.action_distribution import ActionDistribution


class NestedDistribution:
    """The joint distribution of independent parts; inputs and noise are the parts' inputs and noise, one after another.

    Args:
        parts: of a Dict space by key, or of a Tuple space; they may be nested themselves.

    Attributes:
        parts: in the order of the space.
    """

    def __init__(self, parts: Mapping[str, ActionDistribution] | tuple[ActionDistribution, ...]) -> None:
        self._keys = tuple(parts) if isinstance(parts, Mapping) else None
        self.parts: tuple[Any, ...] = tuple(parts.values()) if isinstance(parts, Mapping) else parts
        self._input_sizes = [part.num_inputs for part in self.parts]
        self._noise_sizes = [part.num_noise for part in self.parts]
        self.num_inputs = sum(self._input_sizes)
        self.num_noise = sum(self._noise_sizes)
        starts = np.cumsum([0, *self._input_sizes])[:-1].tolist()
        placed = zip(starts, self.parts, strict=True)
        self.log_std_inputs = tuple(start + column for start, part in placed for column in part.log_std_inputs)

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Draw the noise of all parts (*leading, M)."""
        return np.concatenate([part.draw_noise(stream, leading) for part in self.parts], -1)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Any:
        """Return a dict or tuple of (B, ...) actions."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split_noise(noise), strict=True)
        return self._joined([part.sample(inputs, part_noise) for part, inputs, part_noise in by_part])

    def sample_with_log_prob(self, dist_inputs: Tensor, noise: Tensor) -> tuple[Any, Tensor]:
        """Return a dict or tuple of (B, ...) actions and their (B,) log densities; see `SquashedGaussian`."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split_noise(noise), strict=True)
        sampled = [part.sample_with_log_prob(inputs, part_noise) for part, inputs, part_noise in by_part]
        actions, log_probs = zip(*sampled, strict=True)
        return self._joined(list(actions)), _sum(list(log_probs))

    def mode(self, dist_inputs: Tensor) -> Any:
        """Return a dict or tuple of (B, ...) actions."""
        by_part = zip(self.parts, self._split(dist_inputs), strict=True)
        return self._joined([part.mode(inputs) for part, inputs in by_part])

    def log_prob(self, dist_inputs: Tensor, actions: Any) -> Tensor:
        """Return (B,) log probabilities of a dict or tuple of (B, ...) actions."""
        by_part = zip(self.parts, self._split(dist_inputs), self._branches(actions), strict=True)
        return _sum([part.log_prob(inputs, branch) for part, inputs, branch in by_part])

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return (B,) nats."""
        by_part = zip(self.parts, self._split(dist_inputs), strict=True)
        return _sum([part.entropy(inputs) for part, inputs in by_part])

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return (B,) nats."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split(other_inputs), strict=True)
        return _sum([part.kl(inputs, others) for part, inputs, others in by_part])

    def masked(self, dist_inputs: Tensor, mask: Any) -> Tensor:
        """Return (B, K) inputs under a dict or tuple with the masks of some parts."""
        by_part = zip(self.parts, self._split(dist_inputs), self._masks(mask), strict=True)
        return torch.cat([inputs if m is None else part.masked(inputs, m) for part, inputs, m in by_part], -1)

    def first_fully_forbidden(self, mask: Any) -> int | None:
        """Return the first row in which some part has a choice without any action."""
        by_part = zip(self.parts, self._masks(mask), strict=True)
        rows = [part.first_fully_forbidden(m) for part, m in by_part if m is not None]
        return min((row for row in rows if row is not None), default=None)

    def mode_with_noise(self, dist_inputs: Tensor, noise: Tensor) -> Any:
        """Return a dict or tuple of modes of bounded Boxes, moved by noise (B, M); see `SquashedGaussian`."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split_noise(noise), strict=True)
        return self._joined([part.mode_with_noise(inputs, of_part) for part, inputs, of_part in by_part])

    @property
    def log_volume(self) -> float:
        """The log of the volume of a space of bounded Boxes."""
        return float(sum(part.log_volume for part in self.parts))

    def draw_shares(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return uniform shares (*leading, M) of the way between the bounds of Boxes, for `at_shares`."""
        return np.concatenate([part.draw_shares(stream, leading) for part in self.parts], -1)

    def at_shares(self, shares: Tensor) -> Any:
        """Return a dict or tuple of the actions (..., *shape) at shares (..., M); see `SquashedGaussian`."""
        by_part = zip(self.parts, self._split_noise(shares), strict=True)
        return self._joined([part.at_shares(of_part) for part, of_part in by_part])

    def _split(self, dist_inputs: Tensor) -> tuple[Tensor, ...]:
        return torch.split(dist_inputs, self._input_sizes, -1)

    def _split_noise(self, noise: Tensor) -> tuple[Tensor, ...]:
        return torch.split(noise, self._noise_sizes, -1)

    def _joined(self, branches: list[Any]) -> Any:
        return tuple(branches) if self._keys is None else dict(zip(self._keys, branches, strict=True))

    def _branches(self, actions: Any) -> Any:
        return actions if self._keys is None else [actions[key] for key in self._keys]

    def _masks(self, mask: Any) -> list[Any]:
        """Return one mask or None for each part; a Dict may leave parts out, a Tuple has empty ones in their place."""
        masks = mask if self._keys is None else [mask.get(key) for key in self._keys]
        return [None if isinstance(m, (tuple, dict)) and not m else m for m in masks]


def _sum(terms: list[Tensor]) -> Tensor:
    return reduce(torch.add, terms)
