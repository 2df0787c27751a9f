"""The distributions of `runner` and of the simulators' client: what is in them, and that they run alone.

`make dist-check` runs the tests marked `dist` too, which install them from the network into empty environments.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import ROOT, WAIT_S, addresses_of, progress_of

CLIENT = ROOT / "clients" / "python"
CARTPOLE = CLIENT / "cartpole.py"
SMALL = (
    "algorithm.train_batch_size_per_learner=400",
    "algorithm.num_epochs=2",
    "module.fcnet_hiddens=[8]",
    "evaluation.evaluation_interval=null",
    "stop.training_iteration=2",
)
INSTALL_S = 900.0

Command = Sequence[str | Path]


def printed_by(command: Command, cwd: Path, timeout_s: float = WAIT_S) -> str:
    """Run a command without the checkout on its path; what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(project: Path, folder: Path, *options: str) -> None:
    """Build an sdist and, out of it, a wheel, with the backend that is installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", folder, project]
    printed_by(command, folder)


def files_below(folder: Path) -> dict[str, bytes]:
    """Name -> content of the files in a folder, other than compiled ones."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def files_of_wheel(wheel: Path) -> dict[str, bytes]:
    """Name -> content of what a wheel installs, other than its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def files_of_runner(root: Path = ROOT) -> dict[str, bytes]:
    """Name -> content of what the wheel of runner must install."""
    folders = {"runner": "runner", "conf": "runner/conf", "zoo": "runner/zoo"}
    return {f"{to}/{name}": data for place, to in folders.items() for name, data in files_below(root / place).items()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    build(CLIENT, folder)
    return folder


def one(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


# -- what is in them ---------------------------------------------------------------------------------------------------


def test_runner_is_whole(built: Path) -> None:
    files = files_of_wheel(one(built, "runner-*.whl"))
    assert files == files_of_runner()
    assert "runner/conf/experiment/ppo_cartpole.yaml" in files


def test_the_client_is_the_code_of_runner(built: Path) -> None:
    wheel = one(built, "rllink_client-*.whl")
    code = files_below(ROOT / "runner" / "rllink" / "client")
    assert files_of_wheel(wheel) == {f"rllink_client/{name}": data for name, data in code.items()}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    needs = metadata.get_all("Requires-Dist")
    assert needs == ["numpy>=1.26", "onnxruntime>=1.20; extra == 'onnxruntime'"]


def test_the_image_gets_what_runner_needs(tmp_path: Path) -> None:
    """The Dockerfile's copies, out of what .dockerignore lets through, suffice for the wheel."""
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (.+) \./?(\S*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    image = tmp_path / "image"
    for sources, target in copied:
        (image / target).mkdir(parents=True, exist_ok=True)
        for source in sources.split():
            assert source in sent
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, image / target, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, image / target)
    build(image, tmp_path, "--wheel")
    assert files_of_wheel(one(tmp_path, "runner-*.whl")) == files_of_runner()
    assert "constraints.txt" in files_below(image)


# -- the client, installed beside numpy alone --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client_python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the client and this environment's numpy; nothing else is in it."""
    folder = tmp_path_factory.mktemp("client")
    venv.create(folder, with_pip=False)
    packages = one(folder, "lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", packages]
    printed_by([*install, one(built, "rllink_client-*.whl")], folder)
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / part.name).symlink_to(part)
    return folder / "bin" / "python"


def play(runner: Command, client: Command, folder: Path, inference: str) -> int:
    """Train two iterations from a simulator of its own process; how many episodes it played."""
    experiment = "ppo_external_cartpole" + ("_remote" if inference == "server" else "")
    options = [f"+experiment={experiment}", f"hydra.run.dir={folder}", "env.port=0", "tracking=none", *SMALL]
    folder.mkdir()
    run = subprocess.Popen([*runner, *options], cwd=folder, stdout=subprocess.DEVNULL)
    try:
        (address,) = addresses_of(folder)
        port = address.rpartition(":")[2]
        # -I: the folder of the script, where `rllink_client` is too, is no place to import from.
        printed = printed_by([*client, "-I", CARTPOLE, "--port", port, "--inference", inference], folder)
        assert run.wait(WAIT_S) == 0
    finally:
        run.kill()
        run.wait()
    assert len(progress_of(folder)) == 2
    match = re.search(r"the run is over; (\d+) episodes played", printed)
    assert match, printed
    return int(match[1])


@pytest.mark.slow
def test_a_simulator_with_numpy_only_trains_a_run(client_python: Path, tmp_path: Path) -> None:
    assert play([sys.executable, "-m", "runner"], [client_python], tmp_path / "run", "server") > 2


