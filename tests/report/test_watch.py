"""`report DIR --watch`: a real server that follows real folders, what it refuses to give, how it ends."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.locks import held
from runner.pages.page import Page
from runner.report import watch_server
from runner.report.watch_server import FollowedFolder, FollowedRun, FollowedSweep, WatchServer
from runner.tracking.progress_log import ProgressLog, write_result
from tests.conftest import QUICK, WAIT_S, Run, Start, wait_until
from tests.report.folders import EVIL, progress_line, trial_lines, write_run, write_sweep


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_server, "_PAUSE_PER_WORK", 0.0)


@contextmanager
def watched(folder: Path) -> Iterator[WatchServer]:
    """A server of a run's or a sweep's page."""
    followed = FollowedSweep(folder) if (folder / "sweep.json").exists() else FollowedRun(folder)
    with serving(FollowedFolder(folder, followed.page)) as server:
        yield server


@contextmanager
def serving(followed: FollowedFolder) -> Iterator[WatchServer]:
    """A server in a thread of this process."""
    with WatchServer(followed) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(WAIT_S)


def ask(server: WatchServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, of a path as it stands here."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=WAIT_S)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def update_of(server: WatchServer) -> dict[str, Any]:
    status, _, body = ask(server, "/update")
    assert status == 200
    content: dict[str, Any] = json.loads(body)
    return content


def points_of(update: dict[str, Any], figure: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = update["specs"][figure]["datasets"]["points"]
    return rows


CURVES = "Learning curves/learning_curves/0"


# -- what it shows ----------------------------------------------------------------------------------------------------


def test_it_follows_a_run(tmp_path: Path) -> None:
    """From before its first iteration until its end, and only where something has changed."""
    run_dir = write_run(tmp_path / "r", [])
    (run_dir / "progress.jsonl").unlink()
    with watched(run_dir) as server, closing(ProgressLog(run_dir / "progress.jsonl")) as log:
        with held(run_dir):
            first = update_of(server)
            assert "No iteration has ended" in first["html"]
            assert (first["specs"], first["is_running"]) == ({}, True)
            tags = []
            for number in (1, 2, 3):
                log.append(progress_line(number))
                status, headers, body = ask(server, "/update")
                tags.append(headers["ETag"])
                assert len(points_of(json.loads(body), CURVES)) == number
                status, headers, body = ask(server, "/update", If_None_Match=tags[-1])
                assert (status, headers["ETag"], body) == (304, tags[-1], b"")
            assert len(set(tags)) == 3
            write_result(run_dir / "result.json", {"status": "failed", "stop_reason": f"RuntimeError: {EVIL}\nline 2"})
            ended = update_of(server)
        assert ended["is_running"] is False
        assert '<span class="badge failed">failed</span>' in ended["html"]
        assert "line 2</pre>" in ended["html"]
        assert EVIL not in ended["html"]


@pytest.mark.parametrize(
    ("status", "shown"), [("finished", "finished"), ("interrupted", "interrupted"), (None, "unfinished")]
)
def test_how_it_ended(status: str | None, shown: str, tmp_path: Path) -> None:
    """A run without a result and without a process was killed; one that is resumed is no longer what it was."""
    result = None if status is None else {"status": status, "stop_reason": "enough"}
    run_dir = write_run(tmp_path / "r", [progress_line(1)], result)
    with watched(run_dir) as server:
        update = update_of(server)
        assert f'<span class="badge {shown}">{shown}</span>' in update["html"]
        assert ("enough" in update["html"], update["is_running"]) == (status is not None, False)
        with held(run_dir):
            update = update_of(server)
            assert '<span class="badge running">running</span>' in update["html"]
            assert ("enough" in update["html"], update["is_running"]) == (False, True)


def test_the_script_reads_only_keys_that_the_server_sends(tmp_path: Path) -> None:
    script = Path(watch_server.__file__).with_name("watch.js").read_text()
    read = set(re.findall(r"\bcontent\??\.(\w+)", script))
    with watched(write_run(tmp_path / "r", [progress_line(1)])) as server:
        assert read - {"problem", "tag"} == update_of(server).keys()


def test_it_follows_a_sweep(tmp_path: Path) -> None:
    trials = [
        {"combination": {"lr": "1"}, "num_lines": 3},
        {"combination": {"lr": "2"}, "num_lines": 3, "status": "running"},
    ]
    sweep = write_sweep(tmp_path / "s", {"lr": ["1", "2"]}, trials)
    with watched(sweep) as server, held(sweep):
        update = update_of(server)
        assert update["is_running"] is True
        assert "1 running" in update["html"]
        assert ">3,000</td>" in update["html"]
        with closing(ProgressLog(sweep / "1" / "progress.jsonl")) as log:
            for line in trial_lines(1, 6, 50.0)[3:]:
                log.append(line)
        update = update_of(server)
        assert ">6,000</td>" in update["html"]
        rows = points_of(update, "Learning curves/learning_curves_episode_return_mean/0")
        assert max(row["y"] for row in rows if row["series"] == "lr=2") == 301.0
        with (sweep / "trials.jsonl").open("a") as file:
            file.write(json.dumps({"number": 1, "status": "failed", "reason": "the arm broke"}) + "\n")
        update = update_of(server)
        assert "1 failed" in update["html"]
        assert "the arm broke" in update["html"]


def test_a_folder_that_is_gone_is_told_and_may_come_back(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    with watched(run_dir) as server:
        assert "html" in update_of(server)
        run_dir.rename(tmp_path / "elsewhere")
        assert "no longer exists" in update_of(server)["problem"]
        (tmp_path / "elsewhere").rename(run_dir)
        assert len(points_of(update_of(server), CURVES)) == 1


def test_a_mistake_in_the_report_is_told_and_rendering_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An error that nobody has foreseen: told like one that was, and not met again at each poll."""
    num_pages = 0

    def page_of() -> Page:
        nonlocal num_pages
        num_pages += 1
        raise KeyError("lr")

    monkeypatch.setattr(watch_server, "_PAUSE_PER_WORK", 1e9)
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    with serving(FollowedFolder(run_dir, page_of)) as server:
        for number in (2, 3):
            problem = update_of(server)["problem"]
            assert problem.startswith("The page cannot be created: KeyError: 'lr'. `runner report ")
            with closing(ProgressLog(run_dir / "progress.jsonl")) as log:
                log.append(progress_line(number))
    assert num_pages == 1
    assert capfd.readouterr().err == ""


