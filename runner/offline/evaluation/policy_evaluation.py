"""Estimate a policy's value from episodes that another policy recorded.

The target policy is a module's action distribution, as in exploration. See `estimators` for the methods and their
treatment of truncated episodes, and `fitted_q` for the model that `dm`, `dr` and `wdr` need.

Dimension letters: E episodes, R steps, K width of `action_dist_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runner.config.errors import ConfigError, Problem
from runner.episodes.columns import ColumnBlock
from runner.modules.rl_module import RLModule
from runner.offline.evaluation import estimators
from runner.offline.evaluation.estimators import Array, Estimator, IntArray, ModelValues, RecordedSteps
from runner.offline.evaluation.fitted_q import FittedQConfig, ScaledQ, Transitions, fit_q, take_rows
from runner.offline.evaluation.recorded_actions import MAX_ROWS_PER_PASS, BlockReader, ModuleInputs, RecordedData

RATIO_METHODS: dict[str, Callable[[RecordedSteps, float], Estimator]] = {
    "is": estimators.importance_sampling,
    "wis": estimators.weighted_importance_sampling,
    "pdis": estimators.per_decision_importance_sampling,
    "wpdis": estimators.weighted_per_decision_importance_sampling,
}
# Methods that need both ratios and a model; `dm` needs the model only.
ROBUST_METHODS: dict[str, Callable[[RecordedSteps, ModelValues, float], Estimator]] = {
    "dr": estimators.doubly_robust,
    "wdr": estimators.weighted_doubly_robust,
}
DIRECT_METHOD = "dm"
METHODS = (*RATIO_METHODS, DIRECT_METHOD, *ROBUST_METHODS)
_WHERE = "evaluation.offline_evaluation_type"


@dataclass(frozen=True)
class PolicyEstimate:
    """Estimate of the target policy's value by one method.

    Attributes:
        estimate: expected discounted return; NaN if no recorded episode has any weight.
        low, high: percentile bootstrap interval over episodes, which ignores the error of a model.
        effective_sample_size: Kish's, in episodes. If it is far below the number of recorded episodes, few of them
            dominate the estimate.
    """

    estimate: float
    low: float
    high: float
    effective_sample_size: float


def evaluate_policy(  # noqa: PLR0913 - options of all estimators, by name
    blocks: Iterable[ColumnBlock],
    module: RLModule,
    gamma: float,
    stream: np.random.Generator,
    methods: Sequence[str],
    level: float,
    num_resamples: int,
    fitted_q: FittedQConfig,
    make_inputs: Callable[[ColumnBlock], ModuleInputs],
) -> dict[str, PolicyEstimate]:
    """Estimate the expected discounted return of a module's policy.

    Blocks are read once. Methods with a model hold all observations in memory; others hold a few numbers per step.

    Args:
        blocks: complete episodes with `action_logp`. An episode without an end counts as truncated.
        module: the target policy. If it is recurrent, every episode starts from its initial state, and methods with a
            model are not supported.
        gamma: discount factor, 0 to 1.
        stream: draws resamples, minibatches, initial weights and sampled actions.
        methods: names from `METHODS`.
        level: nominal coverage of the intervals.
        num_resamples: number of bootstrap resamples.
        fitted_q: configuration of the model.
        make_inputs: computes the columns that the module reads (the learner pipeline's, with its bootstrap rows).
            Action values are also fitted to its `obs`.

    Returns:
        Method -> estimate.

    Raises:
        ConfigError: methods need a model and the module is recurrent; episodes lack `action_logp` or their first steps;
            or numbers are not finite.
        RunFailure: the fitted action values are not finite.
    """
    check_methods(methods, module)
    q_stream, resample_stream = (np.random.default_rng(int(stream.integers(2**63))) for _ in range(2))
    needs_ratios, needs_model = set(methods) != {DIRECT_METHOD}, not set(methods) <= set(RATIO_METHODS)
    data = BlockReader(module, make_inputs, needs_ratios, needs_model).read_all(blocks)
    steps = RecordedSteps(data.lengths, data.rewards, data.log_ratios)
    by_method = {name: RATIO_METHODS[name](steps, gamma) for name in methods if name in RATIO_METHODS}
    if needs_model:
        model = _model_values(data, module, gamma, fitted_q, q_stream)
        by_method |= {name: ROBUST_METHODS[name](steps, model, gamma) for name in methods if name in ROBUST_METHODS}
        if DIRECT_METHOD in methods:
            by_method[DIRECT_METHOD] = estimators.direct_method(model.values[steps.first_rows])
    resampled = estimators.bootstrap_estimates(by_method, len(steps.lengths), num_resamples, resample_stream)
    return {name: _estimate(by_method[name], resampled[name], level, len(steps.lengths)) for name in methods}


def _estimate(estimator: Estimator, resampled: Array, level: float, num_episodes: int) -> PolicyEstimate:
    low, high = estimators.percentile_interval(resampled, level)
    return PolicyEstimate(
        estimators.point_estimate(estimator, num_episodes), low, high, estimator.effective_sample_size
    )


# --- the model ----------------------------------------------------------------------------------------


def _model_values(
    data: RecordedData, module: RLModule, gamma: float, config: FittedQConfig, stream: np.random.Generator
) -> ModelValues:
    """Return the action values of every recorded step, fitted to the episodes of the other folds."""
    transitions = _transitions(data)
    num_folds = min(config.num_folds, len(data.lengths))
    fold = np.arange(len(data.lengths)) % num_folds
    fold_of_steps, fold_of_obs = np.repeat(fold, data.lengths), np.repeat(fold, data.lengths + 1)
    q_values, values = np.empty(len(data.rewards)), np.empty(len(fold_of_obs))
    spaces = module.observation_space, module.action_space
    for held_out in range(num_folds):
        rows = np.flatnonzero((fold_of_steps != held_out) | (num_folds == 1))
        q_function = fit_q(transitions, *spaces, module.action_dist, gamma, config, stream, rows)
        fold_steps, fold_obs = np.flatnonzero(fold_of_steps == held_out), np.flatnonzero(fold_of_obs == held_out)
        q_values[fold_steps] = _q_values(q_function, transitions, fold_steps)
        values[fold_obs] = _values(q_function, transitions, fold_obs)
    obs_rows = transitions.obs_rows
    next_values = np.where(transitions.is_terminal.cpu().numpy(), 0.0, values[obs_rows + 1])
    return ModelValues(q_values, values[obs_rows], next_values)


def _transitions(data: RecordedData) -> Transitions:
    is_terminal = np.zeros(len(data.rewards), np.bool_)
    is_terminal[np.cumsum(data.lengths) - 1] = data.is_terminated
    device = data.dist_inputs.device
    return Transitions(
        obs=data.obs,
        dist_inputs=data.dist_inputs,
        actions=data.actions,
        rewards=torch.from_numpy(data.rewards.astype(np.float32)).to(device),
        is_terminal=torch.from_numpy(is_terminal).to(device),
        lengths=data.lengths,
    )


@torch.no_grad()
def _q_values(q_function: ScaledQ, data: Transitions, step_rows: IntArray) -> Array:
    parts = []
    for steps in _passes(step_rows, data):
        obs = take_rows(data.obs, torch.from_numpy(data.obs_rows).to(steps.device)[steps])
        parts.append(q_function.q_values(obs, take_rows(data.actions, steps)))
    return torch.cat(parts).double().cpu().numpy()


@torch.no_grad()
def _values(q_function: ScaledQ, data: Transitions, obs_rows: IntArray) -> Array:
    parts = [q_function.values(take_rows(data.obs, at), data.dist_inputs[at]) for at in _passes(obs_rows, data)]
    return torch.cat(parts).double().cpu().numpy()


def _passes(rows: IntArray, data: Transitions) -> list[Tensor]:
    """Split row numbers into parts that are computed together."""
    return list(torch.split(torch.from_numpy(rows).to(data.rewards.device), MAX_ROWS_PER_PASS))


# --- checks -------------------------------------------------------------------------------------------


def check_methods(methods: Sequence[str], module: RLModule) -> None:
    """Reject fitted action values of a recurrent module. Raises `ConfigError`."""
    with_model = [name for name in methods if name not in RATIO_METHODS]
    if module.is_stateful and with_model:
        what = "methods with fitted action values do not support recurrent modules"
        raise ConfigError([Problem(what, _WHERE, ", ".join(with_model), ", ".join(RATIO_METHODS))])
