"""Check of a run's first train batch: the module's outputs must equal the outputs recorded during sampling.

With equal weights, the learner's forward pass returns the same outputs and log-probabilities for the same rows. If they
differ, a connector changes the values for the learner, or a module or distribution is inconsistent. Every probability
ratio would then be silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.config.errors import Problem, RunFailure
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock, Rollout
from runner.learners.minibatches import at_env_steps
from runner.modules.action_distribution import MASKED_LOGIT
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import (
    ACTION_DIST_INPUTS,
    ACTION_LOGP,
    ACTIONS,
    LOSS_MASK,
    OBS,
    Batch,
    Connector,
    Items,
)
from runner.pipelines.pipeline import ConnectorPipeline, EnvToModulePipeline, LearnerConnectorPipeline
from runner.pipelines.pipeline_checks import changes_observations
from runner.pipelines.recorded_episodes import ACTING_CONNECTORS, MEMORY_CONNECTORS, ObservationRows
from runner.pipelines.requirements import Requirements

# Number of rows (sequences for a stateful module) to check, evenly spaced over the batch.
_MAX_ROWS = 1024
# Maximum difference, relative to the largest absolute value of the column (at least 0.1). By default, convolutions on a
# GPU use a mantissa of 10 bits.
_TOLERANCE, _TOLERANCE_ON_GPU = 1e-3, 1e-2
_SMALLEST_SCALE = 0.1


class OnPolicyConsistencyCheck:
    """Compares the outputs recorded during sampling with the outputs for the same rows of the train batch.

    Each module is checked once, with the first train batch that contains rows of it.

    Args:
        env_to_module: module id -> pipeline before the acting module; errors name its connectors.
    """

    def __init__(self, env_to_module: Mapping[str, EnvToModulePipeline]) -> None:
        self._env_to_module = dict(env_to_module)  # only modules that were not checked yet

    def check(
        self,
        rollout: Rollout,
        batches: Mapping[str, Mapping[str, Any]],
        modules: Mapping[str, RLModule],
        learner_pipelines: Mapping[str, LearnerConnectorPipeline],
    ) -> None:
        """Check the train batch of each module.

        Args:
            rollout: rollout sampled with the current weights of the modules.
            batches: module id -> column -> tensor, made from the rollout by the learner pipelines.
            modules, learner_pipelines: by module id.

        Raises:
            RunFailure: an output differs; the message names the connector, module class or distribution at fault.
        """
        for module_id in self._env_to_module.keys() & batches.keys():
            env_to_module = self._env_to_module.pop(module_id)
            difference = find_difference(modules[module_id], batches[module_id])
            if difference is None:
                continue
            pipelines = env_to_module, learner_pipelines[module_id]
            culprit, where = _find_culprit(difference[0], *pipelines, rollout, module_id, modules)
            raise RunFailure(_problem(*difference, culprit, where))


def find_difference(module: RLModule, batch: Mapping[str, Any]) -> tuple[str, float, float] | None:
    """Find the first column of a train batch that differs: its name, the value during sampling, the value now.

    Args:
        module: module with the weights that were used for sampling; its buffers and the global random stream are not
            changed.
        batch: column -> (B, ...) tensor, or (S, L, ...) for a stateful module.
    """
    if module.num_noise:  # the noise used while acting is not recorded
        return None
    acted = {*module.outputs, *module.train_outputs, ACTION_LOGP, ACTIONS} & batch.keys()
    rows = _some_rows(module, batch, [*dict.fromkeys((*module.learner_inputs, *sorted(acted)))])
    tolerance = _TOLERANCE if all(leaf.is_cpu for leaf in nested.leaves(rows)) else _TOLERANCE_ON_GPU
    outputs = _outputs(module, rows)
    for name in sorted(acted & outputs.keys() & set(module.outputs)):
        for before, now in zip(nested.leaves(rows[name]), nested.leaves(outputs[name]), strict=True):
            found = _largest_difference(before, now, tolerance)
            if found is not None:
                return name, *found
    if not {ACTION_LOGP, ACTIONS} <= acted or ACTION_DIST_INPUTS not in outputs:
        return None
    logp = module.action_dist.log_prob(outputs[ACTION_DIST_INPUTS], rows[ACTIONS])
    found = _largest_difference(rows[ACTION_LOGP], logp, tolerance)
    return None if found is None else (ACTION_LOGP, *found)


def _some_rows(module: RLModule, batch: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Take at most `_MAX_ROWS` env steps of these columns, in the form that a loss expects; see `at_env_steps`."""
    mask = batch.get(LOSS_MASK)
    if module.is_stateful and mask is not None:
        sequences = _taken(batch, [*names, LOSS_MASK], _evenly_spaced(mask.any(1).nonzero().squeeze(-1)))
        return at_env_steps(sequences, module.learner_inputs, names)
    num_rows = nested.row_count({name: batch[name] for name in names})
    valid = torch.arange(num_rows) if mask is None else mask.nonzero().squeeze(-1)
    return _taken(batch, names, _evenly_spaced(valid))


def _evenly_spaced(rows: Tensor) -> Tensor:
    places = torch.linspace(0, len(rows) - 1, min(len(rows), _MAX_ROWS), device=rows.device)
    return rows[places.long()]


