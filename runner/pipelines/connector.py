"""The connector protocol: what one step of a connector pipeline is and how it adds data to a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.metrics import DEFAULT_MODULE_ID as DEFAULT_MODULE_ID
from runner.episodes import MultiAgentEpisode, SingleAgentEpisode, multi_agent_episodes, nested
from runner.episodes.columns import ACTIONS as ACTIONS
from runner.episodes.columns import OBS as OBS
from runner.episodes.columns import REWARDS as REWARDS
from runner.episodes.columns import ColumnBlock, Rollout
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.requirements import Requirements
from runner.state import DeclaredState

if TYPE_CHECKING:
    from runner.pipelines.connector_graph import ConnectorGraph  # imports torch

# Columns. In env pipelines a batch is {column: rows}, in the learner pipeline finally {module id: {column: rows}}.
ACTIONS_FOR_ENV = "actions_for_env"
TERMINATEDS = "terminateds"
TRUNCATEDS = "truncateds"
ACTION_DIST_INPUTS = "action_dist_inputs"
ACTION_LOGP = "action_logp"
VF_PREDS = "vf_preds"
ADVANTAGES = "advantages"
VALUE_TARGETS = "value_targets"
RETURNS = "returns"
OBS_OF_AGENTS = "obs_of_agents"
AGENTS_MASK = "agents_mask"
AGENT_INDEX = "agent_index"
STATE = "state"
LOSS_MASK = "loss_mask"
STATE_IN = "state_in"
NEW_STATE_IN = "new_state_in"
STATE_OUT = "state_out"
NOISE = "noise"
SEQ_LENS = "seq_lens"
# In minibatches of sequences: (V,) rows of the env steps in (S * L).
STEP_ROWS = "step_rows"

Batch = dict[str, Any]
# Notes of connectors to later connectors, by names that they agree on; plain values and arrays, part of checkpoints.
SharedData = dict[str, Any]


class Items(dict[tuple[str, int], list[Any]]):
    """A column that connectors filled item by item: one list an episode chunk, in the order in which chunks were
    added.
    """

    def stacked(self, has_bootstrap_rows: bool = False) -> Any:
        """Return the column as arrays (rows, ...), nested like the items.

        Args:
            has_bootstrap_rows: each chunk gets one row more, which repeats its last and which no loss reads.
        """
        return nested.stack(
            [item for chunk in self.values() for item in (*chunk, *(chunk[-1:] if has_bootstrap_rows else ()))]
        )


class Connector(DeclaredState):
    """One step of a pipeline: takes episodes and the batch so far, returns the batch for the next connector.

    A custom connector overrides `__call__` and names the batch columns that it reads and writes in `requires`. A
    pipeline in which a connector reads a column that nothing before it writes is rejected when it is built. It may work
    on whole columns (fast) or loop over `episodes` and use `add_batch_item` (only your connector pays for that).
    """

    requires: Requirements = Requirements()
    """Columns that this connector reads and writes, and whatever else it needs. It extends that of the base classes."""
    _own_requires: ClassVar[Requirements] = Requirements()
    reports: Mapping[str, tuple[str, str]] = {}
    """Metric -> (reduction, meaning) of each metric that this connector reports.

    The reduction over calls, runners and learners is `mean`, `sum`, `min`, `max`, `median`, `last`, or a percentile
    `p1` to `p99`.
    """

    is_training: bool = True
    """Whether this connector may learn from the data that it is given; `freeze` makes it false."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the requirements of the base classes to those of the class."""
        super().__init_subclass__(**kwargs)
        cls._own_requires = vars(cls).get("requires", Requirements())
        joined = Requirements()
        for one in reversed(cls.__mro__):
            joined = joined.extended(vars(one).get("_own_requires", joined))
        cls.requires = joined

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: Batch,
        episodes: Any,
        explore: bool | None = None,
        shared_data: SharedData | None = None,
        metrics: CustomMetrics | None = None,
        episodes_of_modules: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Return the batch for the next connector; changing and returning `batch` itself is fine.

        What the arguments are depends on the pipeline: see `EnvToModuleConnector`, `ModuleToEnvConnector` and
        `LearnerConnector`, the bases of connectors for one of them.

        Args:
            rl_module: the module whose forward pass follows or came before; in a learner pipeline module id -> module.
            batch: column -> rows, what the connectors before made.
            episodes: `RunningEpisodes` in env pipelines, a `ColumnBlock` of chunks to learn from in a learner pipeline;
                either is a sequence of `SingleAgentEpisode`s, made when asked for.
            explore: whether actions are sampled.
            shared_data: lives for one pass through env-to-module and module-to-env, or through the learner pipeline.
            metrics: takes what the connector declares in `reports`; None: nothing is to be reported (in evaluation, for
                example).
            episodes_of_modules: module id -> what its pipeline gets as `episodes`; None: there is one module.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        """Add columns (R, ...) that are cheaper to compute once per fragment than in every step."""

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Return the observation space after this connector."""
        return input_observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Return the action space after this connector."""
        return input_action_space

    def to_graph(self) -> ConnectorGraph | None:
        """Return what this connector does while acting, in torch operations, to export the policy; None: nothing that
        counts.

        Called when the connector knows its spaces and its state.

        Raises:
            ConfigError: the connector cannot be exported.
        """
        name = type(self).__name__
        problem = Problem(
            f"connector {name} cannot be exported",
            where="connectors",
            expected=f"a method {name}.to_graph, or a run without the connector: docs/guides/evaluate.md",
        )
        raise ConfigError([problem])

    def at_env_steps(self, num_env_steps: int) -> None:
        """Take how many env steps all runners have sampled; told before each fragment, for schedules."""

    def use_env_runner(self, index: int, num_env_runners: int) -> None:
        """Take which env runner acts with this connector, number `index` from 0 of at most so many; not in
        evaluations.
        """

    def use_agents(self, spaces: Mapping[str, gym.Space[Any]]) -> None:
        """Take the agents of a run with several: agent id -> space of the observations that its episodes hold."""

    def use_stream(self, stream: np.random.Generator) -> None:
        """Take the random stream that this connector draws from; the pipeline saves and restores it.

        Keep the stream itself: checkpoints do not include generators that the connector makes of it.
        """

    def freeze(self) -> None:
        """Learn nothing more from the data that pass; called for pipelines of evaluations."""
        self.is_training = False

    def reset_state(self) -> None:
        """Forget everything learned."""

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what all runners share from now on, from the states of several; empty: each keeps its own."""
        return {}

    @property
    def shares_state(self) -> bool:
        """Whether runners share a state of this connector, which `merge_states` merges."""
        return type(self).merge_states is not Connector.merge_states

    # -- for connectors that work item by item -------------------------------------------------------------------------

    @staticmethod
    def single_agent_episode_iterator(episodes: Sequence[SingleAgentEpisode]) -> Iterator[SingleAgentEpisode]:
        """Return the episodes one by one."""
        return iter(episodes)

    @staticmethod
    def multi_agent_episodes(blocks: Mapping[str, ColumnBlock]) -> list[MultiAgentEpisode]:
        """Return the env episodes of the blocks that a learner connector gets as `episodes_of_modules`, made for this
        call; see `runner.episodes.multi_agent_episodes`.

        Raises:
            RunFailure: they are running episodes of an env pipeline, of which none are made.
        """
        if not all(isinstance(block, ColumnBlock) for block in blocks.values()):
            what = "a connector of an env pipeline asks for multi_agent_episodes, which are made in learner pipelines"
            expected = "episodes_of_modules: running episodes know their agent_id and multi_agent_episode_id"
            raise RunFailure(Problem(what, "connectors", expected=expected))
        return multi_agent_episodes(Rollout(blocks, 0))

    @staticmethod
    def add_batch_item(batch: Batch, column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode) -> None:
        """Append one item of an episode to a column; `BatchIndividualItems` makes rows of them."""
        key = (single_agent_episode.id_, single_agent_episode.t_started)
        batch.setdefault(column, Items()).setdefault(key, []).append(item_to_add)

    @staticmethod
    def add_n_batch_items(
        batch: Batch, column: str, items_to_add: Sequence[Any], single_agent_episode: SingleAgentEpisode
    ) -> None:
        """Append several items of an episode to a column."""
        key = (single_agent_episode.id_, single_agent_episode.t_started)
        batch.setdefault(column, Items()).setdefault(key, []).extend(items_to_add)