def test_nothing_but_numpy_is_imported(client_python: Path, tmp_path: Path) -> None:
    code = (
        "import pkgutil, sys, rllink_client\n"
        "for module in pkgutil.iter_modules(rllink_client.__path__):\n"
        "    if module.name != 'local_policy': __import__(f'rllink_client.{module.name}')\n"
        "print(*{name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    names = set(printed_by([client_python, "-I", "-c", code], tmp_path).split())
    assert {name for name in names if not name.startswith("_")} == {"rllink_client", "numpy"}


def test_a_policy_without_onnxruntime_names_the_package(client_python: Path, tmp_path: Path) -> None:
    command = [client_python, "-I", "-c", "import rllink_client.local_policy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install onnxruntime" in done.stderr


# -- the lock file -----------------------------------------------------------------------------------------------------


def installed_requirements(distribution: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield all requirements of a distribution with extras, directly or through those that are installed."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(distribution, extras)]
    while waiting:
        name, asked = waiting.pop()
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        try:
            texts = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in asked | {""}):
                yield requirement
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))


def test_all_dependencies_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): Version(version) for name, _, version in (line.partition("==") for line in lines)}
    assert len(pins) == len(lines)
    extras = set(importlib.metadata.metadata("runner").get_all("Provides-Extra") or ())
    extras -= {"wandb"}  # no test installs it, so nothing would tell that its pins are complete
    requirements = list(installed_requirements("runner", frozenset(extras)))
    assert len(requirements) > 100  # so that a walk which stops at once does not pass
    names = {canonicalize_name(one.name) for one in requirements} - {"runner"}
    assert names - set(pins) == set()
    unmet = [str(one) for one in requirements if one.name != "runner" and not admits(one, pins)]
    assert unmet == []


def admits(requirement: Requirement, pins: dict[str, Version]) -> bool:
    return requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True)


# -- installed into empty environments, from the network ---------------------------------------------------------------


def environment_with(folder: Path, *arguments: str | Path) -> Path:
    """Make an environment and install into it; its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["--constraint", ROOT / "constraints.txt"]
    printed_by([*install, *constraints, *arguments], folder, INSTALL_S)
    return programs


def installed_in(programs: Path, folder: Path) -> set[str]:
    listed = printed_by([programs / "python", "-m", "pip", "list", "--format", "freeze"], folder)
    return {line.partition("==")[0] for line in listed.splitlines()} - {"pip", "setuptools"}


@pytest.fixture(scope="module")
def runner_programs(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_with(tmp_path_factory.mktemp("runner"), one(built, "runner-*.whl"))


@pytest.mark.dist
def test_runner_runs_outside_of_the_checkout(runner_programs: Path, tmp_path: Path) -> None:
    runner = runner_programs / "runner"
    where = printed_by([runner_programs / "python", "-c", "import runner; print(runner.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(runner_programs.parent)
    assert "ppo_cartpole" in printed_by([runner, "list"], tmp_path)
    printed_by([runner, "validate", "+experiment=ppo_cartpole"], tmp_path)
    assert "missing  extra atari" in printed_by([runner, "doctor"], tmp_path)
    printed_by([runner, "+experiment=ppo_cartpole", "hydra.run.dir=run", *SMALL], tmp_path)
    assert len(progress_of(tmp_path / "run")) == 2
    printed_by([runner, "report", "run"], tmp_path)
    printed_by([runner, "export", "run", "--format", "onnx", "policy.onnx"], tmp_path)
    assert (tmp_path / "policy.onnx").stat().st_size > 0


@pytest.mark.dist
def test_simulators_train_an_installed_runner(built: Path, runner_programs: Path, tmp_path: Path) -> None:
    """A client with numpy alone asks for actions; one with the extra acts itself."""
    wheel = one(built, "rllink_client-*.whl")
    plain = environment_with(tmp_path / "plain", wheel)
    assert installed_in(plain, tmp_path) == {"numpy", "rllink-client"}
    runner = [runner_programs / "runner"]
    assert play(runner, [plain / "python"], tmp_path / "served", "server") > 2
    acting = environment_with(tmp_path / "acting", f"{wheel}[onnxruntime]")
    assert play(runner, [acting / "python"], tmp_path / "acted", "client") > 2


@pytest.mark.dist
def test_both_fit_into_one_environment(built: Path, runner_programs: Path, tmp_path: Path) -> None:
    install = [runner_programs / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    printed_by([*install, one(built, "rllink_client-*.whl")], tmp_path)
    code = "import rllink_client, runner.rllink.client as ours; print(rllink_client.Client is not ours.Client)"
    assert printed_by([runner_programs / "python", "-c", code], tmp_path) == "True\n"
