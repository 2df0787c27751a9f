"""The bases of connectors that work in one of the three pipelines: what exactly each kind is given.

A connector for several pipelines derives from `Connector`; `isinstance(episodes, ColumnBlock)` is true in a learner
pipeline. Dimension letters: K episodes that act, R env steps of E chunks, S sequences of at most L rows.
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
    """A connector from running episodes to the batch of the next forward pass."""

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
        """Return the batch for the next connector; changing and returning `batch` itself is fine.

        Args:
            rl_module: the module whose forward pass follows.
            batch: column -> (K, ...) arrays, nested as the space is; tensors after `NumpyToTensor`; items that
                connectors add one by one until `BatchIndividualItems`.
            episodes: the running episodes that act.
            explore: whether actions are sampled.
            shared_data: lives from here to the end of module-to-env.
            metrics: takes what the connector declares in `reports`; None: nothing is to be reported.
            episodes_of_modules: module id -> its running episodes, in runs with several agents; None: there is one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__")


class ModuleToEnvConnector(Connector):
    """A connector from the module's outputs to the actions of the next vector step."""

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
        """Return the batch for the next connector; changing and returning `batch` itself is fine.

        Args:
            rl_module: the module whose forward pass came before.
            batch: column -> (K, ...) tensors, the module's outputs; arrays after `TensorToNumpy`.
            episodes: the running episodes that act, before the step that the actions lead to.
            explore: whether actions are sampled.
            shared_data: what the connectors of env-to-module left for this step.
            metrics: takes what the connector declares in `reports`; None: nothing is to be reported.
            episodes_of_modules: module id -> its running episodes, in runs with several agents; None: there is one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__")


class LearnerConnector(Connector):
    """A connector from episode chunks to the train batch."""

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
        """Return the batch for the next connector; changing and returning `batch` itself is fine.

        Args:
            rl_module: module id -> module, of all modules of the run.
            batch: column -> (R, ...) arrays, or (R + E, ...) after `AddOneTsToEpisodesAndTruncate`, or (S, L, ...)
                after `AddTimeDimToBatchAndZeroPad`; module id -> these columns after `AgentToModuleMapping`; tensors
                after `NumpyToTensor`.
            episodes: E chunks of R env steps of one module's agents.
            explore: None.
            shared_data: lives for one pass.
            metrics: takes what the connector declares in `reports`; None: nothing is to be reported.
            episodes_of_modules: module id -> its chunks of the same rollout; modules without a row are not in it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__")
