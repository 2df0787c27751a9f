"""Which tasks are drawn, by each rule, against values computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.config.curriculum import CurriculumConfig
from runner.curriculum.curriculum import Curriculum
from runner.rows.task_outcomes import TaskOutcome
from tests.support.run_views import RunAt

TASKS: dict[str, Any] = {name: {"options": {"level": name}} for name in "abcd"}


def curriculum_of(rule: str, **fields: Any) -> Curriculum:
    return Curriculum(CurriculumConfig(tasks=TASKS, rule=rule, **{"exploration": 0.0, "window": 4, **fields}))


def add(curriculum: Curriculum, task: str, *values: float) -> None:
    curriculum.add([TaskOutcome(task, value) for value in values])


def test_the_next_task_is_promoted_once_the_newest_values_suffice() -> None:
    curriculum = curriculum_of("promote", promote_at=0.75, review=0.2)
    assert curriculum.odds() == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    add(curriculum, "a", 1.0, 1.0, 1.0)
    add(curriculum, "b", 1.0, 1.0, 1.0, 1.0)
    assert curriculum.task_metrics()["curriculum/task"] == 0, "three of window 4"
    add(curriculum, "a", 0.0)
    assert curriculum.task_metrics()["curriculum/task"] == 2, "mean 0.75; b had what it needs already"
    assert curriculum.odds() == pytest.approx({"a": 0.1, "b": 0.1, "c": 0.8, "d": 0.0})
    add(curriculum, "c", *[1.0] * 4)
    add(curriculum, "d", *[1.0] * 9)
    assert curriculum.task_metrics()["curriculum/task"] == 3


def test_exploration_is_of_any_task() -> None:
    odds = curriculum_of("promote", promote_at=1.0, exploration=0.4).odds()
    assert odds == pytest.approx({"a": 0.7, "b": 0.1, "c": 0.1, "d": 0.1})
    assert curriculum_of("last", exploration=0.4).odds() == {"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0}
    assert curriculum_of("uniform").odds() == dict.fromkeys("abcd", 0.25)


def test_learning_progress_is_the_difference_of_two_moving_averages() -> None:
    curriculum = curriculum_of("learning_progress", smoothing=0.5)
    assert curriculum.odds() == dict.fromkeys("abcd", 0.25)
    add(curriculum, "a", 0.0, 1.0)  # fast 1/2, slow 1/4
    add(curriculum, "b", 1.0, 0.0, 0.0)  # fast 1/4, slow (1 + 1/2) / 2 = 3/4, then 1/2
    add(curriculum, "c", 3.0, 3.0)
    assert curriculum.odds() == pytest.approx({"a": 0.375, "b": 0.375, "c": 0.0, "d": 0.25})
    add(curriculum, "d", 5.0)
    assert curriculum.odds() == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0, "d": 0.0})
    add(curriculum, "a", 1.0)  # fast 3/4, slow 1/2
    add(curriculum, "c", 1.0)  # fast 2, slow 5/2
    assert curriculum.odds() == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5, "d": 0.0})


def test_regret_ranks_by_the_best_minus_the_mean_and_mixes_in_staleness() -> None:
    curriculum = curriculum_of("regret", temperature=0.5, staleness=0.25)
    add(curriculum, "b", 0.0, 1.0)  # regret 1/2
    add(curriculum, "a", 0.0, 3.0, 0.0, 0.0)  # 9/4
    add(curriculum, "c", 1.0)  # 0
    by_score = np.array([1.0, 1 / 4, 1 / 9]) / (1 + 1 / 4 + 1 / 9)
    by_age = np.array([1.0, 5.0, 0.0]) / 6
    seen = 0.75 * by_score + 0.25 * by_age
    assert curriculum.odds() == pytest.approx(dict(zip("abc", 0.75 * seen, strict=True)) | {"d": 0.25})


def test_only_the_newest_values_of_the_window_count() -> None:
    curriculum = curriculum_of("uniform", window=2)
    add(curriculum, "a", 5.0, 1.0, 2.0)
    metrics = curriculum.task_metrics()
    assert metrics["curriculum/a/value_mean"] == 1.5
    assert metrics["curriculum/a/num_episodes"] == 3
    assert metrics["curriculum/b/value_mean"] is None
    assert "curriculum/task" not in metrics


@pytest.mark.parametrize("rule", ["promote", "uniform", "learning_progress", "regret", "last"])
def test_a_state_goes_on(rule: str) -> None:
    straight, resumed = (curriculum_of(rule, promote_at=0.5, exploration=0.1) for _ in range(2))
    rng = np.random.default_rng(3)
    outcomes = [TaskOutcome("abcd"[rng.integers(4)], float(rng.random())) for _ in range(60)]
    straight.add(outcomes[:30])
    resumed.set_state(straight.get_state())
    assert resumed.task_metrics() == straight.task_metrics()
    for curriculum in (straight, resumed):
        curriculum.add(outcomes[30:])
        assert sum(curriculum.odds().values()) == pytest.approx(1.0)
    assert resumed.task_metrics() == straight.task_metrics()
    assert resumed.get_state() == straight.get_state()


def test_tasks_that_a_state_does_not_know_begin_anew() -> None:
    before = Curriculum(CurriculumConfig(num_levels=3, promote_at=0.5, window=1))
    before.add([TaskOutcome("level_0", 1.0)])
    after = Curriculum(CurriculumConfig(num_levels=4, promote_at=0.5, window=1))
    after.set_state(before.get_state())
    metrics = after.task_metrics()
    assert metrics["curriculum/task"] == 1
    assert metrics["curriculum/level_0/num_episodes"] == 1
    assert metrics["curriculum/level_3/num_episodes"] == 0


def test_outcomes_of_removed_tasks_are_left_out() -> None:
    curriculum = Curriculum(CurriculumConfig(num_levels=2, rule="uniform"))
    run = RunAt(0, reported={curriculum.name: [["level_2", 1.0], ["level_1", 0.5]]})
    metrics = curriculum.end_iteration(run)
    assert metrics["curriculum/level_1/num_episodes"] == 1
    assert metrics["curriculum/level_0/num_episodes"] == 0
