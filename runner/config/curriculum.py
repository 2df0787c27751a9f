"""The `curriculum` block (tasks, and the rule that draws them), its checks and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from runner.config.blocks import EnvConfig, EnvRunnersConfig, EvaluationConfig
from runner.config.env import find_task_problems
from runner.config.errors import Problem, nearest_match, show_value, unknown_name
from runner.config.features import FeatureBlock
from runner.config.fields import option
from runner.config.operators import ENV_RUNNERS

PROMOTE, UNIFORM, LEARNING_PROGRESS, REGRET, LAST = "promote", "uniform", "learning_progress", "regret", "last"
RULE_NAMES = (PROMOTE, UNIFORM, LEARNING_PROGRESS, REGRET, LAST)
EPISODE_RETURN, INFO = "episode_return", "info:"
OPTIONS, ENV_CONFIG = "options", "env_config"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MODES = ("auto", "sync")


@dataclass(frozen=True)
class CurriculumConfig(FeatureBlock):
    """Tasks of training episodes. With a curriculum, environments are stepped one by one."""

    tasks: dict[str, Any] = option(
        {},
        "name: {options: {...}} for each reset, or {env_config: {...}} for a separate environment; from the easiest to "
        "the hardest; empty without num_levels: no curriculum",
    )
    num_levels: int | None = option(
        None,
        "instead of tasks: level_0, level_1, ... with the options {level: 0}, {level: 1}, ...",
        minimum=2,
    )
    rule: str = option(
        PROMOTE,
        "promote: the current task, until its mean value reaches promote_at; uniform: all tasks equally; "
        "learning_progress: in proportion to the rate of change of a task's values; regret: prioritised level replay; "
        "last: only the last task",
        choices=RULE_NAMES,
    )
    measure: str = option(
        EPISODE_RETURN, "value of an episode: episode_return, or info:KEY, a number in the last step's info"
    )
    promote_at: float | None = option(None, "promote: mean value of a task at which the next task starts")
    window: int = option(
        50, "newest episodes per task in its mean value, and minimum episodes before promotion", minimum=1
    )
    review: float = option(
        0.2, "promote: share of the episodes with earlier tasks, drawn uniformly", minimum=0, maximum=1
    )
    exploration: float = option(0.1, "share of the episodes with tasks drawn uniformly", minimum=0, maximum=1)
    smoothing: float = option(
        0.1,
        "learning_progress: weight of the newest value in the fast moving average, and of that average in the slow one",
        above=0,
        maximum=1,
    )
    temperature: float = option(
        0.1, "regret: tasks are drawn in proportion to (1 / rank) ** (1 / temperature)", above=0
    )
    staleness: float = option(
        0.1, "regret: share drawn in proportion to the episodes since a task was last used", minimum=0, maximum=1
    )
    evaluate: list[str] = option([], "tasks of evaluations, in equal shares; empty: all of them")

    @property
    def is_used(self) -> bool:
        """See `FeatureBlock`."""
        return bool(task_names(self))

    @property
    def resets_apart(self) -> bool:
        """See `FeatureBlock`."""
        return self.is_used

    @property
    def env_settings(self) -> dict[str, Any]:
        """See `FeatureBlock`."""
        return {"tasks": {name: asdict(task) for name, task in read_tasks(self).items()}}


@dataclass(frozen=True)
class TaskConfig:
    """The settings of a task.

    Attributes:
        options: options of each reset.
        env_config: arguments of a separate environment, which override arguments of the `env` block.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    env_config: Mapping[str, Any] = field(default_factory=dict)


def read_tasks(config: CurriculumConfig) -> dict[str, TaskConfig]:
    """Return task name -> settings, from the easiest to the hardest; empty without a curriculum."""
    if config.num_levels is not None:
        return {name: TaskConfig({"level": level}) for level, name in enumerate(task_names(config))}
    return {
        name: TaskConfig(**{key: dict(values) for key, values in given.items()}) for name, given in config.tasks.items()
    }


def task_names(config: CurriculumConfig) -> list[str]:
    """Return the names of the tasks."""
    return [f"level_{level}" for level in range(config.num_levels or 0)] or [str(name) for name in config.tasks]


def evaluated_tasks(config: CurriculumConfig) -> tuple[str, ...]:
    """Return the tasks of evaluations."""
    return tuple(config.evaluate or task_names(config))


def find_curriculum_problems(
    curriculum: CurriculumConfig, env: EnvConfig, env_runners: EnvRunnersConfig, needs: frozenset[str]
) -> Iterator[Problem]:
    """Yield the problems of the block."""
    if curriculum == CurriculumConfig():
        return
    if curriculum.tasks and curriculum.num_levels is not None:
        got = f"{', '.join(curriculum.tasks)} and {curriculum.num_levels} levels"
        yield Problem("curriculum.tasks and curriculum.num_levels are both set", "curriculum", got, "only one of them")
        return
    if not curriculum.tasks and curriculum.num_levels is None:
        expected = "curriculum.tasks, or curriculum.num_levels"
        yield Problem("curriculum is set without tasks", "curriculum", "{}", expected)
        return
    of_tasks = [problem for name, given in curriculum.tasks.items() for problem in _check_task(name, given)]
    yield from of_tasks or _check_arguments(curriculum, env, env_runners)
    yield from _check_rule(curriculum)
    yield from _check_run(curriculum, env, env_runners, needs)
    if not of_tasks:
        yield from _check_evaluated(curriculum)


