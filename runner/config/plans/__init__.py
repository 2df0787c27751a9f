"""Execution plans as data: `algorithm.plan` is read, its operators are checked to fit together, and it is drawn."""

from runner.config.plans.buffers import is_replayed, modules_stored_in
from runner.config.plans.compilation import (
    COMPILE_AUTO,
    FEWEST_COMPILED_UPDATES,
    compiles,
    planned_updates,
)
from runner.config.plans.drawing import draw_plan
from runner.config.plans.needs import (
    is_deterministic,
    learns_from_replay_only,
    needs_of,
    samples_asynchronously,
)
from runner.config.plans.steps import KEY, Plan, PlanStep, read_options, read_plan, steps_of
from runner.config.plans.training_ratio import (
    describe_updates,
    env_steps_per_round,
    find_few_updates,
    train_batch_size,
    training_ratio,
)

__all__ = [
    "COMPILE_AUTO",
    "FEWEST_COMPILED_UPDATES",
    "KEY",
    "Plan",
    "PlanStep",
    "compiles",
    "describe_updates",
    "draw_plan",
    "env_steps_per_round",
    "find_few_updates",
    "is_deterministic",
    "is_replayed",
    "learns_from_replay_only",
    "modules_stored_in",
    "needs_of",
    "planned_updates",
    "read_options",
    "read_plan",
    "samples_asynchronously",
    "steps_of",
    "train_batch_size",
    "training_ratio",
]
