"""The end of a process that Ray cannot do without is told while calls of Ray wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, WAIT_S

pytestmark = pytest.mark.ray

COMMAND = """
import os, signal, threading
from ray._private import worker
from runner.cluster import connected
from runner.config.blocks import RayConfig
notes, is_told = [], threading.Event()
def note(text):
    notes.append(text)
    if "has ended" in text:
        is_told.set()
with connected(RayConfig(), {"CPU": 1}, "env_runners.num_env_runners", note):
    (gcs,) = worker._global_node.all_processes["gcs_server"]
    os.kill(gcs.process.pid, signal.SIGKILL)
    assert is_told.wait(50), notes
    print(notes[-1], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # Ray's own end of it takes a minute
"""


def test_a_lost_process_is_told_at_once() -> None:
    command = [sys.executable, "-c", COMMAND]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    ends = "Ray ends this command within a minute; continue a run with resume, a sweep with the same command"
    assert done.stdout == f"Ray's gcs_server (exit code -9) has ended: {ends}\n", done.stderr
