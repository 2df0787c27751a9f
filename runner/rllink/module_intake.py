"""Completes received episodes of one module with the columns that an env runner would have sampled.

Clients send observations, actions and rewards. The other columns of a learner (log probabilities of the actions, states
of a recurrent module, observations as the policy saw them) are computed here, with the weights that chose the actions.

Dimension letters: E chunks, R env steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.episodes.columns import OBS, Column, ColumnBlock
from runner.module_building import BuiltActingModule
from runner.modules.flat_parameters import FlatParameters
from runner.pipelines.connector import ACTION_LOGP, LOSS_MASK, STATE_IN, STATE_OUT, Connector
from runner.pipelines.defaults import default_module_to_env_connectors
from runner.pipelines.module_to_env_connectors import EpsilonGreedyActions, NormalizeAndClipActions
from runner.pipelines.noisy_actions import NoisyActions
from runner.pipelines.pipeline import ModuleToEnvPipeline
from runner.pipelines.recorded_episodes import pass_through
from runner.rllink.inference import Version, Versions
from runner.rllink.received_episodes import JoinedChunks, ReceivedChunks, SampledChunks, join_chunks, store_lookback


class ModuleIntake:
    """Turns the received chunks of one module into blocks.

    Args:
        seen: module and pipelines that compute the missing columns; they do not learn.
        learning: pipelines whose shared connectors learn from every observation.
        versions: the newest weights.
        num_lookback: number of past steps that chunks can see.
    """

    def __init__(
        self, seen: BuiltActingModule, learning: BuiltActingModule, versions: Versions, num_lookback: int
    ) -> None:
        self._seen = seen
        self._learning = learning
        self._versions = versions
        self._num_lookback = num_lookback
        self._weights = FlatParameters(seen.module)
        self._outputs = tuple(name for name in seen.recorded if name != ACTION_LOGP)
        seen.env_to_module.freeze()
        connectors = list(learning.env_to_module.single_connectors())
        shares = [connector.shares_state for connector in connectors]
        self._connectors_that_learn = connectors[: max(np.flatnonzero(shares), default=-1) + 1]

    def use_shared_state(self, shared_state: Mapping[str, Any]) -> None:
        """Set the merged state of shared connectors."""
        self._learning.env_to_module.set_state(shared_state)

    def state(self) -> dict[str, Any]:
        """Return the state of shared connectors."""
        return self._learning.env_to_module.get_state()

    def block(self, parts: Sequence[ReceivedChunks]) -> SampledChunks:
        """Join received chunks and complete their columns."""
        joined = join_chunks(parts, self._seen.recorded)
        self._learn(joined)
        block = self._completed(joined)
        store_lookback(joined, block, self._num_lookback)
        return SampledChunks(block, joined.episodes, joined.block.columns[OBS])

    def _learn(self, joined: JoinedChunks) -> None:
        """Pass each observation to connectors once; later parts of episodes start with an observation already seen."""
        if not self._connectors_that_learn:
            return
        block = joined.block
        is_new = np.ones(block.num_rows + len(block), np.bool_)
        is_new[block.first_obs_rows[block.t_started > 0]] = False
        pass_through(self._connectors_that_learn, block, self._learning.module, {LOSS_MASK: is_new})

    def _completed(self, joined: JoinedChunks) -> ColumnBlock:
        """Return the block with the columns that clients did not send."""
        lacks_outputs = not joined.given.issuperset(self._outputs)
        lacks_logp = ACTION_LOGP in self._seen.recorded and ACTION_LOGP not in joined.given
        if not (lacks_outputs or lacks_logp or self._seen.env_to_module.requires.writes_obs_to_episodes):
            return joined.block
        numbers = np.unique(joined.weights_seq_no)
        computed = [self._as_version(joined.block, self._version(int(number)), lacks_outputs) for number in numbers]
        columns = dict(computed[0])
        for number, of_version in zip(numbers[1:], computed[1:], strict=True):
            steps = joined.weights_seq_no == number
            is_obs = steps[_step_of_obs(joined.block)]
            for name, column in of_version.items():
                rows = is_obs if name == OBS else steps
                nested.assign(columns[name], rows, nested.take(column, rows))
        columns = {**joined.block.columns, **columns}
        if lacks_logp:
            self._seen.module_to_env.complete_fragment(columns, self._seen.module)
        for name, (rows, column) in joined.partly_given.items():
            nested.assign(columns[name], rows, nested.take(column, rows))
        return replace(joined.block, columns=columns)

    def _version(self, number: int) -> Version:
        """Return weights by number, or the newest if they are gone; clients then sent the outputs themselves."""
        version = self._versions.get(number) or self._versions.newest
        assert version is not None
        return version

    def _as_version(self, block: ColumnBlock, version: Version, with_outputs: bool) -> dict[str, Column]:
        """Return the columns computed with these weights: `obs` (R + E, ...) and outputs (R, ...)."""
        seen, module_id = self._seen, self._seen.spec.module_id
        seen.env_to_module.set_state(version.shared_state.get(module_id, {}))
        self._weights.load(version.weights[module_id])
        batch, written_obs = pass_through(seen.env_to_module, block, seen.module)
        columns = {} if written_obs is None else {OBS: written_obs}
        if with_outputs:
            obs = batch[OBS]
            with torch.no_grad():
                columns |= self._replay(block, obs) if seen.module.is_stateful else self._forward(block, obs)
        return columns

    def _forward(self, block: ColumnBlock, obs: Any) -> dict[str, Column]:
        rows = torch.from_numpy(block.obs_rows)
        outputs = self._seen.module.forward_exploration({OBS: nested.map_leaves(lambda leaf: leaf[rows], obs)})
        return {name: nested.map_leaves(_array, outputs[name]) for name in self._outputs}

    def _replay(self, block: ColumnBlock, obs: Any) -> dict[str, Column]:
        """Compute the outputs of a recurrent module step by step, for all chunks in parallel."""
        module = self._seen.module
        state = self._states_before(block)
        columns: dict[str, Column] = {}
        for t in range(int(block.lengths.max())):
            chunks = np.flatnonzero(block.lengths > t)
            obs_rows = torch.from_numpy(block.first_obs_rows[chunks] + t)
            state_in = nested.map_leaves(lambda leaf: leaf[torch.from_numpy(chunks)], state)  # noqa: B023
            step = {OBS: nested.map_leaves(lambda leaf: leaf[obs_rows][:, None], obs), STATE_IN: state_in}  # noqa: B023
            outputs = module.forward_exploration(step)
            rows = block.offsets[chunks] + t
            for name in self._outputs:
                is_state = name == STATE_OUT
                values = nested.map_leaves(lambda leaf: _array(leaf if is_state else leaf[:, 0]), outputs[name])  # noqa: B023
                if name not in columns:
                    columns[name] = nested.map_leaves(
                        lambda leaf: np.zeros((block.num_rows, *leaf.shape[1:]), leaf.dtype), values
                    )
                nested.assign(columns[name], rows, values)
            nested.map_leaves(
                lambda leaf, new: leaf.index_copy_(0, torch.from_numpy(chunks), new),  # noqa: B023
                state,
                outputs[STATE_OUT],
            )
        return columns

    def _states_before(self, block: ColumnBlock) -> Any:
        """Return the recurrent state (E, ...) at the start of each chunk."""
        initial = self._seen.module.get_initial_state()
        state = nested.map_leaves(lambda leaf: leaf.expand(len(block), *leaf.shape).clone(), initial)
        if block.lookback is not None:
            for chunk in np.flatnonzero(block.lookback.num_before).tolist():
                before = nested.take(block.lookback.columns_before(chunk)[STATE_OUT], -1)
                nested.map_leaves(lambda leaf, last: leaf[chunk].copy_(torch.from_numpy(last)), state, before)  # noqa: B023
        return state


def actions_to_module(pipeline: ModuleToEnvPipeline, module_id: str) -> Any:
    """Return the function that converts actions (R, ...) of the environment back to actions of the module.

    Raises:
        ConfigError: a connector changes actions irreversibly.
    """
    defaults = default_module_to_env_connectors(True, True, has_memory=True, has_several_agents=True)
    known: tuple[type[Connector], ...] = (
        EpsilonGreedyActions,
        NoisyActions,
        *(type(connector) for connector in defaults),
    )
    for connector in pipeline.single_connectors():
        if not isinstance(connector, known):
            what = f"connector {type(connector).__name__} changes the actions of simulators irreversibly"
            where = "connectors.module_to_env"
            raise ConfigError([Problem(what, where, module_id, "the default connectors and NormalizeAndClipActions")])
    scaling = pipeline["NormalizeAndClipActions"]
    assert isinstance(scaling, NormalizeAndClipActions)
    return scaling.to_module


def _array(tensor: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def _step_of_obs(block: ColumnBlock) -> npt.NDArray[np.int64]:
    """Return the row (R + E,) of the step after each observation; for a last observation, of the step before it."""
    rows = np.empty(block.num_rows + len(block), np.int64)
    rows[block.obs_rows] = np.arange(block.num_rows)
    rows[block.first_obs_rows + block.lengths] = block.offsets[1:] - 1
    return rows
