"""Checks of the block `curriculum`, and the metrics of a curriculum."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from runner.config.composed import Composed
from runner.config.curriculum import (
    ENV_CONFIG,
    EPISODE_RETURN,
    INFO,
    OPTIONS,
    PROMOTE,
    CurriculumConfig,
    evaluated_tasks,
    task_names,
)
from runner.config.env import find_task_problems
from runner.config.errors import Problem, nearest_match, show_value
from runner.config.operators import ENV_RUNNERS
from runner.config.plans import needs_of
from runner.config.schemas import ExperimentConfig

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MODES = ("auto", "sync")


def find_curriculum_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield the problems of the block."""
    curriculum = config.curriculum
    if curriculum == CurriculumConfig():
        return
    where = composed.where("curriculum")
    if curriculum.tasks and curriculum.num_levels is not None:
        got = f"{', '.join(curriculum.tasks)} and {curriculum.num_levels} levels"
        yield Problem("curriculum.tasks and curriculum.num_levels are both set", where, got, "only one of them")
        return
    if not curriculum.tasks and curriculum.num_levels is None:
        expected = "curriculum.tasks, or curriculum.num_levels"
        yield Problem("curriculum is set, and has no tasks", where, "{}", expected)
        return
    of_tasks = [problem for name, given in curriculum.tasks.items() for problem in _check_task(name, given, composed)]
    yield from of_tasks or _check_arguments(config, composed)
    yield from _check_rule(curriculum, composed)
    yield from _check_run(config, composed)
    if not of_tasks:
        yield from _check_evaluated(curriculum, composed)


def _check_task(name: Any, given: Any, composed: Composed) -> Iterator[Problem]:
    key = f"curriculum.tasks.{name}"
    where = composed.where(key)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield Problem(
            f"{key}: a task's name becomes part of metrics", where, show_value(name), "letters, digits, _ . -"
        )
    expected = f"{{{OPTIONS}: {{...}}}} or {{{ENV_CONFIG}: {{...}}}}"
    if not isinstance(given, dict) or not given:
        yield Problem(f"{key} is no task", where, show_value(given), expected)
        return
    for part, values in given.items():
        if part not in (OPTIONS, ENV_CONFIG):
            nearest = nearest_match(str(part), (OPTIONS, ENV_CONFIG))
            yield Problem(f"{key} has an unknown key", where, show_value(part), expected, nearest)
        elif not isinstance(values, dict) or not all(isinstance(argument, str) for argument in values):
            yield Problem(f"{key}.{part} is no dict of names", where, show_value(values), "{name: value, ...}")


def _check_arguments(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Check the arguments of the tasks' own environments; simulators that connect know their arguments alone."""
    for name, given in config.curriculum.tasks.items():
        if ENV_CONFIG in given and not config.env.is_external:
            yield from find_task_problems(f"curriculum.tasks.{name}.{ENV_CONFIG}", given[ENV_CONFIG], config, composed)


def _check_rule(curriculum: CurriculumConfig, composed: Composed) -> Iterator[Problem]:
    if curriculum.rule == PROMOTE and curriculum.promote_at is None:
        what = "curriculum.rule promote needs a mean value from which on the next task is drawn"
        yield Problem(what, composed.where("curriculum"), None, "curriculum.promote_at: a number")
    measure = curriculum.measure
    if measure != EPISODE_RETURN and not (measure.startswith(INFO) and len(measure) > len(INFO)):
        expected = f"{EPISODE_RETURN}, or {INFO}KEY"
        nearest = nearest_match(measure, (EPISODE_RETURN,))
        yield Problem(
            "curriculum.measure is nothing to measure", composed.where("curriculum.measure"), measure, expected, nearest
        )


def _check_run(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    where, names = composed.where("curriculum"), ", ".join(task_names(config.curriculum))
    runners = config.env_runners
    if config.env.is_external and config.curriculum.measure != EPISODE_RETURN:
        key = "curriculum.measure"
        what = f"{key} is an info, which simulators that connect do not send"
        yield Problem(what, composed.where(key), config.curriculum.measure, EPISODE_RETURN)
    elif ENV_RUNNERS not in needs_of(config):
        yield Problem("a curriculum needs a plan that samples, this one learns from recorded data", where, names, "{}")
    elif config.env.backend != "gymnasium":
        what = f"a curriculum resets environments one by one, env.backend {config.env.backend} all together"
        yield Problem(what, composed.where("env.backend"), config.env.backend, "gymnasium")
    elif runners.gym_env_vectorize_mode not in _MODES:
        key = "env_runners.gym_env_vectorize_mode"
        what = f"a curriculum steps environments one by one in the env runner's process, {key} does not"
        yield Problem(what, composed.where(key), runners.gym_env_vectorize_mode, ", ".join(_MODES))
    elif runners.restart_failed_sub_environments:
        key = "env_runners.restart_failed_sub_environments"
        yield Problem(f"{key} does not go together with a curriculum", composed.where(key), "true", "false")


def _check_evaluated(curriculum: CurriculumConfig, composed: Composed) -> Iterator[Problem]:
    names = task_names(curriculum)
    for name in curriculum.evaluate:
        if name not in names:
            what = "curriculum.evaluate names no task"
            where = composed.where("curriculum.evaluate")
            yield Problem(what, where, name, ", ".join(names), nearest_match(name, names))


def curriculum_metrics(config: ExperimentConfig) -> dict[str, str]:
    """Return metric -> meaning of the curriculum, if there is one."""
    curriculum = config.curriculum
    names: dict[str, str] = {}
    if curriculum.rule == PROMOTE and task_names(curriculum):
        names["curriculum/task"] = "number of the newest task that is drawn, from 0: how many were mastered"
    for name in task_names(curriculum):
        names |= {
            f"curriculum/{name}/value_mean": f"mean value of the newest {curriculum.window} episodes of this task",
            f"curriculum/{name}/num_episodes": "episodes of this task so far",
            f"curriculum/{name}/probability": "with which the next iteration's episodes are of this task",
        }
    if config.evaluation.evaluation_interval is not None and task_names(curriculum):
        for name in evaluated_tasks(curriculum):
            names[f"evaluation/curriculum/{name}/value_mean"] = "mean value of this task's episodes in evaluations"
    return names
