"""The requirements of connectors as one value that every check uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

Names = tuple[str, ...]


class _Declares(Protocol):
    requires: Requirements


@dataclass(frozen=True)
class Requirements:
    """Columns that a connector reads and writes, and other needs. A default value means that there is no such need."""

    reads: Names = ()
    """Columns of the batch that the connector reads."""
    writes: Names = ()
    """Columns of the batch that the connector adds or changes."""
    drops: Names = ()
    """Columns that the connector removes from the batch."""
    writes_per_fragment: Names = ()
    """Columns that `complete_fragment` adds, for the learner pipeline and for recorded episodes."""
    belongs_in: Names | None = None
    """Names of the pipelines that the connector works in, or None for all pipelines."""
    num_lookback: int = 0
    """Number of past steps of an episode that the connector reads. Env runners keep at least this number."""
    writes_obs_to_episodes: bool = False
    """Whether episodes store the connector's observations instead of the environment's, for the learner too."""
    needs_episode_obs: bool = False
    """Whether the connector reads observations from the episodes, so that column `obs` may not change before it."""
    needs: Names = ()
    """Outputs of `forward_train`, methods and attributes of the module that a connector of a learner pipeline uses."""
    reads_module: bool = False
    """Whether a connector of a learner pipeline computes with the module. Its columns age while the module learns."""
    needs_trajectories: bool = False
    """Whether a connector of a learner pipeline needs trajectories, as every connector with `num_lookback` does.

    Recorded data that consist of single steps are rejected.
    """
    needs_next_obs: bool = False
    """Whether a connector of a learner pipeline needs the observation after each step.

    Recorded data without it are rejected.
    """
    needs_other_agents: bool = False
    """Whether the connector reads the episodes of other agents.

    Runs with a single agent are rejected. If a rollout is divided among learners, each of them reads all of it.
    """
    needs_all_rows: bool = False
    """Whether a row that the connector writes depends on rows that other learners get if a rollout is divided.

    Runs that sample with several learners are rejected.
    """

    def extended(self, own: Requirements) -> Requirements:
        """Return these requirements, updated with all fields of `own` that differ from their defaults."""
        return replace(self, **{one.name: value for one in _FIELDS if (value := getattr(own, one.name)) != one.default})

    @staticmethod
    def of(connector: _Declares) -> Requirements:
        """Return a connector's `requires`.

        Attributes with the names of fields take precedence: earlier versions declared each field as an attribute.
        """
        earlier = {one.name: getattr(connector, one.name) for one in _FIELDS if hasattr(connector, one.name)}
        return replace(connector.requires, **earlier)

    @classmethod
    def of_sequence(cls, connectors: Iterable[_Declares]) -> Requirements:
        """Return the combined requirements of connectors that are called in order."""
        every = [cls.of(connector) for connector in connectors]
        reads: list[str] = []
        writes: list[str] = []
        for one in every:
            reads += [column for column in one.reads if column not in (*reads, *writes)]
            writes += [column for column in one.writes if column not in writes]
            writes = [column for column in writes if column not in one.drops]
        flags: dict[str, Any] = {flag: any(getattr(one, flag) for one in every) for flag in _FLAGS}
        return cls(
            reads=tuple(reads),
            writes=tuple(writes),
            drops=tuple(column for one in every for column in one.drops if column not in writes),
            writes_per_fragment=tuple(column for one in every for column in one.writes_per_fragment),
            num_lookback=max((one.num_lookback for one in every), default=0),
            **flags,
        )


_FIELDS = fields(Requirements)
_FLAGS = [one.name for one in _FIELDS if one.default is False]
