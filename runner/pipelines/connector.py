"""The connector protocol: one step of a pipeline, and how it adds data to a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.metrics import DEFAULT_MODULE_ID as DEFAULT_MODULE_ID
from runner.episodes import MultiAgentEpisode, SingleAgentEpisode, multi_agent_episodes, nested
from runner.episodes.columns import ACTIONS as ACTIONS
from runner.episodes.columns import OBS as OBS
from runner.episodes.columns import REWARDS as REWARDS
from runner.episodes.columns import STATE_OUT as STATE_OUT
from runner.episodes.columns import ColumnBlock, Rollout
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.requirements import Requirements
from runner.state import DeclaredState

if TYPE_CHECKING:
    from runner.pipelines.connector_graph import ConnectorGraph  # imports torch

# Columns. In env pipelines a batch is {column: rows}; a learner pipeline ends with {module id: {column: rows}}.
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
NOISE = "noise"
ACTION_NOISE = "action_noise"
SEQ_LENS = "seq_lens"
IS_FIRST = "is_first"
# In minibatches of sequences: (V,) indices of the env steps within (S * L).
STEP_ROWS = "step_rows"

Batch = dict[str, Any]
# Notes of connectors for later connectors, by agreed names. Values are plain values and arrays, saved in checkpoints.
SharedData = dict[str, Any]


class Items(dict[tuple[str, int], list[Any]]):
    """A column that connectors filled item by item: one list per episode chunk, in the order in which the chunks were
    added.
    """

    def stacked(self, has_bootstrap_rows: bool = False, episodes: Any = None) -> Any:
        """Return the column as arrays (rows, ...), nested like the items.

        Args:
            has_bootstrap_rows: whether each chunk gets a bootstrap row, which repeats its last row and is masked.
            episodes: the episodes of the batch. Only a block may contain chunks with the same id and time step.
        """
        chunks = self._of_chunks(episodes) if isinstance(episodes, ColumnBlock) else self.values()
        return nested.stack(
            [item for chunk in chunks for item in (*chunk, *(chunk[-1:] if has_bootstrap_rows else ()))]
        )

    def _of_chunks(self, block: ColumnBlock) -> Iterable[list[Any]]:
        """Return the items of each chunk; chunks with the same key, such as fragments drawn twice, share a list."""
        if len(self) >= len(block):
            return self.values()
        left = {key: iter(items) for key, items in self.items()}
        chunks = zip(block.episode_ids, block.t_started.tolist(), block.lengths.tolist(), strict=True)
        return [list(islice(left.get((id_, t_started), ()), length)) for id_, t_started, length in chunks]


class Connector(DeclaredState):
    """One step of a pipeline: takes episodes and the current batch, and returns the batch for the next connector.

    A custom connector overrides `__call__`, and names the batch columns that it reads and writes in `requires`. A
    pipeline cannot be built if a connector reads a column that no earlier connector writes. A connector may work on
    entire columns, which is fast, or loop over `episodes` and call `add_batch_item`, which slows down only itself.
    """

    requires: Requirements = Requirements()
    """Columns that this connector reads and writes, and its other requirements, in addition to the base classes."""
    _own_requires: ClassVar[Requirements] = Requirements()
    reports: Mapping[str, tuple[str, str]] = {}
    """Metric -> (reduction, meaning), for each metric that this connector reports.

    The reduction over calls, runners and learners is `mean`, `sum`, `min`, `max`, `median`, `last`, or a percentile
    `p1` to `p99`.
    """

    is_training: bool = True
    """Whether this connector may update its state from the data; `freeze` sets it to false."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the requirements of the base classes to this class."""
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
        """Return the batch for the next connector; you may change `batch` and return it.

        `batch` and `episodes` depend on the pipeline: see `EnvToModuleConnector`, `ModuleToEnvConnector` and
        `LearnerConnector`, the base classes of connectors for one pipeline.

        Args:
            rl_module: the module whose forward pass follows or precedes; in a learner pipeline module id -> module.
            batch: column -> rows, made by earlier connectors.
            episodes: `RunningEpisodes` in env pipelines, a `ColumnBlock` of chunks in a learner pipeline. Both are
                sequences of `SingleAgentEpisode`s, which are created on demand.
            explore: whether actions are sampled.
            shared_data: dict that lives for one pass through env-to-module and module-to-env, or through the learner
                pipeline.
            metrics: object to report the metrics in `reports` to, or None if nothing is reported, as in evaluations.
            episodes_of_modules: module id -> the `episodes` of its pipeline, or None if there is one module.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        """Add columns (R, ...) that are cheaper to compute once per fragment than at every step."""

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
        """Return a torch graph of the connector's behaviour while acting, to export the policy.

        Return None if the connector does not affect an exported policy. The method is called after the spaces and the
        state are set.

        Raises:
            ConfigError: the connector cannot be exported.
        """
        name = type(self).__name__
        problem = Problem(
            f"connector {name} cannot be exported",
            where="connectors",
            fix=f"write a method {name}.to_graph (docs/guides/evaluate.md), or train without the connector",
        )
        raise ConfigError([problem])

    def at_env_steps(self, num_env_steps: int) -> None:
        """Set the number of env steps sampled by all runners; called before each fragment, for schedules."""

    def use_env_runner(self, index: int, num_env_runners: int) -> None:
        """Set the env runner that uses this connector: its index, from 0, and the maximum number of env runners. Not
        called in evaluations.
        """

    def use_agents(self, spaces: Mapping[str, gym.Space[Any]]) -> None:
        """Set the agents of a multi-agent run: agent id -> space of the observations in its episodes."""

    def use_stream(self, stream: np.random.Generator) -> None:
        """Set the random stream that this connector draws from; the pipeline saves and restores it.

        Keep the stream itself: checkpoints do not include generators derived from it.
        """

    def freeze(self) -> None:
        """Stop updating the state from the data; called for pipelines of evaluations."""
        self.is_training = False

    def reset_state(self) -> None:
        """Forget the learned state."""

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the state that all runners share from now on; if empty, each runner keeps its state.

        The next merge receives states that contain this one. To count each row once, keep merged and new values apart,
        as `MeanStdFilter` does.
        """
        return {}

    @property
    def shares_state(self) -> bool:
        """Whether runners share the state of this connector, merged by `merge_states`."""
        return type(self).merge_states is not Connector.merge_states

    # -- for connectors that work item by item -------------------------------------------------------------------------

    @staticmethod
    def single_agent_episode_iterator(episodes: Sequence[SingleAgentEpisode]) -> Iterator[SingleAgentEpisode]:
        """Return the episodes one by one."""
        return iter(episodes)

    @staticmethod
    def multi_agent_episodes(blocks: Mapping[str, ColumnBlock]) -> list[MultiAgentEpisode]:
        """Return the env episodes of the blocks in `episodes_of_modules` of a learner connector, created for this call;
        see `runner.episodes.multi_agent_episodes`.

        Raises:
            RunFailure: the episodes are running episodes of an env pipeline.
        """
        if not all(isinstance(block, ColumnBlock) for block in blocks.values()):
            what = "multi_agent_episodes is available in learner pipelines only, but was called in an env pipeline"
            fix = "use episodes_of_modules: running episodes have an agent_id and a multi_agent_episode_id"
            raise RunFailure(Problem(what, "connectors", fix=fix))
        return multi_agent_episodes(Rollout(blocks, 0))

    @staticmethod
    def add_batch_item(batch: Batch, column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode) -> None:
        """Append one item of an episode to a column; `BatchIndividualItems` converts the items to rows."""
        key = (single_agent_episode.id_, single_agent_episode.t_started)
        batch.setdefault(column, Items()).setdefault(key, []).append(item_to_add)

    @staticmethod
    def add_n_batch_items(
        batch: Batch, column: str, items_to_add: Sequence[Any], single_agent_episode: SingleAgentEpisode
    ) -> None:
        """Append several items of an episode to a column."""
        key = (single_agent_episode.id_, single_agent_episode.t_started)
        batch.setdefault(column, Items()).setdefault(key, []).extend(items_to_add)
