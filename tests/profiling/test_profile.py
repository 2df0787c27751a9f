"""Profiles of real runs: every process, the right category, and the numbers of a run that nobody profiled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.experiment.trainer import Trainer
from runner.profiling import profile
from runner.profiling.profile import Profile, category_of, profile_iterations
from runner.profiling.sampler import Frame
from tests.conftest import QUICK, ROOT

SLEEPING = ("env.env=null", "env._target_=tests.profiling.slow_parts.SleepingCartPole")


def profile_of(experiment: str, *overrides: str, num_iterations: int = 2) -> Profile:
    with closing(Trainer.from_experiment(experiment, overrides)) as trainer:
        return profile_iterations(trainer, num_iterations)


def shares(profile: Profile, process: int = 0) -> dict[str, float]:
    one = profile.processes[process]
    return {category.title: seconds / one.samples.wall_s for category, seconds in one.seconds.items()}


def check_sums(profile: Profile) -> None:
    for process in profile.processes:
        assert sum(process.seconds.values()) == pytest.approx(process.samples.wall_s)


def test_an_environment_that_sleeps() -> None:
    profile = profile_of("ppo_cartpole", *QUICK, *SLEEPING)
    check_sums(profile)
    assert shares(profile)["environment"] > 0.7
    hottest = profile.hottest()[0]
    assert (hottest.frame.function, hottest.frame.file) == (
        "SleepingCartPole.step",
        "tests/profiling/slow_parts.py",
    )
    assert hottest.line == hottest.frame.line + 1  # the sleep


@pytest.mark.parametrize(
    ("pipeline", "connector", "title"),
    [
        ("env_to_module", "SlowObservations", "env to module"),
        ("module_to_env", "SlowActions", "module to env"),
        ("learner", "SlowBatches", "learner pipeline"),
    ],
)
def test_a_connector_that_is_slow(pipeline: str, connector: str, title: str) -> None:
    edit = f"connectors.{pipeline}=[{{append: {{_target_: tests.profiling.slow_parts.{connector}}}}}]"
    profile = profile_of("ppo_cartpole", *QUICK, edit)
    check_sums(profile)
    assert shares(profile)[title] > 0.5
    assert profile.hottest()[0].frame.function == "_compute"


def test_usual_runs_are_told_apart() -> None:
    found = shares(profile_of("ppo_cartpole", *QUICK, "algorithm.num_epochs=8", num_iterations=30))
    assert found["update"] > 0.5
    assert found["rest"] < 0.2
    assert {"environment", "forward", "module to env"} < found.keys()


@pytest.mark.slow
def test_a_plan_with_replay() -> None:
    found = shares(
        profile_of("dqn_cartpole", "tracking=none", "algorithm.num_steps_sampled_before_learning_starts=256")
    )
    assert found["update"] > 0.3
    assert found["replay"] > 0.02
    assert found["rest"] < 0.2


@pytest.mark.slow
def test_evaluation_in_this_process_is_a_category_of_its_own() -> None:
    quick = [override for override in QUICK if not override.startswith("evaluation.")]
    profile = profile_of("ppo_cartpole", *quick, *SLEEPING, "evaluation.evaluation_interval=1")
    assert shares(profile)["evaluation"] > 0.5


def test_numbers_are_the_ones_of_a_run_without_a_profile() -> None:
    weights = []
    with closing(Trainer.from_experiment("ppo_cartpole", QUICK)) as trainer:
        profile_iterations(trainer, 2, 1)
        weights.append(trainer.learners.get_weights()["default_policy"].copy())
    with closing(Trainer.from_experiment("ppo_cartpole", QUICK)) as trainer:
        for _ in range(3):
            trainer.train()
        weights.append(trainer.learners.get_weights()["default_policy"].copy())
    np.testing.assert_array_equal(*weights)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("num_learners", [1, 2])
def test_every_process_is_there(num_learners: int) -> None:
    profile = profile_of(
        "ppo_cartpole",
        *QUICK,
        *SLEEPING,
        "env_runners.num_env_runners=2",
        f"learners.num_learners={num_learners}",
        "learners.num_cpus_per_learner=0",
    )
    check_sums(profile)
    learners = [f"learner {rank}" for rank in range(num_learners)]
    assert [process.name for process in profile.processes] == ["driver", "env runner 0", "env runner 1", *learners]
    assert shares(profile)["waiting"] > 0.8
    wall_s = profile.wall_s
    for runner in (1, 2):
        assert shares(profile, runner)["environment"] > 0.4
    for place in range(3, 3 + num_learners):
        found = shares(profile, place)
        assert found["update"] > 0.001
        assert found["waiting"] > 0.5
        assert "environment" not in found
    assert [process.samples.wall_s for process in profile.processes] == pytest.approx(
        [wall_s] * len(profile.processes), rel=0.3
    )


def titles(profile: Profile) -> Sequence[str]:
    return [category.title for category in profile.categories]


def test_columns_are_the_same_for_all_runs_but_for_replay_and_evaluation() -> None:
    assert titles(profile_of("ppo_cartpole", *QUICK)) == [
        *("environment", "env to module", "forward", "module to env", "rows"),
        *("learner pipeline", "update", "transfer", "waiting", "rest"),
    ]


REMOTE = (*QUICK, "env_runners.num_env_runners=1")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_evaluation_runners_have_rows() -> None:
    overrides = [override for override in REMOTE if not override.startswith("evaluation.")]
    evaluated = ("evaluation.evaluation_interval=1", "evaluation.evaluation_num_env_runners=1")
    profile = profile_of("ppo_cartpole", *overrides, *evaluated, *SLEEPING)
    assert [process.name for process in profile.processes] == ["driver", "env runner 0", "evaluation runner 0"]
    assert shares(profile, 2)["environment"] > 0.2
    assert "evaluation" in titles(profile)  # the driver waits for it


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_process_that_was_replaced_meanwhile_is_told() -> None:
    callback = "callbacks=[{_target_: tests.profiling.slow_parts.ReplacingRunner}]"
    with pytest.raises(RunFailure, match="env runner 0 died and was replaced during the profile"):
        profile_of("ppo_cartpole", *REMOTE, callback)


def stack(*places: str) -> tuple[Frame, ...]:
    """Make a stack of texts like `file.py: function`, the outermost first."""
    return tuple(Frame(place.split(": ")[1], place.split(": ")[0], 1) for place in places)


ACTOR = "ray/_private/worker.py: Worker.main_loop"
SAMPLE = "runner/env_runners/stepping_env_runner.py: SteppingEnvRunner.sample"
STEP = "runner/env_runners/env_runner.py: SingleAgentEnvRunner._step"
OBSERVE = "runner/env_runners/env_runner.py: SingleAgentEnvRunner._run_env_to_module"
PIPELINE = "runner/pipelines/pipeline.py: ConnectorPipeline.__call__"
ENVS = "runner/env_runners/vector_envs.py: BatchedEnvironments.step"
UPDATE = "runner/learners/learner.py: Learner.update"
WAIT = "threading.py: Condition.wait"


@pytest.mark.parametrize(
    ("places", "title"),
    [
        ([ACTOR], "waiting"),
        ([ACTOR, SAMPLE], "rest"),
        ([ACTOR, "ray/_private/serialization.py: deserialize", "runner/rows/chunks.py: Chunks.__init__"], "transfer"),
        (["runner/plans/operator.py: step", "ray/_private/worker.py: get"], "waiting"),
        (["runner/plans/operator.py: step", "ray/_private/worker.py: put", "ray/cloudpickle/x.py: dump"], "transfer"),
        ([SAMPLE, STEP, ENVS, "multiprocessing/connection.py: recv"], "environment"),
        ([SAMPLE, STEP, ENVS, WAIT], "environment"),
        (["runner/plans/operator.py: step", WAIT], "waiting"),
        (
            [UPDATE, "runner/learners/collective.py: ProcessGroup.mean", "torch/distributed/x.py: all_reduce"],
            "transfer",
        ),
        ([UPDATE, "runner/learners/collective.py: Alone.mean"], "update"),
        ([UPDATE, "runner/pipelines/advantages.py: compute_gae"], "update"),
        (["runner/learners/learner.py: Learner._run_pipelines", PIPELINE, "numpy/x.py: where"], "learner pipeline"),
        ([SAMPLE, STEP, PIPELINE, "mine.py: Connector.__call__"], "module to env"),
        ([SAMPLE, STEP, OBSERVE, PIPELINE, "mine.py: Connector.__call__", "runner/rows/x.py: take"], "env to module"),
        ([SAMPLE, STEP, "mine.py: MyModule.forward_exploration", "torch/nn/x.py: linear"], "forward"),
        ([SAMPLE, STEP, "runner/rows/lock_step_rows.py: LockStepRows.add_step"], "rows"),
        (["mine.py: MyRunner.sample", "gymnasium/core.py: Wrapper.step", "maze.py: step"], "environment"),
        (["mine.py: MyRunner.sample", "gymnasium/spaces/box.py: Box.contains"], "rest"),
        (["runner/experiment/evaluator.py: Evaluator.evaluate", SAMPLE, STEP, ENVS], "evaluation"),
    ],
)
def test_category(places: list[str], title: str) -> None:
    assert category_of(stack(*places)).title == title


def test_files_that_are_known_by_name_exist() -> None:
    files = (*profile._BY_FILE, *profile._ENV_RUNNERS, profile._PIPELINES, profile._ROWS, profile._LEARNERS)
    assert [file for file in files if not (ROOT / file).exists()] == []
