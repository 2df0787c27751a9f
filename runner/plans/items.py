"""Items that flow between the operators of a plan, with their origins and the metrics to count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import DEFAULT_MODULE_ID, OBS, Rollout
from runner.episodes.made_blocks import make_block
from runner.pipelines.custom_metrics import ReducedMetrics

# Replay buffer -> module id -> (B,) row of the buffer at which each chunk begins.
ReplayRows = Mapping[str, Mapping[str, Any]]

if TYPE_CHECKING:
    from runner.env_runners.sample import Sample
    from runner.learners.gradients import GroupGradients


@dataclass(frozen=True)
class Origin:
    """Origin of experiences.

    Attributes:
        runner: number of the env runner.
        weights_seq_no: number of the weights that it acted with, counted from 1 in the order of updates.
        num_env_steps: env steps that it sampled.
    """

    runner: int
    weights_seq_no: int
    num_env_steps: int


@dataclass(frozen=True, kw_only=True)
class Item:
    """Base class of items.

    Attributes:
        timers: name -> seconds that the item took, reported as `timers/<name>`.
        samples: answers of env runners without their rollouts, counted with the item.
        connector_metrics: metric of the run -> values that connectors of learner pipelines reported.
        ends_iteration: whether an iteration may end with the item.
    """

    timers: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    connector_metrics: ReducedMetrics = field(default_factory=dict)
    ends_iteration: bool = True


@dataclass(frozen=True)
class Experiences(Item):
    """Sampled steps.

    Attributes:
        rollout: the steps, a column block for each module.
        origins: origins of the steps.
        replay_rows: replay buffer -> module id -> (B,) row of the buffer at which each chunk begins; empty if the steps
            were not replayed.
        aborted: ids of episodes cut short by an environment failure.
    """

    rollout: Rollout
    origins: tuple[Origin, ...] = ()
    replay_rows: ReplayRows = field(default_factory=dict)
    aborted: tuple[str, ...] = ()

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        terminateds: npt.NDArray[Any],
        lengths: npt.NDArray[Any] | None = None,
        module_id: str = DEFAULT_MODULE_ID,
    ) -> Experiences:
        """Make experiences from arrays: steps that no env runner sampled, such as imagined or changed ones.

        Args:
            columns: `obs`, `actions`, `rewards`, and the module's outputs that the learner pipeline needs, such as
                `action_logp`; arrays (R, ...) or nested like their spaces. Single steps also need `new_obs` (R, ...).
                With `lengths`, `obs` contains the observation after the last step of each rollout instead: R + E rows.
            terminateds: (E,) whether each rollout ends in a terminal state. All others are truncated, so their value is
                estimated from the last observation.
            lengths: (E,) steps of each of E rollouts, in the order of the rows; None if each row is a separate step,
                E = R.
            module_id: id of the module that learns from them.

        Raises:
            ValueError: a column is missing, or the numbers of rows do not match.
        """
        block = make_block(columns, terminateds, lengths, module_id)
        return cls(Rollout({module_id: block}, block.num_rows))

    def with_columns(self, columns: Mapping[str, Mapping[str, Any]]) -> Experiences:
        """Return an item with other columns; this one does not change.

        Args:
            columns: module id -> name of a new or known column -> array (R, ...) or nested arrays; `obs` (R + E, ...).

        Raises:
            ValueError: the item does not contain steps of a module, or a column has another number of rows.
        """
        blocks = dict(self.rollout.blocks)
        for module_id, of_module in columns.items():
            if module_id not in blocks:
                raise ValueError(f"there are no steps of module {module_id}; the item has {', '.join(blocks)}")
            block = blocks[module_id]
            for name, column in of_module.items():
                expected = block.num_rows + (len(block) if name == OBS else 0)
                shapes = [np.shape(leaf) for leaf in nested.leaves(column)]
                wrong = [shape for shape in shapes if shape[:1] != (expected,)]
                if wrong:
                    what = f"column {name} of module {module_id} has shape {wrong[0]} instead of {expected} rows"
                    raise ValueError(what)
            blocks[module_id] = block.with_columns(of_module)
        return replace(self, rollout=replace(self.rollout, blocks=blocks))

    @property
    def num_env_steps(self) -> int:
        """Number of sampled env steps."""
        return self.rollout.num_env_steps

    def __str__(self) -> str:
        blocks = self.rollout.blocks.items()
        rows = ", ".join(f"{module_id} {block.num_rows} rows in {len(block)} chunks" for module_id, block in blocks)
        return f"Experiences of {self.num_env_steps} env steps: {rows}"


@dataclass(frozen=True)
class Gradients(Item):
    """Gradients of the losses of all modules.

    Attributes:
        gradients: gradients, as learners compute them.
        num_env_steps: env steps of the experiences they were computed on.
        origins: origins of these experiences.
    """

    gradients: GroupGradients
    num_env_steps: int
    origins: tuple[Origin, ...] = ()

    def __str__(self) -> str:
        return f"Gradients of {self.num_env_steps} env steps"


@dataclass(frozen=True)
class IterationEnd:
    """The end of an iteration: the run reports its metrics, and may evaluate, save and stop."""


@dataclass(frozen=True)
class TrainResult(Item):
    """The result of one or several updates.

    Attributes:
        updates: for each update, module id -> metric -> value.
        num_env_steps_trained: env steps of the train batches.
        num_env_steps_read: recorded env steps among them that were read for these updates.
        lags: updates that each share of the train batch was behind, and its env steps; empty if unknown.
        rows: module id -> column -> (B,) values that the loss returns for each row of the train batch.
        replay_rows: rows of the experiences that were trained on.
    """

    updates: Sequence[Mapping[str, Mapping[str, float]]]
    num_env_steps_trained: int
    num_env_steps_read: int = 0
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    replay_rows: ReplayRows = field(default_factory=dict)
    lags: Sequence[tuple[int, int]] = ()

    def __str__(self) -> str:
        return f"TrainResult of {len(self.updates)} updates on {self.num_env_steps_trained} env steps"
