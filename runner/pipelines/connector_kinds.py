"""Base classes of connectors for one of the three pipelines, with the exact types of their arguments.

A connector for several pipelines derives from `Connector`; in a learner pipeline `isinstance(episodes, ColumnBlock)` is
true. Dimension letters: K acting episodes, R env steps of E chunks, S sequences of at most L rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.episodes.columns import ColumnBlock
from runner.pipelines.connector import Batch, Connector, SharedData
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes

if TYPE_CHECKING:
    from runner.modules.rl_module import RLModule  # imports torch


class EnvToModuleConnector(Connector):
    """Base class of connectors from running episodes to the batch of the next forward pass."""

    requires = Requirements(belongs_in=("env_to_module",))

    def __call__(
        self,
        *,
        rl_module: RLModule,
        batch: Batch,
        episodes: RunningEpisodes,
        explore: bool | None = None,
        shared_data: SharedData | None = None,
        metrics: CustomMetrics | None = None,
        episodes_of_modules: Mapping[str, RunningEpisodes] | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Return the batch for the next connector; you may change `batch` and return it.

        Args:
            rl_module: the module whose forward pass follows.
            batch: column -> (K, ...) arrays, nested like the space; tensors after `NumpyToTensor`. Columns that
                connectors fill item by item are lists until `BatchIndividualItems`.
            episodes: the running episodes that act.
            explore: whether actions are sampled.
            shared_data: dict that lives until the end of module-to-env.
            metrics: object to report the metrics in `reports` to, or None if nothing is reported.
            episodes_of_modules: module id -> its running episodes in multi-agent runs, otherwise None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")


class ModuleToEnvConnector(Connector):
    """Base class of connectors from the module's outputs to the actions of the next vector step."""

    requires = Requirements(belongs_in=("module_to_env",))

    def __call__(
        self,
        *,
        rl_module: RLModule,
        batch: Batch,
        episodes: RunningEpisodes,
        explore: bool | None = None,
        shared_data: SharedData | None = None,
        metrics: CustomMetrics | None = None,
        episodes_of_modules: Mapping[str, RunningEpisodes] | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Return the batch for the next connector; you may change `batch` and return it.

        Args:
            rl_module: the module whose forward pass precedes.
            batch: column -> (K, ...) tensors, the module's outputs; arrays after `TensorToNumpy`.
            episodes: the running episodes that act, before the step with these actions.
            explore: whether actions are sampled.
            shared_data: dict that the connectors of env-to-module have filled for this step.
            metrics: object to report the metrics in `reports` to, or None if nothing is reported.
            episodes_of_modules: module id -> its running episodes in multi-agent runs, otherwise None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")


class LearnerConnector(Connector):
    """Base class of connectors from episode chunks to the train batch."""

    requires = Requirements(belongs_in=("learner",))

    def __call__(
        self,
        *,
        rl_module: Mapping[str, RLModule],
        batch: Batch,
        episodes: ColumnBlock,
        explore: bool | None = None,
        shared_data: SharedData | None = None,
        metrics: CustomMetrics | None = None,
        episodes_of_modules: Mapping[str, ColumnBlock] | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Return the batch for the next connector; you may change `batch` and return it.

        Args:
            rl_module: module id -> module, for all modules of the run.
            batch: column -> (R, ...) arrays, or (R + E, ...) after `AddOneTsToEpisodesAndTruncate`, or (S, L, ...)
                after `AddTimeDimToBatchAndZeroPad`; module id -> these columns after `AgentToModuleMapping`; tensors
                after `NumpyToTensor`.
            episodes: E chunks of R env steps of one module's agents.
            explore: None.
            shared_data: dict that lives for one pass.
            metrics: object to report the metrics in `reports` to, or None if nothing is reported.
            episodes_of_modules: module id -> its chunks of the same rollout, only for modules with rows.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")
