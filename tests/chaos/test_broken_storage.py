"""Disks that are full, folders that vanish, MLflow stores that cannot be written to: nothing that was saved is lost."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoints import load_checkpoint
from runner.checkpoints.folder import list_checkpoints
from tests.chaos.conftest import Scenario, Start
from tests.chaos.processes import RUNNER, Command
from tests.chaos.runs import NUM_ITERATIONS, SAMPLED, assert_each_iteration_once, assert_equal_ends
from tests.conftest import num_lines

TRAIN = ("+experiment=ppo_cartpole", *SAMPLED["ppo_cartpole"])
ENDLESS = ("stop.training_iteration=1000000", "stop.num_env_steps_sampled_lifetime=1000000000")
_PAGE = 4096  # bytes


class Tmpfs:
    """A file system in memory, of a size of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def mount(self, options: str) -> None:
        """Mount it, or mount it anew with other options."""
        if (done := _mount("-t", "tmpfs", "-o", options, "tmpfs", str(self.path))).returncode:
            pytest.skip(f"mounting a tmpfs is not possible here: {done.stderr.strip()}")

    def remount(self, options: str) -> None:
        """Change its options."""
        done = _mount("-o", f"remount,{options}", str(self.path))
        assert done.returncode == 0, done.stderr

    def fill(self, num_free_pages: int) -> Path:
        """Return the file that takes all room but a few pages."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(_PAGE)):
                pass
        os.truncate(filler, filler.stat().st_size - num_free_pages * _PAGE)
        return filler

    def unmount(self) -> None:
        """Take it away, also while files in it are open."""
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)


def _mount(*arguments: str) -> subprocess.CompletedProcess[str]:
    if (program := shutil.which("mount")) is None:
        pytest.skip("mounting a tmpfs is not possible here: there is no program `mount`")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Tmpfs]:
    """Yield a file system that is not mounted yet; afterwards it is unmounted."""
    made = Tmpfs(tmp_path / "disk")
    yield made
    made.unmount()


def assert_checkpoints_intact(run_dir: Path) -> None:
    """Check that there are checkpoints, and that each is whole."""
    folders = list_checkpoints(run_dir / "checkpoints")
    assert folders
    for folder in folders:
        load_checkpoint(folder)


def straight_run(start: Start, run_dir: Path) -> None:
    """Run without any fault."""
    command = start(*RUNNER, *TRAIN, f"hydra.run.dir={run_dir}")
    assert command.wait() == 0, command.output


@pytest.mark.slow
def test_full_disk(tmpfs: Tmpfs, start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario) -> None:
    """The disk fills up in mid-run; with room again the run goes on as if nothing had been."""
    tmpfs.mount("size=64m")
    run_dir = tmpfs.path / "run"
    command = start(*RUNNER, *TRAIN, f"hydra.run.dir={run_dir}")
    assert command.reaches(lambda: list_checkpoints(run_dir / "checkpoints")), command.output
    filler = tmpfs.fill(num_free_pages=chance.randrange(4))
    scenario.inject("disk full")
    assert command.wait() == 1, command.output
    assert "Traceback" not in command.output
    assert_checkpoints_intact(run_dir)
    filler.unlink()
    resumed = start(*RUNNER, "resume", str(run_dir))
    assert resumed.wait() == 0, resumed.output
    straight_run(start, tmp_path / "straight")
    assert_equal_ends(tmp_path / "straight", run_dir)
    scenario.ends("exit code 1, checkpoints intact; resumed with room, the end is equal bit for bit")


def assert_folder_is_named(command: Command, run_dir: Path) -> None:
    """Check that the message blames the folder, and nobody's code."""
    assert "Traceback" not in command.output
    assert "code of yours" not in command.output
    assert str(run_dir) in command.output


@pytest.mark.chaos
def test_run_dir_that_vanishes(start: Start, tmp_path: Path, scenario: Scenario) -> None:
    """Moved away in mid-run: an error, and the moved folder can be resumed."""
    run_dir, moved = tmp_path / "run", tmp_path / "moved"
    command = start(*RUNNER, *TRAIN, *ENDLESS, f"hydra.run.dir={run_dir}")
    assert command.reaches(lambda: list_checkpoints(run_dir / "checkpoints")), command.output
    run_dir.rename(moved)
    scenario.inject("run dir moved away")
    assert command.wait() == 1, command.output
    assert_folder_is_named(command, run_dir)
    assert_checkpoints_intact(moved)
    resumed = start(*RUNNER, "resume", str(moved), f"stop.training_iteration={num_lines(moved) + 3}")
    assert resumed.wait() == 0, resumed.output
    scenario.ends("exit code 1 with the folder's name; the moved folder is resumed")


@pytest.mark.chaos
def test_run_dir_that_is_deleted(start: Start, tmp_path: Path, scenario: Scenario) -> None:
    run_dir = tmp_path / "run"
    command = start(*RUNNER, *TRAIN, *ENDLESS, f"hydra.run.dir={run_dir}")
    assert command.reaches(lambda: list_checkpoints(run_dir / "checkpoints")), command.output
    shutil.rmtree(run_dir, ignore_errors=True)
    scenario.inject("run dir deleted")
    assert command.wait() == 1, command.output
    assert_folder_is_named(command, run_dir)
    scenario.ends("exit code 1 with the folder's name")


