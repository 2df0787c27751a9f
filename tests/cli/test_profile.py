"""`profile` on the command line: what it prints and writes, and how mistakes end."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.conftest import QUICK, MakeRun, Run

CARTPOLE = "+experiment=ppo_cartpole"
RUN_DIR = "hydra.run.dir=profiled"


def test_it_prints_a_table_and_writes_a_page(run_main: Run, tmp_path: Path) -> None:
    ended = run_main("profile", CARTPOLE, *QUICK, RUN_DIR, "--iterations", "3", "--warmup=0", "--output", "stacks.txt")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert re.match(r"ppo_cartpole: 3 iterations in [\d.]+ s, after 0 of warm-up; [\d,]+ samples$", lines[0])
    [in_ms] = [line for line in lines if line.startswith("driver ")]
    in_per_cent = lines[lines.index(in_ms) + 1]
    *parts, whole = map(float, in_ms.replace(",", "").split()[1:])
    assert sum(parts) == pytest.approx(whole, abs=1.0)
    assert sum(float(text.rstrip("%")) for text in in_per_cent.split()[:-1]) == pytest.approx(100, abs=1.0)
    first = 1 + lines.index("hottest functions, own ms per iteration without calls")
    hot = lines[first : lines.index("", first)]
    assert 1 <= len(hot) <= 10  # fewer where few samples were taken
    assert all(re.search(r"\d%  driver  \S.*  \S+:\d+$", line) for line in hot)
    assert f"page     {tmp_path / 'profiled' / 'profile.html'}" in lines
    stacks = (tmp_path / "stacks.txt").read_text().splitlines()
    assert all(re.fullmatch(r"driver(;[^;]+)* \d+", line) for line in stacks)
    assert any("ParameterUpdater" in line for line in stacks)
    assert (tmp_path / "profiled" / ".hydra" / "config.yaml").is_file()
    assert not (tmp_path / "profiled" / "progress.jsonl").exists()


class _Page(HTMLParser):
    """The flame graphs of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ends_of_frames: list[float] = []
        self.num_scripts = 0

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [value for name in ("src", "href") if (value := found.get(name)) is not None]
        self.num_scripts += tag == "script"
        if tag == "svg" and "x" in found:
            self.ends_of_frames.append(sum(float(str(found[name]).rstrip("%")) for name in ("x", "width")))


def test_the_page_needs_no_network_and_draws_within_its_width(run_main: Run, tmp_path: Path) -> None:
    assert run_main("profile", CARTPOLE, *QUICK, RUN_DIR).code == 0
    text = (tmp_path / "profiled" / "profile.html").read_text()
    page = _Page()
    page.feed(text)
    assert page.links == ["data:,"]
    assert page.num_scripts == 2  # the page's own, and its data
    assert len(page.ends_of_frames) > 30
    assert max(page.ends_of_frames) <= 100.01
    assert "<title>Trainer.train (runner/experiment/trainer.py:" in text
    assert len(text) < 500_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--iterations", "0"],
            "--iterations is not valid\n   got           0\n   expected      an integer of 1 or more",
        ),
        (["--iterations=many"], "got           many\n   expected      an integer of 1 or more"),
        (["--warmup", "-1"], "got           -1\n   expected      an integer of 0 or more"),
        (
            ["--iteration", "2"],
            "--iteration is not an option of `runner profile`\n   expected      --iterations, --warmup",
        ),
        (["--output", "."], "the file cannot be written: the path is a folder"),
        (["algorithm.gama=1"], "unknown key algorithm.gama"),
        (["experiment=ppo_cartpol"], "did you mean  ppo_cartpole"),
        (["outputs"], "outputs is not an override\n   expected      KEY=VALUE"),
        (["-m"], "-m is an option of `runner train`"),
        (["experiment=ppo_external_cartpole"], "profile does not support external simulators"),
    ],
)
def test_mistakes(arguments: list[str], told: str, run_main: Run, tmp_path: Path) -> None:
    named = any(argument.startswith("experiment=") for argument in arguments)
    ended = run_main("profile", *([] if named else [CARTPOLE]), *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_written_over(run_main: Run, copy_of_run: MakeRun) -> None:
    run_dir = copy_of_run(CARTPOLE, *QUICK, "stop.training_iteration=1")
    before = (run_dir / ".hydra" / "config.yaml").read_text()
    ended = run_main("profile", CARTPOLE, *QUICK, f"hydra.run.dir={run_dir}")
    assert ended.code == 2
    assert "already contains a run" in ended.err
    assert (run_dir / ".hydra" / "config.yaml").read_text() == before


def test_a_failure_is_told_and_nothing_samples_on(run_main: Run) -> None:
    faulty = (
        "env.env=null",
        "env._target_=tests.support.environments.Faulty",
        "env.env_config={fault: raise_in_step, fault_step: 3}",
    )
    ended = run_main("profile", CARTPOLE, *QUICK, *faulty, "--warmup", "0")
    assert ended.code == 1
    assert "the arm has left its rail" in ended.err
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
