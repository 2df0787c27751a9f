"""The interface through which env connectors access running episodes, one for each row of the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import Column
from runner.rows.array_namespace import Array


class RunningEpisodes(Sequence[SingleAgentEpisode], ABC):
    """K running episodes. As a sequence, it holds views that are made on demand.

    Row k of all arrays read or written here belongs to episode k.

    Attributes:
        max_rows: the maximum of K.
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
        """Whether the newest observation is an episode's first (K,)."""

    @abstractmethod
    def newest_step(self, column: str) -> Column | None:
        """Return the row (K, ...) of a step column before the newest observations.

        Returns:
            The row, or None if the column is not known yet or no past steps are kept.
        """

    @abstractmethod
    def write_obs(self, obs: Column) -> None:
        """Replace the newest observations of the episodes by `obs` (K, ...), for all later readers."""

    @abstractmethod
    def history(self, column: str, length: int) -> tuple[Column, Array]:
        """Return the newest observations or steps.

        Args:
            column: `obs` for observations as the environment returned them, up to the newest; or a step column, up to
                the step before the newest observation.
            length: length of the history, at most H + 1 observations or H steps, if H past steps are kept.

        Returns:
            Values (K, length, ...), oldest first, and a mask (K, length) of values within the running episode. Other
            values are 0.

        Raises:
            ValueError: fewer past steps are kept.
        """
