"""What connectors of env pipelines are given: the episodes that go on, one for each row of the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import Column
from runner.rows.array_namespace import Array


class RunningEpisodes(Sequence[SingleAgentEpisode], ABC):
    """K running episodes; as a sequence, views of them that are made on demand.

    Row k of everything that is read or written here belongs to episode k.

    Attributes:
        max_rows: the largest K there can be.
    """

    max_rows: int

    @abstractmethod
    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        """Return a view of one episode."""

    @property
    @abstractmethod
    def current_obs(self) -> Column:
        """The newest observations (K, ...) as the environment returned them."""

    @property
    @abstractmethod
    def starts_episode(self) -> Array:
        """Whether (K,) the newest observation is an episode's first."""

    @abstractmethod
    def newest_step(self, column: str) -> Column | None:
        """Return the row (K, ...) of a step column that came before the newest observations; None where the column is
        not known yet, or no past steps are kept."""

    @abstractmethod
    def write_obs(self, obs: Column) -> None:
        """Let the episodes hold `obs` (K, ...) in the place of the newest observations, from here to the learner."""

    @abstractmethod
    def history(self, column: str, length: int) -> tuple[Column, Array]:
        """Return what was seen or done last.

        Args:
            column: `obs`: as the environment returned them, up to the newest; or a step column: what was done before
                the newest observation.
            length: of the history, at most H + 1 observations or H steps, where H past steps are kept.

        Returns:
            (K, length, ...) values, oldest first, and (K, length) whether each lies within the running episode;
            values are 0 where not.

        Raises:
            ValueError: fewer past steps are kept.
        """


class RunningAgentEpisodes(RunningEpisodes):
    """Running episodes of the agents that a module acts for, in several sub-environments.

    Attributes:
        slots: (K,) int64, the slot of each episode.
        is_running: (S,) bool by slot, whether the episode has not ended.
    """

    slots: Array
    is_running: Array

    @abstractmethod
    def agent_of(self, slot: int) -> str:
        """Return the agent of a slot."""

    @abstractmethod
    def env_of(self, slot: int) -> int:
        """Return the sub-environment of a slot."""
