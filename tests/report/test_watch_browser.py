"""A page that follows, in a real browser: what changes, what stays where it is, and what it says when all is over."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.locks import held
from runner.report import watch_server
from runner.tracking.progress_log import ProgressLog, write_result
from tests.conftest import WAIT_S
from tests.report.browser import BROWSER, NAMES, BrowserPage, browser_page
from tests.report.folders import progress_line, write_run, write_sweep
from tests.report.test_watch import watched

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: {', '.join(NAMES)}")

CURVES = "Learning curves/learning_curves/0"
_MARK_AND_SCROLL = """
for (const node of document.querySelectorAll("svg.marks, figure, section, table")) node.isFromBefore = true;
document.querySelector("details").open = true;
scrollTo(0, 500);
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrowserPage]:
    monkeypatch.setattr(watch_server, "_PAUSE_PER_WORK", 0.0)
    with browser_page(tmp_path) as page:
        yield page


@contextmanager
def appending(run_dir: Path) -> Iterator[ProgressLog]:
    with closing(ProgressLog(run_dir / "progress.jsonl")) as log:
        yield log


def fact(name: str) -> str:
    """An expression: the value of a fact."""
    found = f"[...document.querySelectorAll('.facts div')].find(div => div.innerText.startsWith({json.dumps(name)}))"
    return f"{found}?.children[1].innerText"


def num_points(page: BrowserPage) -> Any:
    """What the drawn curve has, as Vega knows it."""
    return page.evaluate(f"drawn.get({json.dumps(CURVES)})?.view.data('points').length")


IS_SHOWN = "tag !== ''"  # all of it
LIVE = "document.getElementById('live').textContent"


