"""Named random streams: every consumer of randomness owns one, spawned from `(seed, role, index)`."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def seed_sequence(seed: int, role: str, *index: int) -> np.random.SeedSequence:
    """The seed of the stream `(seed, role, *index)`; streams with different names are independent."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(role.encode()), *index))


def random_stream(seed: int, role: str, *index: int) -> np.random.Generator:
    """A generator for the stream `(seed, role, *index)`."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, role, *index)))


def integer_seed(seed: int, role: str, *index: int) -> int:
    """A 31-bit seed for libraries that take an int (gymnasium's `reset`, `torch.manual_seed`)."""
    return int(seed_sequence(seed, role, *index).generate_state(1)[0]) & 0x7FFFFFFF


def stream_state(stream: np.random.Generator) -> dict[str, Any]:
    """The state of a stream as plain strings and ints."""
    return dict(stream.bit_generator.state)


def restore_stream(stream: np.random.Generator, state: dict[str, Any]) -> None:
    """Put `stream` back into a state from `stream_state`."""
    stream.bit_generator.state = state
