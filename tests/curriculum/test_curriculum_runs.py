"""Whole runs with a curriculum: exact resume, Ray, several agents, a league, records, errors."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.experiment.env_runner_builder import EVALUATION, build_env_runner
from runner.experiment.rehearsal import rehearse
from runner.experiment.trainer import Trainer
from runner.module_building import build_modules, weights_of
from runner.offline.reading.inspection import inspect_data
from runner.offline.reading.inspection_report import plain_report
from tests.conftest import Run
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray, train

SMALL = [
    "tracking=none",
    "algorithm.train_batch_size_per_learner=200",
    "algorithm.minibatch_size=100",
    "algorithm.num_epochs=1",
    "module.fcnet_hiddens=[16]",
    "env_runners.num_envs_per_env_runner=4",
    "evaluation.evaluation_interval=2",
    "evaluation.evaluation_duration=10",
]
MAZE = [
    "env.env_config={size: 5, num_levels: 4}",
    "curriculum={num_levels: 4, promote_at: 0.3, window: 10, evaluate: [level_0, level_3]}",
]
DRILL = [
    "env._target_=tests.curriculum.drills.Drill",
    "curriculum={num_levels: null, rule: regret, evaluate: [], measure: 'info:height', tasks: "
    "{short: {options: {length: 3}}, long: {options: {length: 9}}, fast: {env_config: {speed: 2.0}}}}",
]
TEAM = [
    *(override.replace("drills.Drill", "drills.TeamDrill") for override in DRILL),
    "+multi_agent.agent_to_module={a: one, b: two}",
]


def trainer_of(*overrides: str) -> Trainer:
    task = [] if any("drills" in override for override in overrides) else MAZE
    return Trainer.from_experiment("ppo_curriculum_goal_maze", [*SMALL, *task, *overrides])


@pytest.mark.parametrize(
    "overrides",
    [[], ["curriculum.rule=learning_progress"], DRILL, TEAM],
    ids=["promote", "learning_progress", "env_config", "several_agents"],
)
def test_a_run_resumes_exactly(overrides: list[str], tmp_path: Path) -> None:
    expected = assert_resumes_exactly(partial(trainer_of, *overrides), tmp_path, cuts=[3], num_after=3)
    drawn = [name for name in expected[-1] if name.endswith("/num_episodes") and name.startswith("curriculum/")]
    assert sum(expected[-1][name] > 0 for name in drawn) >= 2
    assert sum(expected[-1][name] for name in drawn) == expected[-1]["num_episodes_lifetime"]


@pytest.mark.slow
def test_ray_actors_give_the_numbers_of_one_process(ray_cluster: None) -> None:
    expected = assert_same_on_ray(partial(trainer_of, "env_runners.num_env_runners=2"), 4)
    assert expected[-1]["curriculum/task"] > 0
    assert "evaluation/curriculum/level_3/value_mean" in expected[1]


def test_evaluations_are_of_their_tasks_alone() -> None:
    with trainer_of("curriculum.evaluate=[level_0]", "evaluation.explore=true") as trainer:
        result = train(trainer, 2)[-1]
    assert result["evaluation/curriculum/level_0/value_mean"] == result["evaluation/env_runners/episode_return_mean"]
    assert not [name for name in result if name.startswith("evaluation/curriculum/level_3")]


def test_a_value_out_of_infos_is_no_return() -> None:
    with trainer_of(*DRILL) as trainer:
        result = train(trainer, 3)[-1]
    assert result["curriculum/short/value_mean"] <= 30.0
    assert result["curriculum/short/value_mean"] % 1 in (0.0, 0.5) or result["curriculum/short/num_episodes"] > 2
    assert result["curriculum/long/value_mean"] > result["curriculum/short/value_mean"]


def test_metrics_and_records_have_the_task(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    by_task = "metrics={env_runners/success: {info: is_success, by: {task: [level_0, level_3]}}}"
    with trainer_of(by_task, f"offline.output={tmp_path / 'recorded'}", "curriculum.rule=uniform") as trainer:
        result = train(trainer, 4)[-1]
        trainer.env_runners.finish_recording()
    assert result["env_runners/success/level_0"] > result["env_runners/success/level_3"]
    table = pq.read_table(tmp_path / "recorded")
    tasks = table["task"].to_pylist()
    assert set(tasks) == {f"level_{number}" for number in range(4)}
    for task, infos in zip(tasks, table["infos"].to_pylist(), strict=True):
        assert (json.loads(infos[0])["task"], json.loads(infos[-1])["task"]) == (task, task)
    assert_inspected(tmp_path / "recorded", tasks)


def assert_inspected(folder: Path, tasks: list[str]) -> None:
    """`inspect` tells how many episodes are of each task."""
    found = inspect_data(OfflineConfig(input_=str(folder)))
    assert found.tasks == {task: tasks.count(task) for task in sorted(set(tasks))}
    listed = ", ".join(f"{task} {count}" for task, count in found.tasks.items())
    assert re.search(rf"tasks +{listed}\n", plain_report(found, 200))


def test_env_episodes_of_several_agents_are_recorded_with_their_task(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = tmp_path / "recorded"
    with trainer_of(*TEAM, f"offline.output={folder}", "curriculum.rule=uniform") as trainer:
        train(trainer, 2)
        trainer.env_runners.finish_recording()
    table = pq.read_table(folder)
    tasks = table["task"].to_pylist()
    assert set(tasks) == {"short", "long", "fast"}
    assert not [name for name in table.column_names if name.startswith("agents/") and name.endswith("/task")]
    for task, *infos in zip(tasks, *(table[f"agents/{agent}/infos"].to_pylist() for agent in "ab"), strict=True):
        assert {json.loads(one[0])["task"] for one in infos} == {task}
    assert_inspected(folder, tasks)


@pytest.mark.parametrize("overrides", [DRILL, TEAM], ids=["single_agent", "several_agents"])
def test_evaluations_record_the_tasks_of_the_episodes_that_count(overrides: list[str], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    made = ["+experiment=ppo_curriculum_goal_maze", *SMALL, *overrides, f"offline.output={tmp_path}"]
    config = config_from(*made)
    parts = build_modules(config)
    specs = {module_id: one.spec for module_id, one in parts.items()}
    runner = build_env_runner(config, specs, EVALUATION, 0, 0, is_recording=True)
    counted = runner.evaluate(9, weights=weights_of(parts))
    runner.finish_recording()
    runner.close()
    tasks = pq.read_table(tmp_path)["task"].to_pylist()
    assert sorted(tasks) == sorted(outcome.task for outcome in counted.outcomes["curriculum"])


def test_a_league_plays_the_tasks_of_a_curriculum() -> None:
    overrides = [
        "algorithm.train_batch_size_per_learner=200",
        "algorithm.minibatch_size=100",
        "algorithm.num_epochs=1",
        "module.fcnet_hiddens=[16]",
        "env_runners.num_envs_per_env_runner=4",
        "env._target_=tests.curriculum.drills.Opening",
        "curriculum={rule: uniform, tasks: {start: {options: {moves: 0}}, late: {options: {moves: 4}}}}",
        "evaluation.evaluation_interval=2",
        "evaluation.evaluation_duration=10",
        "tracking=none",
    ]
    with Trainer.from_experiment("ppo_league_tictactoe", overrides) as trainer:
        result = train(trainer, 2)[-1]
    assert result["curriculum/start/num_episodes"] > 10
    assert result["curriculum/late/num_episodes"] > 10
    assert result["league/main/elo"] is not None
    assert result["evaluation/league/random/win_rate"] is not None
    assert result["evaluation/curriculum/late/value_mean"] is not None


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("curriculum.promote_at=null", "curriculum.rule=promote needs curriculum.promote_at"),
        ("curriculum={num_levels: null}", "curriculum is set without tasks"),
        ("+curriculum.tasks.a={options: {}}", "curriculum.tasks and curriculum.num_levels are both set"),
        ("curriculum={num_levels: null, tasks: {a: {option: {}}}}", "curriculum.tasks.a has an unknown key"),
        (
            "curriculum={num_levels: null, tasks: {a/b: {options: {}}}}",
            "the name of a task becomes part of metric names",
        ),
        ("curriculum={num_levels: null, tasks: {a: 3}}", "curriculum.tasks.a is not a valid task"),
        ("curriculum.measure=return", "curriculum.measure is not valid"),
        ("curriculum={num_levels: null, evaluate: [], tasks: {a: {env_config: {siz: 5}}}}", "did you mean  size"),
        (
            "curriculum={num_levels: null, evaluate: [], tasks: {a: {env_config: {size: 4}}}}",
            "where         curriculum.tasks.a.env_config",
        ),
        (
            "curriculum={num_levels: null, evaluate: [], tasks: {a: {env_config: {size: 7}}}}",
            "observation_space of task a differs",
        ),
        (
            "curriculum={num_levels: null, evaluate: [], tasks: {a: {options: {levle: 1}}}}",
            "where         curriculum.tasks.a",
        ),
        ("curriculum={num_levels: 5, evaluate: []}", 'task level_4: reset(options={"level": 4}) fails'),
        ("curriculum.evaluate=[level_4]", "curriculum.evaluate contains an unknown task"),
        ("curriculum.rule=promot", "promote"),
        ("env_runners.gym_env_vectorize_mode=async", "steps environments one by one"),
        ("env_runners.restart_failed_sub_environments=true", "does not work with a curriculum"),
        ("+stop.curriculum/level_4/value_mean=1", "curriculum/level_3/value_mean"),
    ],
)
def test_what_does_not_fit_is_told_at_the_start(override: str, what: str) -> None:
    with pytest.raises(ConfigError) as raised:
        trainer_of(override).close()
    assert what in str(raised.value)


def test_all_wrong_tasks_of_several_agents_are_told_by_building() -> None:
    wrong = ["+curriculum.tasks.wild={env_config: {speed: fast}}", "+curriculum.tasks.still={env_config: {speed: []}}"]
    overrides = [*SMALL, *TEAM, *wrong]
    config = config_from("+experiment=ppo_curriculum_goal_maze", *overrides)
    with pytest.raises(ConfigError) as raised:
        rehearse(config)
    wheres = [str(problem.where) for problem in raised.value.problems]
    assert [where.partition(",")[0] for where in wheres] == ["curriculum.tasks.wild", "curriculum.tasks.still"]
    assert all("drills.py" in where for where in wheres), "the line of the environment that fails"


def test_a_run_is_drawn(run_main: Run, tmp_path: Path) -> None:
    arguments = ("+experiment=ppo_curriculum_goal_maze", *SMALL, *MAZE, "hydra.run.dir=run")
    outcome = run_main(*arguments, "stop.training_iteration=4")
    assert outcome.code == 0, outcome.err
    assert run_main("report", "run", "--output", "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "share of the episodes" in page
    assert "mean value of each task" in page
