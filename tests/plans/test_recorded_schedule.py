"""Free asynchronous runs, repeated: the schedule that a run records, and `resume --replay-schedule`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.config.errors import ConfigError, RunFailure, UserError
from runner.experiment.trainer import Trainer
from runner.tracking.schedule_log import ScheduleLog
from tests.conftest import Outcome, progress_of, without_times

SMALL = (
    "algorithm.train_batch_size_per_learner=40",
    "algorithm.min_sample_timesteps_per_iteration=200",
    "env_runners.num_envs_per_env_runner=2",
    "env_runners.rollout_fragment_length=10",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
)
INLINE = (*SMALL, "engine=inline")


def trained(schedule: dict[str, list[int]]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    with Trainer.from_experiment("impala_cartpole", INLINE) as trainer:
        trainer.resources.follow_schedule(schedule)
        return without_times(trainer.train()), trainer.last_schedule


def test_samples_are_taken_in_the_order_of_the_schedule() -> None:
    natural, schedule = trained({})
    assert trained(schedule) == (natural, schedule)
    uneven = {"ParallelRollouts": [1, 1, -1, 0] * 10}
    first, taken = trained(uneven)
    assert first != natural
    assert taken["ParallelRollouts"] == uneven["ParallelRollouts"][: len(taken["ParallelRollouts"])]
    assert trained(uneven) == (first, taken)


def test_the_schedule_of_an_iteration_that_is_interrupted_goes_on() -> None:
    with Trainer.from_experiment("impala_cartpole", INLINE) as trainer:
        taken = [next(trainer.resources.operators["ParallelRollouts"].items) for _ in range(3)]
        state = trainer.resources.get_state()
        schedule = trainer.resources.take_schedule()
    assert len(taken) == len(schedule["ParallelRollouts"]) == 3
    with Trainer.from_experiment("impala_cartpole", INLINE) as trainer:
        trainer.resources.set_state(state)
        trainer.resources.follow_schedule({"ParallelRollouts": [*schedule["ParallelRollouts"], 1, 1, 0]})
        trainer.train()
        whole = trainer.last_schedule["ParallelRollouts"]
    assert whole[:6] == [*schedule["ParallelRollouts"], 1, 1, 0]


def test_a_plan_that_never_waits_forgets_what_it_has_awaited() -> None:
    plan = (
        "algorithm.plan=[{Concurrently: {mode: async, plans: [[{ParallelRollouts: {mode: async}}, TrainOneStep], "
        "[{AsyncGradients: {}}, ApplyGradients]]}}]"
    )
    with Trainer.from_experiment("impala_cartpole", [*INLINE, plan]) as trainer:
        for _ in range(3):
            trainer.train()
        assert set(trainer.env_runners.awaited) <= set(trainer.env_runners.in_flight)


def test_a_schedule_of_another_run_is_refused() -> None:
    with pytest.raises(RunFailure, match="the recorded schedule is of another run"):
        trained({"ParallelRollouts": [2]})
    with pytest.raises(ConfigError, match="the recorded schedule is of another plan"):
        trained({"AsyncGradients": [0]})


def test_the_log_of_schedules(tmp_path: Path) -> None:
    log = ScheduleLog(tmp_path)
    for iteration in (1, 2, 3):
        log.append(iteration, {"ParallelRollouts": [iteration, -1], "AsyncGradients": []})
    assert log.after(1) == {"ParallelRollouts": [2, -1, 3, -1], "AsyncGradients": []}
    log.append(5, {"ParallelRollouts": [0]})
    with pytest.raises(UserError, match="the schedule of iteration 4 was not recorded"):
        log.after(2)
    log.truncate_after(2)
    assert log.after(1)["ParallelRollouts"] == [2, -1]
    with pytest.raises(UserError, match="no schedule of iterations after 2 was recorded"):
        log.after(2)
    log.close()
    (tmp_path / "schedule.jsonl").write_text('{"training_iteration":1,"ParallelRollouts":"0 x"}\n')
    with pytest.raises(UserError, match="a line of the schedule is damaged"):
        ScheduleLog(tmp_path).after(0)


def test_a_run_in_rounds_records_none(run_main: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = run_main("+experiment=a2c_cartpole", *SMALL, "stop.training_iteration=1", f"hydra.run.dir={tmp_path}/run")
    assert outcome.code == 0
    assert not (tmp_path / "run" / "schedule.jsonl").exists()
    more = ("--replay-schedule", "stop.training_iteration=2")
    outcome = run_main("resume", f"{tmp_path}/run", *more, f"hydra.run.dir={tmp_path}/again")
    assert outcome.code == 2
    assert "no schedule of iterations after 1 was recorded" in outcome.err
    outcome = run_main("resume", f"{tmp_path}/run", *more)
    assert outcome.code == 2
    assert "would write over the schedule that it follows" in outcome.err


@pytest.mark.slow
@pytest.mark.ray
def test_a_free_run_on_ray_is_repeated(ray_cluster: None, run_main: Callable[..., Outcome], tmp_path: Path) -> None:
    uneven = "env.wrappers=[{_target_: tests.environments.UnevenSteps}]"
    first, again = tmp_path / "first", tmp_path / "again"
    settings = [*SMALL, uneven, "checkpoint.every_iterations=2", "stop.training_iteration=4"]
    assert run_main("+experiment=impala_cartpole", *settings, f"hydra.run.dir={first}").code == 0
    middle = str(first / "checkpoints" / "iteration_000002")
    outcome = run_main("resume", middle, "--replay-schedule", f"hydra.run.dir={again}")
    assert outcome.code == 0
    assert list(map(without_times, progress_of(again))) == list(map(without_times, progress_of(first)))
    assert (again / "schedule.jsonl").read_text().splitlines()[-2:] == (
        first / "schedule.jsonl"
    ).read_text().splitlines()[2:]
