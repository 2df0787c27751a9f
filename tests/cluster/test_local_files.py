"""A Ray of our own starts with a long TMPDIR and without a home folder that can be written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cluster import local_files
from runner.cluster.local_files import ray_temp_dir, ray_token
from runner.config.errors import ConfigError
from tests.conftest import ROOT, WAIT_S

_USE_RAY = """
import ray
from runner.cluster.connection import start_local_ray, stop_ray
start_local_ray(1)
print(ray.get(ray.remote(lambda: 7).remote()))
stop_ray()
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two candidates for a private folder."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(local_files, "_BASES", (str(tmp_path / "a"), str(tmp_path / "b")))
    for name in ("RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_only_a_long_path_is_replaced(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", f"/{'x' * 38}")
    assert ray_temp_dir() is None
    monkeypatch.setenv("RAY_TMPDIR", f"/{'x' * 39}")
    found = ray_temp_dir()
    private = folders / "a" / f"runner-{os.getuid()}"
    assert found == str(private / "ray")
    assert private.stat().st_mode & 0o777 == 0o700
    assert ray_temp_dir() == found


def test_a_folder_that_others_may_write_to_is_not_used(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/" + "x" * 60)
    name = f"runner-{os.getuid()}"
    (folders / "a" / name).symlink_to(folders)
    assert ray_temp_dir() == str(folders / "b" / name / "ray")
    (folders / "b" / name).chmod(0o777)
    with pytest.raises(ConfigError) as failure:
        ray_temp_dir()
    assert failure.value.problems[0].fix == "set RAY_TMPDIR=FOLDER with a path of at most 39 bytes"


def test_the_token_is_elsewhere_without_a_home(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folders))
    with ray_token():
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    (folders / "file").touch()
    monkeypatch.setenv("HOME", str(folders / "file" / "home"))
    with ray_token():
        path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        token = path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
    assert len(token) == 64
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    with ray_token():
        assert Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text() == token


@pytest.mark.slow
@pytest.mark.ray
def test_ray_starts_with_a_long_tmpdir_and_without_a_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    removed = {"RAY_ADDRESS", "RAY_TMPDIR", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"}
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    environment = kept | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "HOME": str(tmp_path / "file" / "home")}
    command = [sys.executable, "-c", _USE_RAY]
    for _ in range(2):  # the second finds what the first has left
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
