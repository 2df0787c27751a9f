"""A small fuzz over the files of a run and a sweep: every command ends with a result or one message, never a trace."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_trust import START
from tests.conftest import MakeRun, Outcome, Run
from tests.report.folders import write_sweep
from tests.support.forging import rewrite_manifest

DEEP = "[" * 100_000
ODD: tuple[Any, ...] = (None, True, -1, 2**70, 1e308, "text", "${oc.env:HOME}", [], ["a"], {}, {"a": {"b": None}})


@pytest.fixture
def run_dir(copy_of_run: MakeRun) -> Path:
    """A run of one iteration."""
    return copy_of_run(*START, "stop.training_iteration=1")


def assert_told(outcome: Outcome, what: str) -> None:
    assert outcome.code in (0, 1, 2), f"{what}: {outcome}"
    assert "Traceback" not in outcome.err, f"{what}: {outcome.err}"
    assert outcome.code == 0 or outcome.err, what


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config", []),
        ("config", "text"),
        ("result", "text"),
        ("result", {"training_iteration": "x"}),
        ("overrides", {}),
        ("experiment", 3),
        ("files", []),
        ("config", {}),
    ],
)
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_manifest_that_makes_no_sense(run_main: Run, run_dir: Path, name: str, value: Any, is_signed: bool) -> None:
    path = next(run_dir.glob("checkpoints/*/manifest.json"))
    rewrite_manifest(path.parent, json.loads(path.read_text()) | {name: value}, is_signed)
    for command in (("evaluate", "run"), ("resume", "run"), ("export", "run", "a.onnx")):
        outcome = run_main(*command)
        assert_told(outcome, f"{command} {name}={value}")
        assert outcome.code == 2 or value == {}
    assert run_main("report", "run").code == 0


def test_deep_json_and_odd_files(run_main: Run, run_dir: Path) -> None:
    checkpoint = next(run_dir.glob("checkpoints/*"))
    for path in (run_dir / "result.json", run_dir / "mlflow_run.json", checkpoint / "manifest.json"):
        path.write_text(DEEP)
        assert_told(run_main("report", "run"), path.name)
        assert_told(run_main("resume", "run"), path.name)
    (checkpoint / "manifest.json").unlink()
    (checkpoint / "manifest.json").mkdir()
    assert_told(run_main("evaluate", "run"), "a folder")


def mutations(content: Any, stream: random.Random, count: int) -> Iterator[Any]:
    """Copies of a JSON value with one value in it replaced by an odd one, or taken away."""
    for _ in range(count):
        copy = json.loads(json.dumps(content))
        node: Any = copy
        while True:
            key = stream.choice(list(node)) if isinstance(node, dict) else stream.randrange(len(node))
            if isinstance(node[key], (dict, list)) and node[key] and stream.random() < 0.8:
                node = node[key]
                continue
            if stream.random() < 0.2:
                del node[key]
            else:
                node[key] = stream.choice(ODD)
            break
        yield copy


@pytest.mark.slow
def test_fuzzed_manifests(run_main: Run, run_dir: Path) -> None:
    path = next(run_dir.glob("checkpoints/*/manifest.json"))
    content = json.loads(path.read_text())
    for number, changed in enumerate(mutations(content, random.Random(1), 60)):
        rewrite_manifest(path.parent, changed, is_signed=number % 2 == 0)
        assert_told(run_main("resume", "run", "hydra.run.dir=elsewhere"), f"manifest {number}")
        shutil.rmtree("elsewhere", ignore_errors=True)


def test_fuzzed_files_of_a_run(run_main: Run, run_dir: Path) -> None:
    stream = random.Random(2)
    lines = json.loads((run_dir / "progress.jsonl").read_text().splitlines()[0])
    result = json.loads((run_dir / "result.json").read_text())
    for number, (line, end) in enumerate(zip(mutations(lines, stream, 12), mutations(result, stream, 12), strict=True)):
        (run_dir / "progress.jsonl").write_text(json.dumps(line) + "\n")
        (run_dir / "result.json").write_text(json.dumps(end))
        (run_dir / ".hydra" / "overrides.yaml").write_text(
            stream.choice(["[1, {a: *b}]", "&a [*a]", "\x00", "{}", DEEP])
        )
        assert_told(run_main("report", "run"), f"report {number}")
        copy = Path(shutil.copytree(run_dir, run_dir.with_name(f"copy{number}")))
        assert_told(run_main("resume", str(copy), "stop.training_iteration=2"), f"resume {number}")


def test_fuzzed_files_of_a_sweep(run_main: Run, tmp_path: Path) -> None:
    stream = random.Random(3)
    trials = [{"combination": {"algorithm.lr": value}, "result": {}} for value in ("1e-3", "1e-4")]
    folder = write_sweep(tmp_path / "s", {"algorithm.lr": ["1e-3", "1e-4"]}, trials)
    described = json.loads((folder / "sweep.json").read_text())
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    for number, changed in enumerate(mutations({"sweep": described, "trials": lines}, stream, 60)):
        if not isinstance(changed.get("trials"), list):
            continue
        (folder / "sweep.json").write_text(json.dumps(changed.get("sweep")))
        (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed["trials"]))
        assert_told(run_main("report", "s"), f"report {number}")
        assert_told(run_main("sweep", "best", "s", "--emit", f"experiment/e{number}.yaml"), f"best {number}")