def _check_task(name: Any, given: Any) -> Iterator[Problem]:
    key = f"curriculum.tasks.{name}"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        what = f"{key}: the name of a task becomes part of metric names"
        yield Problem(what, key, show_value(name), "letters, digits, _ . -")
    expected = f"{{{OPTIONS}: {{...}}}} or {{{ENV_CONFIG}: {{...}}}}"
    if not isinstance(given, dict) or not given:
        yield Problem(f"{key} is not a valid task", key, show_value(given), expected)
        return
    for part, values in given.items():
        if part not in (OPTIONS, ENV_CONFIG):
            nearest = nearest_match(str(part), (OPTIONS, ENV_CONFIG))
            yield Problem(f"{key} has an unknown key", key, show_value(part), expected, nearest)
        elif not isinstance(values, dict) or not all(isinstance(argument, str) for argument in values):
            yield Problem(f"{key}.{part} must be a dict with text keys", key, show_value(values), "{name: value, ...}")


def _check_arguments(curriculum: CurriculumConfig, env: EnvConfig, env_runners: EnvRunnersConfig) -> Iterator[Problem]:
    """Check the arguments of the tasks' environments; only external simulators know theirs."""
    for name, given in curriculum.tasks.items():
        if ENV_CONFIG in given and not env.is_external:
            key = f"curriculum.tasks.{name}.{ENV_CONFIG}"
            yield from find_task_problems(key, given[ENV_CONFIG], env, env_runners)


def _check_rule(curriculum: CurriculumConfig) -> Iterator[Problem]:
    if curriculum.rule == PROMOTE and curriculum.promote_at is None:
        what = "curriculum.rule=promote needs curriculum.promote_at"
        yield Problem(what, "curriculum", fix="curriculum.promote_at=NUMBER")
    measure = curriculum.measure
    if measure != EPISODE_RETURN and not (measure.startswith(INFO) and len(measure) > len(INFO)):
        expected = f"{EPISODE_RETURN}, or {INFO}KEY"
        key, nearest = "curriculum.measure", nearest_match(measure, (EPISODE_RETURN,))
        yield Problem(f"{key} is not valid", key, measure, expected, nearest)


def _check_run(
    curriculum: CurriculumConfig, env: EnvConfig, runners: EnvRunnersConfig, needs: frozenset[str]
) -> Iterator[Problem]:
    if env.is_external and curriculum.measure != EPISODE_RETURN:
        key = "curriculum.measure"
        what = f"{key} is an info, which external simulators do not send"
        yield Problem(what, key, curriculum.measure, EPISODE_RETURN)
    elif ENV_RUNNERS not in needs:
        what = "a curriculum needs a plan that samples; this plan learns from recorded data"
        yield Problem(what, "curriculum", ", ".join(task_names(curriculum)), "{}")
    elif env.backend != "gymnasium":
        what = f"a curriculum resets environments one by one, but env.backend={env.backend} resets all together"
        yield Problem(what, "env.backend", env.backend, "gymnasium")
    elif runners.gym_env_vectorize_mode not in _MODES:
        key = "env_runners.gym_env_vectorize_mode"
        what = f"a curriculum steps environments one by one in the env runner's process, but {key} does not"
        yield Problem(what, key, runners.gym_env_vectorize_mode, ", ".join(_MODES))
    elif runners.restart_failed_sub_environments:
        key = "env_runners.restart_failed_sub_environments"
        yield Problem(f"{key} does not work with a curriculum", key, "true", "false")


def _check_evaluated(curriculum: CurriculumConfig) -> Iterator[Problem]:
    names = task_names(curriculum)
    for name in curriculum.evaluate:
        if name not in names:
            key = "curriculum.evaluate"
            yield unknown_name(f"{key} contains an unknown task", key, name, names)


def curriculum_metrics(curriculum: CurriculumConfig, evaluation: EvaluationConfig) -> dict[str, str]:
    """Return metric -> meaning; empty without a curriculum."""
    names: dict[str, str] = {}
    if curriculum.rule == PROMOTE and task_names(curriculum):
        names["curriculum/task"] = "index of the current task from 0, which is the number of mastered tasks"
    for name in task_names(curriculum):
        names |= {
            f"curriculum/{name}/value_mean": f"mean value of the newest {curriculum.window} episodes of this task",
            f"curriculum/{name}/num_episodes": "episodes of this task so far",
            f"curriculum/{name}/probability": "probability of this task in the next iteration",
        }
    if evaluation.evaluation_interval is not None and task_names(curriculum):
        for name in evaluated_tasks(curriculum):
            names[f"evaluation/curriculum/{name}/value_mean"] = "mean value of this task's episodes in evaluations"
    return names
