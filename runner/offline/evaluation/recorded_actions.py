"""Compute from column blocks the data of off-policy evaluation: rewards, ratios and the target policy's outputs.

Dimension letters: E episodes, R steps, K width of `action_dist_inputs`, S sequences, L their length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.errors import ConfigError, Problem, list_names, nearest_match
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, ColumnBlock
from runner.modules.action_distribution import MASKED_LOGIT
from runner.modules.rl_module import RLModule
from runner.offline.evaluation.estimators import Array, IntArray
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTION_LOGP, IS_FIRST, STATE_IN

# Columns (R + E, ...) that a module reads: nested arrays or tensors with a row for each observation of a block.
ModuleInputs = Mapping[str, Any]

# Rows per forward pass, which limits its memory.
MAX_ROWS_PER_PASS = 4096
# A policy gives a masked action at most this log probability; its probability is exactly 0.
_IMPOSSIBLE_LOGP = MASKED_LOGIT / 2


@dataclass(frozen=True, eq=False)
class RecordedData:
    """Data collected from all blocks.

    Attributes:
        lengths: (E,). is_terminated: (E,). rewards, log_ratios: (R,) float64; ratios are 0 if no method needs them.
        obs: (R + E, ...), actions: (R, ...), dist_inputs: (R + E, K) tensors; None if no method needs them.
    """

    lengths: IntArray
    is_terminated: npt.NDArray[np.bool_]
    rewards: Array
    log_ratios: Array
    obs: Any
    actions: Any
    dist_inputs: Any


def _concat_tensors(parts: list[Any]) -> Any:
    return None if parts[0] is None else nested.map_leaves(lambda *leaves: torch.cat(leaves), *parts)


@dataclass(frozen=True)
class BlockReader:
    """Extracts from blocks the data that the methods need.

    Attributes:
        module: the target policy.
        make_inputs: computes the columns that the module reads.
        needs_ratios: whether a method needs ratios of probabilities.
        needs_model: whether a method needs action values.
    """

    module: RLModule
    make_inputs: Callable[[ColumnBlock], ModuleInputs]
    needs_ratios: bool
    needs_model: bool

    def read_all(self, blocks: Iterable[ColumnBlock]) -> RecordedData:
        """Read every block once. Raises `ConfigError` if there are no episodes."""
        parts = [self.read(block) for block in blocks if len(block)]
        if not parts:
            what = "there are no recorded episodes to evaluate a policy on"
            raise ConfigError([Problem(what, where="offline.input_")])
        return RecordedData(
            lengths=np.concatenate([part.lengths for part in parts]),
            is_terminated=np.concatenate([part.is_terminated for part in parts]),
            rewards=np.concatenate([part.rewards for part in parts]),
            log_ratios=np.concatenate([part.log_ratios for part in parts]),
            obs=_concat_tensors([part.obs for part in parts]),
            actions=_concat_tensors([part.actions for part in parts]),
            dist_inputs=_concat_tensors([part.dist_inputs for part in parts]),
        )

    @torch.no_grad()
    def read(self, block: ColumnBlock) -> RecordedData:
        """Return the data of one block.

        Raises:
            ConfigError: chunks do not start at time step 0, `action_logp` is missing, or numbers are not finite.
        """
        check_block(block, needs_logp=self.needs_ratios)
        inputs = self._inputs(block)
        actions = _to_actions(block.columns[ACTIONS], device_of(self.module))
        dist_inputs = compute_dist_inputs(self.module, inputs, block.lengths)  # (R + E, K)
        log_ratios = np.zeros(block.num_rows)
        if self.needs_ratios:
            target = _log_probs(self.module, dist_inputs, actions, block)
            log_ratios = target - np.asarray(block.columns[ACTION_LOGP], np.float64)
        return RecordedData(
            lengths=np.asarray(block.lengths, np.int64),
            is_terminated=np.asarray(block.is_terminated, np.bool_),
            rewards=np.asarray(block.columns[REWARDS], np.float64),
            log_ratios=log_ratios,
            obs=inputs[OBS] if self.needs_model else None,
            actions=actions if self.needs_model else None,
            dist_inputs=dist_inputs if self.needs_model else None,
        )

    def _inputs(self, block: ColumnBlock) -> ModuleInputs:
        device, num_rows = device_of(self.module), block.num_rows + len(block)
        inputs = {name: _to_tensors(column, device) for name, column in self.make_inputs(block).items()}
        for name, column in inputs.items():
            if nested.row_count(column) != num_rows:
                raise ValueError(f"make_inputs must return {num_rows} rows of {name}, got {nested.row_count(column)}")
        return inputs


def device_of(module: RLModule) -> torch.device:
    """Return the device of a module's parameters."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _log_probs(module: RLModule, dist_inputs: Tensor, actions: Any, block: ColumnBlock) -> Array:
    """Return the log probabilities (R,) of the recorded actions; -inf for actions that a mask forbids."""
    at_steps = dist_inputs.index_select(0, torch.from_numpy(block.obs_rows).to(dist_inputs.device))
    log_probs = module.action_dist.log_prob(at_steps, actions).double().cpu().numpy()
    return np.where(log_probs <= _IMPOSSIBLE_LOGP, -np.inf, log_probs)