def test_rendering_leaves_time_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_server, "_PAUSE_PER_WORK", 1e9)
    monkeypatch.setattr(watch_server, "_LONGEST_PAUSE_S", 2.0)
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    followed = FollowedFolder(run_dir, FollowedRun(run_dir).page)
    first, started_s = followed.update(), time.monotonic()
    with closing(ProgressLog(run_dir / "progress.jsonl")) as log:
        log.append(progress_line(2))
    while followed.update() == first:
        assert time.monotonic() < started_s + WAIT_S
        time.sleep(0.05)
    assert time.monotonic() - started_s > 1.5


# -- what it gives to whom --------------------------------------------------------------------------------------------


def test_only_the_page_and_videos_of_the_run(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    (run_dir / "videos").mkdir()
    (run_dir / "videos" / "iteration_000001.mp4").write_bytes(b"pictures")
    (run_dir / "videos" / "iteration_000002.mp4").symlink_to(run_dir / "result.json")
    (run_dir / "videos" / "notes.txt").write_text("private")
    with watched(run_dir) as server:
        status, headers, body = ask(server, "/")
        assert (status, body[:15]) == (200, b"<!doctype html>")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "iteration_000001.mp4" in update_of(server)["html"]
        assert ask(server, "/videos/iteration_000001.mp4")[::2] == (200, b"pictures")
        for path in (
            *("/progress.jsonl", "/result.json", "/.hydra/config.yaml", "/videos", "/videos/", "/videos/notes.txt"),
            *("/videos/iteration_000002.mp4", "/videos/../progress.jsonl", "/videos/..%2Fprogress.jsonl"),
            *("/videos//etc/passwd", "/../../etc/passwd", "/%2e%2e/progress.jsonl"),
        ):
            status, _, body = ask(server, path)
            assert (status, body) == (404, b"not found"), path


@pytest.mark.parametrize("path", ["/", "/update", "/videos/iteration_000001.mp4"])
@pytest.mark.parametrize(("host", "status"), [
    ("127.0.0.1:1", 200), ("localhost:9000", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403),
    ("evil.example:80@127.0.0.1", 403), ("127.0.0.1:80:80", 403), ("localhost:", 403), ("", 403), ("[", 403),
])  # fmt: skip
def test_a_page_of_another_name_reads_nothing(host: str, status: int, path: str, tmp_path: Path) -> None:
    """A name of a stranger that leads to this machine is in `Host`: DNS rebinding."""
    run_dir = write_run(tmp_path / "r", [progress_line(1)])
    (run_dir / "videos").mkdir()
    (run_dir / "videos" / "iteration_000001.mp4").write_bytes(b"pictures")
    with watched(run_dir) as server:
        assert ask(server, path, Host=host)[0] == status


def test_a_url_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with watched(write_run(tmp_path / "r", [])) as server:
        assert ask(server, "http://[", Host="localhost")[::2] == (400, b"Invalid IPv6 URL")
    assert capfd.readouterr().err == ""


def test_a_closed_tab_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its connection is reset while the server waits for the next request."""
    with watched(write_run(tmp_path / "r", [])) as server:
        before = threading.active_count()
        with socket.create_connection(server.server_address, timeout=WAIT_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes by a reset
        wait_until(lambda: threading.active_count() == before)
    assert capfd.readouterr().err == ""


def test_other_errors_of_a_request_are_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(FollowedFolder):
        def find_video(self, name: str) -> Path | None:
            raise RuntimeError(f"no {name} here")

    run_dir = write_run(tmp_path / "r", [])
    with serving(Broken(run_dir, FollowedRun(run_dir).page)) as server, pytest.raises(http.client.RemoteDisconnected):
        ask(server, "/videos/one.mp4")
    assert "RuntimeError: no one.mp4 here" in capfd.readouterr().err


def test_other_addresses_of_the_machine_are_not_served(tmp_path: Path) -> None:
    with watched(write_run(tmp_path / "r", [])) as server:
        assert server.server_address[0] == "127.0.0.1"
        for address in ("127.0.0.2", "::1"):
            with pytest.raises(OSError, match=r"refused|unavailable|assign|supported"):
                socket.create_connection((address, server.server_address[1]), timeout=5).close()


# -- the command ------------------------------------------------------------------------------------------------------


def _read_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    page, follows = process.stdout.readline(), process.stdout.readline()
    assert page.startswith("page     http://127.0.0.1:")
    assert follows == "follows  run, until Ctrl-C\n"
    return page.split()[1]


def _updates_of(url: str) -> Callable[[], dict[str, Any]]:
    def update() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}update", timeout=WAIT_S) as reply:
            content: dict[str, Any] = json.load(reply)
        return content

    return update


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_run_is_followed_until_ctrl_c(start_main: Start, number: signal.Signals, tmp_path: Path) -> None:
    training = start_main("+experiment=ppo_cartpole", *QUICK, "hydra.run.dir=run")
    wait_until(lambda: (tmp_path / "run" / ".hydra" / "config.yaml").exists())
    watching = start_main("report", "run", "--watch")
    update = _updates_of(_read_url(watching))
    wait_until(lambda: len(update()["specs"].get(CURVES, {"datasets": {"points": []}})["datasets"]["points"]) >= 3)
    assert update()["is_running"] is True
    training.send_signal(signal.SIGINT)
    wait_until(lambda: not update()["is_running"])
    assert '<span class="badge interrupted">interrupted</span>' in update()["html"]
    assert "SIGINT after iteration" in update()["html"]
    watching.send_signal(number)
    out, err = watching.communicate(timeout=WAIT_S)
    assert (watching.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "the folder does not exist\n   where         nothing"),
        (["."], "got           a folder of several runs"),
        (["empty"], "the folder contains neither a run nor a sweep"),
        (["run", "--port", "eighty"], "got           eighty"),
        (["run", "--port", "65536"], "got           65536"),
        (["run", "--output", "page.html"], "--output has no effect with --watch"),
    ],
)
def test_mistakes(run_main: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    write_run(tmp_path / "run", [progress_line(1)])
    (tmp_path / "empty").mkdir()
    outcome = run_main("report", *arguments, "--watch")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_a_port_that_is_taken(run_main: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", [progress_line(1)])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        outcome = run_main("report", "run", "--watch", "--port", port)
    assert outcome.code == 2
    assert f"where         --port {port}" in outcome.err
    assert "in use" in outcome.err
    assert "--port needs --watch" in run_main("report", "run", "--port", port).err
