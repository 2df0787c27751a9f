"""What tests of whole runs share: the command line in this process or another one, a Ray cluster, golden texts."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before anything imports torch, also in processes that tests start: small networks are slower on two threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's actors are nice (15) by default: another process of tests would starve them, and tests wait for them.
os.environ.setdefault("RAY_worker_niceness", "0")
# Ray starts a process for each CPU before anything asks for one: most clusters of tests end without using them.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# What tests sign checkpoints with, in all processes: none makes a key in the user's folder.
os.environ["RUNNER_KEY"] = "a key that the tests made up"

import hypothesis
import pytest

from runner.zoo_runs import without_times as without_times

with warnings.catch_warnings():  # about its types; made errors, as in tests, they crash the interpreter
    warnings.simplefilter("ignore")
    import Box2D  # noqa: F401 - of LunarLander

hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

ROOT = Path(__file__).parent.parent
GOLDEN_DIR = Path(__file__).parent / "golden"
if str(ROOT) not in sys.path:  # `tests.support.environments` must be importable, here and in Ray's workers
    sys.path.insert(0, str(ROOT))

# Seconds for what a process must do at some time: only one that hangs takes longer, also on a slow and busy machine.
WAIT_S = 300.0

# A run of ppo_cartpole whose iterations take 30 ms.
QUICK = (
    "algorithm.train_batch_size_per_learner=256",
    "algorithm.minibatch_size=64",
    "algorithm.num_epochs=2",
    "env_runners.num_envs_per_env_runner=4",
    "evaluation.evaluation_interval=null",
    "stop.env_runners.episode_return_mean=1000",
    "tracking=none",
)
# A test with one of these is not `fast`: it starts Ray, another process, a server or a whole run, or it compiles or
# exports networks.
_RUN_FIXTURES = {"run_main", "start_main", "run_cli", "finished_run", "copy_of_run", "ray_cluster"}
_RUN_MARKS = {"ray", "slow", "learning", "dist", "chaos", "documented"}
_RUN_IMPORTS = {"Trainer", "steps_to_the_end", "ray", "run_process", "subprocess", "multiprocessing"}
_RUN_FOLDERS = {"system", "chaos", "cluster", "mutants", "notebooks", "policy", "rllink", "testing"}
_RUN_FILES = {"test_rehearsal.py", "test_separate_envs.py"}


def progress_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of progress.jsonl."""
    return [json.loads(line) for line in (run_dir / "progress.jsonl").read_text().splitlines()]


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of progress.jsonl that two equal runs share."""
    return [without_times(line) for line in progress_of(run_dir)]


def num_lines(run_dir: Path) -> int:
    """The number of complete lines of progress.jsonl, 0 if the file does not exist."""
    path = run_dir / "progress.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def result_of(run_dir: Path) -> dict[str, Any]:
    """result.json."""
    content: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    return content


def wait_until(
    is_true: Callable[[], bool], run: subprocess.Popen[str] | None = None, *, timeout_s: float = WAIT_S
) -> None:
    """Wait for something to come true, while a run goes on if there is one."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "it does not come true"
        assert run is None or run.poll() is None, run.communicate()
        time.sleep(0.02)


def addresses_of(run_dir: Path) -> list[str]:
    """Wait until a run listens for simulators; return its addresses, HOST:PORT."""
    path = run_dir / "rllink.json"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    addresses: list[str] = json.loads(path.read_text())["addresses"]
    return addresses


def marked_but(mark: pytest.MarkDecorator, cases: Iterable[Any], *plain: Any) -> list[Any]:
    """Return the cases of a test (tuples where it has several parameters), all marked but the plain ones."""
    return [
        case if case in plain else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case in cases
    ]


def checkpoints_of(run_dir: Path) -> list[str]:
    """Names of everything in the folder of checkpoints, hidden files too."""
    folder = run_dir / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@dataclass(frozen=True)
class Outcome:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


# Types of the fixtures run_main, finished_run and copy_of_run, start_main, assert_golden.
Run = Callable[..., Outcome]
MakeRun = Callable[..., Path]
Start = Callable[..., subprocess.Popen[str]]
AssertGolden = Callable[[str, str], None]


@pytest.fixture
def run_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `python -m runner ARGUMENTS` in this process; the current folder is an empty one."""
    from runner.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str) -> Outcome:
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            _close_log_files()
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Runs `python -m runner ARGUMENTS` in this process, once for equal arguments; returns the run dir.

    Tests share it and leave it as it is; `copy_of_run` makes copies that may be changed.
    """
    from runner.cli.main import main

    made: dict[tuple[str, ...], Path] = {}

    def make(*arguments: str) -> Path:
        if arguments not in made:
            run_dir = tmp_path_factory.mktemp("finished") / "run"
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                code = main([*arguments, f"hydra.run.dir={run_dir}"])
            _close_log_files()
            assert code == 0, out.getvalue()
            made[arguments] = run_dir
        return made[arguments]

    return make


