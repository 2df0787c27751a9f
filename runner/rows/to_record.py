"""The data that recording needs of a simulator's sample in addition to its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runner.episodes.columns import Column
from runner.rows.finished_episodes import EndedEpisode


@dataclass(frozen=True)
class ToRecord:
    """What recording needs of a sample beside its blocks, each of which has E chunks and R env steps.

    With several agents, episodes are env episodes.

    Attributes:
        raw_obs: module id -> (R + E, ...) observations as simulators sent them.
        is_whole: module id -> (E,) whether nothing of the chunk's episode is missing so far.
        broken_off: ids of episodes that have turned out to be not whole since the last sample.
        ended: env episodes that are over; with a single agent, chunks say so.
        waiting: env episodes that are over if nobody else comes to them.
        tasks: with a single agent, module id -> E tasks of the episodes, None where a client has not said it; env
            episodes of several agents have theirs.
    """

    raw_obs: Mapping[str, Column]
    is_whole: Mapping[str, npt.NDArray[np.bool_]]
    broken_off: Sequence[str]
    ended: Sequence[EndedEpisode] = ()
    waiting: Sequence[EndedEpisode] = ()
    tasks: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
