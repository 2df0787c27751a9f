"""`doctor`: find missing packages, devices, programs and permissions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement

from runner.cli.arguments import Arguments

_DEVELOPMENT = ("docs", "test")  # extras that no run needs
_MAIN_PACKAGES = ("torch", "ray", "mlflow", "gymnasium")  # packages whose versions are shown
_SHARED_MEMORY = Path("/dev/shm")
_LEAST_SHARED_BYTES = 2 * 1024**3
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "firefox")
_CLUSTER_TIMEOUT_S = 3.0
OK, OPTIONAL, BROKEN = "ok", "optional", "broken"


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        name: subject of the check.
        state: ok, optional (not found; only runs that use it need it) or broken (no run works).
        text: details, or the fix.
    """

    name: str
    state: str
    text: str


def main(arguments: Arguments) -> int:
    """Print the findings; return 1 if no run would work."""
    findings = list(examine())
    if arguments.has("--json"):
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.state:<8}  {finding.name:<{width}}  {finding.text}")
    return 1 if any(finding.state == BROKEN for finding in findings) else 0


def examine(distribution: str = "runner") -> Iterator[Finding]:
    """Yield the findings; the packages are the requirements of `distribution`."""
    yield Finding("python", OK, f"{sys.version.split()[0]} at {sys.executable}")
    packages = list(_packages(distribution))
    yield from packages
    if any(finding.state == BROKEN for finding in packages):
        return
    yield _machine()
    yield _gpu()
    yield _compiler()
    yield _video()
    yield _display()
    yield _browser()
    yield _shared_memory(_SHARED_MEMORY)
    yield _cluster()
    yield _output(Path.cwd())


def _packages(distribution: str) -> Iterator[Finding]:
    """Yield the packages of a plain installation, and of each extra."""
    try:
        requirements = [Requirement(text) for text in importlib.metadata.requires(distribution) or ()]
        extras = importlib.metadata.metadata(distribution).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        text = f"{distribution} is not installed: pip install --constraint constraints.txt ."
        yield Finding("packages", BROKEN, text)
        return
    needed = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = list(_unmet(needed))
    if wrong:
        yield Finding("packages", BROKEN, f"pip install {' '.join(wrong)}")
    else:
        names = [one.name for one in needed if one.name in _MAIN_PACKAGES]
        yield Finding("packages", OK, ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
    for extra in extras:
        if extra in _DEVELOPMENT:
            continue
        of_extra = [one for one in requirements if one not in needed and _asks(one, extra)]
        lacking = list(_unmet(of_extra))
        text = f'pip install -e ".[{extra}]"' if lacking else ", ".join(map(_name, of_extra))
        yield Finding(f"extra {extra}", OPTIONAL if lacking else OK, text)


def _name(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}"


def _asks(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate({"extra": extra})


def _unmet(requirements: Sequence[Requirement]) -> Iterator[str]:
    """Yield the requirements that are not installed, or in another version; of one with extras, their packages too."""
    for requirement in requirements:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"'{_name(requirement)}{requirement.specifier}'"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"'{_name(requirement)}{requirement.specifier}'"
        for extra in requirement.extras:
            of_extra = [Requirement(text) for text in importlib.metadata.requires(requirement.name) or ()]
            yield from _unmet([one for one in of_extra if _asks(one, extra) and not _asks(one, "")])


def _machine() -> Finding:
    from runner.experiment.machine_memory import available_memory

    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("machine", OK, f"{num_cores} cores, {_size(available_memory())} of memory free")


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return Finding("gpu", OK, ", ".join(names))
    built_for = torch.version.cuda
    reason = f"torch for CUDA {built_for} does not find a device" if built_for else "this torch is built without CUDA"
    return Finding("gpu", OPTIONAL, f"{reason}; learners.device=auto uses the CPU")


def _compiler() -> Finding:
    from runner.learners.compile_obstacle import find_compile_obstacle

    obstacle = find_compile_obstacle()
    if obstacle is not None:
        return Finding("compiler", OPTIONAL, f"for compiled updates: {obstacle}")
    from runner.compat.torch_compile import cpp_compiler

    return Finding("compiler", OK, f"{cpp_compiler()}, for compiled updates")


def _video() -> Finding:
    from runner.videos import BROWSERS_CODEC, mp4_codec

    if importlib.util.find_spec("av") is None:
        return Finding("video", OPTIONAL, 'for evaluation.video and play -o: pip install -e ".[video]"')
    codec = mp4_codec()
    if codec != BROWSERS_CODEC:
        fix = f"install a build of av with {BROWSERS_CODEC}, or write GIF files"
        return Finding("video", OPTIONAL, f"MP4 by {codec}, which browsers do not show; {fix}")
    return Finding("video", OK, f"MP4 by {codec}, for evaluation.video and play -o")


def _display() -> Finding:
    from runner.cli.play import has_display

    if not has_display():
        text = "DISPLAY is not set, so `runner play` cannot open a window; use -o video.mp4"
        return Finding("display", OPTIONAL, text)
    return Finding("display", OK, "for the window of runner play")


def _browser() -> Finding:
    found = next((path for path in map(shutil.which, _BROWSERS) if path), None)
    if found is None:
        text = f"none of {', '.join(_BROWSERS)} is on PATH; to read a report, copy its file to another machine"
        return Finding("browser", OPTIONAL, text)
    return Finding("browser", OK, f"{found}, for reports")


def _cluster() -> Finding:
    """Return whether a cluster answers at RAY_ADDRESS."""
    from runner.cluster.connection import ADDRESS_VARIABLE, LOCAL

    address = os.environ.get(ADDRESS_VARIABLE) or LOCAL
    if address == LOCAL:
        return Finding("cluster", OK, "Ray is started here; RAY_ADDRESS or ray.address=HOST:PORT joins a cluster")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # auto: the cluster that runs on this machine
        return Finding("cluster", OK, f"{ADDRESS_VARIABLE} is {address}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CLUSTER_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        return Finding("cluster", OPTIONAL, f"nothing answers at {address} (from {ADDRESS_VARIABLE}): {error}")
    return Finding("cluster", OK, f"{address} (from {ADDRESS_VARIABLE}) answers")


def _shared_memory(folder: Path) -> Finding:
    """Return the memory that Ray's objects can use before they are written to disk."""
    if not folder.is_dir():
        return Finding("ray", OK, "this system does not have /dev/shm, so Ray keeps objects in files")
    free = shutil.disk_usage(folder).free
    if free < _LEAST_SHARED_BYTES:
        text = f"only {_size(free)} free in {folder}, so Ray may write objects to the disk; docker run --shm-size=4g"
        return Finding("ray", OPTIONAL, text)
    return Finding("ray", OK, f"{_size(free)} free in {folder} for objects")


def _output(folder: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("output", BROKEN, f"{folder} cannot be written to ({error.strerror}); set hydra.run.dir=DIR")
    return Finding("output", OK, f"{_size(shutil.disk_usage(folder).free)} free in {folder}")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1024**3:.1f} GiB"
