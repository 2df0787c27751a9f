"""Sizes of fragments and train batches, and how often a plan with replay trains on each sampled env step."""

from __future__ import annotations

from runner.config.operators import (
    AUTO,
    ROUND_ROBIN,
    ConcatBatchesConfig,
    ConcurrentlyConfig,
    ParallelRolloutsConfig,
    ReplayConfig,
)
from runner.config.plans.steps import Plan, read_plan, steps_of
from runner.config.schemas import ExperimentConfig


def train_batch_size(config: ExperimentConfig) -> int:
    """Return the env steps that all learners together learn from in an update."""
    return config.algorithm.train_batch_size_per_learner * max(1, config.learners.num_learners)


def env_steps_per_round(config: ExperimentConfig, num_runners: int) -> int:
    """Return the env steps of a round of `num_runners` env runners."""
    runners, intensity = config.env_runners, config.algorithm.training_intensity
    if isinstance(runners.rollout_fragment_length, str):  # auto
        batch_size = train_batch_size(config)
        return batch_size if intensity is None else max(1, round(batch_size / intensity))
    return runners.rollout_fragment_length * runners.num_envs_per_env_runner * num_runners


def training_ratio(config: ExperimentConfig) -> float | None:
    """Return the env steps that a plan trains on for each sampled one; None if it does not replay, or is not fixed."""
    branching = [step for step in steps_of(read_plan(config.algorithm.plan)) if _replays_in_turn(step.config)]
    for step in branching:
        options = step.config
        assert isinstance(options, ConcurrentlyConfig)
        if options.round_robin_weights == AUTO and config.algorithm.training_intensity is not None:
            return config.algorithm.training_intensity
        weights = options.round_robin_weights
        counts = weights if isinstance(weights, list) else [1] * len(step.plans)
        if len(counts) != len(step.plans) or not all(isinstance(count, int) for count in counts):
            return None
        sampled = sum(int(n) * _sampled_by(plan, config) for n, plan in zip(counts, step.plans, strict=True))
        trained = sum(int(n) * _replayed_by(plan, config) for n, plan in zip(counts, step.plans, strict=True))
        if sampled and trained:
            return trained / sampled
    return None


def describe_updates(config: ExperimentConfig) -> str | None:
    """Return the rows and the frequency of updates, as text; None if a plan does not replay, or is not fixed."""
    ratio = training_ratio(config)
    if ratio is None:
        return None
    batch_size = train_batch_size(config)
    per_env_step = ratio / batch_size
    if per_env_step >= 1:
        return f"{per_env_step:.4g} of {batch_size:,} rows for each env step"
    return f"1 of {batch_size:,} rows for every {1 / per_env_step:.4g} env steps"


def find_few_updates(config: ExperimentConfig) -> str | None:
    """Return a warning about a plan that trains on each sampled env step less than once; None if there is none."""
    ratio = training_ratio(config)
    if ratio is None or ratio >= 1:
        return None
    batch = config.algorithm.train_batch_size_per_learner
    return (
        f"the plan trains on each sampled env step {ratio:.2g} times on average, so that it learns little: "
        f"algorithm.training_intensity={batch} makes an update of {batch} rows for each env step"
    )


def _replays_in_turn(options: object) -> bool:
    return isinstance(options, ConcurrentlyConfig) and options.mode == ROUND_ROBIN


def _sampled_by(plan: Plan, config: ExperimentConfig) -> int:
    """Return the env steps per item of a sampling plan; 0 for other plans."""
    if not plan or not isinstance(plan[0].config, ParallelRolloutsConfig):
        return 0
    num_runners = max(1, config.env_runners.min_env_runners)
    num_env_steps = env_steps_per_round(config, num_runners)
    if plan[0].config.mode != "bulk_sync":
        num_env_steps = -(-num_env_steps // num_runners)
    for step in plan:
        if isinstance(step.config, ConcatBatchesConfig):
            least = step.config.min_env_steps
            num_env_steps = max(num_env_steps, train_batch_size(config) if isinstance(least, str) else least)
    return num_env_steps


def _replayed_by(plan: Plan, config: ExperimentConfig) -> int:
    """Return the env steps per item of a plan that replays; 0 for other plans."""
    if not plan or not isinstance(plan[0].config, ReplayConfig):
        return 0
    asked = plan[0].config.num_env_steps
    return train_batch_size(config) if isinstance(asked, str) else asked