# -- MLflow ------------------------------------------------------------------------------------------------------------


def with_mlflow(store: Path) -> list[str]:
    return [
        *(override for override in TRAIN if override != "tracking=none"),
        f"tracking.tracking_uri=sqlite:///{store}",
        "tracking.flush_interval_s=0.2",
    ]


@pytest.fixture
def store(start: Start, tmp_path: Path) -> Path:
    """Return the MLflow store of a run that has ended."""
    path = tmp_path / "mlflow.db"
    command = start(*RUNNER, *with_mlflow(path), f"hydra.run.dir={tmp_path / 'straight'}")
    assert command.wait() == 0, command.output
    return path


@pytest.mark.chaos
def test_locked_mlflow_store(store: Path, start: Start, tmp_path: Path, scenario: Scenario) -> None:
    """Another program holds the database for the whole run."""
    other = sqlite3.connect(store, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    scenario.inject("MLflow's database locked")
    try:
        command = start(*RUNNER, *with_mlflow(store), f"hydra.run.dir={tmp_path / 'run'}")
        assert command.wait() == 0, command.output
    finally:
        other.close()
    assert "MLflow" in command.output, "a loss is told"
    assert_each_iteration_once(tmp_path / "run", NUM_ITERATIONS)
    assert_equal_ends(tmp_path / "straight", tmp_path / "run")
    scenario.ends("training not stopped, its end is equal bit for bit; missing values in MLflow are reported")


@pytest.mark.chaos
def test_read_only_mlflow_store(store: Path, tmpfs: Tmpfs, start: Start, tmp_path: Path, scenario: Scenario) -> None:
    """The database lies on a file system that is mounted read-only, which stops root too."""
    tmpfs.mount("size=64m")
    read_only = Path(shutil.copy(store, tmpfs.path))
    tmpfs.remount("ro")
    scenario.inject("MLflow's database read-only")
    command = start(*RUNNER, *with_mlflow(read_only), f"hydra.run.dir={tmp_path / 'run'}")
    assert command.wait() == 0, command.output
    assert "MLflow" in command.output, "a loss is told"
    assert_equal_ends(tmp_path / "straight", tmp_path / "run")
    scenario.ends("training not stopped, its end is equal bit for bit; missing values in MLflow are reported")


@pytest.mark.chaos
def test_mlflow_store_that_is_locked_in_mid_run(start: Start, tmp_path: Path, scenario: Scenario) -> None:
    path, run_dir = tmp_path / "mlflow.db", tmp_path / "run"
    command = start(*RUNNER, *with_mlflow(path), "stop.training_iteration=60", f"hydra.run.dir={run_dir}")
    assert command.reaches(lambda: (run_dir / "mlflow_run.json").exists() and num_lines(run_dir) > 2), command.output
    other = sqlite3.connect(path, isolation_level=None, timeout=30)
    other.execute("BEGIN EXCLUSIVE")
    scenario.inject("MLflow's database locked in mid-run")
    try:
        assert command.wait() == 0, command.output
    finally:
        other.close()
    assert_each_iteration_once(run_dir, 60)
    scenario.ends("training not stopped")


@pytest.fixture
def small_store() -> Iterator[Any]:
    """Yield a Ray cluster whose object store has the least room that Ray allows, 75 MiB."""
    from ray.cluster_utils import Cluster

    room = 75 * 2**20
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False, "object_store_memory": room}
    )
    yield cluster
    cluster.shutdown()


@pytest.mark.ray
@pytest.mark.chaos
def test_full_object_store(small_store: Any, start: Start, tmp_path: Path, scenario: Scenario) -> None:
    """Samples of 29 MB, four of which are in flight: Ray writes some of them to the disk, and none is lost."""
    flatten = "connector: {_target_: runner.pipelines.FlattenObservations}"
    in_order = "[{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}, ConcatBatches, TrainOneStep]"
    overrides = [
        *("+experiment=impala_cartpole", "tracking=none", "evaluation=none", f"algorithm.plan={in_order}"),
        *("env=catch", "env.env_config={rows: 84, columns: 84}", "module.fcnet_hiddens=[8]"),
        f"connectors.env_to_module=[{{insert_before: NumpyToTensor, {flatten}}}]",
        f"connectors.learner=[{{insert_before: AgentToModuleMapping, {flatten}}}]",
        *("env_runners.num_env_runners=2", "env_runners.num_envs_per_env_runner=50", "stop.training_iteration=4"),
        *("algorithm.train_batch_size_per_learner=8000", "algorithm.min_sample_timesteps_per_iteration=8000"),
    ]
    run_dirs = [tmp_path / "inline", tmp_path / "full"]
    for run_dir, own in zip(run_dirs, ("engine=inline", f"ray.address={small_store.address}"), strict=True):
        command = start(*RUNNER, *overrides, own, f"hydra.run.dir={run_dir}")
        assert command.wait() == 0, command.output
    logs = Path(small_store.head_node.get_session_dir_path(), "logs")
    assert any("Spilled" in path.read_text() for path in logs.glob("raylet*.out")), "the store was full"
    scenario.inject("an object store that is full")
    assert_equal_ends(*run_dirs)
    scenario.ends("Ray writes samples to the disk; the run has the numbers of one in a single process")
