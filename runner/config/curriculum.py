"""The block `curriculum`: an environment's options as tasks, and the rule by which episodes draw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from runner.config.features import FeatureBlock
from runner.config.fields import option

PROMOTE, UNIFORM, LEARNING_PROGRESS, REGRET, LAST = "promote", "uniform", "learning_progress", "regret", "last"
RULES = (PROMOTE, UNIFORM, LEARNING_PROGRESS, REGRET, LAST)
EPISODE_RETURN, INFO = "episode_return", "info:"
OPTIONS, ENV_CONFIG = "options", "env_config"


@dataclass(frozen=True)
class CurriculumConfig(FeatureBlock):
    """Which tasks episodes are of. Environments are then stepped one by one."""

    tasks: dict[str, Any] = option(
        {},
        "name: {options: {...}}, given to each reset, or {env_config: {...}}, arguments of an environment of its own; "
        "from the easiest to the hardest. Empty, and no num_levels: there is no curriculum",
    )
    num_levels: int | None = option(
        None,
        "tasks level_0, level_1, ..., whose options are {level: 0}, {level: 1}, ...; in the place of tasks",
        minimum=2,
    )
    rule: str = option(
        PROMOTE,
        "promote: the newest task, until its values reach promote_at; uniform: all alike; learning_progress: in "
        "proportion to how fast a task's values change; regret: prioritised level replay; last: only the last task, "
        "as without a curriculum",
        choices=RULES,
    )
    measure: str = option(
        EPISODE_RETURN, "an episode's value: episode_return, or info:KEY, a number of the last step's info"
    )
    promote_at: float | None = option(None, "promote: mean value of a task from which on the next one is drawn")
    window: int = option(50, "newest episodes of a task in its mean value, and before it is promoted", minimum=1)
    review: float = option(
        0.2, "promote: share of the episodes that are of earlier tasks, each alike", minimum=0, maximum=1
    )
    exploration: float = option(0.1, "share of the episodes that are of any task, each alike", minimum=0, maximum=1)
    smoothing: float = option(
        0.1,
        "learning_progress: weight of the newest value in the fast moving average, and of this one in the slow one",
        above=0,
        maximum=1,
    )
    temperature: float = option(
        0.1, "regret: tasks are drawn in proportion to (1 / rank) ** (1 / temperature)", above=0
    )
    staleness: float = option(
        0.1, "regret: share that is drawn in proportion to the episodes since a task's last one", minimum=0, maximum=1
    )
    evaluate: list[str] = option([], "tasks of evaluations, each alike; empty: all of them")

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
    """What a task changes.

    Attributes:
        options: that each reset is given.
        env_config: arguments of an environment of its own, which replace equal ones of the `env` block.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    env_config: Mapping[str, Any] = field(default_factory=dict)


def read_tasks(config: CurriculumConfig) -> dict[str, TaskConfig]:
    """Return task name -> what it changes, from the easiest to the hardest; empty: there is no curriculum."""
    if config.num_levels is not None:
        return {name: TaskConfig({"level": level}) for level, name in enumerate(task_names(config))}
    return {
        name: TaskConfig(**{key: dict(values) for key, values in given.items()}) for name, given in config.tasks.items()
    }


def task_names(config: CurriculumConfig) -> list[str]:
    """Return the names of the tasks."""
    return [f"level_{level}" for level in range(config.num_levels or 0)] or [str(name) for name in config.tasks]


def evaluated_tasks(config: CurriculumConfig) -> tuple[str, ...]:
    """Return the tasks that evaluations are of."""
    return tuple(config.evaluate or task_names(config))
