"""Record blocks of episodes in a folder, and read recorded data back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.table_format import block_to_steps
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import open_source
from runner.offline.writing.writer import EpisodeWriter
from tests.offline.blocks import flat_block

CARTPOLE = Spaces(gym.spaces.Box(-np.inf, np.inf, (4,)), gym.spaces.Discrete(2))
BLOCK = flat_block([5, 3, 8])
# Its steps as another tool would write them.
PLAIN = (
    block_to_steps(BLOCK)
    .replace_schema_metadata(None)
    .select(["eps_id", "t", "obs", "actions", "rewards", "terminateds"])
)


def record(folder: Path | str, *parts: ColumnBlock, **options: Any) -> None:
    """Write blocks, or `BLOCK` if there are none, as episodes of CartPole."""
    with EpisodeWriter(OfflineConfig(output=str(folder), **options), CARTPOLE, "CartPole-v1") as writer:
        for block in parts or (BLOCK,):
            writer.add(block)


def source_of(path: Path | str | list[str], **options: Any) -> RecordedSource:
    """Open recorded data."""
    given = path if isinstance(path, list) else str(path)
    return open_source(OfflineConfig(**{"input_": given, **options}))


def read(path: Path | str | list[str], **options: Any) -> ColumnBlock:
    """Return all recorded episodes."""
    return concat_blocks(list(source_of(path, **options).blocks()))


def read_by(method: str, path: Path | str, **kwargs: Any) -> ColumnBlock:
    """Return all episodes that a function of Ray Data, or a user's function, reads."""
    return read(path, input_read_method=method, input_read_method_kwargs=kwargs)


def through_ray(source: RecordedSource) -> ColumnBlock:
    """Return all episodes as Ray Data reads them."""
    tables = source.dataset().iter_batches(batch_size=2, batch_format="pyarrow")
    return concat_blocks([source.decode(table) for table in tables])
