"""Named random streams: each consumer of random numbers uses one, spawned from `(seed, role, index)`."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def seed_sequence(seed: int, role: str, *index: int) -> np.random.SeedSequence:
    """Return the seed of the stream `(seed, role, *index)`; streams with different names are independent."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(role.encode()), *index))


def random_stream(seed: int, role: str, *index: int) -> np.random.Generator:
    """Return a generator for the stream `(seed, role, *index)`."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, role, *index)))


def integer_seed(seed: int, role: str, *index: int) -> int:
    """Return a 31-bit seed for libraries that need an int (gymnasium's `reset`, `torch.manual_seed`)."""
    return int(seed_sequence(seed, role, *index).generate_state(1)[0]) & 0x7FFFFFFF


def stream_state(stream: np.random.Generator) -> dict[str, Any]:
    """Return the state of a stream as plain strings and ints."""
    return dict(stream.bit_generator.state)


def restore_stream(stream: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore `stream` from a state of `stream_state`."""
    stream.bit_generator.state = state
