"""Whether updates are compiled: `learners.compile`."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf

from runner.config.errors import Problem
from runner.config.operators import ENV_RUNNERS, CompleteEpisodesConfig, TrainOneStepConfig
from runner.config.plans.needs import needs_of
from runner.config.plans.steps import read_plan, steps_of
from runner.config.plans.training_ratio import env_steps_per_round, train_batch_size, training_ratio
from runner.config.schemas import ExperimentConfig

COMPILE_AUTO = "auto"
# Compilation takes up to 30 s, and saves at least 0.3 ms of an update.
FEWEST_COMPILED_UPDATES = 100_000
_GRADIENT_STEPS, _ENV_STEPS = "num_gradient_steps_lifetime", "num_env_steps_sampled_lifetime"


def compiles(config: ExperimentConfig) -> bool:
    """Return whether updates are compiled, if there is a compiler.

    This depends on the configuration alone, so that a resumed run updates by the same code.
    """
    if config.learners.compile != COMPILE_AUTO:
        return bool(config.learners.compile)
    return planned_updates(config) >= FEWEST_COMPILED_UPDATES and not any(_obstacles(config))


def planned_updates(config: ExperimentConfig) -> float:
    """Return the number of gradient steps after which `stop` ends a run of one module; 0 if it is not known."""
    per_env_step, stop = _updates_per_env_step(config), config.stop
    limits = [stop.get(_GRADIENT_STEPS, inf), stop.get(_ENV_STEPS, inf) * per_env_step]
    limits.append(stop.get("training_iteration", inf) * _env_steps_per_iteration(config) * per_env_step)
    least = min(limits)
    return 0 if least == inf else least


def find_compile_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield the reasons why `learners.compile: true` is useless or impossible."""
    if config.learners.compile is True:
        for what in _obstacles(config):
            yield Problem(f"learners.compile: {what}", "learners.compile", "true", "false")


def _updates_per_env_step(config: ExperimentConfig) -> float:
    """Return the gradient steps for each sampled env step; 0 for recorded data."""
    if ENV_RUNNERS not in needs_of(config):
        return 0.0
    algorithm = config.algorithm
    of_learner = algorithm.train_batch_size_per_learner
    updates = algorithm.num_epochs * ceil(of_learner / (algorithm.minibatch_size or of_learner))
    return (training_ratio(config) or 1.0) * updates / train_batch_size(config)


def _env_steps_per_iteration(config: ExperimentConfig) -> int:
    per_round = env_steps_per_round(config, max(1, config.env_runners.min_env_runners))
    return max(per_round, config.algorithm.min_sample_timesteps_per_iteration)


def _obstacles(config: ExperimentConfig) -> Iterator[str]:
    """Yield the reasons why updates cannot be compiled."""
    steps = list(steps_of(read_plan(config.algorithm.plan)))
    module, has_microbatches = config.module, any(one.microbatch_size for one in config.algorithms.values())
    if all(step.is_understood and not step.is_a(TrainOneStepConfig) for step in steps):
        yield "the plan does not contain TrainOneStep"
    if any(step.is_a(CompleteEpisodesConfig) for step in steps):
        yield "train batches of complete episodes (CompleteEpisodes) vary in size"
    if has_microbatches:
        yield "microbatches (algorithm.microbatch_size) cannot be compiled"
    if module.use_lstm or module.use_gru:
        yield "sequences of a module with memory (module.use_lstm) vary in length"
    if config.multi_agent.multi_rl_module is not None:
        yield "modules that share parameters cannot be compiled"
