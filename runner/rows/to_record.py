"""The data of a simulator's sample that recording needs in addition to its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runner.episodes.columns import Column
from runner.rows.finished_episodes import EndedEpisode


@dataclass(frozen=True)
class ToRecord:
    """Data that recording needs in addition to the blocks of a sample, each with E chunks and R env steps.

    With several agents, episodes are env episodes.

    Attributes:
        raw_obs: module id -> observations (R + E, ...) as simulators sent them.
        is_complete: module id -> (E,) whether the chunk's episode is complete so far.
        aborted: ids of episodes that turned out to be incomplete since the last sample.
        ended: ended env episodes; with a single agent, chunks have this information.
        waiting: env episodes that are over unless another agent joins them.
        tasks: with a single agent, module id -> E tasks of the episodes, None if the client did not send it. Env
            episodes of several agents have the task in `ended`.
    """

    raw_obs: Mapping[str, Column]
    is_complete: Mapping[str, npt.NDArray[np.bool_]]
    aborted: Sequence[str]
    ended: Sequence[EndedEpisode] = ()
    waiting: Sequence[EndedEpisode] = ()
    tasks: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
