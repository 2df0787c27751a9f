"""The examples do what their text says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml  # type: ignore[import-untyped]

from runner.config.offline import OfflineConfig
from runner.offline.writing.conversion import convert
from tests.cluster.host import environment_of, hosted_ray
from tests.conftest import QUICK, ROOT, marked_but, result_of, run_process

CI = ROOT / "examples" / "ci"
CLUSTER = ROOT / "examples" / "cluster"
CORRIDOR = ROOT / "examples" / "corridor"
RECORDED_DATA = ROOT / "examples" / "recorded_data"


ITEM_BY_ITEM = (
    "connectors.learner=[{discard: earlier_edits}, {insert_before: AddColumnsFromEpisodesToTrainBatch, "
    "connector: {_target_: corridor.NoveltyBonusItemByItem, scale: 0.2}}]"
)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], [ITEM_BY_ITEM]], ids=["vectorised", "item_by_item"])
def test_the_corridor_is_learned(tmp_path: Path, overrides: list[str]) -> None:
    run_dir = tmp_path / "run"
    arguments = ["+experiment=corridor", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}"]
    run_process(CORRIDOR, *arguments, *overrides)
    assert result_of(run_dir)["stop_reason"].startswith("mean return ")


def test_a_callback_reports_why_episodes_end(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    short = ["stop.training_iteration=2", "evaluation.evaluation_interval=null", "algorithm.num_epochs=1"]
    arguments = ["+experiment=falls", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}", *short]
    run_process(ROOT / "examples" / "callbacks", *arguments)
    found = result_of(run_dir)
    assert found["callbacks/fell"] > 0.9  # episodes of random actions end so, and not at the edge of the track
    assert 12 < found["callbacks/largest_angle"] < 20


def test_the_maze_is_an_environment_that_keeps_the_rules() -> None:
    result = run_process(ROOT / "examples" / "own_environment", "check-env", "maze.Maze")
    assert result.stdout.startswith("maze.Maze: usable")


@pytest.mark.slow
def test_a2c_from_nothing_is_a2c(tmp_path: Path) -> None:
    short = ["stop.training_iteration=2", "algorithm.min_sample_timesteps_per_iteration=0", "tracking=none"]
    folder = ROOT / "examples" / "own_a2c"
    values = [
        "algorithm.standardize_advantages=true",
        "algorithm.lambda_=0.95",
        "algorithm.grad_clip=0.5",
        "algorithm.entropy_coeff=0.0",
    ]
    results = []
    for name, overrides in {"own": [], "ours": ["algorithm=a2c", *values]}.items():
        arguments = ["+experiment=my_a2c_cartpole", "--config-dir", ".", *short, *overrides]
        run_process(folder, *arguments, f"hydra.run.dir={tmp_path / name}")
        results.append(result_of(tmp_path / name))
    own, ours = results
    for name in ("policy_loss", "vf_loss", "entropy"):
        metric = f"learners/default_policy/{name}"
        assert own[metric] == pytest.approx(ours[metric], rel=1e-4)
    assert own["env_runners/episode_return_mean"] == ours["env_runners/episode_return_mean"]


@pytest.mark.slow
def test_td3_from_scratch_trains_compiled_and_is_exported(tmp_path: Path) -> None:
    folder, run_dir = ROOT / "examples" / "own_td3", tmp_path / "run"
    short = ["stop.num_env_steps_sampled_lifetime=80", "algorithm.learning_starts=40", "learners.compile=true"]
    short += ["algorithm.min_sample_timesteps_per_iteration=40", "evaluation.evaluation_duration=1", "tracking=none"]
    train = ["+experiment=my_td3_pendulum", "--config-dir", ".", *short, f"hydra.run.dir={run_dir}"]
    for arguments in (train, ["export", str(run_dir), str(tmp_path / "policy.onnx"), "--trust"]):
        run_process(folder, *arguments)
    assert result_of(run_dir)["learners/default_policy/critic_loss"] > 0


OWN_MODULE = ("own_module", "residual_cartpole")


@pytest.mark.parametrize(
    ("folder", "experiment"),
    marked_but(
        pytest.mark.slow,
        [OWN_MODULE, ("own_module", "attention_cartpole"), ("own_connector", "angles_cartpole")],
        OWN_MODULE,
    ),
)
def test_own_modules_and_connectors_train_and_are_exported(tmp_path: Path, folder: str, experiment: str) -> None:
    short = ["stop.training_iteration=1", "tracking=none", "evaluation.evaluation_interval=null"]
    run_dir = tmp_path / "run"
    arguments = [f"+experiment={experiment}", "--config-dir", "my_conf", *short, f"hydra.run.dir={run_dir}"]
    for command in (arguments, ["export", str(run_dir), str(tmp_path / "policy.onnx"), "--trust"]):
        run_process(ROOT / "examples" / folder, *command)


@pytest.mark.slow
def test_two_agents_learn_with_one_critic(tmp_path: Path) -> None:
    folder, run_dir = ROOT / "examples" / "shared_critic", tmp_path / "run"
    assert len((folder / "shared_critic.py").read_text().splitlines()) < 60
    arguments = ["+experiment=two_switches", "--config-dir", ".", "tracking=none", f"hydra.run.dir={run_dir}"]
    run_process(folder, *arguments, env={"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"})
    assert result_of(run_dir)["stop_reason"].startswith("mean return ")


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["whispers", "opponents"])
def test_agents_that_hear_or_see_each_other_know_the_lamp(tmp_path: Path, experiment: str) -> None:
    folder, run_dir = ROOT / "examples" / "agents", tmp_path / "run"
    arguments = [f"+experiment={experiment}", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}"]
    run_process(folder, *arguments)
    assert result_of(run_dir)["stop_reason"].startswith("mean return ")


OF_RECORDED_EPISODES = ("mirrored", "equal_actions", "first_episodes")
OF_OWN_DATA = ("stacked_sentences", "stream", "pictures", "read_pictures", "archived_pictures", "database")


@pytest.fixture(scope="module")
def recorded_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The example's folder after its scripts, and the environment of a cluster that runs there for all its runs."""
    folder = tmp_path_factory.mktemp("recorded") / "example"
    shutil.copytree(RECORDED_DATA, folder)
    for script in ("pictures.py", "sources.py"):
        run_process(folder, program=[script])
    recorded = str(ROOT / "tests" / "data" / "rllib_cartpole_episodes")
    convert(OfflineConfig(input_=recorded, output=str(folder / "episodes")))
    with hosted_ray(folder) as (ray_folder, address):
        yield folder, environment_of(ray_folder, RAY_ADDRESS=address)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("experiment", [*OF_OWN_DATA, *OF_RECORDED_EPISODES])
