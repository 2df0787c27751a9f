"""What goes wrong while a run is built or trains: one clear message, the right exit code, and nothing is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.checkpoints import load_checkpoint
from runner.config.errors import ConfigError, Problem
from runner.pipelines import EnvToModuleConnector
from tests.conftest import QUICK, WAIT_S, MakeRun, Run, Start, checkpoints_of, progress_of, result_of
from tests.support.environments import Faulty
from tests.support.problems import assert_error, raised_in, shown_problems

TRAIN = ("+experiment=ppo_cartpole", *QUICK, "hydra.run.dir=run")
TWO_CHECKPOINTS = ("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=2", "checkpoint.every_iterations=1")
MOUNTAIN_CAR = ("env._target_=null", "env.env=MountainCar-v0")
FAULTY = (*TRAIN, "env.env=null", "env._target_=tests.support.environments.Faulty", "checkpoint.every_iterations=1")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(
            "{fault: raise_in_step, fault_step: 150}",
            Problem(
                "the environment raised ValueError in step: the arm has left its rail",
                where=(
                    f"env runner 0, sub-environment 0, episode 18, step 5, {raised_in(Faulty.step, 'raise ValueError')}"
                ),
                got="action 0",
            ),
            id="env_raises_in_step",
        ),
        pytest.param(
            "{fault: raise_in_reset, fault_step: 20}",
            Problem(
                "the environment raised OSError in reset: the simulator's licence has expired",
                where=f"env runner 0, sub-environment 0, episode 19, {raised_in(Faulty.reset, 'raise OSError')}",
            ),
            id="env_raises_in_reset",
        ),
        pytest.param(
            "{fault: leave_space, fault_step: 150}",
            Problem(
                "an observation is outside the environment's observation space",
                where="env runner 0, episode 0-env_runner-0-0-18, time step 6",
                got="obs[1] = 1234.5",
                expected="-1000.0 to 1000.0",
            ),
            id="obs_leaves_space",
        ),
        pytest.param(
            "{fault: nan_obs, fault_step: 150}",
            Problem(
                "an observation of the environment is not finite",
                where="env runner 0, episode 0-env_runner-0-0-18, time step 6",
                got="obs[0] = nan",
                expected="finite numbers",
            ),
            id="obs_is_nan",
        ),
    ],
)
def test_an_environment_that_fails_in_the_third_iteration(
    run_main: Run, tmp_path: Path, config: str, expected: Problem
) -> None:
    check = "env.validate_observations=error"
    outcome = run_main(*FAULTY, check, f"env.env_config={config}", "stop.training_iteration=9")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err + outcome.out
    assert shown_problems(outcome.err) == [expected]
    run_dir = tmp_path / "run"
    lines = progress_of(run_dir)
    assert [line["training_iteration"] for line in lines] == [1, 2]
    result = result_of(run_dir)
    assert (result["status"], result["training_iteration"]) == ("failed", 2)
    assert result["stop_reason"] == outcome.err.rstrip("\n")
    assert checkpoints_of(run_dir)[-1] == "iteration_000002"
    assert result["checkpoint"] == str(run_dir / "checkpoints" / "iteration_000002")
    load_checkpoint(run_dir / "checkpoints" / "iteration_000002")
    # The checkpoint is good: without the fault the run goes on from it.
    resumed = run_main("resume", "run", "env.env_config={fault: none}", "stop.training_iteration=3")
    assert resumed.code == 0, resumed.err
    assert [line["training_iteration"] for line in progress_of(run_dir)] == [1, 2, 3]


class ExitsAtOnce(EnvToModuleConnector):
    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        sys.exit(0)


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["env.env_config={fault: exit}"], "the environment raised SystemExit in step: 0"),
        ([f"connectors.env_to_module=[{{append: {{_target_: {__name__}.ExitsAtOnce}}}}]"], "SystemExit: 0"),
    ],
    ids=["environment", "connector"],
)
def test_user_code_that_ends_the_process_fails_the_run(
    run_main: Run, tmp_path: Path, overrides: list[str], what: str
) -> None:
    outcome = run_main(*FAULTY, *overrides)
    assert outcome.code == 1
    (problem,) = shown_problems(outcome.err)
    assert problem.what == what
    assert result_of(tmp_path / "run")["status"] == "failed"


def test_an_environment_that_ends_the_process_is_not_usable(run_main: Run) -> None:
    outcome = run_main("check-env", "tests.support.environments.Faulty", "env.env_config.fault=exit")
    assert outcome.code == 1
    assert "step raised SystemExit: 0" in outcome.out


ROBOT = """
import gymnasium as gym
import numpy as np

