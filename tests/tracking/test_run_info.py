import json
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.tracking.run_info import flatten_parameters, git_revision, package_versions, run_info

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run([*GIT, "init", "-q", tmp_path], check=True)
    (tmp_path / "a.txt").write_text("a")
    subprocess.run([*GIT, "add", "."], cwd=tmp_path, check=True)
    subprocess.run([*GIT, "commit", "-qm", "a"], cwd=tmp_path, check=True)
    return tmp_path


def test_git_revision_and_dirty_flag(repository: Path) -> None:
    head = subprocess.run([*GIT, "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True)
    (repository / "untracked.txt").write_text("outputs are not tracked")
    assert git_revision(repository) == {"revision": head.stdout.strip(), "dirty": False}
    (repository / "a.txt").write_text("b")
    assert git_revision(repository) == {"revision": head.stdout.strip(), "dirty": True}


def test_no_repository_and_no_commit(tmp_path: Path) -> None:
    assert git_revision(tmp_path) == {"revision": None, "dirty": None}
    assert git_revision(tmp_path / "missing") == {"revision": None, "dirty": None}
    subprocess.run([*GIT, "init", "-q", tmp_path], check=True)
    assert git_revision(tmp_path) == {"revision": None, "dirty": False}


def test_run_info_is_json_and_names_the_essentials(tmp_path: Path) -> None:
    info = json.loads(json.dumps(run_info(tmp_path)))
    assert info["python"] == sys.version.split()[0]
    assert info["versions"]["mlflow"]
    assert info["cpu_count"] >= info["cpus_available"] >= 1
    assert flatten_parameters(info)["git.revision"] == "null"


def test_packages_that_are_not_installed_are_left_out() -> None:
    assert set(package_versions(["pytest", "no-such-package-here"])) == {"pytest"}


@dataclass(frozen=True)
class Algorithm:
    lr: float = 1e-3
    schedule: list[list[float]] = field(default_factory=lambda: [[0, 0.1], [10, 0.0]])


def test_flatten_parameters_writes_values_like_yaml() -> None:
    config = {
        "algorithm": Algorithm(),
        "env": {"env": "CartPole-v1", "env_config": {}, "_target_": None},
        "debug": False,
        "limit": math.inf,
        "edits": [{"remove": "GAE"}],
    }
    assert flatten_parameters(config) == {
        "algorithm.lr": "0.001",
        "algorithm.schedule": "[[0, 0.1], [10, 0.0]]",
        "env.env": "CartPole-v1",
        "env.env_config": "{}",
        "env._target_": "null",
        "debug": "false",
        "limit": "inf",
        "edits": '[{"remove": "GAE"}]',
    }


def test_the_package_imports_neither_mlflow_nor_rich() -> None:
    script = "import sys, runner.tracking; print({'mlflow', 'rich', 'torch', 'ray', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
