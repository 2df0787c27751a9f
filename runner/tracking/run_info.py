"""Reproducibility record of a run: code revision, versions, machine, data sets; and flat parameters."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runner.tracking.headline import bytes_text
from runner.tracking.plain_values import json_value

Context = Literal["training", "evaluation"]


@dataclass(frozen=True)
class DataSet:
    """Identity and content of recorded data.

    Attributes:
        name: name for users.
        digest: digest of the content; data with equal name and digest are the same.
        context: use of the data in the run.
        source_type: kind of storage: local, s3, gs, ...
        source: address of the data, for example in `uri`.
        schema: column -> type.
        profile: counts and sizes, if known.
    """

    name: str
    digest: str
    context: Context
    source_type: str
    source: Mapping[str, Any]
    schema: Mapping[str, str] = field(default_factory=dict)
    profile: Mapping[str, str | int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name and size."""
        return sized(self.name, int(self.profile.get("num_files", 0)), int(self.profile.get("num_bytes", 0)))


def sized(name: str, num_files: int, num_bytes: int) -> str:
    """Return a name with its size. Zeros mean unknown."""
    size = [f"{num_files:,} file{'' if num_files == 1 else 's'}"] if num_files else []
    size += [bytes_text(num_bytes)] if num_bytes else []
    return f"{name} ({', '.join(size)})" if size else name


RECORDED_PACKAGES = (
    *("runner", "torch", "ray", "gymnasium", "numpy", "hydra-core", "omegaconf"),
    *("pyarrow", "msgpack", "safetensors", "mlflow"),
    *("mujoco", "ale-py", "box2d", "envpool", "minatar", "minigrid", "mpe2", "pettingzoo"),
)
GIT_TIMEOUT_S = 5.0


def run_info(directory: str | os.PathLike[str] = ".") -> dict[str, Any]:
    """Return git revision, package versions and machine. No package is imported; git is called once."""
    return {
        "git": git_revision(directory),
        "versions": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_available": _cpus_available(),
        "command": [sys.executable, *sys.argv],
    }


def cpu_model() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def git_revision(directory: str | os.PathLike[str] = ".") -> dict[str, Any]:
    """Return `{"revision": sha or None, "dirty": bool or None}`, with None if git or a repository is missing.

    Dirty means that a tracked file differs from the revision.
    """
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        answer = subprocess.run(
            command, cwd=directory, capture_output=True, encoding="utf-8", timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return {"revision": None, "dirty": None}
    lines = answer.stdout.splitlines()
    revision = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    is_dirty = any(not line.startswith("#") for line in lines)
    return {"revision": None if revision == "(initial)" else revision, "dirty": is_dirty}


def package_versions(packages: Iterable[str] = RECORDED_PACKAGES) -> dict[str, str]:
    """Return distribution name -> version of the installed `packages`."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def flatten_parameters(config: Any, prefix: str = "") -> dict[str, str]:
    """Flatten a nested mapping or dataclass: keys are joined with ".", values are written as in YAML.

    Lists and empty mappings stay one value (JSON); None becomes `null` and True becomes `true`.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if (isinstance(value, Mapping) and value) or dataclasses.is_dataclass(value):
            flat |= flatten_parameters(value, f"{name}.")
        else:
            flat[name] = _parameter_text(value)
    return flat


def _parameter_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):  # JSON would lose NaN and infinity
        return repr(float(value))
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _cpus_available() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