def test_recorded_data_through_parts_of_ones_own(
    tmp_path: Path, recorded_data: tuple[Path, dict[str, str]], experiment: str
) -> None:
    folder, environment = recorded_data
    overrides = ["offline.input_=episodes"] if experiment in OF_RECORDED_EPISODES else []
    learns_what_was_recorded(experiment, folder, tmp_path / "run", *overrides, env=environment)


@pytest.mark.slow
@pytest.mark.ray
def test_recorded_text_in_a_ray_of_the_runs_own(tmp_path: Path) -> None:
    learns_what_was_recorded("sentences", RECORDED_DATA, tmp_path / "run")


def learns_what_was_recorded(
    experiment: str, folder: Path, run_dir: Path, *overrides: str, env: dict[str, str] | None = None
) -> None:
    arguments = [f"+experiment={experiment}", "--config-dir", "my_conf", "tracking=none", f"hydra.run.dir={run_dir}"]
    result = run_process(folder, *arguments, *overrides, env=env)
    assert result_of(run_dir)["stop_reason"].startswith("mean evaluation return ")
    assert "WARNING" not in result.stderr
    assert "core_worker" not in result.stderr


def ci_commands() -> dict[str, list[str]]:
    """The commands of each CI system's example that are not its own."""
    workflow: dict[str, Any] = yaml.safe_load((CI / "train.yml").read_text())
    (job,) = workflow["jobs"].values()
    (block,) = re.findall(r"```yaml\n(.*?)```", (CI / "README.md").read_text(), re.DOTALL)
    (gitlab,) = yaml.safe_load(block).values()
    return {"github": [step["run"] for step in job["steps"] if "run" in step], "gitlab": gitlab["script"]}


def test_the_jobs_of_ci_systems(tmp_path: Path) -> None:
    """Word for word; one iteration does not reach what the job asserts, and that fails it."""
    install, validate, train = ci_commands()["github"]
    assert install == "python -m pip install --constraint constraints.txt ."
    quick = [*QUICK[:4], "tracking=none", "stop.training_iteration=1"]
    codes = {}
    for command, overrides in ((validate, []), (train, quick)):
        program, *arguments = shlex.split(command)
        assert program == "runner"
        result = run_process(tmp_path, *arguments, *overrides, exit_code=None)
        codes[command] = result.returncode, result.stderr
    assert codes == {validate: (0, ""), train: (3, "")}
    assert result_of(tmp_path / "results" / "run")["status"] == "finished"
    cases = ElementTree.parse(tmp_path / "results" / "train.xml").getroot().iter("testcase")
    name = "assert evaluation/env_runners/episode_return_mean >= 450"
    assert {case.get("name"): case.find("failure") is None for case in cases} == {"run": True, name: False}
    assert ci_commands()["gitlab"] == [install, validate.replace(" --format github", ""), train]


def test_the_files_of_clusters_are_read() -> None:
    """By Ray itself where it starts the machines, and by the shell."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    of_machines = prepare_config(yaml.safe_load((CLUSTER / "ray_up.yaml").read_text()))
    validate_config(of_machines)
    (node_type,) = of_machines["available_node_types"].values()
    assert node_type["min_workers"] == len(of_machines["provider"]["worker_ips"])
    cluster = yaml.safe_load((CLUSTER / "ray_cluster.yaml").read_text())
    job = yaml.safe_load((CLUSTER / "ray_job.yaml").read_text())
    assert (cluster["kind"], job["kind"]) == ("RayCluster", "RayJob")
    assert job["spec"]["rayClusterSpec"] == cluster["spec"], "the same nodes"
    for script in (
        ["-n", "slurm.sh"],
        ["-nc", job["spec"]["entrypoint"]],
        ["-nc", shlex.split(job["spec"]["entrypoint"])[2]],
    ):
        result = subprocess.run(["bash", *script], cwd=CLUSTER, capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("file", ["ray_job.yaml", "slurm.sh"])
def test_the_runs_of_clusters_are_valid(file: str) -> None:
    (arguments,) = re.findall(r"runner train (.*?) \"?hydra\.run\.dir", (CLUSTER / file).read_text(), re.DOTALL)
    run_process(ROOT, "validate", *arguments.split())
    assert "ray.address=auto" in arguments