@pytest.mark.slow
def test_it_follows_a_run_to_its_end_and_the_servers(
    page: BrowserPage, start_main: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    run_dir = write_run(tmp_path / "r", [])
    serving = start_main("report", "r", "--watch")
    assert serving.stdout is not None
    with held(run_dir), appending(run_dir) as log:
        page.open(serving.stdout.readline().split()[1])
        page.wait_for("document.body.innerText.includes('No iteration has ended')")
        for number in (1, 2):
            log.append(progress_line(number))
        page.wait_for(f"{fact('Iterations')} === '2' && {IS_SHOWN}")
        assert num_points(page) == 2
        page.evaluate(_MARK_AND_SCROLL)
        log.append(progress_line(3))
        page.wait_for(f"{fact('Iterations')} === '3' && {IS_SHOWN}")
        assert num_points(page) == 3
        assert page.evaluate("scrollY") == 500
        assert page.evaluate("document.querySelector('details').open") is True
        drawings = "[...document.querySelectorAll('svg.marks')]"
        assert page.evaluate(f"{drawings}.length > 4 && {drawings}.every(node => node.isFromBefore)") is True
        assert page.evaluate(LIVE).startswith("Following.")
        write_result(
            run_dir / "result.json", {"status": "failed", "stop_reason": "RuntimeError: the arm has left its rail"}
        )
        page.wait_for("document.querySelector('.badge').textContent === 'failed'")
        assert "the arm has left its rail" in page.evaluate("document.getElementById('Failure').innerText")
        page.wait_for(f"{LIVE}.startsWith('No process is running.')")
        assert page.complaints == []
    serving.send_signal(signal.SIGINT)
    assert serving.wait(WAIT_S) == 130
    page.wait_for(f"{LIVE}.includes('no longer updates')")
    assert page.evaluate(fact("Iterations")) == "3"


@pytest.mark.slow
def test_a_sweeps_table_keeps_its_order(page: BrowserPage, tmp_path: Path) -> None:
    trials = [{"combination": {"lr": str(number)}, "num_lines": 3, "factor": number} for number in range(1, 5)]
    trials[1]["status"] = "running"
    sweep = write_sweep(tmp_path / "s", {"lr": ["1", "2", "3", "4"]}, trials)
    column = "[...document.querySelector('[id=\"Trials/table/0\"] tbody').rows].map(row => row.cells[{}].innerText)"
    with watched(sweep) as server, held(sweep), appending(sweep / "1") as log:
        page.open(server.url)
        page.wait_for("document.querySelectorAll('svg.marks').length > 2")
        assert page.evaluate(column.format(0)) == ["3", "2", "1", "0"]
        page.evaluate("document.querySelector('[id=\"Trials/table/0\"] th button').click()")
        assert page.evaluate(column.format(0)) == ["0", "1", "2", "3"]
        log.append(progress_line(4, env_runners__episode_return_mean=99.0))
        page.wait_for(f"({column.format(2)})[1] === '99'")
        assert page.evaluate(column.format(0)) == ["0", "1", "2", "3"]
        assert page.evaluate(column.format(1)) == ["finished", "running", "finished", "finished"]
        assert page.complaints == []


def test_the_newest_video_plays(page: BrowserPage, tmp_path: Path) -> None:
    """A film of the run comes while the page is open, then another one: the page has one, the last."""
    film = pytest.importorskip("runner.videos", reason="videos need PyAV").VideoFile
    import numpy as np

    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    with watched(run_dir) as server, held(run_dir):
        page.open(server.url)
        page.wait_for("document.querySelectorAll('svg.marks').length > 0")
        for number, seconds in ((1, 1), (2, 2)):
            with film(run_dir / "videos" / f"iteration_{number:06d}.mp4", 10) as file:
                for shade in range(10 * seconds):
                    file.add(np.full((64, 64, 3), 10 * shade, np.uint8))
            page.wait_for(f"Math.round(document.querySelector('video')?.duration) === {seconds}")
            page.evaluate("document.querySelector('video').play()")
        assert page.evaluate("document.querySelectorAll('video').length") == 1
        assert "iteration 2; 1 earlier" in page.evaluate("document.querySelector('video').parentNode.innerText")
        page.wait_for("!document.querySelector('video').paused && document.querySelector('video').currentTime > 0")
        assert page.complaints == []


# -- what it says of errors -------------------------------------------------------------------------------------------


def test_what_could_not_be_drawn_is_told_and_drawn_later(page: BrowserPage, tmp_path: Path) -> None:
    """Nothing else has to change in the folder."""
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    with watched(run_dir) as server, held(run_dir), appending(run_dir) as log:
        page.open(server.url)
        page.wait_for(f"{fact('Iterations')} === '1' && {IS_SHOWN}")
        for broken in ("merge", "refreshChart"):
            number = num_points(page) + 1
            page.evaluate(f"globalThis.whole = {broken}, {broken} = () => {{ throw new Error('out of ink'); }}, 0")
            log.append(progress_line(number))
            page.wait_for(f"{LIVE} === 'This page cannot show the changes: Error: out of ink'")
            page.evaluate(f"{broken} = whole, 0")
            page.wait_for(f"{LIVE}.startsWith('Following.') && {IS_SHOWN}")
            assert page.evaluate(fact("Iterations")) == str(number)
            assert num_points(page) == number


@pytest.mark.slow
def test_a_folder_that_is_gone_stays_told(page: BrowserPage, tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    with watched(run_dir) as server:
        page.open(server.url)
        page.wait_for(IS_SHOWN)
        page.evaluate("""
            globalThis.said = [];
            new MutationObserver(() => said.push(live.textContent)).observe(live, {childList: true}); 0
        """)
        run_dir.rename(tmp_path / "elsewhere")
        page.wait_for(f"{LIVE}.includes('no longer exists')")
        page.evaluate("new Promise((resolve) => setTimeout(resolve, 2.5 * POLL_MS))")
        assert page.evaluate("said.length") == 1
        (tmp_path / "elsewhere").rename(run_dir)
        page.wait_for(f"{LIVE}.startsWith('No process is running.')")
        assert page.complaints == []


def test_a_video_that_failed_is_asked_for_again(page: BrowserPage, tmp_path: Path) -> None:
    """Only its caption tells it; a browser that does not let it play is no failure."""
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    video = run_dir / "videos" / "iteration_000001.mp4"
    video.mkdir(parents=True)  # no file: refused
    caption, source = "document.querySelector('video + figcaption').textContent", "document.querySelector('video').src"
    with watched(run_dir) as server, held(run_dir):
        page.open(server.url)
        page.wait_for(f"document.querySelector('video') && {caption}.includes('mp4 cannot be shown: ')")
        page.wait_for(f"{LIVE}.startsWith('Following.')")
        page.evaluate("""
            Object.defineProperty(HTMLMediaElement.prototype, "paused", { get: () => false });
            HTMLMediaElement.prototype.play = () => Promise.reject(new DOMException("no click", "NotAllowedError")); 0
        """)
        video.rmdir()
        video.write_bytes(b"pictures")
        page.wait_for(f"{source}.startsWith('blob:')")
        page.wait_for(f"!{caption}.includes('cannot be shown') && {LIVE}.startsWith('Following.')")