class Robot(gym.Env):
    observation_space = gym.spaces.Dict(
        {"camera": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8), "speed": gym.spaces.Box(-1.0, 1.0, (2,))}
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {"camera": np.zeros((4, 4, 3), np.uint8), "speed": self.speed()}, {}

    def step(self, action):
        return {"camera": np.zeros((4, 4), np.uint8), "speed": self.speed()}, 1.0, False, False, {}

    def speed(self):
        return np.zeros(2, np.float32)

class JammedRobot(Robot):
    def step(self, action):
        return self.turn(action)

    def turn(self, action):
        return np.zeros(2) @ np.zeros(3)  # numpy raises here
"""
ROBOT_RUN = ("+experiment=ppo_cartpole", *QUICK, "hydra.run.dir=run", "env.env=null")


def test_the_line_of_a_users_file_that_made_numpy_raise(start_main: Start, tmp_path: Path) -> None:
    (tmp_path / "my_robot.py").write_text(ROBOT)
    run = start_main(*ROBOT_RUN, "env._target_=my_robot.JammedRobot", "env_runners.gym_env_vectorize_mode=async")
    _, err = run.communicate(timeout=WAIT_S)
    assert run.returncode == 1
    (problem,) = shown_problems(err, tmp_path)
    assert problem.what.startswith("the environment raised ValueError in step: matmul: ")
    line = 1 + next(n for n, text in enumerate(ROBOT.splitlines()) if "numpy raises here" in text)
    place = "env runner 0, sub-environment 0, episode 0, step 0"
    assert problem.where == f"{place}, TMP/my_robot.py:{line}, JammedRobot.turn"


def test_the_part_of_an_observation_that_has_another_shape(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_camera_robot.py").write_text(ROBOT)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = run_main(*ROBOT_RUN, "env._target_=my_camera_robot.Robot")
    assert outcome.code == 1
    assert shown_problems(outcome.err) == [
        Problem(
            "the environment's step returned an observation that does not fit its space",
            where="env runner 0, sub-environment 0, episode 0, step 0",
            got="obs['camera']: shape (4, 4)",
            expected="obs['camera']: shape (4, 4, 3)",
        )
    ]


def test_a_run_that_fails_after_a_resume_still_names_its_checkpoint(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*FAULTY, "stop.training_iteration=2").code == 0
    outcome = run_main(
        "resume", "run", "env.env_config={fault: raise_in_step, fault_step: 5}", "stop.training_iteration=3"
    )
    assert outcome.code == 1
    result = result_of(tmp_path / "run")
    assert result["status"] == "failed"
    assert result["checkpoint"] == str(tmp_path / "run" / "checkpoints" / "iteration_000002")
    assert outcome.out.splitlines()[-1].endswith(f"-m runner resume {result['checkpoint']}")


def test_a_loss_that_is_not_finite(run_main: Run, tmp_path: Path) -> None:
    # The learning rate explodes after 600 steps, in the fourth iteration.
    outcome = run_main(
        *TRAIN, "algorithm.lr=[[0,1e-3],[600,1e-3],[601,1e38]]", "checkpoint.every_iterations=1", "seed=1"
    )
    assert outcome.code == 1
    first, where, *_ = outcome.err.splitlines()
    assert first.startswith("the loss is not finite: ")
    assert where.startswith("   where         learner update, minibatch ")
    assert "Traceback" not in outcome.err
    done = len(progress_of(tmp_path / "run"))
    assert done >= 2
    assert checkpoints_of(tmp_path / "run")[-1] == f"iteration_{done:06d}"
    state, _ = load_checkpoint(tmp_path / "run" / "checkpoints" / f"iteration_{done:06d}")
    module = state["learners"]["learners"]["default_policy"]["module"]
    assert all(abs(value).max() < 1e6 for value in module.values()), "the checkpoint is from before the failure"


def test_a_device_that_is_not_there(run_main: Run) -> None:
    outcome = run_main(*TRAIN, "stop.training_iteration=1", "learners.device=cuda:77")
    assert outcome.code == 2
    assert "this machine does not have a device cuda:77" in outcome.err
    assert "where         learners.device" in outcome.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="they are there")
def test_gpus_that_are_not_there(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*TRAIN, "learners.num_gpus_per_learner=1")
    assert outcome.code == 2
    assert "learners.num_gpus_per_learner exceeds the number of GPUs of this machine" in outcome.err
    assert not (tmp_path / "run" / "progress.jsonl").exists()


def test_a_policy_that_was_trained_on_a_gpu_is_evaluated_without_one(run_main: Run) -> None:
    assert run_main(*TRAIN, "stop.training_iteration=1").code == 0
    outcome = run_main("evaluate", "run", "evaluation.evaluation_duration=1", "learners.num_gpus_per_learner=1")
    assert outcome.code == 0, outcome.err


def test_a_reward_that_is_not_finite(run_main: Run, tmp_path: Path) -> None:
    outcome = run_main(*FAULTY, "env.env_config={fault: nan_reward, fault_step: 150}", "stop.training_iteration=9")
    assert outcome.code == 1
    assert outcome.err.startswith("the environment's reward is not finite")
    assert [line["training_iteration"] for line in progress_of(tmp_path / "run")] == [1, 2]
    load_checkpoint(tmp_path / "run" / "checkpoints" / "iteration_000002")


@pytest.mark.parametrize("fault", ["raise_in_step", "raise_in_reset"])
def test_debug_shows_the_stack_trace(run_main: Run, fault: str) -> None:
    outcome = run_main(*FAULTY, f"env.env_config={{fault: {fault}, fault_step: 1}}", "debug=true")
    assert outcome.code == 1
    assert "Traceback (most recent call last)" in outcome.err
    assert "tests/support/environments.py" in outcome.err


def test_the_log_has_the_error_and_its_stack_trace(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*FAULTY, "env.env_config={fault: raise_in_step, fault_step: 1}").code == 1
    log = (tmp_path / "run" / "runner.log").read_text()
    assert "the environment raised ValueError in step: the arm has left its rail" in log
    assert "tests/support/environments.py" in log


def test_an_environment_that_fails_in_evaluation(run_main: Run, tmp_path: Path) -> None:
    assert run_main(*FAULTY, "stop.training_iteration=1").code == 0
    outcome = run_main("evaluate", "run", "env.env_config={fault: raise_in_step, fault_step: 3}")
    assert outcome.code == 1
    assert outcome.err.startswith("the environment raised ValueError in step: the arm has left its rail\n")
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(
            ["env.env_config={fault: raise_in_init}"],
            Problem(
                "the environment tests.support.environments.Faulty cannot be created: RuntimeError: no display to draw "
                "on",
                where=f"env._target_, {raised_in(Faulty.__init__, 'raise RuntimeError')}",
                got="tests.support.environments.Faulty with env_config {'fault': 'raise_in_init'}",
            ),
            id="env_cannot_be_made",
        ),
        pytest.param(
            [*MOUNTAIN_CAR, "env_runners.gym_env_vectorize_mode=vector_entry_point"],
            Problem(
                (
                    "the environment MountainCar-v0 cannot be created: Error: Cannot create vectorized "
                    "environment for MountainCar-v0 because it doesn't have a vector entry point defined."
                ),
                where="env.env",
                got="MountainCar-v0 with env_config {}",
            ),
            id="no_vector_entry",
        ),
        pytest.param(
            ["env._target_=tests.support.environments.MatchDiscrete", "connectors=mean_std_filter"],
            Problem(
                "MeanStdFilter needs float observations (a Box), but the space is Discrete(4)",
                where="connectors",
                got="observations of Discrete(4), actions of Discrete(4)",
            ),
            id="wrong_filter",
        ),
        pytest.param(
            ["module.fcnet_kernel_initializer=orthogonal"],
            Problem(
                (
                    "torch.nn.init does not define 'orthogonal'; expected: constant_, dirac_, eye_, "
                    "kaiming_normal_, kaiming_uniform_, normal_, ones_, orthogonal_, sparse_, "
                    "trunc_normal_, uniform_, xavier_normal_, xavier_uniform_, zeros_"
                ),
                where="module",
                got="runner.modules.ActorCriticModule",
            ),
            id="odd_initializer",
        ),
        pytest.param(
            ["connectors.learner=[{remove: AddOneTs}]"],
            Problem(
                "the learner pipeline does not contain a connector AddOneTs",
                where="override connectors.learner=[{remove: AddOneTs}]",
                got="AddOneTs",
                expected=(
                    "AddColumnsFromEpisodesToTrainBatch, AddObservationsFromEpisodesToBatch, "
                    "AddOneTsToEpisodesAndTruncate, AddStatesFromEpisodesToBatch, "
                    "AddTimeDimToBatchAndZeroPad, AgentToModuleMapping, BatchIndividualItems, "
                    "GeneralAdvantageEstimation, NumpyToTensor"
                ),
                nearest="AddOneTsToEpisodesAndTruncate",
            ),
            id="anchor",
        ),
        pytest.param(
            ["connectors.learner=[{remove: AddOneTsToEpisodesAndTruncate}]"],
            Problem(
                "GeneralAdvantageEstimation reads the column 'loss_mask', which no earlier connector writes",
                where="connectors.learner, connector 6 of 6",
                got=(
                    "AddObservationsFromEpisodesToBatch -> AddColumnsFromEpisodesToTrainBatch -> "
                    "AgentToModuleMapping -> BatchIndividualItems -> NumpyToTensor -> "
                    "GeneralAdvantageEstimation"
                ),
                expected=(
                    "one of the columns at this place: obs, actions, rewards, terminateds, truncateds, "
                    "action_dist_inputs, action_logp"
                ),
            ),
            id="connector_order",
        ),
    ],
)
def test_what_cannot_be_built(run_main: Run, tmp_path: Path, overrides: list[str], expected: Problem) -> None:
    outcome = run_main(*FAULTY, "stop.training_iteration=1", *overrides)
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in outcome.err
    assert_error(outcome.err, ConfigError([expected]), tmp_path)
    assert not (tmp_path / "run" / "progress.jsonl").exists()


# -- damaged checkpoints -------------------------------------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _other_version(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 1}))


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("learners.safetensors", _cut, "a file of the checkpoint is truncated or altered"),
        ("learners.safetensors", _flip, "a file of the checkpoint is truncated or altered"),
        ("env_runners.json", _flip, "a file of the checkpoint is truncated or altered"),
        ("metrics.json", Path.unlink, "a file of the checkpoint is missing"),
        ("manifest.json", _cut, "the checkpoint's manifest cannot be read"),
        ("manifest.json", _other_version, "the checkpoint was written with another schema version"),
    ],
    ids=["cut", "flipped", "json_flipped", "missing", "manifest_cut", "version"],
)
def test_a_damaged_checkpoint(
    run_main: Run, copy_of_run: MakeRun, verb: str, file: str, damage: Callable[[Path], object], message: str
) -> None:
    run_dir = copy_of_run(*TWO_CHECKPOINTS)
    damage(run_dir / "checkpoints" / "iteration_000002" / file)
    before = (run_dir / "progress.jsonl").read_bytes()
    outcome = run_main(verb, "run")
    assert outcome.code == 2
    assert outcome.err.startswith(message)
    if "version" not in message:
        *_, fix, path = outcome.err.splitlines()
        assert fix == "   fix           use this older checkpoint:"
        assert path.strip() == str(run_dir / "checkpoints" / "iteration_000001")
    assert f"{run_dir / 'checkpoints' / 'iteration_000002' / file}" in outcome.err.replace("\n            ", "")
    assert "Traceback" not in outcome.err
    assert (run_dir / "progress.jsonl").read_bytes() == before


def test_the_checkpoint_before_a_damaged_one(run_main: Run, copy_of_run: MakeRun) -> None:
    """A user names it, and the run continues from it."""
    run_dir = copy_of_run(*TWO_CHECKPOINTS)
    _cut(run_dir / "checkpoints" / "iteration_000002" / "manifest.json")
    older = run_main("resume", "run/checkpoints/iteration_000001", "stop.training_iteration=3")
    assert older.code == 0, older.err
    assert [line["training_iteration"] for line in progress_of(run_dir)] == [1, 2, 3]
    assert run_main("resume", "run", "stop.training_iteration=4").code == 0, "the damaged one is out of the way"