@pytest.fixture
def copy_of_run(finished_run: MakeRun, tmp_path: Path) -> MakeRun:
    """Copies what `finished_run` returns to the folder `run`."""
    return lambda *arguments: Path(shutil.copytree(finished_run(*arguments), tmp_path / "run"))


def _close_log_files() -> None:
    """Remove the handlers of runner.log and of `--verbose`, which end with the process of a command."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, logging.FileHandler) or type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
            handler.close()


def run_process(
    folder: Path,
    *arguments: str,
    program: Sequence[str] = ("-m", "runner"),
    exit_code: int | None = 0,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m runner ARGUMENTS`, or another Python program, in a separate process.

    Args:
        folder: its working directory.
        arguments: of the program.
        program: arguments of Python that name the program.
        exit_code: expected exit code; None accepts any.
        env: variables that are added to the environment.
    """
    command = [sys.executable, *program, *arguments]
    environment = _environment() | dict(env or {})
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert exit_code is None or done.returncode == exit_code, done.stdout + done.stderr
    return done


def _environment() -> dict[str, str]:
    """Return the environment of processes: they find `runner` and `tests`, and print no control codes."""
    return os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def default_hangup() -> None:
    """Let a child end at SIGHUP, which it would ignore if the suite itself runs under `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def start_main(tmp_path: Path) -> Iterator[Start]:
    """Starts `python -m runner ARGUMENTS` in separate processes, for signals; kills them at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments],
            cwd=tmp_path,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_hangup,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that selects a part of the tests."""
    parser.addoption("--part", metavar="K/N", help="every Nth file, or documented page, from the Kth on")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test as `fast` by its fixtures, its markers, the imports of its module, and where it is."""
    assert isinstance(item, pytest.Function)
    is_run = (
        _RUN_FIXTURES.intersection(item.fixturenames)
        or _RUN_MARKS.intersection(mark.name for mark in item.iter_markers())
        or _RUN_IMPORTS.intersection(vars(item.module))
        or item.path.relative_to(GOLDEN_DIR.parent).parts[0] in _RUN_FOLDERS
        or item.path.name in _RUN_FILES
    )
    if not is_run:
        item.add_marker(pytest.mark.fast)


@pytest.hookimpl(trylast=True)  # once markers have selected theirs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of `--part`."""
    if part := config.getoption("--part"):
        first, step = map(int, part.split("/"))
        chosen = set(sorted(set(map(_unit_of, items)))[first - 1 :: step])
        config.hook.pytest_deselected(items=[item for item in items if _unit_of(item) not in chosen])
        items[:] = [item for item in items if _unit_of(item) in chosen]


def _unit_of(item: pytest.Item) -> str:
    """Return the file of a test or, since one file has the commands of all pages, the test itself."""
    return item.nodeid if item.get_closest_marker("documented") else str(item.path)


def pytest_runtest_setup() -> None:
    """Let torch, once it has exported to ONNX, keep its operators: it would read their sources for each export again,
    a third of an export's time.
    """
    torchs: Any = sys.modules.get("torch.onnx._internal.exporter._registration")
    if torchs is not None and not hasattr(torchs.ONNXRegistry.from_torchlib, "cache_info"):
        torchs.ONNXRegistry.from_torchlib = staticmethod(functools.cache(torchs.ONNXRegistry.from_torchlib))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One small Ray cluster for all tests that need one; trainers find it and leave it running."""
    from runner.cluster import start_local_ray, stop_ray

    start_local_ray(num_cpus=4)
    yield
    stop_ray()


def portable(text: str, tmp_path: Path | None = None) -> str:
    """Return the text without what differs between machines and runs: folders, digests, process ids."""
    if tmp_path is not None:
        text = text.replace(str(tmp_path), "TMP")
    text = re.sub(r"digest [0-9a-f]{12}", "digest ...", text.replace(str(ROOT), "REPOSITORY"))
    return re.sub(r"\.\d+\.tmp", ".PID.tmp", text)


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest, tmp_path: Path) -> AssertGolden:
    """Compares a text with the stored one, folders and digests left out; UPDATE_GOLDEN=1 stores it instead.

    Texts of a folder of tests are in `golden/<folder>`, those of whole runs and of checkpoints in `golden/run`.
    """
    folder = request.path.relative_to(GOLDEN_DIR.parent).parts[0]
    texts = GOLDEN_DIR / (folder if (GOLDEN_DIR / folder).is_dir() else "run")

    def check(name: str, text: str) -> None:
        text = portable(text, tmp_path).rstrip("\n") + "\n"
        path = texts / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"UPDATE_GOLDEN=1 rewrites {path}"

    return check