def _taken(batch: Mapping[str, Any], names: Iterable[str], rows: Tensor) -> dict[str, Any]:
    return {name: nested.map_leaves(lambda leaf: leaf[rows.to(leaf.device)], batch[name]) for name in names}


def _outputs(module: RLModule, rows: Mapping[str, Any]) -> dict[str, Any]:
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(enabled=True, devices=[]):
        outputs = module.outputs_at_steps(rows)
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return outputs


def _largest_difference(before: Tensor, now: Tensor, tolerance: float) -> tuple[float, float] | None:
    """Return both values at the largest difference, or None if it is within the tolerance."""
    before, now = before.detach().double().flatten(), now.detach().double().flatten()
    counts = before.isfinite() & (before.abs() < -MASKED_LOGIT)  # the logits of action masks would set the scale
    before, now = before[counts], now[counts]
    if not len(before):
        return None
    scale = max(float(before.abs().max()), _SMALLEST_SCALE)
    difference = (before - now).abs().nan_to_num(nan=torch.inf)
    worst = int(difference.argmax())
    if float(difference[worst]) <= tolerance * scale:
        return None
    return float(before[worst]), float(now[worst])


# -- the cause of a difference -----------------------------------------------------------------------------------------


def _find_culprit(
    column: str,
    env_to_module: EnvToModulePipeline,
    learner_pipeline: LearnerConnectorPipeline,
    rollout: Rollout,
    module_id: str,
    modules: Mapping[str, RLModule],
) -> tuple[str, str]:
    """Return a clause that describes the cause of a difference, and the location of its configuration."""
    module, block = modules[module_id], rollout.blocks[module_id]
    blocks = rollout.unsplit or rollout.blocks
    if column == ACTION_LOGP:
        changers = _changers(learner_pipeline, (ACTIONS, ACTION_LOGP), {}, block, modules, blocks)
        if changers:
            return f"{changers[0]} changes the actions or their log-probabilities", "connectors.learner"
        return (
            f"{type(module.action_dist).__name__}.log_prob returns a different value, or a connector changed it",
            "module",
        )
    inputs = tuple(name for name in module.inputs if name in (OBS, *block.columns))
    held = {OBS: block.columns[OBS]}
    acted = _changers(_after_held(env_to_module), inputs, held, ObservationRows(block), module)
    learned = _changers(learner_pipeline, inputs, {}, block, modules, blocks)
    for for_acting, for_learning in zip_longest(acted, learned):
        if for_acting != for_learning and for_acting is not None:
            return f"{for_acting} changes the observations in env_to_module only", "connectors.env_to_module"
        if for_acting != for_learning:
            return f"{for_learning} changes the observations in the learner pipeline only", "connectors.learner"
    if acted:
        names = ", ".join(acted)
        return f"{names} changes observations differently in the two pipelines", "connectors"
    name = module.__class__.__name__  # for a member of a MultiRLModule, the class of the member
    return f"{name}.forward_train returns different outputs than {name}.forward_exploration", "module"


def _after_held(pipeline: ConnectorPipeline) -> list[Connector]:
    """Return the connectors after the last one that writes observations to the episodes, without connectors for
    stateful modules.
    """
    connectors = list(pipeline.single_connectors())
    last = max(
        (place for place, connector in enumerate(connectors) if Requirements.of(connector).writes_obs_to_episodes),
        default=-1,
    )
    return [connector for connector in connectors[last + 1 :] if not isinstance(connector, ACTING_CONNECTORS)]


def _changers(
    connectors: Iterable[Connector],
    columns: Iterable[str],
    batch: Batch,
    episodes: Any,
    rl_module: Any,
    blocks: Mapping[str, ColumnBlock] | None = None,
) -> list[str]:
    """Call all connectors again, and return the names of the connectors that change values of the columns."""
    names = []
    values = _values(batch, columns)
    for connector in connectors:
        context = {"rl_module": rl_module, "episodes_of_modules": blocks, "shared_data": {}}
        batch = connector(batch=batch, episodes=episodes, explore=True, **context)
        before, values = values, _values(batch, columns)
        is_new = any(name not in before for name in values)
        if isinstance(connector, MEMORY_CONNECTORS):
            continue
        if changes_observations(connector) if is_new else not nested.equal(before, values):
            names.append(type(connector).__name__)
    return names


def _values(batch: Batch, columns: Iterable[str]) -> dict[str, Any]:
    """Copy columns as arrays, wherever the pipeline has stored them."""
    by_module = [part for part in batch.values() if isinstance(part, dict) and LOSS_MASK in part] or [batch]
    found = {name: part[name] for part in by_module for name in columns if name in part}
    return {name: nested.map_leaves(_as_array, _stacked(column)) for name, column in found.items()}


def _stacked(column: Any) -> Any:
    return column.stacked() if isinstance(column, Items) else column


def _as_array(leaf: Any) -> Any:
    return leaf.cpu().numpy().copy() if isinstance(leaf, Tensor) else np.array(leaf)


def _problem(column: str, before: float, now: float, culprit: str, where: str) -> Problem:
    return Problem(
        f"the module learns from different values than it used for sampling: {culprit}",
        where=f"{where}; first update, column {column!r}",
        got=f"{column} {before:.6g} when acting, {now:.6g} for the same row of the train batch",
        expected="equal numbers",
        fix="if noise or data augmentation is intended, disable the check: learners.check_on_policy_outputs=false",
    )
