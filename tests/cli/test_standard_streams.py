"""Commands print to any encoding, and do their work if the shell has closed their streams."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.cli.main import main
from runner.cli.verbs import VERBS
from tests.conftest import ROOT, WAIT_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    columns = {"obs": [[0.0]] * 3, "actions": [0, 1, 1], "rewards": [1.0] * 3, "größe_→": ["a"] * 3}
    pq.write_table(pa.table(columns), tmp_path / "steps.parquet")
    return tmp_path


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_what_an_encoding_lacks_is_replaced(encoding: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert main(["inspect", "steps.parquet"]) == 0
    sys.stdout.flush()
    text = written.getvalue().decode(encoding)
    assert "####" in text
    assert "_->" in text
    assert ("größe" if encoding != "ascii" else "gr\\xf6\\xdfe") in text


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_is_printed_without_streams(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    code = main([*verb.split(), "--help"])
    sys.stdout.close()
    sys.stderr.close()
    assert code == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    command = f"exec {sys.executable} -m runner convert offline.input_=steps.parquet offline.output=out {closed}"
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, timeout=WAIT_S, check=False)
    assert done.returncode == 0
    assert [path.suffix for path in (folder / "out").iterdir()] == [".parquet"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system does not have /dev/full")
@pytest.mark.parametrize(
    ("command", "redirection", "code"),
    [
        ("show +experiment=ppo_cartpole", ">/dev/full", 1),
        ("list", ">/dev/full", 1),
        ("inspect steps.parquet", ">/dev/full", 1),
        ("--help", ">/dev/full", 1),
        ("+experiment=ppo_cartpole tracking=none stop.training_iteration=1", ">/dev/full", 0),
        ("show +experiment=unknown", "2>/dev/full", 2),
    ],
)
def test_full_disk(command: str, redirection: str, code: int, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        f"exec {sys.executable} -m runner {command} {redirection}",
        shell=True,
        cwd=folder,
        env=environment,
        timeout=WAIT_S,
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == code
    expected = "cannot write to stdout: No space left on device\n" if redirection == ">/dev/full" else ""
    assert done.stderr == expected
