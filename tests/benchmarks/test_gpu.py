"""The benchmark of a GPU: time of parts, results that survive a stop, and rates."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu")


class Clock:
    """Seconds that parts add to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def parts_of(gpu: Any, clock: Clock, spent: dict[str, float], given: dict[str, float]) -> list[Any]:
    """Return three parts that take `spent` seconds, and note the seconds that they may take."""

    def part(name: str, least_s: float, share: float) -> Any:
        def measure(place: Any, budget_s: float, report: Any) -> None:
            given[name] = budget_s
            report({"status": "running"})
            clock.now += spent[name]
            if name == "sac":
                raise RuntimeError("no compiler")
            report({"status": "measured", "updates_per_s": 12.0})

        return gpu.Part(name, name, least_s, share, measure)

    return [part("atari", 60, 6), part("sac", 50, 1), part("tests", 100, 3)]


def run(
    gpu: Any, tmp_path: Path, total_s: float, spent: dict[str, float]
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    clock, given = Clock(), dict[str, float]()
    place = gpu.Place("cpu", True, tmp_path)
    session = gpu.Session(place, tmp_path / "gpu.json", tmp_path / "gpu.md", total_s, clock)
    session.run(parts_of(gpu, clock, spent, given))
    found: dict[str, dict[str, Any]] = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    return given, found


def test_parts_share_the_time_and_get_unspent_time(gpu: Any, tmp_path: Path) -> None:
    given, found = run(gpu, tmp_path, 1000, {"atari": 200, "sac": 100, "tests": 50})
    assert given == {"atari": 600, "sac": 200, "tests": 700}
    assert {name: one["status"] for name, one in found.items()} == {
        "atari": "measured",
        "sac": "failed",
        "tests": "measured",
    }
    assert found["sac"]["log"] == "RuntimeError: no compiler"
    assert [one["seconds"] for one in found.values()] == [200, 100, 50]


def test_parts_that_no_longer_fit_are_skipped(gpu: Any, tmp_path: Path) -> None:
    given, found = run(gpu, tmp_path, 180, {"atari": 120, "sac": 20, "tests": 0})
    assert given == {"atari": 108, "sac": 50}  # sac gets its least, the tests need 100 of the last 40
    assert list(found) == ["atari", "sac"]


def test_no_part_gets_more_than_the_time_left(gpu: Any) -> None:
    assert gpu.budget_of(gpu.PARTS, 60.0) == 60.0
    assert gpu.budget_of(gpu.PARTS, 59.0) is None
    assert gpu.budget_of(gpu.PARTS[-1:], 300.0) == 300.0


def test_a_stop_keeps_what_a_part_has_reported(gpu: Any, tmp_path: Path) -> None:
    def measure(place: Any, budget_s: float, report: Any) -> None:
        report({"status": "running", "env_steps_per_s": 9.0})
        raise KeyboardInterrupt

    (tmp_path / "gpu.json").write_text(
        json.dumps({"parts": {"sac": {"status": "measured", "machine": "a GPU", "date": "2026-11-28"}}})
    )
    session = gpu.Session(gpu.Place("cpu", True, tmp_path), tmp_path / "gpu.json", tmp_path / "gpu.md", 100)
    with pytest.raises(KeyboardInterrupt):
        session.run([gpu.Part("atari", "Atari", 1, 1, measure)])
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert (found["atari"]["env_steps_per_s"], found["sac"]["status"]) == (9.0, "measured")


def line(steps: int, seconds: float, value: float | None = None) -> dict[str, Any]:
    return {"num_env_steps_sampled_lifetime": steps, "time_total_s": seconds, "env_runners/episode_return_mean": value}


def test_rates_leave_out_the_first_half(gpu: Any) -> None:
    lines = [line(5, 30.0), line(20, 40.0), line(120, 70.0), line(220, 80.0)]
    assert gpu.rate_of(lines, "num_env_steps_sampled_lifetime") == 5.0  # 40 s to 80 s
    assert gpu.rate_of(lines[:1], "num_env_steps_sampled_lifetime") is None
    assert gpu.rate_of(lines, "num_gradient_steps_lifetime") is None


def test_a_curve_has_few_points_and_the_last_one(gpu: Any) -> None:
    curve = gpu.curve_of([line(0, 0.0), *(line(n, n / 2, float(n)) for n in range(1, 101))])
    assert len(curve) == gpu.NUM_POINTS
    assert curve[-1] == [100, 50.0, 100.0]
    assert gpu.curve_of([]) == []


def test_incomplete_lines_are_left_out(gpu: Any, tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text('{"a": 1}\n{"a": 2')
    assert gpu.lines_of(tmp_path) == [{"a": 1}]
    assert gpu.lines_of(tmp_path / "missing") == []


def test_a_process_that_does_not_end_is_interrupted_and_killed(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "POLL_S", 0.01)
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True)\n"
    code, output = gpu.run_until([sys.executable, "-c", f"{stubborn}time.sleep(600)"], tmp_path / "log", 5.0, list)
    assert (code, output) == (None, "up\n")
    code, output = gpu.run_until([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", 60.0, list)
    assert (code, output) == (3, "")


def test_outcomes_of_tests(gpu: Any) -> None:
    output = """tests/system/test_gpu.py::test_a[x] PASSED [ 50%]
tests/system/test_gpu.py::test_b FAILED [ 60%]
tests/system/test_gpu.py::test_c SKIPPED (there is no GPU here) [ 70%]
tests/system/test_gpu.py::test_d
FAILED tests/system/test_gpu.py::test_b - assert 1 == 2
"""
    found = {"passed": 1, "failed": 1, "error": 0, "skipped": 1, "failures": ["tests/system/test_gpu.py::test_b"]}
    assert gpu.outcomes_of(output) == found


def test_the_page_shows_the_parts_that_have_results(gpu: Any) -> None:
    facts = {"machine": "a GPU", "date": "2026-11-28", "status": "measured"}
    parts = {
        "atari": {"env_steps_per_s": 15000.4, "env_steps": 4000000, "best_return": 380.25, "curve": [[10, 1.0, 2.0]]},
        "sac": {"status": "failed"},
        "tests": {"passed": 24, "failed": 0, "error": 0, "skipped": 1},
        "td3": {"updates_per_s": None},
    }
    page = gpu.page_of({"parts": {name: {**facts, **found} for name, found in parts.items()}})
    assert "| PPO on Atari Breakout: env steps/s | 15,000; best return 380.2 at 4,000,000 env steps | 13,600 " in page
    assert "| SAC on HalfCheetah, compiled: updates/s | failed |" in page
    assert "| GPU tests | 24 passed, 1 skipped |" in page
    assert "| TD3 on HalfCheetah, compiled: updates/s | - |" in page
    assert "DQN" not in page
    assert "\n| 10 | 1 | 2.0 |\n" in page
