"""The curriculum of a run: outcomes of its tasks, and the probability of drawing each task."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.curriculum import PROMOTE, CurriculumConfig, evaluated_tasks, task_names
from runner.curriculum.progress import Progress, TaskRecord
from runner.curriculum.task_odds import ODDS
from runner.parts import Announces, Metrics, Part, RunView
from runner.rows.task_outcomes import TASK_OUTCOMES, TaskOutcome


class Curriculum(Part):
    """Keeps the outcomes of a run's tasks, and sends the probability of each task to env runners.

    Args:
        config: the `curriculum` block.
    """

    name = TASK_OUTCOMES

    def __init__(self, config: CurriculumConfig) -> None:
        self._config = config
        self._names = task_names(config)
        self._progress = Progress({name: TaskRecord(deque(maxlen=config.window)) for name in self._names})

    def announce_to(self, env_runners: Announces, is_evaluation: bool) -> None:
        """Announce the probabilities with which the tasks of new episodes are drawn."""
        evaluated = evaluated_tasks(self._config)
        odds = dict.fromkeys(evaluated, 1 / len(evaluated)) if is_evaluation else self.odds()
        env_runners.announce("tasks", "tasks", odds)

    def odds(self) -> dict[str, float]:
        """Return task -> probability in training."""
        odds = ODDS[self._config.rule](self._config, self._progress)
        return dict(zip(self._names, odds.tolist(), strict=True))

    def add(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Add the outcomes of training episodes, and promote the next task if its condition holds."""
        progress, smoothing = self._progress, self._config.smoothing
        for task, value in outcomes:
            record = progress.records[task]
            progress.num_episodes += 1
            record.num_episodes, record.last = record.num_episodes + 1, progress.num_episodes
            record.newest.append(value)
            if record.best is None:
                record.best = record.fast = record.slow = value
            record.best = max(record.best, value)
            record.fast += smoothing * (value - record.fast)
            record.slow += smoothing * (record.fast - record.slow)
            self._promote()

    def _promote(self) -> None:
        if self._config.rule == PROMOTE:
            while self._progress.promoted < len(self._names) - 1 and self._is_mastered(self._progress.promoted):
                self._progress.promoted += 1

    def _is_mastered(self, number: int) -> bool:
        record, least = self._progress.records[self._names[number]], self._config.promote_at
        if least is None or record.mean is None or len(record.newest) < self._config.window:
            return False
        return record.mean >= least

    def end_iteration(self, run: RunView) -> Metrics:
        """Add the outcomes of the iteration's episodes, and return the metrics of all tasks."""
        outcomes = [TaskOutcome(*outcome) for outcome in run.outcomes(self.name)]
        # An iteration that was interrupted may have outcomes of tasks that the resumed run has removed.
        self.add([outcome for outcome in outcomes if outcome.task in self._progress.records])
        return self.task_metrics()

    def task_metrics(self) -> dict[str, float | int | None]:
        """Return mean value, number of episodes and probability of each task."""
        metrics: dict[str, float | int | None] = {}
        if self._config.rule == PROMOTE:
            metrics["curriculum/task"] = self._progress.promoted
        odds = self.odds()
        for name, record in self._progress.records.items():
            metrics[f"curriculum/{name}/value_mean"] = record.mean
            metrics[f"curriculum/{name}/num_episodes"] = record.num_episodes
            metrics[f"curriculum/{name}/probability"] = odds[name]
        return metrics

    def evaluation_metrics(self, outcomes: Sequence[Any]) -> Metrics:
        """Return the mean value of each evaluated task in an evaluation."""
        metrics: dict[str, float | None] = {}
        for name in evaluated_tasks(self._config):
            values = [value for task, value in outcomes if task == name]
            metrics[f"evaluation/curriculum/{name}/value_mean"] = sum(values) / len(values) if values else None
        return metrics

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return all records, as plain values."""
        progress = self._progress
        return {
            "records": {name: {**vars(one), "newest": list(one.newest)} for name, one in progress.records.items()},
            "promoted": self._names[progress.promoted],
            "num_episodes": progress.num_episodes,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; tasks missing from it are reset."""
        for name in self._names:
            saved = dict(state["records"].get(name, {}))
            newest = deque(saved.pop("newest", ()), self._config.window)
            self._progress.records[name] = TaskRecord(newest, **saved)
        self._progress.promoted = self._names.index(state["promoted"]) if state["promoted"] in self._names else 0
        self._progress.num_episodes = int(state["num_episodes"])