def compute_dist_inputs(module: RLModule, inputs: ModuleInputs, lengths: IntArray) -> Tensor:
    """Return a policy's `action_dist_inputs` (R + E, K) for every observation.

    Args:
        module: the policy. If it is recurrent, each episode starts from its initial state.
        inputs: columns (R + E, ...) of tensors that include the module's inputs.
        lengths: (E,) steps per episode.
    """
    read = {name: inputs[name] for name in module.learner_inputs if name not in (STATE_IN, IS_FIRST)}
    if module.is_stateful:
        return torch.cat(list(_dist_inputs_of_sequences(module, read, lengths + 1)))
    num_rows = int(lengths.sum()) + len(lengths)
    passes = [slice(first, first + MAX_ROWS_PER_PASS) for first in range(0, num_rows, MAX_ROWS_PER_PASS)]
    return torch.cat([module.forward_exploration(nested.take(read, rows))[ACTION_DIST_INPUTS] for rows in passes])


def _dist_inputs_of_sequences(module: RLModule, inputs: ModuleInputs, chunk_rows: IntArray) -> Iterable[Tensor]:
    """Yield the `action_dist_inputs` of recurrent modules, one pass over several padded episodes at a time."""
    longest = int(chunk_rows.max())
    per_pass = max(1, MAX_ROWS_PER_PASS // longest)
    first_row = 0
    for first in range(0, len(chunk_rows), per_pass):
        pass_rows = chunk_rows[first : first + per_pass]
        rows = slice(first_row, first_row + int(pass_rows.sum()))
        is_row = torch.from_numpy(np.arange(longest) < pass_rows[:, None]).to(device_of(module))  # (S, L)
        batch = {name: _padded(nested.take(column, rows), is_row) for name, column in inputs.items()}
        batch[STATE_IN] = _initial_states(module, is_row)
        yield module.forward_train(batch)[ACTION_DIST_INPUTS][is_row]
        first_row = rows.stop


def _padded(columns: Any, is_row: Tensor) -> Any:
    """Return rows as zero-padded sequences (S, L, ...)."""

    def padded(leaf: Tensor) -> Tensor:
        out = leaf.new_zeros((*is_row.shape, *leaf.shape[1:]))
        out[is_row] = leaf
        return out

    return nested.map_leaves(padded, columns)


def _initial_states(module: RLModule, is_row: Tensor) -> Any:
    """Return the initial `state_in` (S, ...) of S sequences."""
    size, device = len(is_row), is_row.device
    return nested.map_leaves(
        lambda leaf: leaf.to(device).expand(size, *leaf.shape).contiguous(), module.get_initial_state()
    )


def _to_tensors(columns: Any, device: torch.device) -> Any:
    def tensor(leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            leaf = torch.from_numpy(np.require(leaf, requirements="W"))  # arrays owned by Arrow are read-only
        on_device: Tensor = leaf.to(device)
        return on_device

    return nested.map_leaves(tensor, columns)


def _to_actions(columns: Any, device: torch.device) -> Any:
    """Return recorded actions; integers become int64, which distributions use as indices."""
    tensors = _to_tensors(columns, device)
    return nested.map_leaves(lambda leaf: leaf if leaf.is_floating_point() else leaf.long(), tensors)


# --- checks -------------------------------------------------------------------------------------------


def check_block(block: ColumnBlock, needs_logp: bool) -> None:
    """Check that every chunk starts its episode, and that rewards and, if needed, `action_logp` are finite.

    Raises:
        ConfigError: a check fails; names the column or location.
    """
    problems = [_find_late_start(block), _find_not_finite(block, REWARDS)]
    if needs_logp:
        problems += [_find_missing_logp(block), _find_not_finite(block, ACTION_LOGP)]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise ConfigError(found)


def _find_late_start(block: ColumnBlock) -> Problem | None:
    late = np.flatnonzero(block.t_started != 0)
    if len(late) == 0:
        return None
    return Problem(
        "off-policy estimates need complete episodes, with the ratios of all actions from the first one on",
        where="offline.input_",
        got=f"{len(late):,} of {len(block):,} chunks start later, the first of them {block.episode_ids[late[0]]} "
        f"at time step {int(block.t_started[late[0]])}",
        expected="episodes that start at time step 0",
    )


def _find_missing_logp(block: ColumnBlock) -> Problem | None:
    if ACTION_LOGP in block.columns:
        return None
    return Problem(
        f"the episodes lack {ACTION_LOGP}, the log probability of each action, which ratios need",
        where="offline.input_",
        got="columns " + list_names(block.columns, ACTION_LOGP),
        fix=f"record episodes with {ACTION_LOGP}, or use only dm, which does not need ratios",
        nearest=nearest_match(ACTION_LOGP, block.columns),
    )


def _find_not_finite(block: ColumnBlock, name: str) -> Problem | None:
    column = block.columns.get(name)
    if column is None or np.isfinite(column).all():
        return None
    bad = np.flatnonzero(~np.isfinite(column))
    episode = int(np.searchsorted(block.offsets, bad[0], side="right")) - 1
    return Problem(
        f"{name} must be finite",
        where=f"offline.input_, episode {block.episode_ids[episode]}, time step {bad[0] - block.offsets[episode]}",
        got=f"{float(column[bad[0]])}; {len(bad):,} such rows",
    )
