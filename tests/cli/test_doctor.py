"""`doctor` tells what there is, what is missing, and what to do."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import av
import pytest

from runner.cli import doctor
from runner.cli.doctor import BROKEN, OK, OPTIONAL, Finding, examine
from runner.cli.main import main
from tests.conftest import ROOT, run_process


def found(distribution: str = "runner") -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(distribution)}


@pytest.fixture
def doctored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution that needs numpy, has an extra with a package that nobody has, and one that all have."""
    folder = tmp_path / "doctored-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: doctored\nVersion: 1.0\nRequires-Dist: numpy>=1\n"
        "Requires-Dist: nobody-has-this>=2; extra == 'rare'\nRequires-Dist: torch>=2; extra == 'common'\n"
        "Requires-Dist: numpy>=999; extra == 'future'\n"
        "Provides-Extra: rare\nProvides-Extra: common\nProvides-Extra: future\nProvides-Extra: test\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "doctored"


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "ok        python" in printed
    assert "cores, " in printed
    assert BROKEN not in printed


def test_command_of_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
    assert main(["doctor"]) == 1
    assert "gone cannot be written to (No such file or directory); set hydra.run.dir=DIR" in capsys.readouterr().out


def test_extras(doctored: str) -> None:
    of_doctored = found(doctored)
    assert of_doctored["extra rare"] == Finding("extra rare", OPTIONAL, 'pip install -e ".[rare]"')
    assert of_doctored["extra future"].state == OPTIONAL
    assert of_doctored["extra common"] == Finding("extra common", OK, "torch")
    assert "extra test" not in of_doctored


def test_nothing_else_is_looked_for_where_a_package_is_missing(
    doctored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "doctored-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: nobody-has-this>=2\n")
    of_doctored = found(doctored)
    assert of_doctored["packages"] == Finding("packages", BROKEN, "pip install 'nobody-has-this>=2'")
    assert "machine" not in of_doctored


def test_a_distribution_that_is_not_installed() -> None:
    assert found("nobody-has-this")["packages"].state == BROKEN


def test_no_compiler() -> None:
    printed = run_process(ROOT, "doctor", env={"CXX": "no-such-compiler"}).stdout  # torch looks once in a process
    assert "optional  compiler" in printed
    assert "for compiled updates: torch cannot find a C++ compiler" in printed


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found()["ray"].state == OK
    monkeypatch.setattr(doctor, "_LEAST_SHARED_BYTES", 2**60)
    assert found()["ray"].state == OPTIONAL
    assert "--shm-size" in found()["ray"].text


def test_videos(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found()["video"] == Finding("video", OK, "MP4 by libx264, for evaluation.video and play -o")
    monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    assert found()["video"].state == OPTIONAL
    assert "MP4 by mpeg4, which browsers do not show" in found()["video"].text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems need no DISPLAY")
def test_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert found()["display"].state == OPTIONAL
    monkeypatch.setenv("DISPLAY", ":0")
    assert found()["display"].state == OK


def test_browsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_BROWSERS", ("some-browser",))
    assert found()["browser"].state == OPTIONAL
    program = tmp_path / "some-browser"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert found()["browser"] == Finding("browser", OK, f"{program}, for reports")


def test_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert found()["cluster"].text.startswith("Ray is started here")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert found()["cluster"] == Finding("cluster", OK, f"{address} (from RAY_ADDRESS) answers")
    assert found()["cluster"].state == OPTIONAL
    assert f"nothing answers at {address}" in found()["cluster"].text
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:99999")
    assert found()["cluster"].state == OPTIONAL
