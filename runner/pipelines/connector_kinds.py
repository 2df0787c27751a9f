"""Base classes of connectors for one of the three pipelines.

A connector for several pipelines derives from `Connector`; in a learner pipeline `isinstance(episodes, ColumnBlock)` is
true. Dimension letters: K acting episodes, R env steps of E chunks, S sequences of at most L rows.
"""

from __future__ import annotations

from runner.pipelines.connector import Connector
from runner.pipelines.requirements import Requirements


class EnvToModuleConnector(Connector):
    """Base class of connectors from running episodes to the batch of the next forward pass.

    `batch` is column -> (K, ...) arrays, nested like the space; tensors after `NumpyToTensor`. Columns that connectors
    fill item by item are lists until `BatchIndividualItems`. `episodes` are the running episodes that act.
    """

    requires = Requirements(belongs_in=("env_to_module",))


class ModuleToEnvConnector(Connector):
    """Base class of connectors from the module's outputs to the actions of the next vector step.

    `batch` is column -> (K, ...) tensors, the module's outputs; arrays after `TensorToNumpy`. `episodes` are the
    running episodes that act, before the step with these actions.
    """

    requires = Requirements(belongs_in=("module_to_env",))


class LearnerConnector(Connector):
    """Base class of connectors from episode chunks to the train batch.

    `batch` is column -> (R, ...) arrays, or (R + E, ...) after `AddOneTsToEpisodesAndTruncate`, or (S, L, ...) after
    `AddTimeDimToBatchAndZeroPad`; module id -> these columns after `AgentToModuleMapping`; tensors after
    `NumpyToTensor`. `episodes` are the E chunks of one module's agents, and `explore` is None.
    """

    requires = Requirements(belongs_in=("learner",))
