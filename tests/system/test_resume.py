"""A run that was interrupted equals one that was not, bit for bit, however it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint
from runner.config.algorithms import PPOConfig
from runner.config.errors import ConfigError, Problem
from runner.experiment.run_records import RunRecords
from runner.experiment.trainer import Trainer
from tests.conftest import (
    QUICK,
    WAIT_S,
    MakeRun,
    Run,
    Start,
    checkpoints_of,
    lines_of,
    num_lines,
    progress_of,
    result_of,
    wait_until,
    without_times,
)
from tests.support.configs import config_from
from tests.support.problems import Including, assert_error, out_of_range, unknown_key
from tests.support.resuming import assert_command_resumes_exactly, assert_resumes_exactly

TRAIN = ("+experiment=ppo_cartpole", *QUICK)
IDS = ("batched", "sync", "filter", "sync_filter", "runners", "fragments", "schedules", "own_env")
# In processes of their own, some of which are made anew in each iteration.
CRASHING = [
    "env_runners.gym_env_vectorize_mode=async",
    "env_runners.restart_failed_sub_environments=true",
    "env.wrappers=[{_target_: runner.environments.CrashAndStall, crash_rate_step: 0.005, crash_rate_reset: 0.02}]",
]


@pytest.fixture
def straight(run_main: Run, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """The lines of a run that was not interrupted."""

    def run(iterations: int, *overrides: str) -> list[dict[str, Any]]:
        outcome = run_main(*TRAIN, *overrides, f"stop.training_iteration={iterations}", "hydra.run.dir=straight")
        assert outcome.code == 0, outcome.err
        return lines_of(tmp_path / "straight")

    return run


# -- bit for bit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        ("ppo_cartpole", []),
        ("ppo_cartpole", ["env_runners.gym_env_vectorize_mode=sync"]),
        ("ppo_cartpole", ["connectors=mean_std_filter"]),
        ("ppo_cartpole", ["env_runners.gym_env_vectorize_mode=sync", "connectors=mean_std_filter"]),
        ("ppo_cartpole", ["engine=inline", "env_runners.num_env_runners=2", "connectors=mean_std_filter"]),
        ("ppo_cartpole", ["env_runners.rollout_fragment_length=10", "env_runners.episode_lookback_horizon=3"]),
        ("ppo_cartpole", ["algorithm.lr=[[0,1e-3],[1000,0]]", "algorithm.entropy_coeff=[[0,0.1],[1000,0]]"]),
        ("ppo_cartpole", ["env.env=null", "env._target_=tests.support.environments.MatchDiscrete"]),
        ("ppo_pendulum", []),
        ("ppo_cartpole", CRASHING),
    ],
    ids=[*IDS, "continuous", "crashing"],
)
def test_a_run_resumes_exactly(experiment: str, overrides: list[str], tmp_path: Path) -> None:
    arguments = [f"+experiment={experiment}", *QUICK, *overrides, "algorithm.num_epochs=3"]
    config = config_from(*arguments)
    assert_resumes_exactly(partial(Trainer, config), tmp_path, num_after=3)


def test_a_state_in_memory_stays_what_it_was() -> None:
    with Trainer.from_experiment("ppo_cartpole", QUICK) as trainer:
        trainer.train()
        state = trainer.get_state()
        expected = [without_times(trainer.train()) for _ in range(2)]
    with Trainer.from_experiment("ppo_cartpole", QUICK) as trainer:
        trainer.set_state(state)
        assert [without_times(trainer.train()) for _ in range(2)] == expected


@pytest.mark.parametrize(("duration", "unit"), [(3, "episodes"), (150, "env_steps")])
def test_resume_on_the_command_line(
    run_main: Run, straight: Callable[..., list[dict[str, Any]]], tmp_path: Path, duration: int, unit: str
) -> None:
    evaluation = (
        *("evaluation.evaluation_interval=2", f"evaluation.evaluation_duration={duration}"),
        f"evaluation.evaluation_duration_unit={unit}",
    )
    expected = straight(6, *evaluation)
    assert run_main(*TRAIN, *evaluation, "stop.training_iteration=4", "hydra.run.dir=run").code == 0
    outcome = run_main("resume", "run", "stop.training_iteration=6")
    assert outcome.code == 0, outcome.err
    assert "  stop.training_iteration  4 -> 6" in outcome.out.splitlines()
    assert f"resume {tmp_path / 'run' / 'checkpoints' / 'iteration_000004'}" in outcome.out
    assert lines_of(tmp_path / "run") == expected
    assert result_of(tmp_path / "run")["status"] == "finished"
    times = [line["time_total_s"] for line in progress_of(tmp_path / "run")]
    assert times == sorted(times), "time goes on"


@pytest.mark.ray
def test_ray_runners_go_on_bit_for_bit(run_main: Run, tmp_path: Path, ray_cluster: None) -> None:
    remote = (*TRAIN, "env_runners.num_env_runners=2", "connectors=mean_std_filter")
    assert_command_resumes_exactly(run_main, tmp_path, *remote, iterations=(2, 4), resume=["engine=inline"])


# -- killed --------------------------------------------------------------------------------------------------------


def test_sigkill_between_checkpoints(
    start_main: Start, run_main: Run, straight: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = start_main(*TRAIN, "checkpoint.every_iterations=20", "hydra.run.dir=run")
    wait_until(lambda: num_lines(run_dir) > 20 and 3 <= num_lines(run_dir) % 20 <= 10, process)
    process.kill()
    process.wait()
    killed_after = len(progress_of(run_dir))
    (*_, newest) = [name for name in checkpoints_of(run_dir) if not name.startswith(".")]
    saved = int(newest.removeprefix("iteration_"))
    assert saved < killed_after, "lines beyond the checkpoint must be there for this test to mean something"
    outcome = run_main("resume", "run", f"stop.training_iteration={killed_after + 2}")
    assert outcome.code == 0, outcome.err
    lines = lines_of(run_dir)
    assert [line["training_iteration"] for line in lines] == list(range(1, killed_after + 3))
    assert lines == straight(killed_after + 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_with_a_checkpoint(
    number: signal.Signals,
    start_main: Start,
    run_main: Run,
    straight: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    process = start_main(*TRAIN, "checkpoint.every_iterations=null", "hydra.run.dir=run")
    wait_until(lambda: num_lines(run_dir) >= 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (130, "")
    assert f"interrupted: {number.name} after iteration" in out
    done = len(progress_of(run_dir))
    result = result_of(run_dir)
    assert (result["status"], result["training_iteration"]) == ("interrupted", done)
    assert checkpoints_of(run_dir) == [f"iteration_{done:06d}"]
    assert Path(result["checkpoint"]).name == f"iteration_{done:06d}"
    assert run_main("resume", "run", f"stop.training_iteration={done + 2}").code == 0
    assert lines_of(run_dir) == straight(done + 2)


# -- overrides -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(copy_of_run: MakeRun) -> Path:
    """A finished run of two iterations."""
    return copy_of_run(*TRAIN, "stop.training_iteration=2")


def test_a_run_killed_before_its_last_record_gets_it(run_main: Run, run_dir: Path) -> None:
    before = lines_of(run_dir)
    (run_dir / "result.json").unlink()
    outcome = run_main("resume", str(run_dir))
    assert outcome.code == 0, outcome.err
    assert "configuration unchanged" in outcome.out
    assert lines_of(run_dir) == before
    assert result_of(run_dir)["status"] == "finished"
    assert checkpoints_of(run_dir) == ["iteration_000002"]


def cannot_change(key: str, held: str, where: str, got: str, expected: str, *, is_new_run: bool = False) -> Problem:
    other = "; `resume --module-only` begins a new run with its module" if is_new_run else ""
    return Problem(f"{key} cannot change: the checkpoint holds {held}{other}", where, got, expected)


OTHER_SEED = Problem(
    "seed cannot change: the random streams continue from the checkpoint",
    where="override seed=4",
    got="4",
    expected="0",
)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(
            ["seed=4"],
            [OTHER_SEED],
            id="seed",
        ),
        pytest.param(
            ["module.fcnet_hiddens=[16]"],
            [
                cannot_change(
                    "module.fcnet_hiddens",
                    "the parameters of this network",
                    "override module.fcnet_hiddens=[16]",
                    "[16]",
                    "[32]",
                )
            ],
            id="network",
        ),
        pytest.param(
            ["seed=4", "module.vf_share_layers=false", "algorithm.loss=runner.learners.ppo.PPOLos"],
            [
                OTHER_SEED,
                cannot_change(
                    "module.vf_share_layers",
                    "the parameters of this network",
                    "override module.vf_share_layers=false",
                    "false",
                    "true",
                ),
                cannot_change(
                    "algorithm.loss",
                    "the state of this algorithm",
                    "override algorithm.loss=runner.learners.ppo.PPOLos",
                    '"runner.learners.ppo.PPOLos"',
                    '"runner.learners.ppo.PPOLoss"',
                    is_new_run=True,
                ),
                Problem(
                    "algorithm.loss: runner.learners.ppo does not define PPOLos",
                    where="override algorithm.loss=runner.learners.ppo.PPOLos",
                    got="runner.learners.ppo.PPOLos",
                    expected="PPOLoss",
                    nearest="PPOLoss",
                ),
            ],
            id="several",
        ),
        pytest.param(
            ["algorithm.gama=0.9"], [unknown_key("algorithm.gama", "0.9", PPOConfig, nearest="gamma")], id="unknown_key"
        ),
        pytest.param(
            ["stop.env_runners.arived=1"],
            [
                Problem(
                    "this run does not produce the metric env_runners/arived",
                    where="override stop.env_runners.arived=1",
                    got="env_runners/arived",
                    expected=Including("env_runners/num_episodes, ", " more)"),
                    nearest="env_runners/num_episodes",
                )
            ],
            id="unknown_metric",
        ),
        pytest.param(
            ["algorithm.gamma=1.5"],
            [out_of_range("algorithm.gamma", "1.5", "a number >= 0 and <= 1")],
            id="out_of_range",
        ),
        pytest.param(
            ["env=pendulum"],
            [
                Problem(
                    "a stored run takes overrides of single keys, not of groups",
                    where="override env=pendulum",
                    expected="key=value",
                    fix=(
                        "`runner resume RUN_DIR --module-only` starts a new run with the same module, "
                        "and takes group=option"
                    ),
                )
            ],
            id="group",
        ),
        pytest.param(
            ["algorithm.optimizer.name=sgd", "algorithm.optimizer._target_=torch.optim.RAdam"],
            [
                cannot_change(
                    "algorithm.optimizer.name",
                    "the state of this optimiser",
                    "override algorithm.optimizer.name=sgd",
                    '"sgd"',
                    '"adam"',
                    is_new_run=True,
                ),
                cannot_change(
                    "algorithm.optimizer._target_",
                    "the state of this optimiser",
                    "override algorithm.optimizer._target_=torch.optim.RAdam",
                    '"torch.optim.RAdam"',
                    "null",
                    is_new_run=True,
                ),
            ],
            id="optimizer",
        ),
        pytest.param(
            ["+multi_agent.multi_rl_module._target_=tests.support.joint_modules.SharedEncoder"],
            [
                cannot_change(
                    "multi_agent.multi_rl_module",
                    "the parameters and the optimiser of these modules",
                    "checkpoint",
                    "not set",
                    "null",
                    is_new_run=True,
                ),
                cannot_change(
                    "multi_agent.multi_rl_module._target_",
                    "the parameters and the optimiser of these modules",
                    "override multi_agent.multi_rl_module._target_=tests.support.joint_modules.SharedEncoder",
                    '"tests.support.joint_modules.SharedEncoder"',
                    "not set",
                    is_new_run=True,
                ),
                Problem(
                    "multi_agent is set, but CartPole-v1 has a single agent",
                    where="checkpoint",
                    fix="set env._target_ to a MultiAgentEnv class",
                ),
            ],
            id="together",
        ),
        pytest.param(
            ["seed=4", "algorithm.kl_coeff=0.5", "algorithm.gamma=1.5"],
            [
                OTHER_SEED,
                Problem(
                    "algorithm.kl_coeff is an initial value that training adapts; the checkpoint contains the adapted "
                    "value",
                    where="override algorithm.kl_coeff=0.5",
                    got="0.5",
                    expected="0.2",
                    fix="to start a new run with this module, use `runner resume RUN --module-only`",
                ),
                out_of_range("algorithm.gamma", "1.5", "a number >= 0 and <= 1"),
            ],
            id="adapted",
        ),
    ],
)
def test_what_a_resume_refuses(
    run_main: Run, run_dir: Path, tmp_path: Path, overrides: list[str], expected: list[Problem]
) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    outcome = run_main("resume", str(run_dir), "stop.training_iteration=3", *overrides)
    assert outcome.code == 2
    assert_error(outcome.err, ConfigError(expected), tmp_path)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("option", ["--multirun", "--config-dir=."])
def test_options_that_a_resume_does_not_take(run_main: Run, run_dir: Path, option: str) -> None:
    outcome = run_main("resume", str(run_dir), option)
    assert outcome.code == 2
    assert ("--multirun is an option of" in outcome.err) or ("--config-dir needs --module-only" in outcome.err)


def test_another_number_of_sub_environments_starts_new_episodes(run_main: Run, run_dir: Path) -> None:
    overrides = ("env_runners.num_envs_per_env_runner=6", "stop.training_iteration=3")
    outcome = run_main("resume", str(run_dir), *overrides)
    assert outcome.code == 0, outcome.err
    assert "  env_runners.num_envs_per_env_runner  4 -> 6" in outcome.out.splitlines()
    lines = progress_of(run_dir)
    assert [line["training_iteration"] for line in lines] == [1, 2, 3]
    assert lines[2]["num_env_steps_sampled_lifetime"] == sum(line["num_env_steps_sampled"] for line in lines)
    state, _ = load_checkpoint(run_dir / "checkpoints" / "iteration_000003")
    assert state["env_runners"]["generations"] == [1]
    assert run_main("resume", str(run_dir), "stop.training_iteration=4").code == 0  # and goes on from there
    assert len(progress_of(run_dir)) == 4


def test_new_episodes_have_other_seeds(run_dir: Path) -> None:
    checkpoint = run_dir / "checkpoints" / "iteration_000002"
    first_obs = []
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, "env_runners.num_envs_per_env_runner=6"]) as trainer:
        first_obs.append(trainer.env_runners.sample(6, True)[0].rollout.blocks["default_policy"].columns["obs"][0])
    with Trainer.from_checkpoint(checkpoint, ["env_runners.num_envs_per_env_runner=6"]) as trainer:
        block = trainer.env_runners.sample(6, True)[0].rollout.blocks["default_policy"]
        first_obs.append(block.columns["obs"][0])
        assert set(block.t_started.tolist()) == {0}
    assert not np.array_equal(*first_obs)


def test_resume_elsewhere(run_main: Run, run_dir: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    outcome = run_main("resume", str(run_dir), f"hydra.run.dir={tmp_path / 'new'}", "stop.training_iteration=3")
    assert outcome.code == 0, outcome.err
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
    assert [line["training_iteration"] for line in progress_of(tmp_path / "new")] == [1, 2, 3]
    assert checkpoints_of(tmp_path / "new") == ["iteration_000003"]
    assert run_main("resume", str(run_dir), "stop.training_iteration=3").code == 0
    assert lines_of(run_dir) == lines_of(tmp_path / "new")


def test_going_back_to_an_older_checkpoint(run_main: Run, run_dir: Path) -> None:
    resumed = run_main("resume", str(run_dir), "stop.training_iteration=5", "checkpoint.every_iterations=1")
    assert resumed.code == 0, resumed.err
    expected = lines_of(run_dir)
    assert checkpoints_of(run_dir)[-2:] == ["iteration_000004", "iteration_000005"]
    outcome = run_main("resume", str(run_dir / "checkpoints" / "iteration_000004"), "stop.training_iteration=5")
    assert outcome.code == 0, outcome.err
    assert lines_of(run_dir) == expected
    back = run_main("resume", str(run_dir / "checkpoints" / "iteration_000004"), "algorithm.lr=1e-2")
    assert back.code == 0, back.err
    assert lines_of(run_dir)[:4] == expected[:4]
    assert lines_of(run_dir)[4] != expected[4]


def test_later_checkpoints_are_gone_even_if_the_resumed_run_writes_none(
    run_main: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lines of progress are gone, so the next resume must not continue from them."""
    resumed = run_main("resume", str(run_dir), "stop.training_iteration=4", "checkpoint.every_iterations=1")
    assert resumed.code == 0, resumed.err
    assert checkpoints_of(run_dir)[-2:] == ["iteration_000003", "iteration_000004"]

    def interrupt_twice(records: RunRecords, result: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunRecords, "add", interrupt_twice)
        outcome = run_main("resume", str(run_dir / "checkpoints" / "iteration_000003"), "stop.training_iteration=6")
    assert outcome.code == 130
    assert checkpoints_of(run_dir)[-1] == "iteration_000003"
    assert run_main("resume", str(run_dir), "stop.training_iteration=6").code == 0
    assert [line["training_iteration"] for line in progress_of(run_dir)] == [1, 2, 3, 4, 5, 6]


def test_changes_reach_the_run(run_main: Run, run_dir: Path) -> None:
    outcome = run_main("resume", str(run_dir), "algorithm.lr=5e-3", "stop.training_iteration=3")
    assert outcome.code == 0, outcome.err
    assert (
        "changed by overrides (new checkpoints contain the changes, so later resumes need not repeat them)\n"
        in outcome.out
    )
    rates = [line["learners/default_policy/default_optimizer_learning_rate"] for line in progress_of(run_dir)]
    assert rates[-1] == 5e-3
    assert rates[0] == rates[1] != 5e-3
    assert run_main("resume", str(run_dir), "stop.training_iteration=4").code == 0
    last = progress_of(run_dir)[-1]
    assert last["learners/default_policy/default_optimizer_learning_rate"] == 5e-3, "overrides stay"


def test_a_run_without_a_checkpoint(run_main: Run, tmp_path: Path) -> None:
    for path, message in (("nowhere", "the folder does not exist"), (".", "does not contain a checkpoint")):
        outcome = run_main("resume", path)
        assert (outcome.code, outcome.out) == (2, "")
        assert message in outcome.err
    assert run_main("resume").code == 2
