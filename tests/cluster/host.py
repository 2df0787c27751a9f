"""A Ray cluster of another process, as `ray start` leaves one on a machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

HOST = """
import sys, ray
from runner.cluster import start_local_ray
start_local_ray(3)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of processes whose Ray keeps its files in a folder, and asks for no token."""
    known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return known | {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled"} | more


@contextlib.contextmanager
def hosted_ray(cwd: Path | None = None) -> Iterator[tuple[Path, str]]:
    """Run a cluster of 3 CPUs, in a working directory; yields Ray's folder and the address."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # names of sockets are short
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, env=environment_of(folder), cwd=cwd, text=True, **pipes) as host:
        assert host.stdout is not None
        address = host.stdout.readline().strip()
        assert address, "it has not started"
        (folder / "ray" / "ray_current_cluster").write_text(address)  # where `ray start` leaves it
        try:
            yield folder, address
        finally:
            host.kill()
            shutil.rmtree(folder, ignore_errors=True)
